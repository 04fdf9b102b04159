"""The promises of `ingest.log.contract`, asked of the fake and of a real broker alike."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import uvloop
from confluent_kafka.admin import AdminClient, NewTopic

from ingest.log import admin
from ingest.log.contract import (
    ANY_PARTITION,
    BEGINNING,
    END,
    LogFull,
    LogReader,
    LogRecord,
    LogWriter,
)
from ingest.log.kafka import KafkaLogReader, KafkaLogWriter
from ingest.log.memory import MemoryLog, MemoryLogReader, MemoryLogWriter
from mqlake.errors import LogError

DEADLINE_SECONDS = 20.0
PARTITIONS = 3
_names = itertools.count()


class Cluster:
    """What a test asks of a log before it uses the contract."""

    async def create(self, partitions: int = PARTITIONS, *, compacted: bool = False) -> str:
        """Create a log topic of its own for the test."""
        raise NotImplementedError

    def writer(self, *, max_queued_records: int = 1000) -> LogWriter:
        raise NotImplementedError

    def reader(self) -> LogReader:
        raise NotImplementedError


class MemoryCluster(Cluster):
    def __init__(self) -> None:
        self._log = MemoryLog()

    async def create(self, partitions: int = PARTITIONS, *, compacted: bool = False) -> str:
        log_topic = f"test-{next(_names)}"
        self._log.create(log_topic, partitions)
        return log_topic

    def writer(self, *, max_queued_records: int = 1000) -> LogWriter:
        return MemoryLogWriter(self._log, max_queued_records=max_queued_records)

    def reader(self) -> LogReader:
        return MemoryLogReader(self._log)


class KafkaCluster(Cluster):
    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers

    async def create(self, partitions: int = PARTITIONS, *, compacted: bool = False) -> str:
        log_topic = f"test-{next(_names)}"
        await asyncio.to_thread(self._create, log_topic, partitions, compacted)
        return log_topic

    def _create(self, log_topic: str, partitions: int, compacted: bool) -> None:
        client = AdminClient({"bootstrap.servers": self._servers})
        config = {"cleanup.policy": "compact"} if compacted else {}
        client.create_topics([NewTopic(log_topic, partitions, 1, config=config)])[
            log_topic
        ].result()
        admin.offsets(self._servers, log_topic, admin.END_OFFSETS, DEADLINE_SECONDS)

    def writer(self, *, max_queued_records: int = 1000) -> LogWriter:
        return KafkaLogWriter(self._servers, max_queued_records=max_queued_records)

    def reader(self) -> LogReader:
        return KafkaLogReader(self._servers)


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


def everywhere(position: int) -> dict[int, int]:
    return dict.fromkeys(range(PARTITIONS), position)


async def fill(writer: LogWriter, log_topic: str, count: int, *, partition: int = 0) -> None:
    for number in range(count):
        await writer.append_durably(log_topic, b"k", b"%d" % number, [], partition=partition)


def fill_up(writer: LogWriter, log_topic: str, reports: Reports) -> None:
    """Append until the writer refuses; librdkafka may report, and make room, on its own thread."""
    for _ in range(100_000):
        writer.append(log_topic, b"k", b"v", [], reports.take)


def test_a_record_is_read_as_it_was_appended(run: Run) -> None:
    async def scenario(cluster: Cluster) -> None:
        log_topic = await cluster.create()
        async with writing(cluster) as writer, reading(cluster) as reader:
            read = Read()
            headers = [("mqtt", b"\1\4\1"), ("id", bytes(16)), ("mqtt", b"")]
            position = await writer.append_durably(
                log_topic, b"default/a/b", b"21.5", headers, timestamp_ms=1_700_000_000_123
            )
            await reader.start(log_topic, everywhere(BEGINNING), read.take, read.take_error)
            await read.until_count(1)
            assert read.records == [
                LogRecord(*position, 1_700_000_000_123, b"default/a/b", b"21.5", headers)
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
            assert len(read.errors) == 1
            assert f"offset 1000 of {log_topic} partition 0 is not there" in str(read.errors[0])

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


def test_any_partition_is_not_a_partition() -> None:
    assert ANY_PARTITION < 0
    assert len({ANY_PARTITION, BEGINNING}) == 2
