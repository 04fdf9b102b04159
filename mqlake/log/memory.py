"""The log in memory, for tests: the same promises, plus faults and delays that a test commands.

`MemoryLog` is the cluster; any number of writers and readers share one. Nothing here looks at a
clock except to stamp records that come without a time.
"""

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial as bind
from typing import Final, Protocol
from zlib import crc32

from mqlake.errors import BatchNotTaken, LogError, OffsetGone
from mqlake.log.contract import (
    ANY_PARTITION,
    BEGINNING,
    END,
    AppendCallback,
    ErrorCallback,
    LogFull,
    Missing,
    RangeConsumer,
    RecordsCallback,
    queue,
)
from mqlake.log.shorter import lost_end
from mqlake.records.messages import GATEWAYS, SESSIONS, LogRecord
from mqlake.records.versions import Headers

MAX_BATCH_RECORDS: Final = 500


def _system_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class _Partition:
    records: list[LogRecord] = field(default_factory=list)
    """Ascending by offset; the oldest may have been removed, and others be absent."""
    end: int = 0
    begin: int = 0

    def at(self, offset: int) -> int:
        """Return the place in `records` of the first record from this offset on."""
        return bisect_left(self.records, offset, key=_offset_of)


class _Follower(Protocol):
    def schedule(self) -> None:
        """Note that there are new records."""
        ...


