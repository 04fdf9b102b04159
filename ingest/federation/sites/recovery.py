"""What a new run of a federator knows: the checkpoint, and what the log has beyond it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from ingest.federation.sites.inlet import Inlet
from ingest.federation.sites.streams import Streams
from mqlake.federation_records import (
    FEDERATION,
    KEY,
    FederationCheckpoint,
    LinkPlaces,
    Offsets,
    decode_checkpoint,
)
from mqlake.records import INBOUND

if TYPE_CHECKING:
    from mqlake.log.contract import LogAccess, LogRecord

_logger = logging.getLogger(__name__)


class Recovered(NamedTuple):
    epoch: int
    """Of the log."""
    inlet: Inlet
    links: dict[int, LinkPlaces]
    """By neighbour, of those that there were."""
    ends: Offsets
    """Where the log ended when the run began."""
    interest: dict[str, Any]
    """What neighbours wanted; empty: nothing is known."""


async def recover(log: LogAccess, now_ms: int) -> Recovered:
    """Learn how far all is.

    Args:
        log: Of the site.
        now_ms: The epoch of a log that was not federated before; UTC epoch.

    Raises:
        LogError: The log does not answer.
        InvalidRecord: The checkpoint is of another version, or malformed.
    """
    reader = log.open_reader()
    try:
        ends = await reader.end_offsets(INBOUND)
        record = (await reader.read_compacted(FEDERATION)).get(KEY)
    finally:
        await reader.close()
    before = FederationCheckpoint(now_ms, dict(ends), [], {})
    if record is not None and record.value is not None:
        before = decode_checkpoint(record.value)
        places = [before.read, *(one.cursor for one in before.links.values())]
        if any(at > ends.get(p, 0) for offsets in places for p, at in offsets.items()):
            _logger.error("the log has begun anew: its messages get another epoch")
            epoch = max(now_ms, before.epoch + 1)
            before = FederationCheckpoint(
                epoch, dict.fromkeys(ends, 0), before.streams, {}, before.interest
            )
    inlet = Inlet(Streams.from_json(before.streams), before.read)

    async def take(records: list[LogRecord]) -> None:
        inlet.recover(records)

    ranges = {partition: (before.read.get(partition, 0), end) for partition, end in ends.items()}
    await log.ranges.read_range(INBOUND, ranges, take)
    inlet.read.update(ends)
    for link in before.links.values():
        for partition in ends:
            link.cursor.setdefault(partition, 0)
    return Recovered(before.epoch, inlet, before.links, ends, before.interest)
