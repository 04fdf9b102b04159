"""The router seen from the log: routes and barriers in, deliveries out."""

import json
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from launcher.testing.systems import LocalSystem, await_condition
from mqlake.log.admin import ensure_delivery_topic
from mqlake.log.security import client_config
from mqlake.records.messages import (
    HEADER_SOURCE,
    INBOUND,
    ROUTES,
    ROUTES_IN_FORCE,
    Barrier,
    Message,
    Route,
    Source,
    barrier_key,
    decode_source,
    delivery_topic,
    message_headers,
    message_key,
    question_key,
    retained_route,
    route_headers,
    route_key,
)
from tests.pace import within

pytestmark = pytest.mark.system

PARTITIONS = range(2)  # of the shared system
RUN = "0123456789abcdef"
LOST = 400
"""Barriers whose routes do not come."""


class Ghost:
    """A gateway that exists in the log only."""

    def __init__(self, servers: str) -> None:
        self.name = f"ghost-{uuid.uuid4().hex[:8]}"
        ensure_delivery_topic(servers, self.name)
        self.producer = Producer({**client_config(servers), "enable.idempotence": True})
        self._consumer = Consumer({**client_config(servers), "group.id": self.name})
        self._consumer.assign([TopicPartition(delivery_topic(self.name), 0, 0)])
        self._routed: list[bytes] = []
        self._barriers = 0

    def append(
        self,
        log_topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int = 0,
        headers: dict[str, str | bytes | None] | None = None,
    ) -> int:
        """Append one record and return its offset."""
        offsets: list[int] = []

        def report(error: object, message: object) -> None:
            assert error is None
            offsets.append(message.offset())  # type: ignore[attr-defined]

        self.producer.produce(
            log_topic, value, key, partition, on_delivery=report, headers=headers or {}
        )
        self.producer.flush(120)
        return offsets[0]

    def route(self, topic_filter: str, members: int = 1, number: int = 0) -> int:
        key = route_key(Route(self.name, "default", topic_filter))
        self._routed.append(key)
        headers: dict[str, str | bytes | None] = dict(route_headers(RUN, number, 0))
        return self.append(ROUTES, key, b"%d" % members, headers=headers if number else None)

    def barrier(self, routes_offset: int, partition: int = 0, number: int = 0) -> tuple[bytes, int]:
        """Append a barrier; return its key and offset."""
        self._barriers += 1
        key = barrier_key(Barrier(self.name, RUN, self._barriers, routes_offset, number))
        return key, self.append(INBOUND, key, b"", partition)

    def next(self, timeout_seconds: float = 120.0) -> tuple[bytes | None, bytes | None, Source]:
        """Return key, value and source of the next delivery."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                headers = dict(message.headers() or [])
                source = headers[HEADER_SOURCE]
                assert isinstance(source, bytes)
                return message.key(), message.value(), decode_source(source)
        raise AssertionError(f"no delivery within {timeout_seconds} s")

    def keys(self, log_topic: str) -> set[bytes | None]:
        """Return the keys of all records in the only partition of a log topic."""
        place = TopicPartition(log_topic, 0, 0)
        begin, end = self._consumer.get_watermark_offsets(place, 120)
        found = set()
        self._consumer.incremental_assign([TopicPartition(log_topic, 0, begin)])
        while begin < end:
            message = self._consumer.poll(120)
            assert message is not None
            if message.error() is None and message.topic() == log_topic:
                found.add(message.key())
                begin = message.offset() + 1  # type: ignore[operator]
        self._consumer.incremental_unassign([place])
        return found

    def close(self) -> None:
        for key in self._routed:
            self.append(ROUTES, key, None)
        self._consumer.close()


@pytest.fixture
def ghost(system: LocalSystem) -> Iterator[Ghost]:
    gateway = Ghost(system.state().bootstrap_servers)
    yield gateway
    gateway.close()


@pytest.fixture
def other(system: LocalSystem) -> Iterator[Ghost]:
    gateway = Ghost(system.state().bootstrap_servers)
    yield gateway
    gateway.close()


def test_a_barrier_comes_back_and_what_follows_it_is_routed(ghost: Ghost) -> None:
    for number in range(20):
        topic = f"ghost/{number}"
        offset = ghost.route(topic)
        partition = number % len(PARTITIONS)
        key, at = ghost.barrier(offset, partition)
        then = ghost.append(INBOUND, message_key("default", topic), b"payload", partition)
        answered_key, _, answered = ghost.next()
        assert (answered_key, answered.partition, answered.offset) == (key, partition, at)
        message_key_, value, source = ghost.next()
        assert (message_key_, value) == (message_key("default", topic), b"payload")
        assert (source.partition, source.offset) == (partition, then)


def test_a_first_barrier_waits_for_no_route(ghost: Ghost) -> None:
    key, at = ghost.barrier(-1)
    answered, _, source = ghost.next()
    assert (answered, source.offset) == (key, at)


def test_a_barrier_of_a_log_that_is_gone_is_not_answered_and_holds_nothing_up(
    ghost: Ghost,
) -> None:
    offset = ghost.route("ghost/stale")
    ghost.barrier(offset + 1_000_000)
    key, at = ghost.barrier(offset)
    answered, _, source = ghost.next()
    assert (answered, source.offset) == (key, at)


def test_a_barrier_waits_for_the_route_that_it_names(ghost: Ghost) -> None:
    for number in range(1, 21):
        topic = f"ghost/named/{number}"
        if number % 2:  # the route comes after the barrier
            seconds = 1.0 if number == 1 else 0.02
            late = threading.Timer(seconds, ghost.route, (topic,), {"number": number})
            late.start()
        else:
            ghost.route(topic, number=number)
        key, at = ghost.barrier(-1, number=number)
        ghost.append(INBOUND, message_key("default", topic), b"payload")
        answered_key, _, answered = ghost.next()
        assert (answered_key, answered.offset) == (key, at)
        assert ghost.next()[:2] == (message_key("default", topic), b"payload")


def test_a_barrier_whose_route_does_not_come_is_not_answered_and_holds_nothing_up(
    ghost: Ghost,
) -> None:
    ghost.route("ghost/lost", number=1)
    for number in range(2, LOST + 2):
        ghost.barrier(-1, number=number)
    key, at = ghost.barrier(-1, number=1)
    # One wait for all of them: a quarter of a second for each would be more.
    answered, _, source = ghost.next(within(LOST / 10))
    assert (answered, source.offset) == (key, at)
    found = LOST + 2
    for key, at in (
        ghost.barrier(ghost.route("ghost/found", number=found)),
        ghost.barrier(-1, number=found),
    ):
        answered, _, source = ghost.next()
        assert (answered, source.offset) == (key, at)


@pytest.mark.promise
def test_order_within_a_partition_is_kept(ghost: Ghost) -> None:
    ghost.barrier(ghost.route("ghost/order"))
    ghost.next()
    key = message_key("default", "ghost/order")
    for number in range(500):
        ghost.producer.produce(INBOUND, b"%d" % number, key, 0)
    ghost.producer.flush(120)
    values = [ghost.next()[1] for _ in range(500)]
    assert values == [b"%d" % number for number in range(500)]


def test_retained_messages_go_to_a_gateway_that_wants_those_of_their_partition_in_order(
    ghost: Ghost,
) -> None:
    """Once each; a question to the gateway comes between them where it stands in the log."""
    ghost.barrier(ghost.route(retained_route(ghost.name, 0).topic_filter))
    ghost.next()
    ghost.barrier(ghost.route("ghost/subscribed"))
    ghost.next()
    sent: dict[int, list[tuple[bytes, bytes]]] = {0: [], 1: []}
    for number in range(40):
        topic = "ghost/subscribed" if number % 4 < 2 else "ghost/unsubscribed"
        message = Message(
            "default",
            topic,
            b"%d" % number,
            1,
            number % 2 == 0,
            bytes(16),
            "ghost",
            0,
            "local/ghost",
        )
        headers: dict[str, str | bytes | None] = dict(message_headers(message))
        key = message_key("default", topic)
        for partition in (0, 1):
            ghost.append(INBOUND, key, message.payload, partition, headers)
            if topic == "ghost/subscribed" or (message.retain and partition == 0):
                sent[partition].append((key, message.payload))
        if number % 10 == 7:
            ghost.append(INBOUND, question_key("nobody"), b"for nobody")
            question = (question_key(ghost.name), b"question %d" % number)
            ghost.append(INBOUND, *question)
            sent[0].append(question)
    received: dict[int, list[tuple[bytes | None, bytes | None]]] = {0: [], 1: []}
    for _ in range(sum(map(len, sent.values()))):
        found, value, source = ghost.next()
        received[source.partition].append((found, value))
    assert received == sent
    key, _ = ghost.barrier(-1)
    assert ghost.next()[0] == key, "none came twice"


@pytest.mark.campaign("tests/streaming/log and test_route_table.py hold it")
def test_records_of_others_harm_neither_router_nor_history(
    system: LocalSystem, ghost: Ghost
) -> None:
    ghost.barrier(ghost.route("ghost/#"))
    ghost.next()
    restarts = system.process("router")["restarts"]
    ghost.append(INBOUND, None, b"no key")
    ghost.append(INBOUND, b"no slash", b"x")
    ghost.append(INBOUND, b"\xff\xfe/\xff", b"not utf-8")
    ghost.append(INBOUND, b"\0barrier/mangled", b"")
    ghost.append(INBOUND, message_key("default", "ghost/odd"), None, headers={"mqtt": b"\x09"})
    key = message_key("default", "ghost/fine")
    fine = Message("default", "ghost/fine", b"fine", 1, False, bytes(16), "ghost", 0, "local/ghost")
    ghost.append(INBOUND, key, b"fine", headers=dict(message_headers(fine)))
    while ghost.next()[0] != key:
        pass
    query = "SELECT count(*) AS n FROM messages WHERE topic = 'ghost/fine'"
    await_condition(
        lambda: '"n": 1' in system.run("sql", query, "--format", "json").stdout,
        "the history goes on",
    )
    process = system.process("router")
    assert (process["restarts"], process["healthy"]) == (restarts, True)


@pytest.mark.promise
def test_a_share_group_changes_where_a_barrier_stands_and_stays_so_after_a_crash(
    ghost: Ghost, other: Ghost, system: LocalSystem
) -> None:
    shared = "$share/workers/ghost/group"
    key = message_key("default", "ghost/group")

    def messages(gateway: Ghost, last: bytes) -> list[int]:
        """Return the offsets of the group's messages up to a barrier."""
        found: list[int] = []
        while True:
            record_key, _, source = gateway.next()
            if record_key == last:
                return found
            if record_key == key:
                found.append(source.offset)

    def publish(count: int) -> list[int]:
        return [ghost.append(INBOUND, key, b"") for _ in range(count)]

    ghost.barrier(ghost.route(shared))
    before = publish(1)
    other.route(shared)
    before += publish(20)
    left = ghost.route(shared, members=0)
    joined = other.barrier(left)[0]
    after = publish(20)
    answered = ghost.barrier(-1)[0]
    assert messages(ghost, answered) == before, "nothing else is in force"
    assert messages(other, joined) == []
    assert messages(other, other.barrier(-1)[0]) == after
    partitions = {b"%d" % partition for partition in PARTITIONS}
    noted = ghost.keys(ROUTES_IN_FORCE)
    assert {b"0"} <= noted <= partitions, "compaction keeps the last note of each partition"

    system.kill("router")
    ends = [gateway.barrier(-1)[0] for gateway in (ghost, other)]
    again, by_other = messages(ghost, ends[0]), messages(other, ends[1])
    assert again + by_other == sorted(again + by_other)
    assert set(again) <= set(before), "what it repeats goes where it went"
    assert set(by_other) <= set(after)
    system.await_healthy()


