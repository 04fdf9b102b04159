"""What a dead gateway was given for share groups, from the log: its parts leave by another's hand.

Its routes of groups are withdrawn first, and a barrier in its own name follows them through every
partition: when all of them are in its delivery topic, the router has written there what it ever
will. From where its last record stands up to there is what it was given and nobody has; without
what its clients' kept sessions have in flight, for that is theirs.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from ingest.session.share_parts import Gap, GroupKey, PartRecord, PartState, key_of_part
from mqlake.errors import InvalidRecord
from mqlake.offsets import latest
from mqlake.record_versions import VERSION_HEADER
from mqlake.records import (
    BARRIER_KEY_PREFIX,
    CONTROL_KEY_PREFIX,
    FLAG_QOS,
    HEADER_MQTT,
    HEADER_SOURCE,
    INBOUND,
    ROUTES,
    Barrier,
    Headers,
    Route,
    barrier_key,
    decode_barrier_key,
    decode_source,
    delivery_topic,
    route_key,
)

if TYPE_CHECKING:
    from ingest.gateway.server import Gateway
    from ingest.gateway.share_log import ShareLog
    from ingest.session.share_parts import ShareTable
    from mqlake.log.contract import LogAccess, LogRecord

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.02
"""How often it is looked whether the barriers have come."""

_HEADERS: Final[Headers] = [VERSION_HEADER]


class _Given(NamedTuple):
    """A message that the router gave to a part."""

    partition: int
    offset: int
    qos: int
    at: int
    """Offset in the delivery topic."""


class ShareSettler:
    """Makes parts of dead gateways parts that have left.

    Args:
        gateway: Whose turn it may be.
        log: Where parts are written.
        access: Reads deliveries, writes routes and barriers.
        table: All parts.
    """

    def __init__(
        self, gateway: Gateway, log: ShareLog, access: LogAccess, table: ShareTable
    ) -> None:
        self._gateway = gateway
        self._log = log
        self._writer = access.writer
        self._ranges = access.ranges
        self._table = table
        self._round = 0

    async def settle(self) -> None:
        """Settle all parts of dead runs of gateways that are this gateway's to care for.

        Raises:
            LogError: The log does not answer; to be tried again.
        """
        peers = self._gateway.peers
        for gateway, incarnation in self._table.runs():
            if peers.is_alive(gateway, incarnation) or not peers.is_ours(gateway, incarnation):
                continue
            parts = self._table.of_run((gateway, incarnation))
            logger.info(
                "share parts of a dead gateway are settled",
                extra={"fields": {"gateway": gateway, "parts": len(parts)}},
            )
            await self._settle(gateway, incarnation, parts)

    async def _settle(self, gateway: str, incarnation: str, parts: list[PartRecord]) -> None:
        marks = self._log.marks(gateway)
        if marks is not None and marks.incarnation != incarnation:
            marks = None
        first = min(part.next for part in parts)
        if marks is not None:
            # Each part that is older than the marks holds all that was given to it before them.
            first = max(first, marks.next)
        routes_offset = await self._withdraw(parts)
        given, ends = await self._read_given(gateway, first, routes_offset)
        for part in parts:
            now = self._table.get(part.group, part.part_id)
            if now is None or now.state is PartState.LEFT:
                continue  # somebody else was faster
            if now.starts is None:
                # It was to be the first and has not begun: nothing is its own yet.
                self._log.forget_part(key_of_part(part.part_id, part.group))
                continue
            left = replace(now, state=PartState.LEFT, number=now.number + 1, takes=[], took=[])
            if marks is not None and now.state is PartState.LIVE:
                left.given = latest([mark + 1 for mark in marks.marks], left.given)
            self._add(left, given.get(part.group, []), ends)
            left.at_ms = self._gateway.clock.now_ms()
            for taken in now.took:
                self._log.forget_part(key_of_part(taken, part.group))
            self._log.save_part(left)

    def _add_gap(self, left: PartRecord, given: list[_Given], ends: list[int]) -> None:
        """Have what was given to a part read where it was published: deliveries are not kept long.

        Only if nobody else can have been given some of it.
        """
        logger.warning(
            "the log does not hold all that a share group was given",
            extra={"fields": {"filter": left.group.topic_filter}},
        )
        others = [one for one in self._table.parts(left.group) if one.part_id != left.part_id]
        ours = self._gateway.incarnation
        if left.given is None or any(
            one.state is not PartState.LEFT and one.incarnation != ours for one in others
        ):
            return
        end = list(ends)
        for one in given:
            end[one.partition] = min(end[one.partition], one.offset)
        gap = Gap(list(left.given), end, left.at_ms)
        if not gap.is_empty:
            left.gaps.append(gap)

    def _add(self, left: PartRecord, given: list[_Given], ends: list[int] | None) -> None:
        """Add what the router gave to a part since its record; without what sessions hold.

        Args:
            left: The part.
            given: What its delivery topic has.
            ends: Where the barriers are, if that is not all there was.
        """
        if ends is not None:
            self._add_gap(left, given, ends)
        open_ = left.open.copy()
        for one in given:
            if one.at < left.next or (left.starts and one.offset < left.starts[one.partition]):
                continue
            if one.qos:
                open_.add(one.partition, one.offset)
            if left.given is not None:
                left.given[one.partition] = max(left.given[one.partition], one.offset + 1)
        for position in self._log.members.in_flight(left.group):
            open_.discard(*position)
        left.open = open_

    async def _withdraw(self, parts: list[PartRecord]) -> int:
        """Withdraw the routes of parts; return the offset up to which they are."""
        routes_offset = -1
        for part in parts:
            key = route_key(Route(part.gateway, *part.group))
            _, offset = await self._writer.append_durably(ROUTES, key, None, _HEADERS, partition=0)
            routes_offset = max(routes_offset, offset)
        return routes_offset

    async def _read_given(
        self, gateway: str, first: int, routes_offset: int
    ) -> tuple[dict[GroupKey, list[_Given]], list[int] | None]:
        """Return what a gateway was given for share groups.

        Returns:
            It, and where the barriers are by partition, if the log does not hold all of it.
        """
        self._round += 1
        # Not a run of any gateway: nobody else takes these barriers for its own.
        ours = f"{self._gateway.incarnation}.share"
        key = barrier_key(Barrier(gateway, ours, self._round, routes_offset))
        log_topic = delivery_topic(gateway)
        partitions = len(self._gateway.next_offsets())
        given: dict[GroupKey, list[_Given]] = {}
        answered: set[int] = set()

        async def take(records: list[LogRecord]) -> None:
            for record in records:
                found = _read(record)
                if found is None:
                    continue
                if isinstance(found, Barrier):
                    if found.incarnation == ours and found.round == self._round:
                        headers = dict(record.headers)
                        answered.add(decode_source(headers[HEADER_SOURCE]).partition)
                    continue
                for group, one in found:
                    given.setdefault(group, []).append(one)

        is_complete = True
        ends = [0] * partitions
        clock = self._gateway.clock
        asked_at = float("-inf")
        while len(answered) < partitions:
            if clock.monotonic() - asked_at > self._gateway.settings.barrier_timeout_seconds:
                asked_at = clock.monotonic()
                for partition in range(partitions):
                    _, ends[partition] = await self._writer.append_durably(
                        INBOUND, key, b"", _HEADERS, partition=partition
                    )
            end = await self._gateway.delivery_end(gateway)
            if first < end:
                missing = await self._ranges.read_range(log_topic, {0: (first, end)}, take)
                is_complete = is_complete and not missing
                first = end
            else:
                await asyncio.sleep(LOOK_SECONDS)
        return given, None if is_complete else ends


def _read(record: LogRecord) -> Barrier | list[tuple[GroupKey, _Given]] | None:
    """Return a barrier, or for which groups a message was given."""
    key = record.key or b""
    if key.startswith(CONTROL_KEY_PREFIX):
        return None
    try:
        if key.startswith(BARRIER_KEY_PREFIX):
            return decode_barrier_key(key)
        headers = dict(record.headers)
        source = decode_source(headers.get(HEADER_SOURCE, b""))
    except InvalidRecord:
        return None
    tenant = key.decode(errors="replace").partition("/")[0]
    mqtt = headers.get(HEADER_MQTT, b"")
    qos = mqtt[2] & FLAG_QOS if len(mqtt) == 3 else 0
    one = _Given(source.partition, source.offset, qos, record.offset)
    return [(GroupKey(tenant, topic_filter), one) for topic_filter in source.shared_filters]
