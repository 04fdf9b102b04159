"""The embedded log as a real process."""

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from api.clients.control import ask_gateway
from api.log.appending import LogAppender
from launcher.log.kafka import Brokers, KafkaServer, running_kafka
from launcher.log.probe import is_serving
from launcher.ports import is_free
from mqlake.errors import LogError, OperationalError
from mqlake.log.admin import LogAdmin
from mqlake.log.security import ClientSecurity, client_config
from mqlake.records.messages import delivery_topic
from tests.integration.logins import SECONDS, is_refused, lists_topics

pytestmark = pytest.mark.kafka


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
        assert producer.flush(SECONDS) == 0
    assert is_free(server.port)

    with running_kafka(folder) as server:
        assert identity(server) == first
        consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": "test"})
        consumer.assign([TopicPartition("kept", 0, 0)])
        record = consumer.poll(SECONDS)
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
    ask_gateway(LogAppender(kafka.bootstrap_servers), "asked", "reload")
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "test"})
    consumer.assign([TopicPartition(log_topic, 0, 0)])
    record = consumer.poll(SECONDS)
    consumer.close()
    assert record is not None
    assert record.key() == b"\0control/reload"


def test_what_the_api_asks_of_a_gateway_that_never_was_is_refused(kafka: KafkaServer) -> None:
    log = LogAppender(kafka.bootstrap_servers, timeout_seconds=3)
    with pytest.raises(LogError, match="control record for nobody"):
        ask_gateway(log, "nobody", "reload")


@contextmanager
def with_login(server: KafkaServer, security_file: Path) -> Iterator[KafkaServer]:
    """Run a log that asks, as `bin/mqlake up` does."""
    asking = replace(server, security_file=security_file)
    brokers = Brokers((asking,))
    try:
        brokers.start()
        yield asking
    finally:
        brokers.stop()


def test_a_log_of_an_earlier_version_asks_who_comes_from_now_on(tmp_path: Path) -> None:
    with running_kafka(tmp_path / "log") as server:
        LogAdmin(server.bootstrap_servers).ensure("kept", {})
        producer = Producer({**client_config(server.bootstrap_servers), "acks": "all"})
        producer.produce("kept", b"record")
        assert producer.flush(SECONDS) == 0
        assert lists_topics({"bootstrap.servers": server.bootstrap_servers})

    path = tmp_path / "log-security.toml"
    with with_login(server, path) as asking:
        servers = asking.bootstrap_servers
        consumer = Consumer({**client_config(servers), "group.id": "test"})
        consumer.assign([TopicPartition("kept", 0, 0)])
        record = consumer.poll(SECONDS)
        consumer.close()
        assert record is not None
        assert record.value() == b"record"

        security = servers.security
        plain = {"bootstrap.servers": str(servers)}
        assert is_refused({**plain})
        for wrong in (
            replace(security, password="wrong"),
            replace(security, username="admin"),
            replace(security, mechanism="PLAIN"),
            replace(security, mechanism="SCRAM-SHA-256"),
        ):
            assert is_refused({**plain, **wrong.of_librdkafka()})
        assert lists_topics(client_config(servers))
        assert not is_serving("127.0.0.1", asking.port)
        assert not is_serving("127.0.0.1", asking.port, replace(security, password="wrong"))
        # Whoever reaches the controller could change everything, too.
        assert not is_serving("127.0.0.1", asking.controller_port)

        secret = security.password
        written = [asking.directory / "server.properties", path]
        assert all(stat.S_IMODE(one.stat().st_mode) == 0o600 for one in written)
        assert all(secret in one.read_text() for one in written)
        kept = [*asking.logs_dir.iterdir(), *asking.log_dir.rglob("*")]
        assert not [one for one in kept if one.is_file() and secret.encode() in one.read_bytes()]
        assert secret not in " ".join(asking.command())

    path.unlink()
    with with_login(server, path) as again:
        assert again.bootstrap_servers.security != security
        assert lists_topics(client_config(again.bootstrap_servers))
        assert is_refused({**plain, **security.of_librdkafka()})


def test_a_login_that_the_embedded_log_does_not_know_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log-security.toml"
    wrong = ClientSecurity("SASL_PLAINTEXT", "PLAIN", "a", "b")
    path.write_text(wrong.to_toml(), encoding="utf-8")
    server = KafkaServer(tmp_path / "log", tmp_path / "logs", 1, 2, security_file=path)
    with pytest.raises(OperationalError, match="takes SASL_PLAINTEXT with SCRAM alone: delete"):
        server.prepare()
