"""The log of a simulated world: partitions of `mqlake.sessions`, messages, and heartbeats."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from mqlake.records.messages import LogRecord

if TYPE_CHECKING:
    from ingest.session.shard.effects import ShardRecord
    from mqlake.records.shards import Run
    from mqlake.records.versions import Headers

COMPACTION_LAG_MS: Final = 20_000
START_MS: Final = 1_700_000_000_000
"""The log's time when the world begins."""


class Log:
    """One partition of `mqlake.sessions`."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.next_offset = 0

    def append(self, now: int, shard: int, record: ShardRecord) -> int:
        offset = self.next_offset
        self.records.append(LogRecord(shard, offset, START_MS + now, *_fields(record)))
        self.next_offset += 1
        return offset

    def since(self, offset: int) -> list[LogRecord]:
        return self.records[bisect_left(self.records, offset, key=lambda one: one.offset) :]

    def compacted(self, before_ms: int) -> list[LogRecord]:
        """Return what compaction leaves: the last record of each key, and all recent ones."""
        last = {record.key: record.offset for record in self.records}
        return [
            record
            for record in self.records
            if record.timestamp_ms >= before_ms or last[record.key] == record.offset
        ]


def _fields(record: ShardRecord) -> tuple[bytes, bytes | None, Headers]:
    return record.key, record.value, record.headers


class Message(NamedTuple):
    """A record of `mqlake.inbound`, which has one partition here."""

    kind: str
    """message (for subscribers), published (by a client) or will."""
    name: str
    qos: int = 0
    exchange: bytes = b""


class SimHeartbeat(NamedTuple):
    lands: int
    run: Run
    sent: int


# Clients