@pytest.mark.campaign("tests/streaming/log and test_route_table.py hold it")
def test_a_delivery_topic_that_was_deleted_is_told_and_holds_nobody_up(
    system: LocalSystem, ghost: Ghost
) -> None:
    servers = system.state().bootstrap_servers
    restarts = system.process("router")["restarts"]
    gone = Ghost(servers)
    topic = f"ghost/{uuid.uuid4().hex[:8]}"
    for one in (ghost, gone):
        one.barrier(one.route(topic))
        one.next()
    admin = AdminClient(client_config(servers))
    admin.delete_topics([delivery_topic(gone.name)])[delivery_topic(gone.name)].result(30)
    key = message_key("default", topic)
    for number in range(20):
        ghost.append(INBOUND, key, b"%d" % number, number % len(PARTITIONS))
        assert ghost.next()[:2] == (key, b"%d" % number)

    def told() -> int:
        query = "SELECT topic, count FROM drops WHERE reason = 'no_log_topic'"
        rows: list[dict[str, Any]] = json.loads(system.run("sql", query, "--format", "json").stdout)
        return sum(one["count"] for one in rows if gone.name in one["topic"])

    await_condition(lambda: told() == 20, "all are told")
    gone.close()
    process = system.process("router")
    assert (process["restarts"], process["healthy"]) == (restarts, True)


