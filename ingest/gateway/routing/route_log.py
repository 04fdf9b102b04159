"""Route records and barriers of one gateway on their way into the log.

Route records have numbers. A barrier names the last one that was made, for its offset is not known
yet, or the last one known to be in the log or at the router.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from mqlake.errors import LogError
from mqlake.log.contract import LogFull
from mqlake.records.messages import (
    INBOUND,
    ROUTES,
    Barrier,
    Route,
    barrier_key,
    route_headers,
    route_key,
)
from mqlake.records.versions import VERSION_HEADER, Headers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mqlake.log.contract import AppendCallback, LogWriter

NO_ROUTES: Final = -1
"""`routes_offset` of a barrier that waits for no route."""

FULL_SECONDS: Final = 0.01
"""How often a full log is asked whether it has room again."""

_HEADERS: Final[Headers] = [VERSION_HEADER]


class _Record(NamedTuple):
    """A record to be appended."""

    log_topic: str
    key: bytes
    value: bytes | None
    headers: Headers
    partition: int
    report: AppendCallback


class RouteLog:
    """Appends them in the order in which they were made.

    Args:
        gateway: Its name.
        incarnation: Identifier of this run of the gateway.
        log: The writer of this gateway's messages.
        partitions: Number of partitions of `mqlake.inbound`.
        began_at: Returns where in `mqlake.gateways` this run began; asked for each record.
        asks_sites: Routes ask the federator whether other sites know of them.

    Attributes:
        partitions: Partitions that barriers go through from now on.
        last_number: Number of the last route record that was made.
        proven_number: Number of the last one that the router is known to have.
    """

    def __init__(
        self,
        gateway: str,
        incarnation: str,
        log: LogWriter,
        partitions: int,
        began_at: Callable[[], int],
        *,
        asks_sites: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._gateway = gateway
        self._incarnation = incarnation
        self._log = log
        self.partitions = partitions
        self._began_at = began_at
        self._asks_sites = asks_sites
        self._unwritten: deque[_Record] = deque()
        self.last_number = 0
        self.proven_number = 0
        self._reported_number = 0  # of the last one that the log has answered for
        self._routes_offset = NO_ROUTES  # of the last one that the log has

    def add(self, route: Route, value: bytes | None, on_reported: AppendCallback) -> None:
        """Have the record of a route written by the next `flush`."""
        self._unwritten.append(self._route_record(route, value, on_reported))

    def add_barriers(self, number: int, on_reported: AppendCallback) -> Barrier:
        """Have one barrier for each partition written: they cover all routes so far.

        Args:
            number: Number of the round.
            on_reported: Called for each.
        """
        barrier = self._new_barrier(number)
        key = barrier_key(barrier)
        for partition in range(self.partitions):
            self._unwritten.append(_Record(INBOUND, key, b"", _HEADERS, partition, on_reported))
        return barrier

    @property
    def end(self) -> int:
        """Offset of the last route record that the log has, `NO_ROUTES` without any."""
        return self._routes_offset

    def __len__(self) -> int:
        """Return how many records were made and not written."""
        return len(self._unwritten)

    def flush(self) -> None:
        """Hand all of them to the log.

        Raises:
            LogFull: It has no room for all of them.
        """
        while self._unwritten:
            record = self._unwritten[0]
            self._append(*record)
            self._unwritten.popleft()

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

    async def append_all(self, routes: Sequence[tuple[Route, bytes | None]]) -> None:
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

    def _new_barrier(self, number: int) -> Barrier:
        """Return a barrier that covers all routes so far."""
        is_proven = self.last_number <= self.proven_number
        is_reported = self.last_number <= self._reported_number
        return Barrier(
            self._gateway,
            self._incarnation,
            number,
            NO_ROUTES if is_proven else self._routes_offset,
            0 if is_reported else self.last_number,
        )

    def _route_record(
        self, route: Route, value: bytes | None, on_reported: AppendCallback
    ) -> _Record:
        self.last_number += 1
        number = self.last_number

        def report(partition: int, offset: int, error: LogError | None) -> None:
            self._reported_number = max(self._reported_number, number)
            if error is None:
                self._routes_offset = max(self._routes_offset, offset)
            on_reported(partition, offset, error)

        headers = route_headers(
            self._incarnation, number, self._began_at(), asks_sites=self._asks_sites
        )
        return _Record(ROUTES, route_key(route), value, headers, 0, report)
