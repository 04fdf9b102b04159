"""The gateway's side of routing: which filters the router knows for it, and from when on.

    subscribe ──► route records, one barrier in every partition ──► both in the log: starts known
                                        │
                        router has applied the routes ──► barrier back ──► SUBACK

A round is all that goes to the log together: the records of the filters that wait, and one barrier
for each partition of `mqlake.inbound`. It is handed to the log at the end of the turn of the loop
in which somebody subscribed, or before the next message of this gateway if that is earlier: so
every message that the gateway reads later is behind the barriers, and counts. Rounds do not wait
for each other. A barrier names its route by a number, for the route's offset is not known yet.

Where a barrier stands is where the subscription starts to count. The barrier's own way back tells
that before any later message of its partition comes; the log's report tells it too. That all
barriers of a round have come back means that the router has the routes.

Whoever must miss nothing from its barriers on, come what may, `announce`s: its barriers follow when
the log has the routes, and name their offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ingest.session.subscriptions import NOT_YET
from mqlake.errors import InvalidRecord, LogError
from mqlake.log.contract import LogFull
from mqlake.record_versions import VERSION_HEADER
from mqlake.records import (
    INBOUND,
    RETAINED_FILTER_PREFIX,
    ROUTES,
    Barrier,
    Headers,
    Route,
    barrier_key,
    decode_barrier_key,
    route_headers,
    route_key,
)
from mqlake.sharing import ShareStrategy, ShareWeight, encode_weight
from mqlake.topics import SHARE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mqlake.clock import Clock
    from mqlake.log.contract import AppendCallback, LogWriter

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
NO_ROUTES: Final = -1
"""`routes_offset` of a barrier that waits for no route."""

FULL_SECONDS: Final = 0.01
"""How often a full log is asked whether it has room again."""

IDLE_SECONDS: Final = 1.0
"""How often unused routes and unanswered rounds are looked for."""

PASSED_SECONDS: Final = 1.0
"""The router gives up barriers whose route the log got late; it is then asked by the offset."""

_HEADERS: Final[Headers] = [VERSION_HEADER]


class RouteRequest:
    """Routes that somebody has asked for, on their way through the rounds.

    Attributes:
        routes: The filters.
        starts: Per partition the offset from which on messages count, filled in when it is known:
            at the latest before a message behind it is delivered; until then it is `NOT_YET`.
        counted: Done when the log has the routes and barriers, with the starts. It fails with
            `LogError` when the log did not take all of what was subscribed; the members count
            until they are unsubscribed.
        routed: Done when, after that, the router has the routes.
    """

    __slots__ = ("counted", "routed", "routes", "starts")

    def __init__(
        self, routes: Sequence[Route], starts: list[int], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.routes = routes
        self.starts = starts
        self.counted: asyncio.Future[list[int]] = loop.create_future()
        self.routed: asyncio.Future[None] = loop.create_future()

    def count(self, starts: list[int]) -> None:
        """Note that the log has routes and barriers."""
        self.starts = starts
        if not self.counted.done():  # nobody waits for what was cancelled
            self.counted.set_result(starts)

    def finish(self) -> None:
        """Note that the router has the routes."""
        if not self.routed.done():
            self.routed.set_result(None)

    def fail(self, error: LogError) -> None:
        if not self.counted.done():
            self.counted.set_exception(error)


class _Record(NamedTuple):
    """What is to be appended."""

    log_topic: str
    key: bytes
    value: bytes | None
    headers: Headers
    partition: int
    report: AppendCallback


@dataclass(slots=True, eq=False)
class _Round:
    number: int
    starts: list[int]
    subscribing: list[RouteRequest] = field(default_factory=list)
    """They count from its barriers."""
    announcing: list[RouteRequest] = field(default_factory=list)
    """Their routes are in it; they count from the next one's barriers."""
    announced: list[RouteRequest] = field(default_factory=list)
    """Their routes were in an earlier one; they count from its barriers."""
    followers: list[RouteRequest] = field(default_factory=list)
    """They count already, but one of their routes had to be announced anew."""
    routes: list[Route] = field(default_factory=list)
    """Whose entries wait for this round."""
    written: list[Route] = field(default_factory=list)
    """Whose records it has, withdrawals and new member counts too."""
    barrier: Barrier | None = None
    last_number: int = 0
    """Of this gateway's last route record when it was made."""
    unreported: int = 0
    error: LogError | None = None
    sent_at: float = 0.0
    is_counted: bool = False
    is_back: bool = False

    @property
    def needs_barriers(self) -> bool:
        return bool(self.subscribing or self.announced or self.routes)


