"""State of a new run of a federator: from the checkpoint, and from the log beyond it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from ingest.federation.sites.streams.inlet import Inlet
from ingest.federation.sites.streams.streams import Streams
from mqlake.records.federation import (
    FEDERATION,
    KEY,
    RETAINED_KEY_PREFIX,
    FederationCheckpoint,
    LinkPosition,
    Offsets,
    decode_checkpoint,
    decode_latest,
)
from mqlake.records.messages import INBOUND

if TYPE_CHECKING:
    from mqlake.log.contract import LogAccess
    from mqlake.records.messages import LogRecord

_logger = logging.getLogger(__name__)


class Recovered(NamedTuple):
    epoch: int
    """Epoch of the log."""
    inlet: Inlet
    links: dict[int, LinkPosition]
    """By neighbour, of those that there were."""
    ends: Offsets
    """Ends of the log when the run began."""
    interest: dict[str, Any]
    """Interest of neighbours; empty: nothing is known."""
    retained: LinkPosition | None
    """Up to where `latest` goes; None: nothing is known."""
    latest: dict[str, list[Any]]
    """By topic, as `ingest.federation.sites.streams.retained` writes it."""


async def recover(log: LogAccess, now_ms: int) -> Recovered:
    """Learn how far all is.

    Args:
        log: Log of the site.
        now_ms: The epoch of a log that was not federated before; UTC epoch.

    Raises:
        LogError: The log does not answer.
        InvalidRecord: The checkpoint is of another version, or malformed.
    """
    reader = log.open_reader()
    try:
        ends = await reader.end_offsets(INBOUND)
        records = await reader.read_compacted(FEDERATION)
    finally:
        await reader.close()
    record = records.get(KEY)
    latest = {
        key.removeprefix(RETAINED_KEY_PREFIX).decode(): decode_latest(one.value or b"")
        for key, one in records.items()
        if key.startswith(RETAINED_KEY_PREFIX)
    }
    before = FederationCheckpoint(now_ms, dict(ends), [], {})
    if record is not None and record.value is not None:
        before = decode_checkpoint(record.value)
        positions = [before.read, *(one.cursor for one in before.links.values())]
        if any(at > ends.get(p, 0) for offsets in positions for p, at in offsets.items()):
            _logger.error("the log has begun again: its messages get another epoch")
            epoch = max(now_ms, before.epoch + 1)
            before = FederationCheckpoint(
                epoch, dict.fromkeys(ends, 0), before.streams, {}, before.interest
            )
            # Its messages are nowhere in this log; those of other sites are as late as they were.
            latest = {topic: [rank, None, None] for topic, (rank, *_) in latest.items()}
    inlet = Inlet(Streams.from_json(before.streams), before.read)

    async def take(records: list[LogRecord]) -> None:
        inlet.recover(records)

    ranges = {partition: (before.read.get(partition, 0), end) for partition, end in ends.items()}
    await log.ranges.read_range(INBOUND, ranges, take)
    inlet.read.update(ends)
    for link in before.links.values():
        for partition in ends:
            link.cursor.setdefault(partition, 0)
    return Recovered(
        before.epoch, inlet, before.links, ends, before.interest, before.retained, latest
    )
