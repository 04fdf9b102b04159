"""The gateway's side of routing: which filters the router knows for it, and from when on.

    subscribe ──► route records, one barrier in every partition ──► both in the log: starts known
                                        │
                        router has applied the routes ──► barrier back ──► SUBACK

A round is all that goes to the log together: the records of the filters that wait, and one barrier
for each partition of `mqlake.inbound`. It is handed to the log at the end of the turn of the loop
in which a client subscribed, or, while the log has not answered for an earlier one, when it has: so
many that subscribe share a round. But no message of this gateway waits for that, and none comes
before: a due round goes first. So every message that the gateway reads later is behind the
barriers, and counts. A barrier names its route by a number, for the route's offset is not known.

Where a barrier stands is where the subscription starts to count. The barrier's own way back tells
that before any later message of its partition comes; the log's report tells it too. That all
barriers of a round have come back means that the router has the routes.

A session that must miss nothing from its barriers on `announce`s: its barriers follow when
the log has the routes, and name their offset.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ingest.gateway.routing.route_log import FULL_SECONDS, RouteLog
from ingest.gateway.routing.route_members import RouteMembers
from ingest.gateway.routing.route_rounds import Round, RouteRequest
from ingest.session.subscriptions import NOT_YET
from mqlake.errors import InvalidRecord, LogError
from mqlake.log.contract import LogFull
from mqlake.records.messages import Route, decode_barrier_key
from mqlake.records.offsets import at
from mqlake.topics.sharing import ShareStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mqlake.clock import Clock
    from mqlake.log.contract import LogWriter
    from mqlake.records.shards import Run

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
IDLE_SECONDS: Final = 1.0
"""How often unused routes and unanswered rounds are looked for."""

PASSED_SECONDS: Final = 1.0
"""The router gives up barriers whose route the log got late; it is then asked by the offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings:
    """Settings that all routes of a gateway share.

    Attributes:
        linger_seconds: A filter without subscribers stays routed so long.
        barrier_timeout_seconds: After this long an unanswered round is asked for again.
        share_strategy: How share groups want their messages spread.
        asks_sites: Routes ask the federator whether other sites know of them.
    """

    linger_seconds: float
    barrier_timeout_seconds: float
    share_strategy: ShareStrategy = ShareStrategy.ROUND_ROBIN
    asks_sites: bool = False


