"""The gateway's side of routing: which filters the router knows for it, and from when on.

    subscribe ──► route records ──acks──► barrier in every partition ──acks──► starts known
                                                     │
                                       router has applied the routes ──► barrier back ──► SUBACK

A round takes all filters that wait, writes their routes and, when the log has them, one barrier
into each partition of `mqlake.inbound`. The offsets of the barriers are where the subscriptions
start to count; that all barriers have come back means that the router has the routes. The next
round's writes follow the previous round's, they do not wait for the router: so a connection is held
up by the log only, and a connect storm costs one round per write, not one per client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from mqlake.errors import InvalidRecord, LogError
from mqlake.log.contract import LogFull
from mqlake.records import (
    HEADER_VERSION,
    INBOUND,
    RECORD_VERSION,
    ROUTES,
    Barrier,
    Headers,
    Route,
    barrier_key,
    decode_barrier_key,
    route_key,
)
from mqlake.sharing import ShareStrategy, ShareWeight, encode_weight
from mqlake.topics import SHARE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mqlake.clock import Clock
    from mqlake.log.contract import LogWriter

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
NO_ROUTES: Final = -1
"""`routes_offset` of a barrier that waits for no route."""

FULL_SECONDS: Final = 0.01
"""How often a full log is asked whether it has room again."""

IDLE_SECONDS: Final = 1.0
"""How often unused routes and unanswered rounds are looked for."""

_HEADERS: Final[Headers] = [(HEADER_VERSION, b"%d" % RECORD_VERSION)]


class Waiter(Protocol):
    """A client's SUBSCRIBE on its way through a round."""

    def counted(self, starts: list[int]) -> None:
        """The log has the barriers: messages from these offsets on (by partition) count."""
        ...

    def routed(self) -> None:
        """The router has the routes: SUBACK is due."""
        ...

    def failed(self, error: LogError) -> None:
        """The log did not take the routes; nothing is subscribed."""
        ...


@dataclass(slots=True)
class _Round:
    number: int
    waiters: list[tuple[Waiter, list[Route]]] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    """Whose entries wait for this round."""
    routes_offset: int = NO_ROUTES
    starts: list[int] | None = None
    sent_at: float = 0.0
    is_back: bool = False


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