@pytest.mark.campaign("tests/streaming/log and test_route_table.py hold it")
def test_a_message_that_is_too_large_for_a_gateway_holds_nobody_up(
    system: LocalSystem, ghost: Ghost
) -> None:
    servers = system.state().bootstrap_servers
    small = Ghost(servers)
    limit = ConfigEntry("max.message.bytes", "50000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(
        ResourceType.TOPIC, delivery_topic(small.name), incremental_configs=[limit]
    )
    admin = AdminClient(client_config(servers))
    admin.incremental_alter_configs([resource])[resource].result(30)
    topic = f"ghost/{uuid.uuid4().hex[:8]}"
    for one in (ghost, small):
        one.barrier(one.route(topic))
        one.next()
    key = message_key("default", topic)
    for value in (b"small", bytes(100_000), b"after"):
        ghost.append(INBOUND, key, value)
        assert ghost.next()[:2] == (key, value)
    assert [small.next()[1] for _ in range(2)] == [b"small", b"after"]

    def told() -> list[dict[str, Any]]:
        query = f"SELECT count FROM drops WHERE reason = 'too_large' AND topic = '{topic}'"
        rows: list[dict[str, Any]] = json.loads(system.run("sql", query, "--format", "json").stdout)
        return rows

    await_condition(lambda: told() == [{"count": 1}], "it is told while the batch goes on")
    small.close()
