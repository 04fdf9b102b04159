"""Looks single messages up in `mqlake.inbound`: by their exchange, or by where they are."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ingest.gateway.base.outbound import InboundMessage
from ingest.session.shard.effects import Search
from mqlake.errors import InvalidRecord, LogError
from mqlake.records.messages import HEADER_EXCHANGE, INBOUND
from mqlake.records.offsets import earliest, widened

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from ingest.gateway.base.outbound import OutboundMessage
    from mqlake.clock import Clock
    from mqlake.log.contract import LogRangeReader
    from mqlake.records.messages import LogRecord

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5

NEAR_OFFSETS: Final = 200
"""Messages whose offsets are nearer than this are read together."""

Position = tuple[int, int]
"""Partition and offset in `mqlake.inbound`."""


class Lookup:
    """Looks messages up, for all parts that ask.

    Args:
        reader: Reads ranges of `mqlake.inbound`.
        ends: Returns per partition the offset that the next record will get.
        clock: For messages that expire.
    """

    def __init__(
        self,
        reader: LogRangeReader,
        ends: Callable[[], Awaitable[dict[int, int]]],
        clock: Clock,
    ) -> None:
        self._reader = reader
        self._ends = ends
        self._clock = clock
        self._asked: list[tuple[Search, Callable[[Position | None], None]]] = []
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Answer requests, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked = self._asked.copy()
            try:
                found = await self.find(search for search, _ in asked)
            except LogError as error:
                logger.warning(
                    "messages cannot be looked up", extra={"fields": {"reason": str(error)}}
                )
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()
                continue
            del self._asked[: len(asked)]
            for search, on_found in asked:
                on_found(found.get(search.exchange))

    def ask(
        self, exchange: bytes, starts: list[int], on_found: Callable[[Position | None], None]
    ) -> None:
        """Say where the log has the message of a QoS 2 exchange, as soon as it can be read.

        Args:
            exchange: As in its header.
            starts: Per partition the offset below which it is not.
            on_found: Gets its position, None when it is not there.
        """
        self._asked.append((Search(exchange, starts), on_found))
        self._wake.set()

    async def find(self, searches: Iterable[Search]) -> dict[bytes, Position]:
        """Return the exchanges whose messages are in the log, and where these are.

        Raises:
            LogError: The log cannot be read.
        """
        starts_of = {search.exchange: search.starts for search in searches}
        if not starts_of:
            return {}
        ends = await self._ends()
        # Of partitions that have come since the question, all records are looked at.
        starts = widened(earliest(*starts_of.values()), len(ends))
        found: dict[bytes, Position] = {}

        async def look(records: list[LogRecord]) -> None:
            for record in records:
                for name, value in record.headers:
                    if name == HEADER_EXCHANGE and value in starts_of:
                        found[value] = (record.partition, record.offset)

        ranges = {partition: (start, ends[partition]) for partition, start in enumerate(starts)}
        await self._reader.read_range(INBOUND, ranges, look)
        return found

    async def messages(self, wanted: set[Position]) -> Mapping[Position, OutboundMessage]:
        """Return the messages at these positions; those that the log does not hold are missing.

        Raises:
            LogError: The log cannot be read.
        """
        found: dict[Position, OutboundMessage] = {}

        async def take(records: list[LogRecord]) -> None:
            now_ms = self._clock.now_ms()
            for record in records:
                position = (record.partition, record.offset)
                if position not in wanted:
                    continue
                try:
                    found[position] = InboundMessage(record, dict(record.headers)).read(now_ms)
                except InvalidRecord as exc:
                    logger.warning(
                        "message in flight cannot be read", extra={"fields": {"reason": str(exc)}}
                    )

        for ranges in rounds_of(wanted):
            await self._reader.read_range(INBOUND, ranges, take)
        return found


def rounds_of(wanted: Iterable[Position]) -> list[dict[int, tuple[int, int]]]:
    """Return reads that hold all positions, with at most one range in each partition.

    Near positions are in one range.
    """
    merged: list[tuple[int, int, int]] = []
    for partition, offset in sorted(wanted):
        if merged:
            last, start, end = merged[-1]
            if last == partition and offset - end < NEAR_OFFSETS:
                merged[-1] = (partition, start, offset + 1)
                continue
        merged.append((partition, offset, offset + 1))
    rounds: list[dict[int, tuple[int, int]]] = []
    for partition, start, end in merged:
        for ranges in rounds:
            if partition not in ranges:
                ranges[partition] = (start, end)
                break
        else:
            rounds.append({partition: (start, end)})
    return rounds
