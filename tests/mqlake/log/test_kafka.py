"""What only a real broker can show: it goes away and comes back, refuses, forgets."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from mqlake.errors import LogError
from mqlake.local.kafka import KafkaServer
from mqlake.local.ports import free_ports
from mqlake.log import admin
from mqlake.log.contract import END, LogRecord
from mqlake.log.kafka import KafkaLogReader, KafkaLogWriter
from mqlake.log.kafka_errors import to_log_error
from mqlake.records import (
    ACCESS,
    DEAD_LETTERS,
    EVENTS,
    GATEWAYS,
    INBOUND,
    JOBS,
    METRICS,
    OUTPUTS,
    ROUTES,
    RULES,
    SESSIONS,
)

DEADLINE_SECONDS = 30.0


class Broker:
    """A broker that a test may kill and start again on the same port and data."""

    def __init__(self, directory: Path) -> None:
        port, controller_port = free_ports(2)
        self._server = KafkaServer(directory / "kafka", directory / "logs", port, controller_port)
        self.bootstrap_servers = self._server.bootstrap_servers
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._server.prepare()
        self._process = subprocess.Popen(
            self._server.command(),
            cwd=self._server.directory,
            env=self._server.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def _broker(directory: Path) -> Iterator[Broker]:
    broker = Broker(directory)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 - there are several things to wait for
            await asyncio.sleep(0.01)


@pytest.mark.kafka
def test_a_broker_killed_and_started_again_costs_time_and_no_record(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
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
        await _until(lambda: bool(errors))
        await asyncio.to_thread(broker.start)
        await writer.flush(DEADLINE_SECONDS)
        assert failed == []
        await _until(lambda: len(records) >= 4000)
        assert [record.value for record in records] == [b"%d" % number for number in range(4000)]
        assert not any(error.definite for error in errors)
        # However often it was tried in vain: what was fetched before may come in between.
        assert len(errors) < 5
        await reader.close()
        await writer.close()

    with _broker(tmp_path) as broker:
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
            assert admin.partition_count(bootstrap_servers, INBOUND, DEADLINE_SECONDS) == 4
            assert admin.partition_count(bootstrap_servers, OUTPUTS, DEADLINE_SECONDS) == 4
            assert admin.partition_count(bootstrap_servers, SESSIONS, DEADLINE_SECONDS) == 4
            for log_topic in (
                ROUTES,
                EVENTS,
                GATEWAYS,
                RULES,
                METRICS,
                JOBS,
                DEAD_LETTERS,
            ):
                assert admin.partition_count(bootstrap_servers, log_topic, DEADLINE_SECONDS) == 1
        inbound = admin.topic_config(bootstrap_servers, INBOUND, DEADLINE_SECONDS)
        assert (inbound["retention.bytes"], inbound["retention.ms"]) == ("-1", "-1")
        assert inbound["cleanup.policy"] == "delete"
    for log_topic in (ROUTES, SESSIONS, GATEWAYS, RULES, METRICS, JOBS, ACCESS):
        config = admin.topic_config(bootstrap_servers, log_topic, DEADLINE_SECONDS)
        assert config["cleanup.policy"] == "compact"
        assert config["delete.retention.ms"] == "86400000"
    for log_topic in (SESSIONS, GATEWAYS):
        config = admin.topic_config(bootstrap_servers, log_topic, DEADLINE_SECONDS)
        assert config["message.timestamp.type"] == "LogAppendTime"
    events = admin.topic_config(bootstrap_servers, EVENTS, DEADLINE_SECONDS)
    assert (events["cleanup.policy"], events["retention.ms"]) == ("delete", "-1")


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
