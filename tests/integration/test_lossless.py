"""Nothing acknowledged is deleted before it is read; what others delete is told."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from launcher.testing.systems import LocalSystem, await_condition, running_system
from mqlake.log.admin import LogAdmin
from mqlake.log.security import client_config
from mqlake.records.messages import INBOUND
from tests.integration.clients.publishing import publish_all, publishing
from tests.integration.tables import rows_of
from tests.integration.test_end_to_end import collecting
from tests.integration.thrift import FEW_TABLE_BATCHES

pytestmark = [pytest.mark.promise, pytest.mark.system]

RETENTION_BYTES = 64 * 1024**2
PAYLOAD = b"x" * 64 * 1024
CANARY = "canary"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSystem]:
    """A system that may delete from its log what is beyond 64 MiB."""
    environment = {
        "MQLAKE_LOCAL_LOG_RETENTION_BYTES": str(RETENTION_BYTES),
        "MQLAKE_LOCAL_LOG_PARTITIONS": "4",  # some are emptied, others not
        "MQLAKE_ROUTER_BATCH_SECONDS": "5",
        "MQLAKE_LOCAL_HANG_SECONDS": "0",  # Spark stands still on purpose, for minutes
        **FEW_TABLE_BATCHES,
    }
    data_dir = tmp_path_factory.mktemp("lossless") / "data"
    with running_system(data_dir, environment=environment) as system:
        system.await_healthy()  # the lake, too, for which `up` does not wait
        yield system


@contextmanager
def spark_standing_still(system: LocalSystem) -> Iterator[None]:
    """Have both applications stand still: neither routes, keeps tables, or deletes."""
    pids = [system.process(name)["figures"]["java_pid"] for name in ("router", "lake")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def await_retention(servers: str) -> None:
    """Wait until the broker has looked for what is beyond the retention of its log topics."""
    admin = AdminClient(client_config(servers))
    config = {"retention.ms": "1", "segment.bytes": str(1024**2)}
    admin.create_topics([NewTopic(CANARY, 1, 1, config=config)])[CANARY].result(120)
    log = LogAdmin(servers)
    producer = Producer(client_config(servers))
    for _ in range(40):
        producer.produce(CANARY, PAYLOAD, timestamp=1)
    producer.flush(120)
    try:
        await_condition(lambda: log.begins(CANARY)[0] > 0, "a look of the broker at its logs")
    finally:
        admin.delete_topics([CANARY])[CANARY].result(120)


def test_what_comes_while_spark_stands_still_is_kept_until_all_have_read_it(
    small: LocalSystem,
) -> None:
    servers = small.state().bootstrap_servers
    log = LogAdmin(servers)
    messages = [(f"kept/{number % 7}", b"%d " % number + PAYLOAD) for number in range(1_600)]
    with collecting(small.mqtt_port, "kept/#", 1) as subscriber:
        with spark_standing_still(small), publishing(small.mqtt_port) as publisher:
            publish_all(publisher, messages)
            await_retention(servers)
        await_condition(lambda: len(subscriber.received) >= len(messages), "every message")
        assert sorted(subscriber.received) == sorted(messages)
    places = (
        "SELECT count(*) FROM (SELECT DISTINCT log_partition, log_offset FROM messages"
        " WHERE topic LIKE 'kept/%')"
    )
    all_are_there = [(len(messages),)]
    await_condition(lambda: rows_of(small, "messages", places) == all_are_there, "the history")
    # By SQL once: Spark for queries writes the archive of its classes, too, when nobody uses it.
    dropped = small.run("sql", "SELECT count(*) AS n FROM drops", "--format", "csv")
    assert dropped.stdout.split() == ["n", "0"], dropped.stderr

    # What everybody has read goes.
    await_condition(lambda: sum(log.begins(INBOUND).values()) > 0, "old messages are deleted")
    begins, ends = log.begins(INBOUND), log.ends(INBOUND)
    for partition in (one for one, begin in begins.items() if begin):
        kept = (ends[partition] - begins[partition]) * len(PAYLOAD)
        # Barriers have offsets, too, and no size.
        assert kept > 0.9 * RETENTION_BYTES / len(begins), "no more than is to go"


def test_messages_that_others_delete_are_told_and_the_rest_goes_on(small: LocalSystem) -> None:
    servers = small.state().bootstrap_servers
    log = LogAdmin(servers)
    with collecting(small.mqtt_port, "told", 1) as subscriber:
        with spark_standing_still(small), publishing(small.mqtt_port) as publisher:
            # What the router has asked for before is answered by this, and it asks no more.
            publish_all(publisher, [("told", b"first")])
            publish_all(publisher, [("told", b"lost %d" % number) for number in range(50)])
            ends = log.ends(INBOUND)
            places = [TopicPartition(INBOUND, p, end) for p, end in ends.items()]
            admin = AdminClient(client_config(servers))
            for future in admin.delete_records(places).values():
                future.result(120)
        with publishing(small.mqtt_port) as publisher:
            publish_all(publisher, [("told", b"after")])
        # What was on its way to the router already may still come.
        await_condition(lambda: ("told", b"after") in subscriber.received, "what comes after")
        assert len(subscriber.received) < 50
    statement = "SELECT topic, detail, count FROM drops WHERE reason = 'unread'"

    def readers() -> set[str]:
        return {detail.split(":", 1)[0] for _, detail, _ in rows_of(small, "drops", statement)}

    await_condition(
        lambda: readers() >= {"router", "history", "state"}, "each reader tells of its own"
    )
    found = rows_of(small, "drops", statement)
    assert sum(count for _, detail, count in found if detail.startswith("router:")) >= 40
    assert {topic for topic, _, _ in found} == {INBOUND}
    small.await_healthy()