class Routes:
    """The routes of one gateway in `mqlake.routes`, and the barrier rounds.

    Args:
        gateway: Its name.
        incarnation: Tells this run of the gateway from earlier ones.
        log: Where routes and barriers go.
        partitions: Of `mqlake.inbound`.
        linger_seconds: A filter without subscribers stays routed so long.
        barrier_timeout_seconds: After this long an unanswered round is asked for again.
        clock: For both.
        share_strategy: How share groups want their messages spread.
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
        share_strategy: ShareStrategy = ShareStrategy.ROUND_ROBIN,
    ) -> None:
        self._gateway = gateway
        self._share_strategy = share_strategy
        self._incarnation = incarnation
        self._log = log
        self._partitions = partitions
        self._linger_seconds = linger_seconds
        self._barrier_timeout_seconds = barrier_timeout_seconds
        self._clock = clock
        self._entries: dict[Route, _Entry] = {}
        self._changed: dict[Route, None] = {}  # filters whose record in the log is not current
        self._unused: dict[Route, None] = {}  # in the order in which they became unused
        self._next_round = _Round(0)
        self._wanted = asyncio.Event()
        self._open_rounds: dict[int, _Round] = {}  # on their way through the router; ascending
        self._returned = [-1] * partitions  # per partition the last round that came back
        self._repeated = 0  # how often the oldest open round was asked for again

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

    def renew(self, route: Route) -> None:
        """Announce a route again that somebody else has withdrawn."""
        entry = self._entries.get(route)
        if entry is not None:
            entry.round = self._next_round
            self._next_round.routes.append(route)
            self._changed[route] = None
            self._wanted.set()

    def are_routed(self, routes: Iterable[Route]) -> bool:
        """Tell whether the router has all of them."""
        entries = [self._entries.get(route) for route in routes]
        return all(entry is not None and entry.round is None for entry in entries)

    def subscribe(self, routes: Sequence[Route], waiter: Waiter) -> None:
        """Count one more member for each filter; the waiter goes with the next round.

        Also where an earlier round announces a filter: its barriers were sent before.

        Args:
            routes: The filters.
            waiter: Told `counted` and then `routed`, or `failed` (the members then do not count).
        """
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
        self._next_round.waiters.append((waiter, list(routes)))
        self._wanted.set()

    def want(self, route: Route) -> None:
        """Keep a route from the first round on, whoever subscribes; called before `open`."""
        self._entries[route] = _Entry(members=1, round=self._next_round)
        self._next_round.routes.append(route)
        self._changed[route] = None

    def unsubscribe(self, route: Route) -> None:
        """Count one member less; the route goes when it has been unused for a while.

        A share group's goes at once: its messages would be given to us and to nobody else.
        """
        entry = self._entries[route]
        entry.members -= 1
        if _is_shared(route):
            self._changed[route] = None
            if entry.members == 0:
                del self._entries[route]
                self._wanted.set()
        elif entry.members == 0:
            entry.unused_since = self._clock.monotonic()
            self._unused[route] = None

    def receive_barrier(self, key: bytes, partition: int) -> None:
        """Take a barrier that the router has answered; one of an earlier run is nothing to us."""
        try:
            barrier = decode_barrier_key(key)
        except InvalidRecord as exc:
            logger.warning("barrier ignored", extra={"fields": {"reason": str(exc)}})
            return
        if barrier.incarnation != self._incarnation or barrier.gateway != self._gateway:
            return
        # A later round's barrier proves the earlier ones too: its routes_offset is not smaller.
        if barrier.round > self._returned[partition]:
            self._returned[partition] = barrier.round
            reached = min(self._returned)
            for round_ in [one for one in self._open_rounds.values() if one.number <= reached]:
                round_.is_back = True
                if round_.starts is not None:  # else the router was faster than the log's answer
                    self._finish(round_)

    async def open(self, stale: Iterable[Route]) -> list[int]:
        """Withdraw what an earlier run left in the log and send the first round.

        Returns:
            The offsets of the first barriers, by partition: no delivery below them is for this run.

        Raises:
            LogError: The log does not take them.
        """
        wanted = list(self._changed)
        self._changed.clear()
        records: list[tuple[bytes, bytes | None, int]] = [
            (route_key(route), None, 0) for route in stale if route not in self._entries
        ]
        records.extend((route_key(route), self._count(route), 0) for route in wanted)
        appended = await self._append_all(ROUTES, records)
        round_ = self._take_round()
        round_.routes_offset = max((offset for _, offset in appended), default=NO_ROUTES)
        await self._write_barriers(round_)
        assert round_.starts is not None
        return round_.starts

    async def run(self) -> None:
        """Write rounds as they are wanted, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_SECONDS):
                    await self._wanted.wait()
            self._collect_unused()
            if self._wanted.is_set() or self._changed or self._is_overdue():
                self._wanted.clear()
                await self._run_round()

    async def close(self) -> None:
        """Withdraw all routes: this gateway takes no more deliveries.

        Raises:
            LogError: The log does not take the records; the next run withdraws them.
        """
        known = {**dict.fromkeys(self._entries), **self._changed}
        await self._append_all(ROUTES, [(route_key(route), None, 0) for route in known])

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

    async def _run_round(self) -> None:
        round_ = self._take_round()
        changed = list(self._changed)
        self._changed.clear()
        try:
            appended = await self._append_all(
                ROUTES, [(route_key(route), self._count(route), 0) for route in changed]
            )
            if not round_.routes and not round_.waiters and not self._open_rounds:
                return  # withdrawals and member counts: nobody waits for the router to have them
            offsets = [offset for _, offset in appended]
            offsets.extend(one.routes_offset for one in self._open_rounds.values())
            round_.routes_offset = max(offsets, default=NO_ROUTES)
            await self._write_barriers(round_)
        except LogError as error:
            logger.warning("routes could not be written", extra={"fields": {"reason": str(error)}})
            self._fail(round_, error)
            self._changed.update(dict.fromkeys(changed))
            await asyncio.sleep(RETRY_SECONDS)

    def _take_round(self) -> _Round:
        round_ = self._next_round
        self._next_round = _Round(round_.number + 1)
        return round_

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

    async def _write_barriers(self, round_: _Round) -> None:
        """Append the barriers, then tell the waiters where they count from."""
        barrier = Barrier(self._gateway, self._incarnation, round_.number, round_.routes_offset)
        key = barrier_key(barrier)
        round_.sent_at = self._clock.monotonic()
        self._open_rounds[round_.number] = round_
        try:
            appended = await self._append_all(
                INBOUND, [(key, b"", partition) for partition in range(self._partitions)]
            )
        except LogError:
            self._open_rounds.pop(round_.number, None)
            raise
        round_.starts = [offset for _, offset in sorted(appended)]
        for waiter, _ in round_.waiters:
            waiter.counted(round_.starts)
        if round_.is_back:
            self._finish(round_)

    def _finish(self, round_: _Round) -> None:
        del self._open_rounds[round_.number]
        self._repeated = 0
        for route in round_.routes:
            entry = self._entries.get(route)
            if entry is not None and entry.round is round_:
                entry.round = None
        for waiter, _ in round_.waiters:
            waiter.routed()

    def _fail(self, round_: _Round, error: LogError) -> None:
        # The log may hold the records all the same, so the next round announces them again.
        for route in round_.routes:
            entry = self._entries.get(route)
            if entry is not None and entry.round is round_:
                entry.round = self._next_round
                self._next_round.routes.append(route)
        for waiter, routes in round_.waiters:
            for route in routes:
                self.unsubscribe(route)
            waiter.failed(error)

    def _collect_unused(self) -> None:
        now = self._clock.monotonic()
        for route in list(self._unused):
            entry = self._entries[route]
            if now - entry.unused_since < self._linger_seconds:
                break
            if entry.round is not None:
                continue  # a round still announces it
            del self._entries[route], self._unused[route]
            self._changed[route] = None

    async def _append_all(
        self, log_topic: str, records: Sequence[tuple[bytes, bytes | None, int]]
    ) -> list[tuple[int, int]]:
        """Append (key, value, partition) records together; return their (partition, offset)."""
        if not records:
            return []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        appended: list[tuple[int, int]] = []

        def report(partition: int, offset: int, error: LogError | None) -> None:
            appended.append((partition, offset))
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            elif len(appended) == len(records):
                done.set_result(None)

        for key, value, partition in records:
            while True:
                try:
                    self._log.append(log_topic, key, value, _HEADERS, report, partition=partition)
                except LogFull:
                    await asyncio.sleep(FULL_SECONDS)  # publishers fill it; it is no failure
                else:
                    break
        await done
        return appended


def _is_shared(route: Route) -> bool:
    return route.topic_filter.startswith(SHARE_PREFIX)
