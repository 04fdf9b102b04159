"""Reads beside the stream: outputs that lanes missed, messages that an earlier run published."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mqlake.log.contract import LogRangeReader
from mqlake.records.messages import HEADER_CHAIN, HEADER_OUTPUT, INBOUND, SKIPPED_KEY, LogRecord

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class OutputsRange:
    """Result of reading a range of a log topic."""

    records: list[LogRecord]
    """Those that were wanted."""
    positions: dict[int, int]
    """Offset at which to read on, per partition."""
    lost: list[tuple[int, int, int]] = field(default_factory=list)
    """Partition and two offsets: the records between them are no longer in the log."""

    def skip_to(self, partition: int, offset: int) -> None:
        """Go on at an offset; records before it that were not read are lost."""
        at = self.positions[partition]
        if at < offset:
            self.lost.append((partition, at, offset))
            self.positions[partition] = offset


class _Enough(Exception):  # noqa: N818 - it ends a read that has found enough
    pass


async def read_outputs_range(
    ranges: LogRangeReader,
    log_topic: str,
    positions: Mapping[int, int],
    ends: Mapping[int, int],
    is_wanted: Callable[[LogRecord], bool],
    *,
    max_records: int,
    max_bytes: int,
) -> OutputsRange:
    """Read up to the ends, or until enough is found.

    Raises:
        LogError: The log gives nothing for ten seconds.
    """
    found = OutputsRange([], dict(positions))
    found_bytes = 0

    async def take(records: list[LogRecord]) -> None:
        nonlocal found_bytes
        for record in records:
            if record.key == SKIPPED_KEY:
                found.positions[record.partition] = record.offset + 1
                continue
            # Offsets of this log topic have no gaps but these, and those of retention.
            found.skip_to(record.partition, record.offset)
            found.positions[record.partition] = record.offset + 1
            if is_wanted(record):
                found.records.append(record)
                found_bytes += len(record.value or b"")
                if len(found.records) >= max_records or found_bytes >= max_bytes:
                    raise _Enough

    wanted = {p: (at, ends[p]) for p, at in positions.items() if p in ends and at < ends[p]}
    try:
        await ranges.read_range(log_topic, wanted, take)
    except _Enough:
        return found
    for partition, (_, end) in wanted.items():
        found.skip_to(partition, end)
    return found


async def find_published(
    ranges: LogRangeReader, begins: Mapping[int, int], ends: Mapping[int, int]
) -> set[bytes]:
    """Return action identifiers of the last run's messages in a range of `mqlake.inbound`.

    Raises:
        LogError: The log does not answer.
    """
    found: set[bytes] = set()

    async def take(records: list[LogRecord]) -> None:
        for record in records:
            names = dict(record.headers)
            if HEADER_CHAIN in names and (action_id := names.get(HEADER_OUTPUT)) is not None:
                found.add(action_id)
        await asyncio.sleep(0)

    begun = time.monotonic()
    await ranges.read_range(INBOUND, {p: (begins.get(p, 0), end) for p, end in ends.items()}, take)
    fields = {"found": len(found), "seconds": round(time.monotonic() - begun, 2)}
    logger.info("looked for what was published already", extra={"fields": fields})
    return found
