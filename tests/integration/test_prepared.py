"""What the benchmark puts into the log is what gateways and tables read."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from bench.load.prepared import TENANT, PastMessage, write_messages, write_sessions
from ingest.session.ownership import Shard
from ingest.session.shard.memory_shards import MemoryShardStore
from launcher.log.kafka import KafkaServer, running_kafka
from mqlake.log.admin import ensure_log_topics
from mqlake.log.kafka_reader import to_record
from mqlake.records.messages import INBOUND, SESSIONS, LogRecord, decode_message
from mqlake.records.progress import decode_progress
from mqlake.records.shards import Run, shard_of

pytestmark = pytest.mark.kafka


def read(server: KafkaServer, log_topic: str, partition: int, count: int) -> list[LogRecord]:
    consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": "test"})
    consumer.assign([TopicPartition(log_topic, partition, 0)])
    messages = consumer.consume(count, 30)
    consumer.close()
    return [to_record(message) for message in messages]


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    """Return a broker of this test's own: it looks at everything in it."""
    with running_kafka(tmp_path) as server:
        yield server


def test_messages_and_sessions_are_as_a_gateway_writes_them(kafka: KafkaServer) -> None:
    servers = kafka.bootstrap_servers
    ensure_log_topics(
        servers,
        inbound_partitions=2,
        session_shards=2,
        retention_bytes=10**9,
        timeout_seconds=120,
    )
    sent = [PastMessage(f"a/{number}", b"%d" % number, 1000 + number) for number in range(50)]
    last = write_messages(servers, sent, retain=True)
    records = [one for at, offset in last.items() for one in read(kafka, INBOUND, at, offset + 1)]
    found = sorted(
        (
            decode_message(one.key or b"", one.value, one.headers, one.timestamp_ms)
            for one in records
        ),
        key=lambda message: message.received_at_ms,
    )
    assert [PastMessage(one.topic_name, one.payload, one.received_at_ms) for one in found] == sent
    assert {(one.tenant, one.qos, one.retain) for one in found} == {(TENANT, 1, True)}

    write_sessions(servers, ["alice", "bob"], [7, 8], "a")
    number = shard_of(TENANT, "alice", 2)
    store = MemoryShardStore()
    shard = Shard(number, store, Run("gateway-1", "1"), lambda *_: None)
    for record in read(kafka, SESSIONS, number, 2):
        shard.apply(record)
    alice = shard.session((TENANT, "alice"))
    assert alice is not None
    assert not alice.connected
    assert [one.topic_filter for one in alice.subscriptions] == ["a/alice/0/+"]
    progress = store.progress((TENANT, "alice"))
    assert progress is not None
    assert decode_progress(progress).cursor == [7, 8]
