"""What only a real broker can show: it goes away and comes back, refuses, forgets."""

import asyncio
import os
import threading
import time
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from launcher.log.kafka import Brokers, running_brokers
from launcher.ports import free_ports
from mqlake.errors import LogError
from mqlake.log import admin, kafka_reader, stalls
from mqlake.log.contract import BEGINNING, END
from mqlake.log.durability import Durability, Keeping
from mqlake.log.kafka_errors import to_log_error
from mqlake.log.kafka_reader import KafkaLogReader
from mqlake.log.kafka_writer import KafkaLogWriter
from mqlake.log.log_topics import LOG_TOPICS, SHARED_LOG_TOPICS
from mqlake.log.options import BATCH_BYTES
from mqlake.log.partitioning import partition_of
from mqlake.records.messages import EVENTS, INBOUND, METRICS, LogRecord
from tests.waiting import until

DEADLINE_SECONDS = 90.0


def _ensure(bootstrap_servers: str, durability: Durability) -> None:
    admin.ensure_log_topics(
        bootstrap_servers,
        inbound_partitions=4,
        session_shards=4,
        retention_bytes=1 << 30,
        timeout_seconds=DEADLINE_SECONDS,
        durability=durability,
    )


@pytest.mark.kafka
def test_a_broker_killed_and_started_again_costs_time_and_no_record(tmp_path: Path) -> None:
    async def scenario(broker: Brokers) -> None:
        await asyncio.to_thread(
            admin.ensure_delivery_topic, broker.bootstrap_servers, "g1", timeout_seconds=30
        )
        writer = KafkaLogWriter(broker.bootstrap_servers)
        reader = KafkaLogReader(broker.bootstrap_servers)
        records: list[LogRecord] = []
        errors: list[LogError] = []
        failed: list[LogError] = []

        def appended(_partition: int, _offset: int, error: LogError | None) -> None:
            if error is not None:
                failed.append(error)

        log_topic = "mqlake.delivery.g1"
        await reader.start(log_topic, {0: END}, records.extend, errors.append)
        for number in range(2000):
            writer.append(log_topic, b"k", b"%d" % number, [], appended)
        await asyncio.to_thread(broker.kill)
        for number in range(2000, 4000):
            writer.append(log_topic, b"k", b"%d" % number, [], appended)
        await until(lambda: bool(errors))
        await asyncio.to_thread(broker.start)
        await writer.flush(DEADLINE_SECONDS)
        assert failed == []
        await until(lambda: len(records) >= 4000)
        assert [record.value for record in records] == [b"%d" % number for number in range(4000)]
        assert not any(error.definite for error in errors)
        # However often it was tried in vain: what was fetched before may come in between.
        assert len(errors) < 5
        await reader.close()
        await writer.close()

    with running_brokers(tmp_path, 1) as broker:
        asyncio.run(scenario(broker))


