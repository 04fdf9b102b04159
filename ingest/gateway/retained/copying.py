"""How copies of shards of the retained messages get complete.

A copy that an earlier run of this gateway has left goes on from there: the log has what came since.
It does so only where the log still has the record at which it was left, unchanged: a new log, or
one that has lost its end, has another one there, or none. Any other copy begins empty, with the
table `retained`, and the log behind that.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ingest.gateway.base.outbound import InboundMessage
from ingest.gateway.lake.exchange import TableError
from mqlake.errors import InvalidRecord
from mqlake.records.messages import HEADER_PROPERTIES, INBOUND, is_retained
from mqlake.records.retained import partitions_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ingest.gateway.lake.reader import LakeReader
    from ingest.gateway.log.ends import Ends
    from ingest.gateway.retained.retained import Retained
    from ingest.gateway.store.retained import LogPlace, RetainedRow
    from mqlake.log.contract import LogRangeReader
    from mqlake.records.messages import LogRecord

logger = logging.getLogger(__name__)

COPIED_AT_ONCE: Final = 250
"""Rows of a copy that are written between two turns of the loop; they take 3 to 10 ms."""

FEW_OFFSETS: Final = 100_000
"""Records that are read from the log for a copy whatever it has, in a second or two. Beyond them,
and beyond the number of its messages, it costs less to copy these from the table."""


class Copying:
    """Reads what copies lack.

    Args:
        retained: Holds the copies.
        ranges: Reads the log.
        ends: Say which offsets the log has.
        lake: Reads the tables, if they can be read here.
    """

    def __init__(
        self, retained: Retained, ranges: LogRangeReader, ends: Ends, lake: LakeReader | None
    ) -> None:
        self._retained = retained
        self._ranges = ranges
        self._ends = ends
        self._lake = lake

    @property
    def has_tables(self) -> bool:
        return self._lake is not None

    async def begin(self, shards: Sequence[int], partitions: int) -> None:
        """Empty shards that are not held, except of copies that can go on where they were left.

        Args:
            shards: Which.
            partitions: Number of partitions of `mqlake.inbound`.

        Raises:
            LogError: The log does not answer.
        """
        retained = self._retained
        left = retained.stored().intersection(shards)
        places = {shard: found for shard in left if (found := retained.places(shard))}
        if places:
            begins, ends = await self._ends.inbound_begins(), await self._ends.inbound()
            for shard, found in places.items():
                known = partitions_of(shard, retained.shards, partitions)
                held = {one: (begins[one], ends[one]) for one in known}
                reason = self._is_much(shard, found, held) or await self._why_not(found, held)
                if reason:
                    fields = {"shard": shard, "reason": reason}
                    logger.warning("a kept copy is thrown away", extra={"fields": fields})
                else:
                    left.discard(shard)
        for shard in left:
            await self.empty(shard)

    async def empty(self, shard: int) -> None:
        """Delete what there is of a shard that is not held."""
        self._retained.let_go(shard)
        has_more = True
        while has_more:
            has_more = self._retained.drop(shard)
            await asyncio.sleep(0)  # clients go first

    async def _why_not(
        self, places: Mapping[int, LogPlace], held: Mapping[int, tuple[int, int]]
    ) -> str:
        """Return why the log cannot be read from some places on; "" when it can.

        Args:
            places: By partition, where a copy was left.
            held: Per partition of the shard, the first offset that the log has, and its end.
        """
        for partition, (begin, end) in held.items():
            place = places.get(partition)
            at = -1 if place is None else place.offset
            where = f"partition {partition} at offset {at}"
            if begin > max(0, at):
                return f"it was left in {where}, the log begins at {begin}"
            if at >= end:
                return f"it was left in {where}, the log ends at {end}"
            if place is not None and await self._record(partition, at) != place[2:]:
                return f"it was left in {where}, where the log has another record"
        lost = sorted(places.keys() - held.keys())
        return f"the log has no partitions {lost} any more" if lost else ""

    async def _record(self, partition: int, offset: int) -> tuple[int, bytes] | None:
        """Return time and key of a record of `mqlake.inbound`."""
        found: list[LogRecord] = []

        async def take(records: list[LogRecord]) -> None:
            found.extend(records)

        await self._ranges.read_range(INBOUND, {partition: (offset, offset + 1)}, take)
        return (found[0].timestamp_ms, found[0].key or b"") if found else None

    def _is_much(
        self, shard: int, places: Mapping[int, LogPlace], held: Mapping[int, tuple[int, int]]
    ) -> str:
        """Return that the log from some places on has more than the table; "" when it has not."""
        gap = sum(end - _next(places, partition) for partition, (_, end) in held.items())
        if self._lake is None or gap <= max(FEW_OFFSETS, self._retained.count(shard)):
            return ""
        return f"the log has {gap} records more, the table is read sooner"

    async def load(self, ends: Mapping[int, int]) -> set[int]:
        """Read retained messages of shards that are held, after `begin`.

        Messages that come live meanwhile may be applied at any time: the later one counts.

        Args:
            ends: Partition of `mqlake.inbound` -> the offset from which on live messages are kept.

        Returns:
            Incomplete shards: messages that the copy lacks are not in the log either.

        Raises:
            LogError: The log cannot be read.
        """
        shards = {partition % self._retained.shards for partition in ends}
        places = {shard: found for shard in shards if (found := self._retained.places(shard))}
        starts = {
            partition: _next(places[shard], partition)
            for partition in ends
            if (shard := partition % self._retained.shards) in places
        }
        if others := ends.keys() - starts.keys():
            offsets = await self._load_table(others)
            starts |= {partition: offsets.get(partition, 0) for partition in others}
        ranges = {one: (starts[one], end) for one, end in ends.items() if starts[one] < end}
        incomplete: set[int] = set()
        if ranges:
            for missing in await self._ranges.read_range(INBOUND, ranges, self._catch_up):
                incomplete.add(missing.partition % self._retained.shards)
                gap = {"partition": missing.partition, "from": missing.start, "to": missing.end}
                logger.warning(
                    "retained messages are missing: neither table nor log has them",
                    extra={"fields": gap},
                )
        fields = {
            "messages": sum(map(self._retained.count, shards)),
            "kept": sorted(places),
            "from": starts,
            "to": dict(ends),
        }
        logger.info("retained messages loaded", extra={"fields": fields})
        return incomplete

    async def _load_table(self, partitions: Collection[int]) -> dict[int, int]:
        """Read the table; return per partition the first offset that it does not have."""
        if self._lake is None:
            return {}
        try:
            return await self._lake.retained(partitions, self._load_rows)
        except TableError as error:
            logger.warning(
                "retained messages are read from the log alone",
                extra={"fields": {"reason": str(error)}},
            )
            return {}

    async def _load_rows(self, rows: list[RetainedRow]) -> None:
        for at in range(0, len(rows), COPIED_AT_ONCE):
            self._retained.keep_rows(rows[at : at + COPIED_AT_ONCE])
            await asyncio.sleep(0)  # clients go first

    async def _catch_up(self, records: list[LogRecord]) -> None:
        for at in range(0, len(records), COPIED_AT_ONCE):
            for record in records[at : at + COPIED_AT_ONCE]:
                self._keep(record)
            self._retained.flush()
            await asyncio.sleep(0)  # clients go first

    def _keep(self, record: LogRecord) -> None:
        headers = dict(record.headers)
        if not is_retained(headers):
            return
        inbound = InboundMessage(record, headers)
        try:
            message = inbound.read(record.timestamp_ms)
        except InvalidRecord as exc:
            logger.warning("retained message ignored", extra={"fields": {"reason": str(exc)}})
            return
        properties = headers.get(HEADER_PROPERTIES)
        self._retained.keep(inbound.tenant, inbound.publisher, message, properties)


def _next(places: Mapping[int, LogPlace], partition: int) -> int:
    """Return the first offset of a partition that a copy may not have."""
    place = places.get(partition)
    return 0 if place is None else place.offset + 1
