"""Deliveries of a gateway for share groups, from the log.

Those of a dead one: its routes of the groups are withdrawn first, and a barrier in its own name
follows them through every partition: when all of them are in its delivery topic, the router writes
no more there. The log does not keep deliveries for long: the routes say which messages the gateway
got by those that are gone. They say so of a living gateway, too, that has not read its deliveries.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from ingest.session.groups.share_acts import Deliveries, Given, GoneDeliveries
from ingest.session.groups.share_records import GroupKey
from ingest.session.groups.share_routes import RoutesThen
from mqlake.errors import InvalidRecord
from mqlake.records.messages import (
    BARRIER_KEY_PREFIX,
    CONTROL_KEY_PREFIX,
    FLAG_QOS,
    HEADER_SOURCE,
    INBOUND,
    ROUTES,
    Barrier,
    Route,
    Source,
    barrier_key,
    decode_barrier_key,
    decode_source,
    delivery_topic,
    route_key,
)
from mqlake.records.versions import HEADER_MQTT, VERSION_HEADER, Headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.gateway.base.context import Context
    from ingest.gateway.log.ends import Ends
    from ingest.gateway.log.partitions import Partitions
    from ingest.gateway.sharing.share_routes import ShareRoutes
    from ingest.session.groups.share_acts import Withdraw
    from mqlake.log.contract import LogAccess
    from mqlake.records.messages import LogRecord

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.02
"""How often it is looked whether the barriers have come."""

_HEADERS: Final[Headers] = [VERSION_HEADER]


class MissedDeliveries(NamedTuple):
    """Routes and offsets that say which deliveries of this gateway the log has removed."""

    groups: frozenset[GroupKey]
    routes: RoutesThen
    """Routes of these groups, and the offsets at which they came into force."""
    ends: list[int]
    """Per partition of `mqlake.inbound`: the router has given out all messages before."""


@dataclass(slots=True)
class _Read:
    """Deliveries and answered barriers that were read from a delivery topic."""

    given: dict[GroupKey, list[Given]] = field(default_factory=dict)
    oldest: dict[int, int] = field(default_factory=dict)
    """Per partition of `mqlake.inbound` the first message whose delivery the log still has."""
    answered: dict[int, int] = field(default_factory=dict)
    """Per partition of `mqlake.inbound` the offset of the barrier that the router has answered."""
    is_complete: bool = True


class ShareSettler:
    """Takes routes of dead gateways, and their deliveries.

    Args:
        context: Shared by all parts of the gateway that acts.
        access: Reads deliveries, writes routes and barriers.
        ends: Say how far deliveries go.
        partitions: Numbers of partitions of the log topics.
        routes: Tell which messages those were whose deliveries are gone.
    """

    def __init__(
        self,
        context: Context,
        access: LogAccess,
        ends: Ends,
        partitions: Partitions,
        routes: ShareRoutes,
    ) -> None:
        self._context = context
        self._ends = ends
        self._partitions = partitions
        self._routes = routes
        self._writer = access.writer
        self._ranges = access.ranges
        self._round = 0

    async def withdraw(self, effect: Withdraw) -> Deliveries:
        """Withdraw routes, and return the router's deliveries up to there.

        Raises:
            LogError: The log does not answer; to be tried again.
        """
        routes_offset = -1
        for group in effect.groups:
            key = route_key(Route(effect.gateway, *group))
            _, offset = await self._writer.append_durably(ROUTES, key, None, _HEADERS, partition=0)
            routes_offset = max(routes_offset, offset)
        read = await self._read(effect.gateway, effect.groups, effect.first, routes_offset)
        if read.is_complete:
            return Deliveries(read.given)
        before = [read.oldest.get(one, end) for one, end in sorted(read.answered.items())]
        routes = await self._routes.read(effect.groups, effect.behind, before, routes_offset)
        logger.warning(
            "deliveries of a dead gateway are gone: share groups get its messages from the log",
            extra={"fields": {"gateway": effect.gateway, "groups": len(effect.groups)}},
        )
        return Deliveries(read.given, GoneDeliveries(before, routes))

    async def missed(self, groups: Sequence[GroupKey], behind: Sequence[int]) -> MissedDeliveries:
        """Return what tells which messages the router has given this gateway by now.

        Args:
            groups: Share groups whose messages matter.
            behind: Per partition of `mqlake.inbound` the first offset that matters.

        Raises:
            LogError: The log does not answer; to be tried again.
        """
        if not groups:
            found = await self._ends.inbound()
            ends = [end for _, end in sorted(found.items())]
            return MissedDeliveries(frozenset(), RoutesThen(self._context.clock.now_ms()), ends)
        gateway = self._context.me.gateway
        routes_offset = await self._ends.routes() - 1
        first = await self._ends.delivery(gateway)
        read = await self._read(gateway, (), first, routes_offset)
        ends = [end for _, end in sorted(read.answered.items())]
        routes = await self._routes.read(groups, behind, ends, routes_offset)
        return MissedDeliveries(frozenset(groups), routes, ends)

    async def _read(
        self, gateway: str, groups: Sequence[GroupKey], first: int, routes_offset: int
    ) -> _Read:
        """Read a gateway's deliveries until the router has answered a barrier written here."""
        self._round += 1
        number = self._round
        # Not a run of any gateway: no gateway takes these barriers for its own.
        ours = f"{self._context.me.incarnation}.share"
        key = barrier_key(Barrier(gateway, ours, number, routes_offset))
        log_topic = delivery_topic(gateway)
        partitions = self._partitions.inbound
        wanted = set(groups)
        read = _Read()
        given, oldest, answered = read.given, read.oldest, read.answered

        async def take(records: Sequence[LogRecord]) -> None:
            for record in records:
                source = _source(record)
                if source is None:
                    continue
                partition = source.partition
                # The first one: what the router repeats behind it says nothing of what is gone.
                oldest.setdefault(partition, source.offset)
                barrier = _barrier(record)
                if barrier is not None:
                    if barrier.incarnation == ours and barrier.round == number:
                        answered.setdefault(partition, source.offset)
                    continue
                for group, one in _given(record, source):
                    if group in wanted:
                        given.setdefault(group, []).append(one)

        clock = self._context.clock
        asked_at = float("-inf")
        has_more = False
        while len(answered) < partitions or has_more:
            if clock.monotonic() - asked_at > self._context.settings.barrier_timeout_seconds:
                asked_at = clock.monotonic()
                for partition in range(partitions):
                    await self._writer.append_durably(
                        INBOUND, key, b"", _HEADERS, partition=partition
                    )
            end = await self._ends.delivery(gateway)
            if first >= end:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            missing = await self._ranges.read_range(log_topic, {0: (first, end)}, take)
            if missing:
                # Again, from there on alone: what was read before has a hole behind it.
                read.is_complete = False
                given.clear()
                oldest.clear()
                first = missing[-1].end
            else:
                first = end
            has_more = first < end
        return read


def _source(record: LogRecord) -> Source | None:
    """Return what the router says of a delivery; None of a record of others."""
    if (record.key or b"").startswith(CONTROL_KEY_PREFIX):
        return None
    try:
        return decode_source(dict(record.headers).get(HEADER_SOURCE, b""))
    except InvalidRecord:
        return None


def _barrier(record: LogRecord) -> Barrier | None:
    key = record.key or b""
    if not key.startswith(BARRIER_KEY_PREFIX):
        return None
    try:
        return decode_barrier_key(key)
    except InvalidRecord:
        return None


def _given(record: LogRecord, source: Source) -> list[tuple[GroupKey, Given]]:
    """Return for which groups a message was given."""
    tenant = (record.key or b"").decode(errors="replace").partition("/")[0]
    mqtt = dict(record.headers).get(HEADER_MQTT, b"")
    qos = mqtt[2] & FLAG_QOS if len(mqtt) >= 3 else 0
    one = Given(source.partition, source.offset, qos, record.offset)
    return [(GroupKey(tenant, topic_filter), one) for topic_filter in source.shared_filters]