@pytest.mark.kafka
def test_a_broker_that_has_lost_what_it_acknowledged_costs_an_error_and_not_the_writer(
    tmp_path: Path,
) -> None:
    """librdkafka gives a producer up for good then, and says so where its reports are served."""

    async def scenario(broker: Brokers) -> None:
        await asyncio.to_thread(
            admin.ensure_delivery_topic, broker.bootstrap_servers, "g1", timeout_seconds=30
        )
        writer = KafkaLogWriter(broker.bootstrap_servers)
        log_topic = "mqlake.delivery.g1"
        for _ in range(10):
            await writer.append_durably(log_topic, b"k", bytes(1_000), [])
        await asyncio.to_thread(broker.kill)
        (segment,) = (broker.servers[0].log_dir / f"{log_topic}-0").glob("*.log")
        os.truncate(segment, segment.stat().st_size // 2)
        await asyncio.to_thread(broker.start)
        async with asyncio.timeout(DEADLINE_SECONDS):
            with pytest.raises(LogError):
                await writer.append_durably(log_topic, b"k", b"lost", [])
            await writer.append_durably(log_topic, b"k", b"kept", [])
            await writer.flush(DEADLINE_SECONDS)
        await writer.close()

    with running_brokers(tmp_path / "log", 1) as broker:
        asyncio.run(scenario(broker))


def test_a_broker_that_never_comes_back_leaves_the_fate_of_a_record_open() -> None:
    async def scenario() -> None:
        (port,) = free_ports(1)
        writer = KafkaLogWriter(f"127.0.0.1:{port}", delivery_timeout_seconds=0.5)
        with pytest.raises(LogError, match="timed out") as failed:
            await writer.append_durably("mqlake.inbound", b"k", b"v", [])
        assert not failed.value.definite
        await writer.close()

    asyncio.run(scenario())


def test_closing_without_a_broker_reports_every_record() -> None:
    async def scenario() -> None:
        (port,) = free_ports(1)
        writer = KafkaLogWriter(f"127.0.0.1:{port}")
        errors: list[LogError | None] = []
        for _ in range(100):
            writer.append(
                "t", b"k", b"v", [], lambda _partition, _offset, error: errors.append(error)
            )
        with pytest.raises(LogError, match="100 records not appended"):
            await writer.flush(0.01)
        await writer.close(timeout_seconds=0.01)
        assert len(errors) == 100
        assert all(error is not None for error in errors)

    asyncio.run(scenario())


def test_a_log_that_does_not_answer_is_an_error_within_the_time_given() -> None:
    (port,) = free_ports(1)
    with pytest.raises(LogError, match=f"127.0.0.1:{port} within 0.3 s"):
        admin.partition_count(f"127.0.0.1:{port}", INBOUND, 0.3)


@pytest.mark.kafka
def test_a_busy_writer_keeps_the_order_and_reports_each_record_once(
    bootstrap_servers: str,
) -> None:
    log_topic, records, too_large = "busy", 5000, {700, 3100}
    reports: dict[int, list[tuple[int, int, LogError | None]]] = defaultdict(list)

    def appended(number: int, *report: Any) -> None:
        reports[number].append(report)

    async def scenario() -> None:
        admin.LogAdmin(bootstrap_servers, DEADLINE_SECONDS).ensure(log_topic, {}, 3)
        writer = KafkaLogWriter(bootstrap_servers, max_record_bytes=10_000)
        for number in range(records):
            value = bytes(20_000 if number in too_large else 64)
            key = b"t/%d" % (number % 50)
            writer.append(log_topic, key, value, [], partial(appended, number))
            if number % 100 == 0:
                await asyncio.sleep(0)
        assert writer.queued() > 0
        await writer.flush(DEADLINE_SECONDS)
        assert writer.queued() == 0
        await writer.close()
        with pytest.raises(LogError, match="closed"):
            writer.append(log_topic, b"k", b"v", [], partial(appended, records))

    asyncio.run(scenario())
    assert sorted(reports) == list(range(records))
    assert {len(found) for found in reports.values()} == {1}
    ends: dict[int, int] = {}
    for number in range(records):
        ((partition, offset, error),) = reports[number]
        if number in too_large:
            assert error is not None
            assert error.definite
        else:
            assert error is None
            assert offset == ends.get(partition, -1) + 1  # no later one is before it
            ends[partition] = offset


@pytest.mark.kafka
def test_a_record_that_the_log_refuses_takes_none_of_its_batch_with_it(
    bootstrap_servers: str,
) -> None:
    log_topic, records, too_large = "refusing", 3000, {700, 1500}
    limit = BATCH_BYTES  # the least that `ensure_log_topics` accepts
    reports: dict[int, tuple[int, int, LogError | None]] = {}

    def appended(number: int, *report: Any) -> None:
        reports[number] = (report[0], report[1], report[2])

    async def scenario() -> None:
        config = {"max.message.bytes": str(limit)}
        admin.LogAdmin(bootstrap_servers, DEADLINE_SECONDS).ensure(log_topic, config, 1)
        writer = KafkaLogWriter(bootstrap_servers)
        for number in range(records):
            value = bytes(limit + 1 if number in too_large else 1_000)
            writer.append(log_topic, b"key", value, [], partial(appended, number))
        await writer.flush(DEADLINE_SECONDS)
        await writer.close()

    asyncio.run(scenario())
    refused = {number for number, (_, _, error) in reports.items() if error is not None}
    assert refused == too_large
    offsets = [reports[number][1] for number in range(records) if number not in too_large]
    assert offsets == list(range(records - len(too_large))), "the others are there in order"


@pytest.mark.kafka
def test_log_topics_that_take_smaller_batches_than_are_sent_are_refused(
    bootstrap_servers: str,
) -> None:
    _ensure(bootstrap_servers, Durability.D1)
    changing = admin.AdminRequests(bootstrap_servers, DEADLINE_SECONDS)
    changing.configure([METRICS], {"max.message.bytes": "999999"})
    try:
        with pytest.raises(LogError, match=rf"{METRICS} takes batches of 999999 bytes"):
            _ensure(bootstrap_servers, Durability.D1)
    finally:
        changing.configure([METRICS], {"max.message.bytes": None})
    _ensure(bootstrap_servers, Durability.D1)


@pytest.mark.kafka
def test_log_topics_are_created_once_and_keep_their_partitions(bootstrap_servers: str) -> None:
    for retention_bytes in (1 << 30, 2 << 30):
        for partitions in (4, 8):
            admin.ensure_log_topics(
                bootstrap_servers,
                inbound_partitions=partitions,
                session_shards=partitions,
                retention_bytes=retention_bytes,
                timeout_seconds=DEADLINE_SECONDS,
            )
            for one in LOG_TOPICS:
                count = admin.partition_count(bootstrap_servers, one.name, DEADLINE_SECONDS)
                assert count == (1 if one.partitions == "one" else 4), one.name
    for one in LOG_TOPICS:
        config = admin.topic_config(bootstrap_servers, one.name, DEADLINE_SECONDS)
        expected = dict(one.keeping)
        if one.partitions == "inbound":
            expected["segment.bytes"] = str((2 << 30) // 4 // 4)
        assert {name: config[name] for name in expected} == expected, one.name


@pytest.mark.kafka
def test_what_is_acknowledged_is_kept_as_it_was_set_to(bootstrap_servers: str) -> None:
    _ensure(bootstrap_servers, Durability.D3)
    found = admin.keepings(bootstrap_servers, SHARED_LOG_TOPICS, DEADLINE_SECONDS)
    for log_topic, keeping in found.items():
        is_flushed = log_topic not in (EVENTS, METRICS)
        assert keeping == Keeping(copies=1, acknowledged=1, is_flushed=is_flushed), log_topic
    admin.check_durability(bootstrap_servers, Durability.D3)
    with pytest.raises(LogError, match="D2 is asked for") as refused:
        _ensure(bootstrap_servers, Durability.D2)
    assert refused.value.definite
    # Back again; brokers hear of it a moment later.
    _ensure(bootstrap_servers, Durability.D1)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while admin.keepings(bootstrap_servers, [INBOUND], DEADLINE_SECONDS)[INBOUND].is_flushed:
        assert time.monotonic() < deadline
    with pytest.raises(LogError, match=r"D3 is asked for, mqlake.inbound has D1: copies: 1"):
        admin.check_durability(bootstrap_servers, Durability.D3)


@pytest.mark.kafka
def test_records_before_an_offset_are_deleted(bootstrap_servers: str) -> None:
    admin.ensure_delivery_topic(bootstrap_servers, "deleting")
    log_topic = "mqlake.delivery.deleting"
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(5):
        producer.produce(log_topic, b"%d" % number)
    assert producer.flush(DEADLINE_SECONDS) == 0
    log = admin.LogAdmin(bootstrap_servers)
    assert (log.begins(log_topic), log.ends(log_topic)) == ({0: 0}, {0: 5})
    for _ in range(2):
        log.delete_before(log_topic, {0: 3})
        assert (log.begins(log_topic), log.ends(log_topic)) == ({0: 3}, {0: 5})
    with pytest.raises(LogError, match=f"deleting old records of {log_topic}"):
        log.delete_before(log_topic, {0: 9})


@pytest.mark.kafka
def test_readers_that_take_their_time_give_every_record(bootstrap_servers: str) -> None:
    log_topic, count = "mqlake.delivery.late", 150

    async def scenario() -> None:
        await asyncio.to_thread(
            admin.ensure_delivery_topic, bootstrap_servers, "late", timeout_seconds=30
        )
        writer = KafkaLogWriter(bootstrap_servers)
        readers = [
            KafkaLogReader(bootstrap_servers, pace_seconds=0.05),
            KafkaLogReader(bootstrap_servers, late_seconds=0.1),
        ]
        found: list[list[LogRecord]] = [[], []]
        for reader, records in zip(readers, found, strict=True):
            await reader.start(log_topic, {0: END}, records.extend, lambda _: None)
        for number in range(count):
            await writer.append_durably(log_topic, b"k", b"%d" % number, [])
            if number == count // 2:
                for reader in readers:
                    reader.hurry()
        await until(lambda: min(map(len, found)) >= count)
        for records in found:
            assert [one.value for one in records] == [b"%d" % number for number in range(count)]
        for reader in readers:
            await reader.close()
        await writer.close()

    asyncio.run(scenario())


class Frail(Consumer):
    """Fails at the third call of each kind, as one that has given up does."""

    calls: ClassVar[Counter[str]] = Counter()

    def poll(self, *arguments: Any) -> Any:
        self._fail("poll")
        return super().poll(*arguments)

    def consume(self, *arguments: Any) -> Any:
        self._fail("consume")
        return super().consume(*arguments)

    def incremental_assign(self, *arguments: Any) -> None:
        self._fail("incremental_assign", at=1)
        super().incremental_assign(*arguments)

    def _fail(self, call: str, at: int = 3) -> None:
        self.calls[call] += 1
        if self.calls[call] == at:
            raise KafkaException(KafkaError(KafkaError._FATAL))


@pytest.mark.kafka
def test_a_consumer_that_fails_is_followed_by_another_without_a_gap(
    bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record is handed over twice, and the reader goes on: nobody looks after its thread."""

    async def scenario() -> None:
        log_topic = f"frail-{uuid4()}"
        await asyncio.to_thread(admin.LogAdmin(bootstrap_servers).ensure, log_topic, {}, 2)
        writer, reader = KafkaLogWriter(bootstrap_servers), KafkaLogReader(bootstrap_servers)
        found: dict[int, list[bytes | None]] = {0: [], 1: []}
        errors: list[LogError] = []

        def take(records: list[LogRecord]) -> None:
            for record in records:
                found[record.partition].append(record.value)

        async def append(partition: int, begin: int, end: int) -> None:
            for number in range(begin, end):
                value = b"%d" % number
                await writer.append_durably(log_topic, b"k", value, [], partition=partition)

        await reader.start(log_topic, {0: BEGINNING}, take, errors.append)
        await append(0, 0, 50)
        await reader.follow({1: BEGINNING})
        await append(1, 0, 50)
        await append(0, 50, 100)
        expected = {0: [b"%d" % one for one in range(100)], 1: [b"%d" % one for one in range(50)]}
        await until(lambda: found == expected)
        assert min(Frail.calls.values()) >= 1
        assert 1 <= len(errors) <= 3
        await reader.close()
        await writer.close()

    monkeypatch.setattr(kafka_reader, "Consumer", Frail)
    asyncio.run(scenario())


class Forgetful(Consumer):
    """Leaves a partition aside that is assigned later, as librdkafka may."""

    is_first = True

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        super().incremental_assign(partitions)
        if Forgetful.is_first:
            Forgetful.is_first = False
            self.pause(partitions)


@pytest.mark.kafka
def test_a_partition_that_the_client_leaves_aside_is_read_by_another_one(
    bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        log_topic = f"forgotten-{uuid4()}"
        await asyncio.to_thread(admin.LogAdmin(bootstrap_servers).ensure, log_topic, {}, 2)
        writer, reader = KafkaLogWriter(bootstrap_servers), KafkaLogReader(bootstrap_servers)
        found: list[tuple[int, int]] = []
        errors: list[LogError] = []

        def take(records: list[LogRecord]) -> None:
            found.extend((record.partition, record.offset) for record in records)

        await reader.start(log_topic, {0: BEGINNING}, take, errors.append)
        await reader.follow({1: BEGINNING})
        for partition in (0, 1):
            await writer.append_durably(log_topic, b"k", b"", [], partition=partition)
        await until(lambda: len(found) == 2)
        assert found == [(0, 0), (1, 0)]
        assert "partitions [1]" in str(errors[0])
        await reader.close()
        await writer.close()

    monkeypatch.setattr(kafka_reader, "Consumer", Forgetful)
    monkeypatch.setattr(stalls, "DOUBT_SECONDS", 0.2)
    monkeypatch.setattr(stalls, "AGAIN_SECONDS", 0.1)
    asyncio.run(scenario())


@pytest.mark.kafka
def test_records_come_while_the_log_is_asked_where_it_ends(
    bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the reader's own connection the answer would wait behind each fetch, and all records."""
    asked, answer = threading.Event(), threading.Event()

    def ends(self: admin.LogAdmin, log_topic: str) -> dict[int, int]:
        asked.set()
        answer.wait(DEADLINE_SECONDS)
        return {}

    async def scenario() -> None:
        log_topic = f"asked-{uuid4()}"
        await asyncio.to_thread(admin.LogAdmin(bootstrap_servers).ensure, log_topic, {}, 2)
        writer, reader = KafkaLogWriter(bootstrap_servers), KafkaLogReader(bootstrap_servers)
        found: list[LogRecord] = []
        await reader.start(log_topic, {0: 0}, found.extend, lambda _: None)
        await reader.follow({1: 0})
        monkeypatch.setattr(admin.LogAdmin, "ends", ends)
        assert await asyncio.to_thread(asked.wait, DEADLINE_SECONDS)
        await writer.append_durably(log_topic, b"k", b"", [], partition=1)
        await until(lambda: len(found) == 1)
        assert not answer.is_set()
        answer.set()
        await reader.close()
        await writer.close()

    monkeypatch.setattr(stalls, "DOUBT_SECONDS", 0.5)
    asyncio.run(scenario())


@pytest.mark.kafka
def test_a_gateway_has_a_delivery_topic_of_one_partition(bootstrap_servers: str) -> None:
    for _ in range(2):
        admin.ensure_delivery_topic(bootstrap_servers, "gateway-7")
    log_topic = "mqlake.delivery.gateway-7"
    assert admin.partition_count(bootstrap_servers, log_topic, DEADLINE_SECONDS) == 1
    assert admin.offsets(bootstrap_servers, log_topic, admin.END_OFFSETS, DEADLINE_SECONDS) == {
        0: 0
    }


@pytest.mark.parametrize(
    ("code", "definite"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, True),
        (KafkaError._UNKNOWN_TOPIC, True),
        (KafkaError.NOT_ENOUGH_REPLICAS, True),
        (KafkaError._PURGE_QUEUE, True),
        (KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, False),
        (KafkaError._MSG_TIMED_OUT, False),
        (KafkaError._PURGE_INFLIGHT, False),
        (KafkaError.KAFKA_STORAGE_ERROR, False),
        (KafkaError.REQUEST_TIMED_OUT, False),
    ],
)
def test_an_error_says_whether_the_record_is_certainly_not_in_the_log(
    code: int, definite: bool
) -> None:
    assert to_log_error(KafkaError(code), "appending").definite is definite


def test_messages_stay_where_they_were_though_somebody_adds_partitions(
    bootstrap_servers: str,
) -> None:
    log_topic, keys = "altered", [b"t/%d" % number for number in range(200)]
    reports: dict[tuple[bytes, int], list[tuple[int, int]]] = defaultdict(list)

    def appended(
        name: tuple[bytes, int], partition: int, offset: int, error: LogError | None
    ) -> None:
        assert error is None
        reports[name].append((partition, offset))

    async def append_all(writer: KafkaLogWriter, turn: int) -> None:
        for key in keys:
            writer.append(
                log_topic, key, b"%d" % turn, [("h", key)], partial(appended, (key, turn))
            )
        await writer.flush(DEADLINE_SECONDS)

    async def scenario() -> None:
        client = admin.LogAdmin(bootstrap_servers, DEADLINE_SECONDS)
        client.ensure(log_topic, {}, 4)
        writer = KafkaLogWriter(
            bootstrap_servers, options={"topic.metadata.refresh.interval.ms": 100}
        )
        await writer.use_partitions(log_topic, 4)
        await append_all(writer, 0)
        kafka = AdminClient({"bootstrap.servers": bootstrap_servers})
        new = [NewPartitions(log_topic, 8)]
        kafka.create_partitions(new)[log_topic].result(DEADLINE_SECONDS)
        turn = 1
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not any(list(client.ends(log_topic).values())[4:]):  # librdkafka has noticed
                await append_all(writer, turn)
                turn += 1
        astray = sum(list(client.ends(log_topic).values())[4:])
        await append_all(writer, turn)
        await writer.close()
        later = KafkaLogWriter(bootstrap_servers)
        await later.use_partitions(log_topic, 4)
        await append_all(later, turn + 1)
        await later.close()
        assert sum(list(client.ends(log_topic).values())[4:]) == astray, "only until it was noticed"
        names = {(key, one) for key in keys for one in range(turn + 2)}
        assert reports.keys() == names
        assert {len(found) for found in reports.values()} == {1}
        for (key, _), [(partition, _)] in reports.items():
            assert partition == partition_of(key, 4)

    asyncio.run(scenario())