class MemoryLog:
    """Log topics, their partitions and records; and the faults a test asks for.

    Attributes:
        now_ms: The log's clock.
        with_log_time: Log topics whose writers get the time of their records.
    """

    def __init__(self, now_ms: Callable[[], int] = _system_ms) -> None:
        self.now_ms = now_ms
        self.with_log_time = {SESSIONS, GATEWAYS}
        self._topics: dict[str, list[_Partition]] = {}
        self._readers: list[_Follower] = []
        self._writers: list[MemoryLogWriter] = []
        self._faults: deque[tuple[str | None, LogError]] = deque()
        self._held: str | None = None
        self._held_writer: MemoryLogWriter | None = None
        self._is_late = False

    def create(self, log_topic: str, partitions: int) -> None:
        self._topics.setdefault(log_topic, [_Partition() for _ in range(partitions)])

    def grow(self, log_topic: str, partitions: int) -> None:
        """Act as a cluster that has got further partitions, `partitions` in all."""
        known = self.partitions(log_topic)
        known.extend(_Partition() for _ in range(partitions - len(known)))

    def records(self, log_topic: str) -> list[LogRecord]:
        """Return everything in a log topic, partition by partition."""
        return [record for partition in self.partitions(log_topic) for record in partition.records]

    def remove_before(self, log_topic: str, partition: int, offset: int) -> None:
        """Act as retention: forget the records of a partition before an offset."""
        found = self.partitions(log_topic)[partition]
        found.begin = offset
        del found.records[: found.at(offset)]

    def skip_offset(self, log_topic: str, partition: int, count: int = 1) -> None:
        """Act as the end of a transaction: take offsets without a record."""
        self.partitions(log_topic)[partition].end += count
        for reader in self._readers:
            reader.schedule()

    def hold_reports(self, log_topic: str = "") -> None:
        """Keep appended records unacknowledged and unread until `release_reports`: a slow log.

        Those of one log topic, or of all.
        """
        self._held = log_topic

    def hold_reports_of(self, writer: "MemoryLogWriter") -> None:
        """Hold the reports of one writer: its process stands still."""
        self._held_writer = writer

    def delay_reports(self) -> None:
        """Store records and let them be read, but say so only after `release_reports`."""
        self._is_late = True

    @property
    def is_late(self) -> bool:
        return self._is_late

    def is_held(self, log_topic: str, writer: "MemoryLogWriter") -> bool:
        if self._held_writer is writer:
            return True
        return self._held is not None and self._held in {"", log_topic}

    def release_reports(self) -> None:
        self._held = self._held_writer = None
        self._is_late = False
        for writer in self._writers:
            writer.schedule()

    def fail_next(self, error: LogError, *, count: int = 1, log_topic: str | None = None) -> None:
        """Answer the next appends with an error; one that is not definite leaves the record in.

        Args:
            error: The answer.
            count: Number of appends that get it.
            log_topic: Only to this one; None: to any.
        """
        self._faults.extend([(log_topic, error)] * count)

    def _fault(self, log_topic: str) -> LogError | None:
        for fault in self._faults:
            if fault[0] in (None, log_topic):
                self._faults.remove(fault)
                return fault[1]
        return None

    def partitions(self, log_topic: str) -> list[_Partition]:
        try:
            return self._topics[log_topic]
        except KeyError:
            raise LogError(f"log topic {log_topic} does not exist", definite=True) from None

    def store(
        self,
        log_topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        partition: int,
    ) -> tuple[int, int]:
        """Append and return partition and offset, or raise the error set by `fail_next`."""
        partitions = self.partitions(log_topic)
        if partition == ANY_PARTITION:
            partition = _partition_of(key or b"", len(partitions))
        elif partition >= len(partitions):
            raise LogError(f"log topic {log_topic} has no partition {partition}", definite=True)
        fault = self._fault(log_topic)
        if fault is not None and fault.definite:
            raise fault
        target = partitions[partition]
        offset = target.end
        target.records.append(
            LogRecord(
                partition,
                offset,
                timestamp_ms or self.now_ms(),
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

    def add_reader(self, reader: _Follower) -> None:
        self._readers.append(reader)

    def remove_reader(self, reader: _Follower) -> None:
        if reader in self._readers:
            self._readers.remove(reader)


@dataclass(slots=True)
class _Append:
    log_topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    partition: int
    on_appended: AppendCallback


def _partition_of(key: bytes, partitions: int) -> int:
    return crc32(key) % partitions


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
        self._reports: deque[Callable[[], None]] = deque()
        self._scheduled = False
        self._closed = False
        self._idle = asyncio.Event()
        self._used: dict[str, int] = {}
        self._log_time_ms = 0
        self.on_log_time: Callable[[int], None] = lambda _: None
        log.add_writer(self)

    def append(
        self,
        log_topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        on_appended: AppendCallback,
        *,
        timestamp_ms: int = 0,
        partition: int = ANY_PARTITION,
    ) -> None:
        if self._closed:
            raise LogError("the log writer is closed", definite=True)
        if len(key or b"") + len(value or b"") > self._max_record_bytes:
            raise LogError(
                f"record is larger than {self._max_record_bytes} bytes",
                definite=True,
                of_batch=True,
            )
        if len(self._waiting) >= self._max_queued:
            raise LogFull(f"{len(self._waiting)} records wait for the log, no more fit")
        if partition == ANY_PARTITION and log_topic in self._used:
            partition = _partition_of(key or b"", self._used[log_topic])
        self._waiting.append(
            _Append(log_topic, key, value, headers, timestamp_ms, partition, on_appended)
        )
        self.schedule()

    def partition_of(self, key: bytes, partitions: int) -> int:
        return _partition_of(key, partitions)

    async def use_partitions(self, log_topic: str, used: int, *, is_fixed: bool = False) -> None:
        present = len(self._log.partitions(log_topic))
        if present < used:
            raise LogError(
                f"log topic {log_topic} has {present} partitions, expected {used}", definite=True
            )
        self._used[log_topic] = used

    async def append_durably(
        self,
        log_topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        *,
        timestamp_ms: int = 0,
        partition: int = ANY_PARTITION,
    ) -> tuple[int, int]:
        return await queue(
            self, log_topic, key, value, headers, timestamp_ms=timestamp_ms, partition=partition
        )

    def kill(self) -> None:
        """Lose queued records and take no more: the process has died."""
        self._closed = True
        self._waiting.clear()
        self._reports.clear()

    def queued(self) -> int:
        return len(self._waiting) + len(self._reports)

    def round_trip_seconds(self) -> float:
        return 0.0

    async def flush(self, timeout_seconds: float) -> None:
        if not self.queued():
            return
        self._idle.clear()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        except TimeoutError as exc:
            raise LogError(
                f"{self.queued()} records not appended after {timeout_seconds:g} s",
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

    def _stored(self, record: _Append, partition: int, offset: int, now_ms: int) -> None:
        if record.log_topic in self._log.with_log_time:
            self._log_time_ms = now_ms
        self.on_log_time(self._log_time_ms)
        record.on_appended(partition, offset, None)

    def _report(self) -> None:
        while self._reports and not self._log.is_late:
            self._reports.popleft()()

    def schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        self._scheduled = False
        taken, self._waiting = self._waiting, deque()
        for waiting in taken:
            if self._closed:
                return
            if self._log.is_held(waiting.log_topic, self):
                self._waiting.append(waiting)
                continue
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
                self._reports.append(bind(waiting.on_appended, waiting.partition, -1, exc))
            else:
                now_ms = self._log.now_ms()
                self._reports.append(bind(self._stored, waiting, partition, offset, now_ms))
            self._report()
        self._report()
        if not self.queued():
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

    @property
    def positions(self) -> dict[int, int]:
        """Return partition -> the first offset that was not handed over."""
        return dict(self._next)

    async def start(
        self,
        log_topic: str,
        positions: Mapping[int, int],
        on_records: RecordsCallback,
        on_error: ErrorCallback,
    ) -> dict[int, int]:
        if self._on_records is not None:
            raise RuntimeError("the reader is started already")
        self._log_topic = log_topic
        self._on_records = on_records
        self._on_error = on_error
        self._log.add_reader(self)
        return self._follow(positions)

    async def follow(self, positions: Mapping[int, int]) -> dict[int, int]:
        return self._follow(positions)

    def unfollow(self, partitions: Collection[int]) -> None:
        for partition in partitions:
            del self._next[partition]

    def _follow(self, positions: Mapping[int, int]) -> dict[int, int]:
        partitions = self._log.partitions(self._log_topic)
        missing = [partition for partition in positions if partition >= len(partitions)]
        if missing:
            raise LogError(
                f"log topic {self._log_topic} has {len(partitions)} partitions, "
                f"no partition {min(missing)}",
                definite=True,
            )
        for partition, position in positions.items():
            if position == END:
                position = partitions[partition].end
            elif position == BEGINNING:
                position = partitions[partition].begin
            self._next[partition] = position
        self.schedule()
        return {partition: self._next[partition] for partition in positions}

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self.schedule()

    def hurry(self) -> None:
        """Nothing waits here."""

    async def partition_count(self, log_topic: str) -> int:
        return len(self._log.partitions(log_topic))

    async def end_offsets(self, log_topic: str) -> dict[int, int]:
        return {
            number: partition.end
            for number, partition in enumerate(self._log.partitions(log_topic))
        }

    async def begin_offsets(self, log_topic: str) -> dict[int, int]:
        return {
            number: partition.begin
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
        for number, position in list(self._next.items()):
            partition = self._log.partitions(self._log_topic)[number]
            begin = partition.begin
            if not begin <= position <= partition.end:
                self._next[number] = begin
                self._on_error(
                    OffsetGone(
                        f"offset {position} of {self._log_topic} partition {number} is not there, "
                        "reading goes on at the oldest record"
                    )
                )
                self.schedule()
                return
            first = partition.at(position)
            batch = partition.records[first : first + MAX_BATCH_RECORDS]
            if batch:
                self._next[number] = batch[-1].offset + 1
                self.schedule()
                try:
                    self._on_records(batch)
                except Exception as exc:
                    self._next.clear()
                    raise BatchNotTaken(
                        f"records of {self._log_topic} were not taken: {exc}"
                    ) from exc
                return


class MemoryRangeReader:
    """Keeps the `LogRangeReader` contract over a `MemoryLog`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._changed = asyncio.Event()
        self._closed = False
        log.add_reader(self)

    async def read_range(
        self,
        log_topic: str,
        ranges: Mapping[int, tuple[int, int]],
        on_records: RangeConsumer,
        *,
        timeout_seconds: float = 10.0,
    ) -> list[Missing]:
        unread = {partition: at for partition, at in ranges.items() if at[0] < at[1]}
        if not unread:
            return []
        self._check_open()
        partitions = self._log.partitions(log_topic)
        if max(unread) >= len(partitions):
            raise LogError(
                f"log topic {log_topic} has {len(partitions)} partitions, "
                f"no partition {max(unread)}",
                definite=True,
            )
        missing: list[Missing] = []
        while unread:
            await asyncio.sleep(0)
            self._check_open()
            partition, (position, end) = next(iter(unread.items()))
            # The next turn is another partition's.
            del unread[partition]
            held = partitions[partition]
            if position < held.begin:
                missing.append(Missing(partition, position, min(held.begin, end)))
                position = held.begin
            first = held.at(position)
            batch = held.records[first : min(first + MAX_BATCH_RECORDS, held.at(end))]
            position = batch[-1].offset + 1 if batch else max(position, min(held.end, end))
            if position < end:
                unread[partition] = (position, end)
            if batch:
                await on_records(batch)
            elif all(at >= partitions[number].end for number, (at, _) in unread.items()):
                await self._wait(log_topic, unread, timeout_seconds)
        return missing

    async def close(self) -> None:
        self._closed = True
        self._log.remove_reader(self)
        self._changed.set()

    def schedule(self) -> None:
        self._changed.set()

    def _check_open(self) -> None:
        if self._closed:
            raise LogError("the log reader was closed", definite=True)

    async def _wait(
        self, log_topic: str, unread: Mapping[int, tuple[int, int]], timeout_seconds: float
    ) -> None:
        """Wait for new records; nothing to wait for when all is read."""
        if not unread:
            return
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._changed.wait()
        except TimeoutError as exc:
            partition, (offset, end) = next(iter(unread.items()))
            there_is = self._log.partitions(log_topic)[partition].end
            cause = f": {lost_end(offset, there_is)}" if offset > there_is else ""
            raise LogError(
                f"reading {log_topic}: nothing for {timeout_seconds:g} s at offset {offset} "
                f"of partition {partition}, expected offsets up to {end}{cause}",
                definite=False,
            ) from exc


def _offset_of(record: LogRecord) -> int:
    return record.offset
