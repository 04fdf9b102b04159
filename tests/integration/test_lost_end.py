"""An embedded log whose end was lost, as its readers see it."""

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from launcher.child import ChildProgram
from launcher.log.kafka import KafkaServer, running_kafka
from launcher.log.recovery import recover_log
from launcher.progress import PlainProgress
from mqlake.log.admin import LogAdmin
from mqlake.log.kafka_reader import KafkaLogReader
from mqlake.log.lost_end import SKIPPED, LogGap, noted_gaps
from mqlake.records.messages import INBOUND, RULES, SKIPPED_KEY
from streaming.rules.log import KafkaRuleLog

pytestmark = [pytest.mark.promise, pytest.mark.kafka]


def _append(server: KafkaServer, value: bytes) -> int | None:
    """Append a record; return its offset."""
    offsets: list[int | None] = []
    producer = Producer({"bootstrap.servers": server.bootstrap_servers, "acks": "all"})
    producer.produce(INBOUND, value, b"key", on_delivery=lambda _, m: offsets.append(m.offset()))
    assert producer.flush(30) == 0
    return offsets[0]


def _read(server: KafkaServer, offset: int) -> tuple[bytes | None, int | None]:
    consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": "test"})
    consumer.assign([TopicPartition(INBOUND, 0, offset)])
    record = consumer.poll(30)
    consumer.close()
    assert record is not None
    return record.value(), record.offset()


async def _keys(server: KafkaServer, log_topic: str) -> list[bytes]:
    reader = KafkaLogReader(server.bootstrap_servers)
    try:
        return list(await reader.read_compacted(log_topic))
    finally:
        await reader.close()


def test_offsets_that_may_have_been_lost_are_not_given_again(tmp_path: Path) -> None:
    with running_kafka(tmp_path) as server:
        admin = LogAdmin(server.bootstrap_servers)
        admin.ensure(INBOUND, {})
        admin.ensure(RULES, {"cleanup.policy": "compact"})
        assert [_append(server, b"kept") for _ in range(3)] == [0, 1, 2]
    (server.log_dir / ".kafka_cleanshutdown").unlink()
    program = ChildProgram(
        name="log",
        command=tuple(server.command()),
        directory=server.directory,
        environment=server.environment(),
        output=tmp_path / "log.out",
        log=tmp_path / "logs" / "kafka.log",
        stop_timeout_seconds=30.0,
    )
    recover_log(server, program, tmp_path / "checkpoints", PlainProgress())
    assert noted_gaps(tmp_path / "checkpoints") == [
        LogGap(INBOUND, 0, 3, 3 + SKIPPED),
        LogGap(RULES, 0, 0, SKIPPED),
    ]

    with running_kafka(tmp_path) as server:
        # Before anything is written: the end is found by those who read up to it.
        assert asyncio.run(_keys(server, RULES)) == []
        assert asyncio.run(_keys(server, INBOUND)) == [b"key"]
        rules = KafkaRuleLog(server.bootstrap_servers, is_controllers=False)
        assert [record.key for record in rules.read(30)] == [SKIPPED_KEY]
        assert rules.is_caught_up()
        consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": "test"})
        assert consumer.get_watermark_offsets(TopicPartition(INBOUND, 0)) == (0, 3 + SKIPPED)
        consumer.close()
        assert _append(server, b"new") == 3 + SKIPPED
        for remembered in (3, 50, 3 + SKIPPED):
            assert _read(server, remembered) == (b"new", 3 + SKIPPED)
        assert _read(server, 2) == (b"kept", 2)
    # One that ended in order goes on where it was.
    recover_log(server, program, tmp_path / "checkpoints", PlainProgress())
    with running_kafka(tmp_path) as server:
        assert _append(server, b"next") == 4 + SKIPPED
