"""The promises of `mqlake.log.contract`, asked of the fake and of a real broker alike."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import uvloop
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from mqlake.errors import BatchNotTaken, LogError, OffsetGone
from mqlake.log import admin
from mqlake.log.contract import (
    ANY_PARTITION,
    BEGINNING,
    END,
    LogFull,
    LogRangeReader,
    LogReader,
    LogWriter,
    Missing,
)
from mqlake.log.kafka_ranges import KafkaRangeReader
from mqlake.log.kafka_reader import KafkaLogReader
from mqlake.log.kafka_writer import KafkaLogWriter
from mqlake.log.log_topics import LOG_TIME
from mqlake.log.memory import MemoryLog, MemoryLogReader, MemoryLogWriter, MemoryRangeReader
from mqlake.records.messages import LogRecord

pytestmark = pytest.mark.promise

DEADLINE_SECONDS = 60.0
PARTITIONS = 3

RECENT_MS = time.time_ns() // 1_000_000 - 3_600_123
"""A time that a caller may set. Kafka keeps a record for seven days of it: it rolls a segment of
older ones at the next record, and removes that segment within five minutes."""
_names = itertools.count()


class Cluster:
    """What a test asks of a log before it uses the contract."""

    async def create(
        self, partitions: int = PARTITIONS, *, compacted: bool = False, log_time: bool = False
    ) -> str:
        """Create a log topic of its own for the test."""
        raise NotImplementedError

    async def grow(self, log_topic: str, partitions: int) -> None:
        """Add partitions."""
        raise NotImplementedError

    def writer(self, *, max_queued_records: int = 1000) -> LogWriter:
        raise NotImplementedError

    def reader(self) -> LogReader:
        raise NotImplementedError

    def range_reader(self) -> LogRangeReader:
        raise NotImplementedError

    async def remove_before(self, log_topic: str, partition: int, offset: int) -> None:
        """Do what retention does."""
        raise NotImplementedError

    async def skip_offset(self, log_topic: str, partition: int) -> None:
        """Do what the end of a transaction does: take an offset without a record."""
        raise NotImplementedError


class MemoryCluster(Cluster):
    def __init__(self) -> None:
        self._log = MemoryLog()

    async def create(
        self, partitions: int = PARTITIONS, *, compacted: bool = False, log_time: bool = False
    ) -> str:
        log_topic = f"test-{next(_names)}"
        self._log.create(log_topic, partitions)
        if log_time:
            self._log.with_log_time.add(log_topic)
        return log_topic

    async def grow(self, log_topic: str, partitions: int) -> None:
        self._log.grow(log_topic, partitions)

    def writer(self, *, max_queued_records: int = 1000) -> LogWriter:
        return MemoryLogWriter(self._log, max_queued_records=max_queued_records)

    def reader(self) -> LogReader:
        return MemoryLogReader(self._log)

    def range_reader(self) -> LogRangeReader:
        return MemoryRangeReader(self._log)

    async def remove_before(self, log_topic: str, partition: int, offset: int) -> None:
        self._log.remove_before(log_topic, partition, offset)

    async def skip_offset(self, log_topic: str, partition: int) -> None:
        # As in Kafka, where no transaction is without a record.
        writer = MemoryLogWriter(self._log)
        await writer.append_durably(log_topic, b"k", b"in a transaction", [], partition=partition)
        await writer.close()
        self._log.skip_offset(log_topic, partition)


class KafkaCluster(Cluster):
    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers

    async def create(
        self, partitions: int = PARTITIONS, *, compacted: bool = False, log_time: bool = False
    ) -> str:
        log_topic = f"test-{next(_names)}"
        await asyncio.to_thread(self._create, log_topic, partitions, compacted, log_time)
        return log_topic

    def _create(self, log_topic: str, partitions: int, compacted: bool, log_time: bool) -> None:
        config = {"cleanup.policy": "compact"} if compacted else {}
        config |= LOG_TIME if log_time else {}
        admin.LogAdmin(self._servers, DEADLINE_SECONDS).ensure(log_topic, config, partitions)

    async def grow(self, log_topic: str, partitions: int) -> None:
        log = admin.LogAdmin(self._servers, DEADLINE_SECONDS)
        await asyncio.to_thread(log.add_partitions, log_topic, partitions)

    def writer(self, *, max_queued_records: int = 1000) -> LogWriter:
        return KafkaLogWriter(self._servers, max_queued_records=max_queued_records)

    def reader(self) -> LogReader:
        return KafkaLogReader(self._servers)

    def range_reader(self) -> LogRangeReader:
        return KafkaRangeReader(self._servers)

    async def remove_before(self, log_topic: str, partition: int, offset: int) -> None:
        await asyncio.to_thread(self._remove_before, TopicPartition(log_topic, partition, offset))

    def _remove_before(self, position: TopicPartition) -> None:
        client = AdminClient({"bootstrap.servers": self._servers})
        client.delete_records([position])[position].result(DEADLINE_SECONDS)

    async def skip_offset(self, log_topic: str, partition: int) -> None:
        await asyncio.to_thread(self._end_transaction, log_topic, partition)

    def _end_transaction(self, log_topic: str, partition: int) -> None:
        producer = Producer(
            {"bootstrap.servers": self._servers, "transactional.id": f"test-{next(_names)}"}
        )
        producer.init_transactions(DEADLINE_SECONDS)
        end = self._end(log_topic, partition)
        producer.begin_transaction()
        producer.produce(log_topic, b"in a transaction", b"k", partition)
        producer.commit_transaction(DEADLINE_SECONDS)
        # The marker is written some time after the commit was answered.
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self._end(log_topic, partition) < end + 2:
            assert time.monotonic() < deadline

    def _end(self, log_topic: str, partition: int) -> int:
        return admin.offsets(self._servers, log_topic, admin.END_OFFSETS, DEADLINE_SECONDS)[
            partition
        ]


@dataclass
class Read:
    """Collects what a reader hands over, and lets a test wait for it."""

    records: list[LogRecord] = field(default_factory=list)
    errors: list[LogError] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, batch: list[LogRecord]) -> None:
        assert batch
        self.records.extend(batch)
        self._changed.set()

    def take_error(self, error: LogError) -> None:
        self.errors.append(error)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_count(self, count: int) -> None:
        await self.until(lambda: len(self.records) >= count)

    async def take_in_turn(self, batch: list[LogRecord]) -> None:
        self.take(batch)

    def offsets(self, partition: int) -> list[int]:
        return [record.offset for record in self.records if record.partition == partition]

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


@dataclass
class Reports:
    """Collects what a writer reports."""

    reports: list[tuple[int, int, LogError | None]] = field(default_factory=list)

    def take(self, partition: int, offset: int, error: LogError | None) -> None:
        self.reports.append((partition, offset, error))


Scenario = Callable[[Cluster], Awaitable[None]]
Run = Callable[[Scenario], None]

LOOPS: dict[str, Callable[[Coroutine[Any, Any, None]], None]] = {
    "asyncio": asyncio.run,
    "uvloop": uvloop.run,
}


async def _with(cluster: Callable[[], Cluster], scenario: Scenario) -> None:
    await scenario(cluster())


@pytest.fixture(
    params=[
        pytest.param(("memory", "asyncio"), id="memory"),
        pytest.param(("kafka", "asyncio"), id="kafka-asyncio", marks=pytest.mark.kafka),
        pytest.param(("kafka", "uvloop"), id="kafka-uvloop", marks=pytest.mark.kafka),
    ]
)
def run(request: pytest.FixtureRequest) -> Run:
    """Run a scenario on each kind of log."""
    kind, loop = request.param
    make: Callable[[], Cluster] = MemoryCluster
    if kind == "kafka":
        make = partial(KafkaCluster, request.getfixturevalue("bootstrap_servers"))
    return lambda scenario: LOOPS[loop](_with(make, scenario))


@asynccontextmanager
async def writing(cluster: Cluster, *, max_queued_records: int = 1000) -> AsyncIterator[LogWriter]:
    writer = cluster.writer(max_queued_records=max_queued_records)
    try:
        yield writer
    finally:
        await writer.close()


@asynccontextmanager
async def reading(cluster: Cluster) -> AsyncIterator[LogReader]:
    reader = cluster.reader()
    try:
        yield reader
    finally:
        await reader.close()


@asynccontextmanager
async def reading_ranges(cluster: Cluster) -> AsyncIterator[LogRangeReader]:
    reader = cluster.range_reader()
    try:
        yield reader
    finally:
        await reader.close()


def everywhere(position: int) -> dict[int, int]:
    return dict.fromkeys(range(PARTITIONS), position)


async def fill(writer: LogWriter, log_topic: str, count: int, *, partition: int = 0) -> None:
    for number in range(count):
        await writer.append_durably(log_topic, b"k", b"%d" % number, [], partition=partition)


async def fill_fast(writer: LogWriter, log_topic: str, count: int, *, partition: int = 0) -> None:
    reports = Reports()
    for number in range(count):
        writer.append(log_topic, b"k", b"%d" % number, [], reports.take, partition=partition)
    await writer.flush(DEADLINE_SECONDS)
    assert all(error is None for _, _, error in reports.reports)


def fill_up(writer: LogWriter, log_topic: str, reports: Reports) -> None:
    """Append until the writer refuses; librdkafka may report, and make room, on its own thread."""
    for _ in range(100_000):
        writer.append(log_topic, b"k", b"v", [], reports.take)


def test_a_writer_tells_the_logs_time_before_it_reports(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        without, log_topic = await cluster.create(), await cluster.create(1, log_time=True)
        told: list[int | str] = []
        async with writing(cluster) as writer, reading(cluster) as reader:
            writer.on_log_time = told.append
            await writer.append_durably(without, b"k", b"v", [], timestamp_ms=RECENT_MS)
            assert told == [0]
            told.clear()

            def report(*_: object) -> None:
                told.append("reported")

            writer.append(log_topic, b"k", b"v", [], report, timestamp_ms=RECENT_MS, partition=0)
            await writer.flush(DEADLINE_SECONDS)
            read = Read()
            await reader.start(log_topic, {0: BEGINNING}, read.take, read.take_error)
            await read.until_count(1)
        assert told[1:] == ["reported"]
        assert isinstance(told[0], int)
        assert abs(told[0] - time.time_ns() // 1_000_000) < 60_000
        if isinstance(cluster, KafkaCluster):  # the one in memory keeps the time of the call
            assert told[0] == read.records[0].timestamp_ms

    run(scenario)


def test_a_record_is_read_as_it_was_appended(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with writing(cluster) as writer, reading(cluster) as reader:
            read = Read()
            headers = [("mqtt", b"\1\4\1"), ("id", bytes(16)), ("mqtt", b"")]
            position = await writer.append_durably(
                log_topic, b"default/a/b", b"21.5", headers, timestamp_ms=RECENT_MS
            )
            await reader.start(log_topic, everywhere(BEGINNING), read.take, read.take_error)
            await read.until_count(1)
            assert read.records == [
                LogRecord(*position, RECENT_MS, b"default/a/b", b"21.5", headers)
            ]
            assert not read.errors

    run(scenario)


def test_a_record_has_no_value_or_an_empty_one_and_no_headers(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with writing(cluster) as writer, reading(cluster) as reader:
            read = Read()
            await writer.append_durably(log_topic, b"k", None, [], partition=0)
            await writer.append_durably(log_topic, b"k", b"", [], partition=0)
            await reader.start(log_topic, everywhere(BEGINNING), read.take, read.take_error)
            await read.until_count(2)
            assert read.values() == [None, b""]
            assert [record.headers for record in read.records] == [[], []]
            assert all(record.timestamp_ms > 1_600_000_000_000 for record in read.records)

    run(scenario)


def test_a_record_may_have_no_key(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with writing(cluster) as writer, reading(cluster) as reader:
            read = Read()
            await writer.append_durably(log_topic, None, b"v", [])
            await reader.start(log_topic, everywhere(BEGINNING), read.take, read.take_error)
            await read.until_count(1)
            assert [(record.key, record.value) for record in read.records] == [(None, b"v")]

    run(scenario)


def test_partitions_are_followed_and_let_go_of_while_others_are_read(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        read = Read()
        async with writing(cluster) as writer, reading(cluster) as reader:
            await fill(writer, log_topic, 3, partition=0)
            await fill(writer, log_topic, 3, partition=1)
            assert await reader.start(log_topic, {}, read.take, read.take_error) == {}
            assert await reader.follow({0: BEGINNING, 1: 1}) == {0: 0, 1: 1}
            await read.until_count(5)
            assert (read.offsets(0), read.offsets(1)) == ([0, 1, 2], [1, 2])
            reader.unfollow([0])
            assert await reader.follow({2: END}) == {2: 0}
            await fill(writer, log_topic, 1, partition=2)
            await read.until_count(6)
            await fill(writer, log_topic, 1, partition=0)
            await fill(writer, log_topic, 1, partition=1)
            await read.until_count(7)
            assert (read.offsets(0), read.offsets(1)) == ([0, 1, 2], [1, 2, 3])
            with pytest.raises(LogError, match="no partition 3"):
                await reader.follow({3: END})

    run(scenario)


def test_after_a_batch_that_was_not_taken_nothing_comes(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        failed = asyncio.get_running_loop().create_future()
        batches = 0

        def take(_batch: list[LogRecord]) -> None:
            nonlocal batches
            batches += 1
            raise ZeroDivisionError("a bug")

        def report(_loop: object, context: dict[str, Any]) -> None:
            if not failed.done():
                failed.set_result(context["exception"])

        asyncio.get_running_loop().set_exception_handler(report)
        async with writing(cluster) as writer, reading(cluster) as reader:
            await reader.start(log_topic, everywhere(BEGINNING), take, print)
            await fill(writer, log_topic, 1)
            assert isinstance(await failed, BatchNotTaken)
            await fill(writer, log_topic, 1)
            await fill(writer, log_topic, 1, partition=1)
            assert batches == 1

    run(scenario)


def test_every_append_is_reported_once_and_in_the_order_of_its_partition(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        reports = Reports()
        async with writing(cluster) as writer, reading(cluster) as reader:
            for number in range(600):
                writer.append(
                    log_topic, b"", b"%d" % number, [], reports.take, partition=number % 3
                )
            assert writer.queued() == 600
            await writer.flush(DEADLINE_SECONDS)
            assert writer.queued() == 0
            assert all(error is None for _, _, error in reports.reports)
            for partition in range(PARTITIONS):
                offsets = [offset for at, offset, _ in reports.reports if at == partition]
                assert offsets == list(range(200))
            assert await reader.end_offsets(log_topic) == everywhere(200)
            assert await reader.begin_offsets(log_topic) == everywhere(0)
            read = Read()
            await reader.start(log_topic, {1: BEGINNING}, read.take, read.take_error)
            await read.until_count(200)
            assert read.values() == [b"%d" % number for number in range(600) if number % 3 == 1]

    run(scenario)


def test_a_key_always_goes_to_the_same_partition_and_keys_use_them_all(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with writing(cluster) as first, writing(cluster) as second:
            keys = [b"default/plant/%d" % number for number in range(40)]
            chosen = [(await first.append_durably(log_topic, key, b"", []))[0] for key in keys]
            again = [(await second.append_durably(log_topic, key, b"", []))[0] for key in keys]
            assert chosen == again
            assert set(chosen) == set(range(PARTITIONS))

    run(scenario)


def test_a_writer_knows_the_partition_of_a_key(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with writing(cluster) as writer:
            for number in range(50):
                key = b"default/" + b"x" * number
                partition, _ = await writer.append_durably(log_topic, key, b"v", [])
                assert writer.partition_of(key, PARTITIONS) == partition

    run(scenario)


def test_keys_go_into_the_partitions_that_are_used_and_move_when_these_are_more(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        keys = [b"default/plant/%d" % number for number in range(60)]
        async with writing(cluster) as writer:
            with pytest.raises(LogError) as raised:
                await writer.use_partitions(log_topic, 2 * PARTITIONS)
            assert raised.value.definite

            async def places() -> list[int]:
                return [(await writer.append_durably(log_topic, key, b"", []))[0] for key in keys]

            await writer.use_partitions(log_topic, PARTITIONS, is_fixed=True)
            await cluster.grow(log_topic, 2 * PARTITIONS)
            before = [writer.partition_of(key, PARTITIONS) for key in keys]
            after = [writer.partition_of(key, 2 * PARTITIONS) for key in keys]
            assert [place % PARTITIONS for place in after] == before
            assert await places() == before
            for is_fixed in (True, False):
                await writer.use_partitions(log_topic, 2 * PARTITIONS, is_fixed=is_fixed)
                assert await places() == after

    run(scenario)


def test_a_full_queue_refuses_and_takes_again_once_it_has_drained(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        reports = Reports()
        async with writing(cluster, max_queued_records=10) as writer:
            # The loop does not turn between these, so nothing is reported meanwhile.
            for _ in range(10):
                writer.append(log_topic, b"k", b"v", [], reports.take)
            with pytest.raises(LogFull) as refused:
                fill_up(writer, log_topic, reports)
            assert refused.value.definite
            accepted = writer.queued()
            await writer.flush(DEADLINE_SECONDS)
            assert len(reports.reports) == accepted
            await writer.append_durably(log_topic, b"k", b"v", [])

    run(scenario)


def test_a_record_too_large_is_refused_for_certain(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with writing(cluster) as writer:
            with pytest.raises(LogError) as refused:
                await writer.append_durably(log_topic, b"k", bytes(9 * 1024 * 1024), [])
            assert refused.value.definite
            assert writer.queued() == 0

    run(scenario)


def test_an_unknown_log_topic_is_an_error_for_certain(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with writing(cluster) as writer, reading(cluster) as reader:
            with pytest.raises(LogError) as refused:
                await writer.append_durably("test-unknown", b"k", b"v", [])
            assert refused.value.definite
            with pytest.raises(LogError, match="does not exist"):
                await reader.partition_count("test-unknown")
            with pytest.raises(LogError, match="does not exist"):
                await reader.start("test-unknown", {0: END}, print, print)

    run(scenario)


def test_a_partition_that_is_not_there_cannot_be_followed(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with reading(cluster) as reader:
            assert await reader.partition_count(log_topic) == PARTITIONS
            with pytest.raises(LogError, match="no partition 3"):
                await reader.start(log_topic, {3: END}, print, print)

    run(scenario)


def test_a_closed_writer_refuses(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        writer = cluster.writer()
        reports = Reports()
        writer.append(log_topic, b"k", b"v", [], reports.take)
        await writer.close()
        assert [error for _, _, error in reports.reports] == [None]
        with pytest.raises(LogError) as refused:
            writer.append(log_topic, b"k", b"v", [], reports.take)
        assert refused.value.definite
        await writer.close()

    run(scenario)


def test_end_means_what_is_appended_after_start_has_returned(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with writing(cluster) as writer, reading(cluster) as reader:
            read = Read()
            await fill(writer, log_topic, 5)
            started_at = await reader.start(log_topic, everywhere(END), read.take, read.take_error)
            assert started_at == {0: 5, 1: 0, 2: 0}
            for partition in range(PARTITIONS):
                await writer.append_durably(log_topic, b"k", b"new", [], partition=partition)
            await read.until_count(3)
            assert read.values() == [b"new"] * 3

    run(scenario)


def test_reading_begins_at_an_offset(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with writing(cluster) as writer, reading(cluster) as reader:
            read = Read()
            await fill(writer, log_topic, 5)
            await reader.start(log_topic, {0: 3}, read.take, read.take_error)
            await read.until_count(2)
            assert [record.offset for record in read.records] == [3, 4]

    run(scenario)


def test_an_offset_that_is_not_in_the_log_is_reported_and_reading_begins_at_the_oldest(
    run: Run,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with writing(cluster) as writer, reading(cluster) as reader:
            read = Read()
            await fill(writer, log_topic, 2)
            await fill(writer, log_topic, 2, partition=1)
            await reader.start(log_topic, {0: 1000, 1: 1}, read.take, read.take_error)
            await read.until_count(3)
            assert [r.offset for r in read.records if r.partition == 0] == [0, 1]
            assert [r.offset for r in read.records if r.partition == 1] == [1]
            (error,) = read.errors
            assert isinstance(error, OffsetGone)
            assert f"offset 1000 of {log_topic} partition 0 is not there" in str(error)

    run(scenario)


def test_a_paused_reader_hands_over_nothing_until_resumed(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with (
            writing(cluster, max_queued_records=10_000) as writer,
            reading(cluster) as reader,
        ):
            read = Read()

            def take_and_pause(batch: list[LogRecord]) -> None:
                read.take(batch)
                reader.pause()

            reports = Reports()
            for number in range(3000):
                writer.append(log_topic, b"", b"%d" % number, [], reports.take, partition=0)
            await writer.flush(DEADLINE_SECONDS)
            await reader.start(log_topic, {0: BEGINNING}, take_and_pause, read.take_error)
            await read.until_count(1)
            seen = len(read.records)
            assert seen < 3000
            # Time for what must not happen: a round trip through the log, and turns of the loop.
            await fill(writer, log_topic, 1)
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(read.records) == seen
            while len(read.records) < 3001:
                seen = len(read.records)
                reader.resume()
                await read.until_count(seen + 1)
            assert [record.offset for record in read.records] == list(range(3001))

    run(scenario)


def test_a_busy_loop_gets_everything_in_order_and_in_batches(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with (
            writing(cluster, max_queued_records=20_000) as writer,
            reading(cluster) as reader,
        ):
            read = Read()
            reports = Reports()
            await reader.start(log_topic, {0: END}, read.take, read.take_error)
            for number in range(20_000):
                writer.append(log_topic, b"", b"%d" % number, [], reports.take, partition=0)
            await read.until_count(20_000)
            assert [record.offset for record in read.records] == list(range(20_000))

    run(scenario)


def test_no_callback_comes_after_close(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        reader = cluster.reader()
        async with writing(cluster) as writer:
            read = Read()
            await reader.start(log_topic, {0: END}, read.take, read.take_error)
            await fill(writer, log_topic, 1)
            await read.until_count(1)
            await reader.close()
            await fill(writer, log_topic, 3)
            assert len(read.records) == 1
            await reader.close()

    run(scenario)


def test_a_compacted_topic_gives_the_last_record_of_each_key(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create(2, compacted=True)
        async with writing(cluster) as writer, reading(cluster) as reader:
            assert await reader.read_compacted(log_topic) == {}
            for key, value in (
                (b"a", b"1"),
                (b"b", b"1"),
                (b"a", b"2"),
                (b"c", b"1"),
                (b"b", None),
            ):
                await writer.append_durably(log_topic, key, value, [("v", b"1")])
            found = await reader.read_compacted(log_topic, DEADLINE_SECONDS)
            assert {key: record.value for key, record in found.items()} == {b"a": b"2", b"c": b"1"}
            assert found[b"a"].headers == [("v", b"1")]
            assert found[b"a"].key == b"a"

    run(scenario)


def test_ranges_are_read_from_start_up_to_and_without_end(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with writing(cluster, max_queued_records=5000) as writer:
            headers = [("mqtt", b"\1\4\1"), ("mqtt", b"")]
            at = await writer.append_durably(
                log_topic, b"first", b"21.5", headers, partition=2, timestamp_ms=RECENT_MS
            )
            for partition in range(PARTITIONS):
                await fill_fast(writer, log_topic, 1500, partition=partition)
        async with reading_ranges(cluster) as reader:
            read = Read()
            ranges = {0: (0, 1500), 1: (700, 703), 2: (0, 2)}
            assert await reader.read_range(log_topic, ranges, read.take_in_turn) == []
            assert read.offsets(0) == list(range(1500))
            assert read.offsets(1) == [700, 701, 702]
            assert read.offsets(2) == [0, 1]
            assert LogRecord(*at, RECENT_MS, b"first", b"21.5", headers) in read.records
            # The same reader again, backwards in the log.
            again = Read()
            await reader.read_range(log_topic, {0: (5, 8)}, again.take_in_turn)
            assert again.offsets(0) == [5, 6, 7]

    run(scenario)


def test_an_empty_range_asks_nothing_of_the_log(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        async with reading_ranges(cluster) as reader:
            read = Read()
            ranges = {0: (5, 5), 1: (9, 3)}
            assert await reader.read_range("test-unknown", ranges, read.take_in_turn) == []
            assert await reader.read_range("test-unknown", {}, read.take_in_turn) == []
            assert read.records == []

    run(scenario)


def test_a_consumer_that_waits_holds_up_its_own_read_only(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with (
            writing(cluster, max_queued_records=10_000) as writer,
            reading_ranges(cluster) as reader,
        ):
            await fill_fast(writer, log_topic, 5000)
            slow, open_again = Read(), asyncio.Event()

            async def take_late(batch: list[LogRecord]) -> None:
                await open_again.wait()
                slow.take(batch)

            waits = asyncio.create_task(reader.read_range(log_topic, {0: (0, 5000)}, take_late))
            for _ in range(5):
                read = Read()
                await reader.read_range(log_topic, {0: (10, 3000)}, read.take_in_turn)
                assert read.offsets(0) == list(range(10, 3000))
            assert slow.records == []
            open_again.set()
            assert await waits == []
            assert slow.offsets(0) == list(range(5000))

    run(scenario)


def test_reads_at_the_same_time_all_get_what_they_asked_for(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with (
            writing(cluster, max_queued_records=10_000) as writer,
            reading_ranges(cluster) as reader,
        ):
            for partition in range(PARTITIONS):
                await fill_fast(writer, log_topic, 2000, partition=partition)
            ranges = [
                {number % PARTITIONS: (number * 50, number * 90), 0: (number, 2 * number)}
                for number in range(20)
            ]
            reads = [Read() for _ in ranges]
            await asyncio.gather(
                *(
                    reader.read_range(log_topic, asked, read.take_in_turn)
                    for asked, read in zip(ranges, reads, strict=True)
                )
            )
            for asked, read in zip(ranges, reads, strict=True):
                for partition, (start, end) in asked.items():
                    assert read.offsets(partition) == list(range(start, end))

    run(scenario)


def test_what_retention_has_removed_is_told(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with writing(cluster) as writer, reading_ranges(cluster) as reader:
            for partition in range(PARTITIONS):
                await fill_fast(writer, log_topic, 20, partition=partition)
            await cluster.remove_before(log_topic, 0, 15)
            await cluster.remove_before(log_topic, 1, 15)
            read = Read()
            missing = await reader.read_range(
                log_topic, {0: (10, 20), 1: (5, 12), 2: (0, 5)}, read.take_in_turn
            )
            assert sorted(missing) == [Missing(0, 10, 15), Missing(1, 5, 12)]
            assert read.offsets(0) == list(range(15, 20))
            assert read.offsets(1) == []
            assert read.offsets(2) == list(range(5))

    run(scenario)


def test_offsets_without_a_record_are_passed_over(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with writing(cluster) as writer, reading_ranges(cluster) as reader:
            await fill(writer, log_topic, 2)
            await cluster.skip_offset(log_topic, 0)  # 2 is a record, 3 is none
            await fill(writer, log_topic, 1)
            await cluster.skip_offset(log_topic, 0)
            for asked, offsets in (
                ((0, 7), [0, 1, 2, 4, 5]),
                ((1, 4), [1, 2]),
                ((3, 4), []),
                ((6, 7), []),
            ):
                read = Read()
                found = await reader.read_range(log_topic, {0: asked}, read.take_in_turn)
                assert (read.offsets(0), found) == (offsets, [])

    run(scenario)


def test_a_range_beyond_the_end_is_waited_for_in_vain_or_not(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with writing(cluster) as writer, reading_ranges(cluster) as reader:
            await fill(writer, log_topic, 3)
            read = Read()
            waits = asyncio.create_task(
                reader.read_range(
                    log_topic,
                    {0: (1, 5), 1: (0, 1)},
                    read.take_in_turn,
                    timeout_seconds=DEADLINE_SECONDS,
                )
            )
            await read.until_count(2)
            await fill(writer, log_topic, 2)
            await fill(writer, log_topic, 1, partition=1)
            assert await waits == []
            assert read.offsets(0) == [1, 2, 3, 4]
            for asked in ((4, 6), (9, 10)):
                with pytest.raises(LogError, match=r"nothing for 0\.3 s") as failed:
                    await reader.read_range(
                        log_topic, {0: asked}, read.take_in_turn, timeout_seconds=0.3
                    )
                assert not failed.value.definite
                has_lost_its_end = "ends at offset 5, so the log has lost its end"
                assert (has_lost_its_end in str(failed.value)) == (asked[0] > 5)
            again = Read()
            await reader.read_range(log_topic, {0: (0, 5)}, again.take_in_turn)
            assert again.offsets(0) == list(range(5))

    run(scenario)


def test_a_range_of_what_is_not_there_is_an_error_for_certain(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with reading_ranges(cluster) as reader:
            read = Read()
            with pytest.raises(LogError, match="does not exist") as unknown:
                await reader.read_range("test-unknown", {0: (0, 1)}, read.take_in_turn)
            with pytest.raises(LogError, match="no partition 3") as no_partition:
                await reader.read_range(log_topic, {3: (0, 1)}, read.take_in_turn)
            assert unknown.value.definite
            assert no_partition.value.definite

    run(scenario)


def test_a_read_ends_with_its_task_or_its_consumer(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with (
            writing(cluster, max_queued_records=5000) as writer,
            reading_ranges(cluster) as reader,
        ):
            await fill_fast(writer, log_topic, 3000)
            read, reached = Read(), asyncio.Event()

            async def refuse(_batch: list[LogRecord]) -> None:
                raise ValueError("too much")

            async def never(_batch: list[LogRecord]) -> None:
                reached.set()
                await asyncio.Future()

            with pytest.raises(ValueError, match="too much"):
                await reader.read_range(log_topic, {0: (0, 3000)}, refuse)
            stuck = asyncio.create_task(reader.read_range(log_topic, {0: (0, 3000)}, never))
            async with asyncio.timeout(DEADLINE_SECONDS):
                await reached.wait()
            stuck.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stuck
            await reader.read_range(log_topic, {0: (0, 3000)}, read.take_in_turn)
            assert read.offsets(0) == list(range(3000))

    run(scenario)


def test_closing_ends_the_reads_with_an_error(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        reader = cluster.range_reader()
        async with writing(cluster) as writer:
            await fill(writer, log_topic, 1)
            read = Read()
            waits = [
                asyncio.create_task(reader.read_range(log_topic, {0: (0, end)}, read.take_in_turn))
                for end in (5, 6)
            ]
            await read.until_count(2)
            await reader.close()
            for wait in waits:
                with pytest.raises(LogError, match="was closed"):
                    await wait
            with pytest.raises(LogError, match="was closed"):
                await reader.read_range(log_topic, {0: (0, 1)}, read.take_in_turn)
            await reader.close()

    run(scenario)


def test_any_partition_is_not_a_partition() -> None:
    assert ANY_PARTITION < 0
    assert len({ANY_PARTITION, BEGINNING}) == 2