@dataclass(slots=True)
class _Entry:
    """One filter of this gateway.

    Invariant: `round` is the round that announces it, None once that round is over.
    """

    members: int = 0
    round: _Round | None = None
    unused_since: float = 0.0
    since_ms: int = 0
    """When it was announced first."""
    is_withdrawn: bool = False
    """Somebody else has withdrawn it, and its part is to begin anew: no count brings it back."""


class Routes:
    """The routes of one gateway in `mqlake.routes`, and the barrier rounds.

    Args:
        gateway: Its name.
        incarnation: Tells this run of the gateway from earlier ones.
        log: Where routes and barriers go; the writer of this gateway's messages.
        partitions: Of `mqlake.inbound`.
        linger_seconds: A filter without subscribers stays routed so long.
        barrier_timeout_seconds: After this long an unanswered round is asked for again.
        clock: For both.
        may_count: Tells whether nobody else can have withdrawn routes of share groups meanwhile.
        share_strategy: How share groups want their messages spread.

    Attributes:
        is_due: Something waits that must be in the log before any later message: `flush` first.
    """

    def __init__(
        self,
        gateway: str,
        incarnation: str,
        log: LogWriter,
        partitions: int,
        *,
        linger_seconds: float,
        barrier_timeout_seconds: float,
        clock: Clock,
        may_count: Callable[[], bool],
        share_strategy: ShareStrategy = ShareStrategy.ROUND_ROBIN,
    ) -> None:
        self.is_due = False
        self._loop = asyncio.get_running_loop()
        self._gateway = gateway
        self._share_strategy = share_strategy
        self._incarnation = incarnation
        self._log = log
        self._partitions = partitions
        self._linger_seconds = linger_seconds
        self._barrier_timeout_seconds = barrier_timeout_seconds
        self._clock = clock
        self._may_count = may_count
        self._entries: dict[Route, _Entry] = {}
        self._changed: dict[Route, None] = {}  # filters whose record in the log is not current
        self._uncounted: dict[Route, None] = {}  # likewise; they wait until they may be counted
        self._unused: dict[Route, None] = {}  # in the order in which they became unused
        self._next_round = self._new_round(0)
        self._unwritten: deque[_Record] = deque()  # of the last round that was begun
        self._flushing: asyncio.Handle | None = None
        self._open_rounds: dict[int, _Round] = {}  # begun and not over; ascending
        self._returned = [-1] * partitions  # per partition the last round that came back
        self._repeated = 0  # how often the oldest open round was asked for again
        self._asked_up_to = -1  # of rounds that named a number, the last one asked for by offset
        self._is_asking = False  # the next round has barriers, whoever waits
        # Numbers of route records: of the last one, the last one that the log has answered for, and
        # the last one that the router is known to have.
        self._last_number = 0
        self._reported_number = 0
        self._proven_number = 0
        self._routes_offset = NO_ROUTES  # of the last one that the log has

    @property
    def is_answered(self) -> bool:
        """Whether the router has answered this gateway at all."""
        return min(self._returned) >= 0

    @property
    def oldest_wait_seconds(self) -> float:
        """How long the oldest round has been waiting for the router; 0 without any."""
        for round_ in self._open_rounds.values():
            return self._clock.monotonic() - round_.sent_at
        return 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def knows(self, route: Route) -> bool:
        """Tell whether a route is announced, or about to be."""
        return route in self._entries

    def note_withdrawn(self, route: Route) -> None:
        """Note that somebody else has withdrawn a route: members are counted when it is renewed."""
        entry = self._entries.get(route)
        if entry is not None:
            entry.is_withdrawn = True

    def renew(self, route: Route) -> None:
        """Announce a route again if somebody else has withdrawn it."""
        entry = self._entries.get(route)
        if entry is not None and entry.is_withdrawn:
            entry.is_withdrawn = False
            entry.round = self._next_round
            self._next_round.routes.append(route)
            self._changed[route] = None
            self._want()

    def are_routed(self, routes: Iterable[Route]) -> bool:
        """Tell whether the router has all of them."""
        entries = [self._entries.get(route) for route in routes]
        return all(entry is not None and entry.round is None for entry in entries)

    def subscribe(self, routes: Sequence[Route]) -> RouteRequest:
        """Count one more member for each filter, from barriers that go before any later message.

        Also where an earlier round announces a filter: its barriers were sent before. Whoever takes
        the subscription up before control returns to the loop delivers all that counts.
        """
        self._add_members(routes)
        round_ = self._next_round
        request = RouteRequest(routes, round_.starts, self._loop)
        round_.subscribing.append(request)
        self._want()
        return request

    def announce(self, routes: Sequence[Route]) -> RouteRequest:
        """Count one more member for each filter, for somebody who may not miss a message.

        Its barriers follow when the log has the routes, withdrawals before this call included. What
        the log does not take is tried again until it does.
        """
        self._add_members(routes)
        request = RouteRequest(routes, [], self._loop)
        self._next_round.announcing.append(request)
        self._want()
        return request

    def _add_members(self, routes: Iterable[Route]) -> None:
        for route in routes:
            entry = self._entries.get(route)
            if entry is None:
                entry = self._entries[route] = _Entry(
                    round=self._next_round, since_ms=self._clock.now_ms()
                )
                self._next_round.routes.append(route)
                self._changed[route] = None
            elif _is_shared(route):
                self._changed[route] = None  # the router weighs gateways by their members
            entry.members += 1
            self._unused.pop(route, None)

    def unsubscribe(self, route: Route) -> None:
        """Count one member less; the route goes when it has been unused for a while.

        A share group's goes at once: its messages would be given to us and to nobody else. So does
        that of a shard of retained messages: it is nobody's who may be back soon.
        """
        entry = self._entries[route]
        entry.members -= 1
        if _is_shared(route) or route.topic_filter.startswith(RETAINED_FILTER_PREFIX):
            self._changed[route] = None
            if entry.members == 0:
                del self._entries[route]
                self._want()
        elif entry.members == 0:
            entry.unused_since = self._clock.monotonic()
            self._unused[route] = None

    def receive_barrier(self, key: bytes, partition: int, offset: int) -> None:
        """Take a barrier that the router has answered; one of an earlier run is nothing to us.

        Args:
            key: Of the barrier.
            partition: Where in `mqlake.inbound` it is.
            offset: Likewise.
        """
        try:
            barrier = decode_barrier_key(key)
        except InvalidRecord as exc:
            logger.warning("barrier ignored", extra={"fields": {"reason": str(exc)}})
            return
        if barrier.incarnation != self._incarnation or barrier.gateway != self._gateway:
            return
        if barrier.round <= self._returned[partition]:
            return
        # A later round's barrier proves the earlier ones too: it names a route that is not earlier.
        self._returned[partition] = barrier.round
        reached = min(self._returned)
        for round_ in list(self._open_rounds.values()):
            if round_.number > barrier.round:
                break
            if round_.starts[partition] == NOT_YET:  # the router was faster than the log's answer
                round_.starts[partition] = offset
            if round_.number <= reached:
                round_.is_back = True
                if round_.is_counted:
                    self._finish(round_)

    async def open(self, stale: Iterable[Route]) -> list[int]:
        """Withdraw what an earlier run left in the log and send the first round.

        Returns:
            The offsets of the first barriers, by partition: no delivery below them is for this run.

        Raises:
            LogError: The log does not take them.
        """
        await self._append_all([(route, None) for route in stale])
        return await self.subscribe([]).counted

    async def run(self) -> None:
        """Look after unused routes and unanswered rounds, until cancelled."""
        while True:
            await asyncio.sleep(IDLE_SECONDS)
            self._collect_unused()
            if self._is_overdue() or self._is_passed_over():
                self._is_asking = True
            if self._uncounted and self._may_count():
                self._changed.update(self._uncounted)
                self._uncounted.clear()
            if self._changed or self._is_asking:
                self._want()

    async def close(self) -> None:
        """Withdraw all routes: this gateway takes no more deliveries.

        Raises:
            LogError: The log does not take the records; the next run withdraws them.
        """
        known = {**dict.fromkeys(self._entries), **self._changed}
        await self._append_all([(route, None) for route in known])

    def _is_overdue(self) -> bool:
        """Tell whether the oldest round is to be asked for again."""
        waited = self.oldest_wait_seconds
        if waited <= self._barrier_timeout_seconds * (1 + self._repeated):
            return False
        self._repeated += 1
        logger.warning(
            "the router has not answered a barrier, asking again",
            extra={"fields": {"waited_seconds": round(waited, 1)}},
        )
        return True

    def _is_passed_over(self) -> bool:
        """Tell whether the router may have given up barriers whose routes the log has by now."""
        now = self._clock.monotonic()
        waiting = [
            round_.number
            for round_ in self._open_rounds.values()
            if round_.number > self._asked_up_to
            and round_.is_counted
            and round_.barrier is not None
            and round_.barrier.route_number
            and now - round_.sent_at > PASSED_SECONDS
        ]
        self._asked_up_to = max(waiting, default=self._asked_up_to)
        return bool(waiting)

    # To the log

    def _want(self) -> None:
        """Have a round begin at the end of this turn of the loop."""
        self.is_due = True
        if self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush_due)

    def _flush_due(self) -> None:
        self._flushing = None
        if not self.is_due:
            return  # a message was faster
        try:
            self.flush()
        except LogFull:  # publishers fill it; it is no failure
            self._flushing = self._loop.call_later(FULL_SECONDS, self._flush_due)

    def flush(self) -> None:
        """Hand to the log what waits; called before any message when `is_due`.

        Raises:
            LogFull: It has no room for all of it; messages have to wait.
        """
        while True:
            while self._unwritten:
                record = self._unwritten[0]
                self._append(*record)
                self._unwritten.popleft()
            next_round = self._next_round
            is_wanted = next_round.needs_barriers or next_round.announcing
            if not (is_wanted or self._changed or self._is_asking):
                break
            self._begin_round()
        self.is_due = False

    def _append(
        self,
        log_topic: str,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        partition: int,
        report: AppendCallback,
    ) -> None:
        try:
            self._log.append(log_topic, key, value, headers, report, partition=partition)
        except LogFull:
            raise
        except LogError as error:  # reported like any other, not in the middle of something else
            self._loop.call_soon(report, partition, -1, error)

    def _begin_round(self) -> None:
        """Make the records of the next round."""
        self._collect_unused()
        round_ = self._next_round
        self._next_round = self._new_round(round_.number + 1)
        round_.written = self._take_changed(round_)
        for route in round_.written:
            self._unwritten.append(
                self._route_record(route, self._count(route), partial(self._note, round_))
            )
        round_.last_number = self._last_number
        if round_.needs_barriers or self._is_asking:
            self._is_asking = False
            round_.barrier = self._new_barrier(round_.number)
            key = barrier_key(round_.barrier)
            report = partial(self._barrier_reported, round_)
            for partition in range(self._partitions):
                self._unwritten.append(_Record(INBOUND, key, b"", _HEADERS, partition, report))
        round_.unreported = len(self._unwritten)
        round_.sent_at = self._clock.monotonic()
        self._open_rounds[round_.number] = round_
        if not round_.unreported:  # it follows the earlier ones, and that is all
            self._loop.call_soon(self._advance)

    def _take_changed(self, round_: _Round) -> list[Route]:
        """Return whose records a round writes.

        A count of members would bring back a route that somebody else has withdrawn, before its
        gateway has a part in the group again: the router would give it messages that are nobody's.
        `renew` writes it then as it is; while nobody knows whether that has happened, it waits.
        """
        changed, self._changed = self._changed, {}
        for route in list(changed):
            entry = self._entries.get(route)
            if entry is None or entry.round is round_ or not _is_shared(route):
                continue
            if entry.is_withdrawn:
                del changed[route]
            elif not self._may_count():
                self._uncounted[route] = None
                del changed[route]
        return list(changed)

    def _new_round(self, number: int) -> _Round:
        return _Round(number, [NOT_YET] * self._partitions)

    def _new_barrier(self, number: int) -> Barrier:
        """Return a barrier that stands for all routes so far."""
        is_proven = self._last_number <= self._proven_number
        is_reported = self._last_number <= self._reported_number
        return Barrier(
            self._gateway,
            self._incarnation,
            number,
            NO_ROUTES if is_proven else self._routes_offset,
            0 if is_reported else self._last_number,
        )

    def _route_record(
        self, route: Route, value: bytes | None, on_reported: AppendCallback
    ) -> _Record:
        self._last_number += 1
        number = self._last_number

        def report(partition: int, offset: int, error: LogError | None) -> None:
            self._reported_number = max(self._reported_number, number)
            if error is None:
                self._routes_offset = max(self._routes_offset, offset)
            on_reported(partition, offset, error)

        headers = route_headers(self._incarnation, number)
        return _Record(ROUTES, route_key(route), value, headers, 0, report)

    def _count(self, route: Route) -> bytes | None:
        """Return the value of a route's record; only share groups are weighed by members."""
        entry = self._entries.get(route)
        if entry is None:
            return None
        if not _is_shared(route):
            return b"1"
        return encode_weight(
            ShareWeight(max(1, entry.members), self._share_strategy, entry.since_ms)
        )

    async def _append_all(self, routes: Sequence[tuple[Route, bytes | None]]) -> None:
        """Append route records and wait until the log has all of them."""
        if not routes:
            return
        done: asyncio.Future[None] = self._loop.create_future()
        unreported = len(routes)

        def report(_partition: int, _offset: int, error: LogError | None) -> None:
            nonlocal unreported
            unreported -= 1
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            elif not unreported:
                done.set_result(None)

        for route, value in routes:
            record = self._route_record(route, value, report)
            while True:
                try:
                    self._append(*record)
                except LogFull:
                    await asyncio.sleep(FULL_SECONDS)
                else:
                    break
        await done

    # What becomes of a round

    def _barrier_reported(
        self, round_: _Round, partition: int, offset: int, error: LogError | None
    ) -> None:
        if error is None:
            round_.starts[partition] = offset
        self._note(round_, partition, offset, error)

    def _note(self, round_: _Round, _partition: int, _offset: int, error: LogError | None) -> None:
        """Take the log's answer for one record of a round."""
        round_.error = round_.error or error
        round_.unreported -= 1
        if not round_.unreported:
            self._advance()

    def _advance(self) -> None:
        """Go on with rounds for which the log has answered, in their order.

        For a later round relies on the routes of the earlier ones.
        """
        for round_ in list(self._open_rounds.values()):
            if round_.unreported:
                return
            if round_.error is not None:
                self._fail(round_, round_.error)
            elif not round_.is_counted:
                self._log_has(round_)

    def _log_has(self, round_: _Round) -> None:
        round_.is_counted = True
        for request in round_.announcing:
            if self._later_round(request.routes, round_) is None:
                self._next_round.announced.append(request)
            else:
                self._next_round.announcing.append(request)
        if round_.announcing:
            self._want()
        for request in (*round_.subscribing, *round_.announced):
            request.count(round_.starts)
        if round_.barrier is None:
            del self._open_rounds[round_.number]  # withdrawals and counts: nobody waits for them
        elif round_.is_back:
            self._finish(round_)

    def _later_round(self, routes: Iterable[Route], round_: _Round) -> _Round | None:
        """Return the last round after the given one that announces one of the routes."""
        later = None
        for route in routes:
            entry = self._entries.get(route)
            announcing = None if entry is None else entry.round
            if announcing is not None and announcing.number > (later or round_).number:
                later = announcing
        return later

    def _finish(self, round_: _Round) -> None:
        del self._open_rounds[round_.number]
        self._repeated = 0
        self._proven_number = max(self._proven_number, round_.last_number)
        for route in round_.routes:
            entry = self._entries.get(route)
            if entry is not None and entry.round is round_:
                entry.round = None
        for request in (*round_.subscribing, *round_.announced, *round_.followers):
            later = self._later_round(request.routes, round_)
            if later is None:
                request.finish()
            else:
                later.followers.append(request)

    def _fail(self, round_: _Round, error: LogError) -> None:
        logger.warning("routes could not be written", extra={"fields": {"reason": str(error)}})
        del self._open_rounds[round_.number]
        # The log may hold the records all the same, so the next round announces them again.
        later = self._next_round
        for route in round_.routes:
            entry = self._entries.get(route)
            if entry is not None and entry.round is round_:
                entry.round = later
                later.routes.append(route)
        self._changed.update(dict.fromkeys(round_.written))
        later.announcing += [*round_.announcing, *round_.announced]
        later.followers += round_.followers
        for request in round_.subscribing:
            request.fail(error)
        self._loop.call_later(RETRY_SECONDS, self._want)

    def _collect_unused(self) -> None:
        now = self._clock.monotonic()
        if not self._has_lingered(now):
            return
        for route in list(self._unused):
            entry = self._entries[route]
            if now - entry.unused_since < self._linger_seconds:
                break
            if entry.round is not None:
                continue  # a round still announces it
            del self._entries[route], self._unused[route]
            self._changed[route] = None

    def _has_lingered(self, now: float) -> bool:
        """Tell whether the filter that is unused for longest is to go: rounds ask that often."""
        for route in self._unused:
            return now - self._entries[route].unused_since >= self._linger_seconds
        return False


def _is_shared(route: Route) -> bool:
    return route.topic_filter.startswith(SHARE_PREFIX)
