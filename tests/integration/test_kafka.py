"""The embedded log as a real process."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from api.control import ask_gateway
from api.log import LogAppender
from mqlake.errors import LogError
from mqlake.local.kafka import KafkaServer, running_kafka
from mqlake.local.ports import is_free
from mqlake.log.admin import LogAdmin
from mqlake.records import delivery_topic

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


def identity(server: KafkaServer) -> str:
    meta = (server.log_dir / "meta.properties").read_text(encoding="utf-8")
    return next(line for line in meta.splitlines() if line.startswith("cluster.id="))


def test_log_keeps_records_and_identity_over_a_restart_on_other_ports(tmp_path: Path) -> None:
    folder = tmp_path / "a folder, with blank and comma"
    with running_kafka(folder) as server:
        first = identity(server)
        LogAdmin(server.bootstrap_servers).ensure("kept", {})
        producer = Producer({"bootstrap.servers": server.bootstrap_servers, "acks": "all"})
        producer.produce("kept", b"record")
        assert producer.flush(30) == 0
    assert is_free(server.port)

    with running_kafka(folder) as server:
        assert identity(server) == first
        consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": "test"})
        consumer.assign([TopicPartition("kept", 0, 0)])
        record = consumer.poll(30)
        consumer.close()
        assert record is not None
        assert record.value() == b"record"


def test_misspelled_log_topic_is_not_created(kafka: KafkaServer) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.list_topics("mqlake.inbuond", timeout=60)
    assert "mqlake.inbuond" not in admin.list_topics(timeout=60).topics


def test_log_listens_on_this_machine_alone(kafka: KafkaServer) -> None:
    # Anywhere else it would also hold the same port of another loopback address.
    assert not is_free(kafka.port, "127.0.0.1")
    assert is_free(kafka.port, "127.0.0.2")
    assert is_free(kafka.controller_port, "127.0.0.2")


def test_what_the_api_asks_of_a_gateway_is_in_its_log_topic(kafka: KafkaServer) -> None:
    log_topic = delivery_topic("asked")
    LogAdmin(kafka.bootstrap_servers).ensure(log_topic, {})
    ask_gateway(LogAppender(), kafka.bootstrap_servers, "asked", "reload")
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "test"})
    consumer.assign([TopicPartition(log_topic, 0, 0)])
    record = consumer.poll(30)
    consumer.close()
    assert record is not None
    assert record.key() == b"\0control/reload"


def test_what_the_api_asks_of_a_gateway_that_never_was_is_refused(kafka: KafkaServer) -> None:
    with pytest.raises(LogError, match="control record for nobody"):
        ask_gateway(LogAppender(timeout_seconds=3), kafka.bootstrap_servers, "nobody", "reload")