class Routes:
    """The routes of one gateway in `mqlake.routes`, and the barrier rounds.

    Args:
        me: This run of the gateway.
        log: Writer of this gateway's messages, which appends routes and barriers, too.
        partitions: Number of partitions of `mqlake.inbound`.
        began_at: Returns the offset in `mqlake.gateways` at which this run began.
        settings: Settings that all routes share.
        clock: Clock for the times of routes and barriers.
        may_count: Tells whether no other gateway can have withdrawn routes of share groups
            meanwhile.

    Attributes:
        is_due: Something waits that must be in the log before any later message: `flush` first.
        of_earlier_run: Routes of share groups that this run has found in the log.
    """

    def __init__(
        self,
        me: Run,
        log: LogWriter,
        partitions: int,
        began_at: Callable[[], int],
        *,
        settings: RouteSettings,
        clock: Clock,
        may_count: Callable[[], bool],
    ) -> None:
        self.is_due = False
        self._loop = asyncio.get_running_loop()
        self._gateway = me.gateway
        self._incarnation = me.incarnation
        self._partitions = partitions
        self._barrier_timeout_seconds = settings.barrier_timeout_seconds
        self._clock = clock
        self._log = RouteLog(
            me.gateway,
            me.incarnation,
            log,
            partitions,
            began_at,
            asks_sites=settings.asks_sites,
        )
        self._members = RouteMembers(
            settings.linger_seconds, clock, may_count, settings.share_strategy
        )
        self._next_round = self._new_round(0)
        self._flushing: asyncio.Handle | None = None
        self._open_rounds: dict[int, Round] = {}  # begun and not over; ascending
        self._unanswered = 0  # of them, those for which the log has not answered
        self._returned = [-1] * partitions  # per partition the last round that came back
        self._repeated = 0  # how often the oldest open round was asked for again
        self._asked_up_to = -1  # of rounds that named a number, the last one asked for by offset
        self.of_earlier_run: set[Route] = set()
        self._is_asking = False  # the next round has barriers, even if no client waits

    @property
    def is_answered(self) -> bool:
        """Tell whether the router has answered this gateway at all."""
        return min(self._returned) >= 0

    @property
    def oldest_wait_seconds(self) -> float:
        """How long the oldest round has been waiting for the router; 0 without any."""
        for round_ in self._open_rounds.values():
            return self._clock.monotonic() - round_.sent_at
        return 0.0

    @property
    def end(self) -> int:
        """Offset in `mqlake.routes` of the last record that the log has of this gateway."""
        return self._log.end

    def __len__(self) -> int:
        return len(self._members.entries)

    def knows(self, route: Route) -> bool:
        """Tell whether a route is announced, or about to be."""
        return route in self._members.entries

    def note_withdrawn(self, route: Route) -> None:
        """Note that another gateway has withdrawn a route: members count when it is renewed."""
        self._members.note_withdrawn(route)

    def renew(self, route: Route) -> None:
        """Announce a route again if another gateway has withdrawn it."""
        if self._members.renew(route, self._next_round):
            self._want()

    def write_again(self, routes: Iterable[Route]) -> None:
        """Write routes as they are: of an earlier run there is a record behind that of this one.

        Those of share groups without a member here are left to who settles their memberships.
        """
        again = [route for route in routes if not route.is_shared or self.knows(route)]
        self._members.changed.update(dict.fromkeys(again))
        if again:
            self._want()

    def are_routed(self, routes: Iterable[Route]) -> bool:
        """Tell whether the router has all of them."""
        entries = [self._members.entries.get(route) for route in routes]
        return all(entry is not None and entry.round is None for entry in entries)

    def subscribe(self, routes: Sequence[Route]) -> RouteRequest:
        """Count one more member for each filter, from barriers that go before any later message.

        Also where an earlier round announces a filter: its barriers were sent before. A caller that
        takes the subscription up before control returns to the loop delivers all that counts.
        """
        self._members.add(routes, self._next_round)
        round_ = self._next_round
        request = RouteRequest(routes, round_.starts, self._loop)
        round_.subscribing.append(request)
        self._want()
        return request

    def announce(self, routes: Sequence[Route]) -> RouteRequest:
        """Count one more member for each filter, for a caller that may not miss a message.

        Its barriers follow when the log has the routes, withdrawals before this call included.
        Records that the log does not take are tried again until it does.
        """
        self._members.add(routes, self._next_round)
        request = RouteRequest(routes, [], self._loop)
        self._next_round.announcing.append(request)
        self._want()
        return request

    def unsubscribe(self, route: Route) -> None:
        """Count one member less; see `RouteMembers.remove`."""
        if self._members.remove(route):
            self._want()

    def receive_barrier(self, key: bytes, partition: int, offset: int) -> None:
        """Take a barrier that the router has answered; one of an earlier run is nothing to us.

        Args:
            key: Key of the barrier.
            partition: Partition of `mqlake.inbound` that it is in.
            offset: Offset there.
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
            if at(round_.starts, partition) == NOT_YET:  # the router was faster than the log
                round_.starts[partition] = offset
            if round_.number <= reached:
                round_.is_back = True
                if round_.is_counted:
                    self._finish(round_)

    def grow(self, partitions: int) -> None:
        """Send barriers through more partitions from the next round on.

        Filters subscribed in earlier ones count from the beginning of those that are new: nothing
        was in them.
        """
        number = self._next_round.number
        self._returned += [number - 1] * (partitions - self._partitions)
        self._partitions = self._log.partitions = partitions
        self._next_round.starts += [NOT_YET] * (partitions - len(self._next_round.starts))

    async def open(self, stale: Sequence[Route]) -> list[int]:
        """Withdraw routes that an earlier run left in the log and send the first round.

        Routes of share groups stay until their memberships are settled: the settler withdraws them.

        Returns:
            The offsets of the first barriers, by partition: no delivery below them is for this run.

        Raises:
            LogError: The log does not take them.
        """
        self.of_earlier_run = {route for route in stale if route.is_shared}
        await self._log.append_all([(route, None) for route in stale if not route.is_shared])
        return await self.subscribe([]).counted

    async def run(self) -> None:
        """Look after unused routes and unanswered rounds, until cancelled."""
        while True:
            await asyncio.sleep(IDLE_SECONDS)
            self._members.collect_unused()
            is_overdue, is_passed_over = self._is_overdue(), self._is_passed_over()
            if is_overdue or is_passed_over:  # asking serves both
                self._is_asking = True
            self._members.count_again()
            if self._members.changed or self._is_asking:
                self._want()

    async def close(self) -> None:
        """Withdraw all routes: this gateway takes no more deliveries.

        Those of share groups that it has not left go when its memberships are settled.

        Raises:
            LogError: The log does not take the records; the next run withdraws them.
        """
        known = {**dict.fromkeys(self._members.entries), **self._members.changed}
        await self._log.append_all([(route, None) for route in known if not route.is_shared])

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
        """Have a round begin at the end of this turn of the loop, or behind the one under way."""
        self.is_due = True
        is_under_way = self._unanswered and not len(self._log)
        if self._flushing is None and not is_under_way:
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
        """Hand waiting records to the log; called before any message when `is_due`.

        Raises:
            LogFull: It has no room for all of it; messages have to wait.
        """
        while True:
            self._log.flush()
            next_round = self._next_round
            is_wanted = next_round.needs_barriers or next_round.announcing
            if not (is_wanted or self._members.changed or self._is_asking):
                break
            self._begin_round()
        self.is_due = False

    def _begin_round(self) -> None:
        """Make the records of the next round."""
        self._members.collect_unused()
        round_ = self._next_round
        self._next_round = self._new_round(round_.number + 1)
        round_.written = self._members.take_changed(round_)
        for route in round_.written:
            self._log.add(route, self._members.value(route), partial(self._note, round_))
        round_.last_number = self._log.last_number
        # Share groups change where barriers stand, and nowhere else.
        are_groups = any(route.is_shared for route in round_.written)
        if round_.needs_barriers or are_groups or self._is_asking:
            self._is_asking = False
            report = partial(self._barrier_reported, round_)
            round_.barrier = self._log.add_barriers(round_.number, report)
        round_.unreported = len(self._log)
        round_.sent_at = self._clock.monotonic()
        self._open_rounds[round_.number] = round_
        if round_.unreported:
            self._unanswered += 1
        else:  # it follows the earlier ones, and that is all
            self._loop.call_soon(self._advance)

    def _new_round(self, number: int) -> Round:
        return Round(number, [NOT_YET] * self._partitions)

    # Outcomes of a round

    def _barrier_reported(
        self, round_: Round, partition: int, offset: int, error: LogError | None
    ) -> None:
        if error is None:
            round_.starts[partition] = offset
        self._note(round_, partition, offset, error)

    def _note(self, round_: Round, _partition: int, _offset: int, error: LogError | None) -> None:
        """Take the log's answer for one record of a round."""
        round_.error = round_.error or error
        round_.unreported -= 1
        if not round_.unreported:
            self._unanswered -= 1
            self._advance()
            if self.is_due:
                self._want()

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

    def _log_has(self, round_: Round) -> None:
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
            del self._open_rounds[round_.number]  # withdrawals and counts: no client waits for them
        elif round_.is_back:
            self._finish(round_)

    def _later_round(self, routes: Iterable[Route], round_: Round) -> Round | None:
        """Return the last round after the given one that announces one of the routes."""
        later = None
        for route in routes:
            entry = self._members.entries.get(route)
            announcing = None if entry is None else entry.round
            if announcing is not None and announcing.number > (later or round_).number:
                later = announcing
        return later

    def _finish(self, round_: Round) -> None:
        del self._open_rounds[round_.number]
        self._repeated = 0
        self._log.proven_number = max(self._log.proven_number, round_.last_number)
        for route in round_.routes:
            entry = self._members.entries.get(route)
            if entry is not None and entry.round is round_:
                entry.round = None
        for request in (*round_.subscribing, *round_.announced, *round_.followers):
            later = self._later_round(request.routes, round_)
            if later is None:
                request.finish()
            else:
                later.followers.append(request)

    def _fail(self, round_: Round, error: LogError) -> None:
        logger.warning("routes could not be written", extra={"fields": {"reason": str(error)}})
        del self._open_rounds[round_.number]
        # The log may hold the records all the same, so the next round announces them again.
        later = self._next_round
        for route in round_.routes:
            entry = self._members.entries.get(route)
            if entry is not None and entry.round is round_:
                entry.round = later
                later.routes.append(route)
        self._members.changed.update(dict.fromkeys(round_.written))
        later.announcing += [*round_.announcing, *round_.announced]
        later.followers += round_.followers
        for request in round_.subscribing:
            request.fail(error)
        self._loop.call_later(RETRY_SECONDS, self._want)
