"""The log in memory, for tests: the same promises, plus faults and delays that a test commands.

`MemoryLog` is the cluster; any number of writers and readers share one. Nothing here looks at a
clock except to stamp records that come without a time.
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial as bind
from typing import Final
from zlib import crc32

from ingest.log.contract import (
    ANY_PARTITION,
    BEGINNING,
    END,
    AppendCallback,
    ErrorCallback,
    LogFull,
    LogRecord,
    RecordsCallback,
    settle,
)
from mqlake.errors import LogError
from mqlake.records import Headers

MAX_BATCH_RECORDS: Final = 500


@dataclass(slots=True)
class _Partition:
    records: list[LogRecord] = field(default_factory=list)
    """Ascending by offset; the oldest may have been removed."""
    end: int = 0


class MemoryLog:
    """Log topics, their partitions and records; and the faults a test asks for."""

    def __init__(self) -> None:
        self._topics: dict[str, list[_Partition]] = {}
        self._readers: list[MemoryLogReader] = []
        self._writers: list[MemoryLogWriter] = []
        self._faults: deque[LogError] = deque()
        self.holding: bool = False

    def create(self, log_topic: str, partitions: int) -> None:
        self._topics.setdefault(log_topic, [_Partition() for _ in range(partitions)])

    def records(self, log_topic: str) -> list[LogRecord]:
        """Return everything in a log topic, partition by partition."""
        return [record for partition in self.partitions(log_topic) for record in partition.records]

    def remove_before(self, log_topic: str, partition: int, offset: int) -> None:
        """Do what retention does: forget the records of a partition before an offset."""
        records = self.partitions(log_topic)[partition].records
        records[:] = [record for record in records if record.offset >= offset]

    def hold_reports(self) -> None:
        """Keep appended records unacknowledged and unread until `release_reports`: a slow log."""
        self.holding = True

    def release_reports(self) -> None:
        self.holding = False
        for writer in self._writers:
            writer.schedule()

    def fail_next(self, error: LogError, *, count: int = 1) -> None:
        """Answer the next appends with an error; one that is not definite leaves the record in."""
        self._faults.extend([error] * count)

    def partitions(self, log_topic: str) -> list[_Partition]:
        try:
            return self._topics[log_topic]
        except KeyError:
            raise LogError(f"log topic {log_topic} does not exist", definite=True) from None

    def store(
        self,
        log_topic: str,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        partition: int,
    ) -> tuple[int, int]:
        """Append and return partition and offset, or raise what `fail_next` put in the way."""
        partitions = self.partitions(log_topic)
        if partition == ANY_PARTITION:
            partition = crc32(key) % len(partitions)
        elif partition >= len(partitions):
            raise LogError(f"log topic {log_topic} has no partition {partition}", definite=True)
        fault = self._faults.popleft() if self._faults else None
        if fault is not None and fault.definite:
            raise fault
        target = partitions[partition]
        offset = target.end
        target.records.append(
            LogRecord(
                partition,
                offset,
                timestamp_ms or time.time_ns() // 1_000_000,
                key,
                value,
                list(headers),
            )
        )
        target.end += 1
        for reader in self._readers:
            reader.schedule()
        if fault is not None:
            raise fault
        return partition, offset

    def add_writer(self, writer: "MemoryLogWriter") -> None:
        self._writers.append(writer)

    def add_reader(self, reader: "MemoryLogReader") -> None:
        self._readers.append(reader)

    def remove_reader(self, reader: "MemoryLogReader") -> None:
        if reader in self._readers:
            self._readers.remove(reader)


@dataclass(slots=True)
class _Append:
    log_topic: str
    key: bytes
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    partition: int
    on_appended: AppendCallback


class MemoryLogWriter:
    """Keeps the `LogWriter` contract over a `MemoryLog`."""

    def __init__(
        self,
        log: MemoryLog,
        *,
        max_queued_records: int = 100_000,
        max_record_bytes: int = 1_000_000,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._max_queued = max_queued_records
        self._max_record_bytes = max_record_bytes
        self._waiting: deque[_Append] = deque()
        self._scheduled = False
        self._closed = False
        self._idle = asyncio.Event()
        log.add_writer(self)

    def append(
        self,
        log_topic: str,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        on_appended: AppendCallback,
        *,
        timestamp_ms: int = 0,
        partition: int = ANY_PARTITION,
    ) -> None:
        if self._closed:
            raise LogError("the log writer is closed", definite=True)
        if len(key) + len(value or b"") > self._max_record_bytes:
            raise LogError(f"record is larger than {self._max_record_bytes} bytes", definite=True)
        if len(self._waiting) >= self._max_queued:
            raise LogFull(f"{len(self._waiting)} records wait for the log, no more fit")
        self._waiting.append(
            _Append(log_topic, key, value, headers, timestamp_ms, partition, on_appended)
        )
        self.schedule()

    async def append_durably(
        self,
        log_topic: str,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        *,
        timestamp_ms: int = 0,
        partition: int = ANY_PARTITION,
    ) -> tuple[int, int]:
        appended: asyncio.Future[tuple[int, int]] = self._loop.create_future()
        self.append(
            log_topic,
            key,
            value,
            headers,
            bind(settle, appended),
            timestamp_ms=timestamp_ms,
            partition=partition,
        )
        return await appended

    def queued(self) -> int:
        return len(self._waiting)

    async def flush(self, timeout_seconds: float) -> None:
        if not self._waiting:
            return
        self._idle.clear()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_seconds)
        except TimeoutError as exc:
            raise LogError(
                f"{len(self._waiting)} records not appended after {timeout_seconds:g} s",
                definite=False,
            ) from exc

    async def close(self, timeout_seconds: float = 5.0) -> None:
        try:
            await self.flush(timeout_seconds)
        except LogError:
            while self._waiting:
                waiting = self._waiting.popleft()
                waiting.on_appended(
                    waiting.partition, -1, LogError("the log writer was closed", definite=True)
                )
        self._closed = True

    def schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        self._scheduled = False
        if self._log.holding:
            return
        while self._waiting:
            waiting = self._waiting.popleft()
            try:
                partition, offset = self._log.store(
                    waiting.log_topic,
                    waiting.key,
                    waiting.value,
                    waiting.headers,
                    waiting.timestamp_ms,
                    waiting.partition,
                )
            except LogError as exc:
                waiting.on_appended(waiting.partition, -1, exc)
            else:
                waiting.on_appended(partition, offset, None)
        self._idle.set()


class MemoryLogReader:
    """Keeps the `LogReader` contract over a `MemoryLog`."""

    def __init__(self, log: MemoryLog) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._log_topic = ""
        self._next: dict[int, int] = {}
        self._on_records: RecordsCallback | None = None
        self._on_error: ErrorCallback | None = None
        self._paused = False
        self._scheduled = False

    async def start(
        self,
        log_topic: str,
        positions: Mapping[int, int],
        on_records: RecordsCallback,
        on_error: ErrorCallback,
    ) -> dict[int, int]:
        if self._on_records is not None:
            raise RuntimeError("the reader is started already")
        partitions = self._log.partitions(log_topic)
        missing = [partition for partition in positions if partition >= len(partitions)]
        if missing:
            raise LogError(
                f"log topic {log_topic} has {len(partitions)} partitions, "
                f"no partition {min(missing)}",
                definite=True,
            )
        self._log_topic = log_topic
        self._on_records = on_records
        self._on_error = on_error
        for partition, position in positions.items():
            if position == END:
                position = partitions[partition].end
            elif position == BEGINNING:
                position = _begin(partitions[partition])
            self._next[partition] = position
        self._log.add_reader(self)
        self.schedule()
        return dict(self._next)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self.schedule()

    async def partition_count(self, log_topic: str) -> int:
        return len(self._log.partitions(log_topic))

    async def end_offsets(self, log_topic: str) -> dict[int, int]:
        return {
            number: partition.end
            for number, partition in enumerate(self._log.partitions(log_topic))
        }

    async def read_compacted(
        self, log_topic: str, timeout_seconds: float = 30.0
    ) -> dict[bytes, LogRecord]:
        found: dict[bytes, LogRecord] = {}
        for record in self._log.records(log_topic):
            key = record.key or b""
            if record.value is None:
                found.pop(key, None)
            else:
                found[key] = record
        return found

    async def close(self) -> None:
        self._log.remove_reader(self)
        self._next.clear()

    def schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        self._scheduled = False
        assert self._on_records is not None
        assert self._on_error is not None
        if self._paused:
            return
        for number, position in self._next.items():
            partition = self._log.partitions(self._log_topic)[number]
            begin = _begin(partition)
            if not begin <= position <= partition.end:
                self._next[number] = begin
                self._on_error(
                    LogError(
                        f"offset {position} of {self._log_topic} partition {number} is not there, "
                        "reading goes on at the oldest record",
                        definite=False,
                    )
                )
                self.schedule()
                return
            first = position - begin
            batch = partition.records[first : first + MAX_BATCH_RECORDS]
            if batch:
                self._next[number] = batch[-1].offset + 1
                self.schedule()
                self._on_records(batch)
                return


def _begin(partition: _Partition) -> int:
    return partition.records[0].offset if partition.records else partition.end
