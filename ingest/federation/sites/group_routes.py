"""The ways to members at other sites, as the router of this site knows them.

Each way is a route of last resort in `mqlake.routes`, in the name of its neighbour. The router
counts a change of a share group from the next barrier on (design: share-groups, 50), so barriers
follow: they are sent again until the router has answered, to the log topic that is in this
federator's own name.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ingest.federation.sites.interest.group_names import PREFIX, neighbour_of, to_local, way_name
from mqlake.errors import InvalidRecord, LogError
from mqlake.records.messages import (
    BARRIER_KEY_PREFIX,
    INBOUND,
    ROUTES,
    Barrier,
    Route,
    barrier_key,
    decode_barrier_key,
    decode_route_key,
    delivery_topic,
    route_key,
)
from mqlake.records.versions import VERSION_HEADER
from mqlake.topics.sharing import ShareStrategy, ShareWeight, encode_weight

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from ingest.federation.prefixes import Prefixes
    from ingest.federation.sites.interest.groups import SiteGroups
    from mqlake.log.contract import LogAccess, LogReader
    from mqlake.records.messages import LogRecord

_logger = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0
"""Until barriers are sent again."""

_WEIGHT: Final = encode_weight(ShareWeight(1, ShareStrategy.LAST_RESORT))


class GroupRoutes:
    """Writes the ways of one site. Make it inside the event loop.

    Args:
        site: This one.
        tenant: Tenant whose messages are federated.
        prefixes: Names of topics in the federation.
        groups: Says which ways there are to be.
        log: Log of the site.
        make_topic: Makes a log topic unless it is there.
        run: Number of this run, which no other run of the federator has.
        on_failure: Called when the log does not take a route.
    """

    def __init__(
        self,
        site: int,
        tenant: str,
        prefixes: Prefixes,
        groups: SiteGroups,
        log: LogAccess,
        make_topic: Callable[[str], Awaitable[None]],
        run: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.in_force = -1
        """Offset of `mqlake.routes` up to which barriers have been sent."""
        self._site = site
        self._tenant = tenant
        self._prefixes = prefixes
        self._groups = groups
        self._log = log
        self._make_topic = make_topic
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._name = f"{PREFIX}{site}"
        self._incarnation = str(run)
        self._partitions = 0
        self._reader: LogReader | None = None
        self._there: set[int] = set()
        self._adding: set[asyncio.Task[None]] = set()
        self._routes: set[Route] = set()
        self._unreported = 0
        self._end = -1
        self._then: list[Callable[[], None]] = []
        self._round = 0
        self._unanswered: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, partitions: int) -> None:
        """Learn the routes of the run before.

        Args:
            partitions: Number of partitions of `mqlake.inbound`.

        Raises:
            LogError: The log does not answer.
        """
        self._partitions = partitions
        log_topic = delivery_topic(self._name)
        await self._make_topic(log_topic)
        self._reader = reader = self._log.open_reader()
        ends = await reader.end_offsets(log_topic)
        found = await reader.read_compacted(ROUTES)
        await reader.start(log_topic, ends, self._hear, self._warn)
        self.resume(found.values())

    def resume(self, records: Iterable[LogRecord]) -> None:
        """Go on with the routes that there are: the run before may have died before its barriers.

        Args:
            records: The last one of each route.
        """
        end = -1
        for record in records:
            try:
                route = decode_route_key(record.key or b"")
            except InvalidRecord:
                continue
            if route.is_shared:
                end = max(end, record.offset)
            if route.is_shared and neighbour_of(self._site, route.gateway) is not None:
                self._routes.add(route)
        self.put_in_force(end)

    async def close(self) -> None:
        """Leave the routes as they are: the next run goes on."""
        if self._timer is not None:
            self._timer.cancel()
        for one in self._adding:
            one.cancel()
        await asyncio.gather(*self._adding, return_exceptions=True)
        if self._reader is not None:
            await self._reader.close()

    def add(self, neighbour: int) -> None:
        """Hear of a neighbour; the router can give it something when it has a log topic."""

        async def make() -> None:
            await self._make_topic(delivery_topic(way_name(self._site, neighbour)))
            self._there.add(neighbour)
            self.update()

        adding = asyncio.create_task(make())
        self._adding.add(adding)
        adding.add_done_callback(self._added)

    def remove(self, neighbour: int) -> None:
        """Hear that a site is no neighbour any more."""
        self._there.discard(neighbour)
        self.update()

    def update(self) -> None:
        """Have the router know the ways that there are now."""
        wanted = {
            Route(way_name(self._site, site), self._tenant, to_local(group, self._prefixes))
            for site, group in self._groups.ways()
            if site in self._there
        }
        # New ones first: a barrier of another writer may stand between any two of these.
        for route in wanted - self._routes:
            self._write(route, _WEIGHT)
        for route in self._routes - wanted:
            self._write(route, None)
        self._routes = wanted

    def put_in_force(self, end: int) -> None:
        """Have records appended from here on go by the routes up to an offset."""
        if end > self.in_force:
            self._send_barriers(end)

    def when_known(self, action: Callable[[], None]) -> None:
        """Call `action` as soon as records that it appends go by the present ways."""
        if self._unreported:
            self._then.append(action)
        else:
            action()

    def _write(self, route: Route, value: bytes | None) -> None:
        self._unreported += 1
        try:
            self._log.writer.append(
                ROUTES, route_key(route), value, [VERSION_HEADER], self._written, partition=0
            )
        except LogError as exc:
            self._on_failure(exc)

    def _written(self, _partition: int, offset: int, error: LogError | None) -> None:
        if error is not None:
            self._on_failure(error)
            return
        self._unreported -= 1
        self._end = max(self._end, offset)
        if self._unreported:
            return
        self.put_in_force(self._end)
        then, self._then = self._then, []
        for action in then:
            action()

    def _send_barriers(self, end: int) -> None:
        self.in_force = max(end, self.in_force)
        self._round += 1
        self._unanswered = set(range(self._partitions))
        key = barrier_key(Barrier(self._name, self._incarnation, self._round, self.in_force))
        for partition in range(self._partitions):
            try:
                self._log.writer.append(
                    INBOUND, key, b"", [VERSION_HEADER], self._sent, partition=partition
                )
            except LogError as exc:
                self._on_failure(exc)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(ANSWER_SECONDS, self._look)

    def _sent(self, _partition: int, _offset: int, error: LogError | None) -> None:
        if error is not None:
            self._on_failure(error)

    def _look(self) -> None:
        self._timer = None
        if self._unanswered:
            self._send_barriers(self.in_force)

    def _hear(self, records: list[LogRecord]) -> None:
        for record in records:
            key = record.key or b""
            if not key.startswith(BARRIER_KEY_PREFIX):
                continue
            try:
                barrier = decode_barrier_key(key)
            except InvalidRecord:
                continue
            if (barrier.incarnation, barrier.round) == (self._incarnation, self._round):
                partition = dict(record.headers).get("source", b"").partition(b":")[0]
                self._unanswered.discard(int(partition) if partition.isdigit() else -1)

    def _warn(self, error: LogError) -> None:
        fields = {"reason": str(error)}
        _logger.warning("answers of the router cannot be read", extra={"fields": fields})

    def _added(self, adding: asyncio.Task[None]) -> None:
        self._adding.discard(adding)
        error = None if adding.cancelled() else adding.exception()
        if error is not None:
            self._on_failure(error)
