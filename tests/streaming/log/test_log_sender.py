"""What a query sends to the log: all in order, or it is told why not; a real log, no Spark."""

import json
import threading
import time
import uuid
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from py4j.clientserver import ClientServer
from py4j.protocol import Py4JJavaError

from launcher.log.kafka import Brokers
from launcher.testing.systems import await_condition
from mqlake.errors import LogError
from mqlake.log.admin import LogAdmin
from mqlake.log.log_topics import KEPT_UNTIL_READ
from streaming.application.figures import parse_positions
from streaming.log.sinks import Waiting, parse_undelivered
from tests.pace import within

pytestmark = [pytest.mark.promise, pytest.mark.kafka]

PATIENCE = 120.0
"""Of what brokers do, which elect each other anew when one has stood still."""
STAYS, PAUSED = 1, 2
"""Brokers: one that goes on in all tests but one, and one that does not."""
KEY = b"acme/plant/1"
AWAY_SECONDS = 7
"""Longer than the log waits for a target before its records go elsewhere."""


class Log:
    def __init__(self, brokers: Brokers) -> None:
        self.servers: str = brokers.bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": self.servers})
        self._places = LogAdmin(self.servers, PATIENCE)
        self._folders = [server.log_dir for server in brokers.servers]

    def create(self, config: dict[str, str] | None = None, *, broker: int = STAYS) -> str:
        """Create a log topic on one broker alone."""
        name = f"target-{uuid.uuid4().hex[:8]}"
        topic = NewTopic(name, 1, replica_assignment=[[broker]], config=config or {})
        self.admin.create_topics([topic])[name].result(PATIENCE)
        # Usable when every broker knows it, which is a moment after it exists.
        await_condition(lambda: self._has(name), f"{name} is there")
        return name

    def ensure(self, log_topic: str) -> None:
        self._places.ensure(log_topic, KEPT_UNTIL_READ)

    def _has(self, log_topic: str) -> bool:
        try:
            self._places.ends(log_topic)
        except LogError:
            return False
        return True

    def configure(self, log_topic: str, config: dict[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, log_topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(PATIENCE)

    def delete(self, log_topic: str) -> None:
        self.admin.delete_topics([log_topic])[log_topic].result(PATIENCE)
        # A broker says so before it takes no more; it moves the folder after that.
        await_condition(
            lambda: not any((folder / f"{log_topic}-0").exists() for folder in self._folders),
            f"no broker takes records of {log_topic}",
        )

    def values(self, log_topic: str, count: int) -> list[bytes]:
        """Return that many records, and all that are there already behind them."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "test",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(log_topic, 0, 0)])
        found: list[bytes] = []
        deadline = time.monotonic() + PATIENCE
        is_read = False
        while time.monotonic() < deadline and not (is_read and len(found) >= count):
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            is_read = error is not None and error.code() == KafkaError._PARTITION_EOF
            if error is None:
                value = message.value()
                assert isinstance(value, bytes)
                found.append(value)
        consumer.close()
        return found

    def waiting(self, log_topic: str) -> int:
        """Return how many records a log topic holds."""
        return self._places.ends(log_topic)[0] - self._places.begins(log_topic)[0]


class Query:
    """The sender of one run of a query, and rows for it."""

    def __init__(
        self,
        gateway: ClientServer,
        log: Log,
        *,
        events: str | None = None,
        awaited: str | None = None,
        **config: str,
    ) -> None:
        self._gateway = gateway
        self._name = f"query-{uuid.uuid4().hex[:8]}"
        self._config = gateway.jvm.java.util.HashMap()
        for key, value in {"bootstrap.servers": log.servers, **config}.items():
            self._config.put(key.replace("_", "."), value)
        self.events = events or f"{self._name}-events"
        self.awaited = awaited
        self.undelivered = f"{self._name}-undelivered"
        for name in (self.events, self.undelivered):
            log.ensure(name)
        self.start()

    def start(self) -> None:
        """Begin a run; what the last one has sent and the log not taken is nobody's any more."""
        self.run = uuid.uuid4().hex
        self.batch = self.sender(self.run).begin()

    def sender(self, run: str) -> Any:
        """Return what a task of that run sends by."""
        senders = self._gateway.jvm.mqlake.log.LogSenders
        return senders.of(
            self._name, run, self._config, self.events, self.awaited, self.undelivered
        )

    def waiting(self) -> list[Waiting]:
        senders = self._gateway.jvm.mqlake.log.LogSenders
        return [one for one in parse_undelivered(senders.waiting()) if one.query == self._name]

    def send(self, log_topic: str, value: bytes, key: bytes | None = KEY) -> None:
        self.batch.send(self._row(log_topic, key, value))

    def _row(self, log_topic: str, key: bytes | None, value: bytes) -> Any:
        jvm = self._gateway.jvm
        cells = self._gateway.new_array(jvm.Object, 5)
        cells[0] = jvm.org.apache.spark.unsafe.types.UTF8String.fromString(log_topic)
        cells[1] = 0
        cells[2] = key
        cells[3] = value
        return jvm.org.apache.spark.sql.catalyst.expressions.GenericInternalRow(cells)


def told(log: Log, query: Query, count: int) -> list[dict[str, Any]]:
    """Return the events of the records that a query has left out."""
    events = [json.loads(value) for value in log.values(query.events, count)]
    assert {event["event"] for event in events} == {"message.dropped"}
    return events


def without_repetitions(values: list[bytes]) -> list[bytes]:
    """Return what a reader takes that drops what is not above what it has seen."""
    kept: list[bytes] = []
    for value in values:
        if not kept or int(value) > int(kept[-1]):
            kept.append(value)
    return kept


def numbers(count: int, begin: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(begin, begin + count)]


@pytest.fixture(scope="module")
def log(brokers: Brokers) -> Log:
    return Log(brokers)


def test_what_is_sent_is_there_in_order(routing_gateway: ClientServer, log: Log) -> None:
    target = log.create()
    query = Query(routing_gateway, log)
    wanted = numbers(200)
    for value in wanted:
        query.send(target, value)
    query.batch.awaitAcknowledged()
    assert log.values(target, len(wanted)) == wanted


@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_a_record_that_is_too_large_is_left_out_and_told(
    routing_gateway: ClientServer, log: Log, size: int
) -> None:
    target = log.create({"max.message.bytes": str(size // 2)})
    query = Query(routing_gateway, log)
    for value in (b"before", b"x" * size, b"after", b"y" * (size // 4), b"z" * (size // 4)):
        query.send(target, value)
    query.batch.awaitAcknowledged()
    assert [value[:6] for value in log.values(target, 4)] == [
        *(b"before", b"after", b"yyyyyy", b"zzzzzz")
    ]
    (event,) = told(log, query, 1)
    assert (event["tenant"], event["topic"], event["reason"]) == ("acme", "plant/1", "too_large")
    assert f"{size + 128 + len(KEY)} bytes, {target} takes {size // 2}" in event["detail"]


@pytest.mark.campaign("the other tests of this file send to the same log")
def test_what_is_left_out_of_a_long_batch_is_told_before_it_ends(
    routing_gateway: ClientServer, log: Log
) -> None:
    """And what came before it is done only then, though more is left out all the time."""
    target = log.create({"max.message.bytes": "1000"})
    query = Query(routing_gateway, log)
    positions_class = routing_gateway.jvm.mqlake.log.Positions
    name = f"positions-{uuid.uuid4().hex[:8]}"
    positions = positions_class.of(name, "inbound")
    query.batch.enter()
    left_out = 0

    def is_done(offset: int) -> bool:
        nonlocal left_out
        positions.reach(0, left_out)
        query.send(target, b" " * 2000)
        left_out += 1
        done = parse_positions(positions_class.done()).get(name, {})
        return done.get("inbound", {}).get(0, 0) >= offset

    try:
        await_condition(lambda: is_done(5), "five are done while more come")
        assert sum(event["count"] for event in told(log, query, 1)) >= 5
        positions.reach(0, left_out)
        # Nothing comes after it, as of the barrier of a change of rules.
        positions.passOver(0, left_out)
        passed = left_out + 1
        await_condition(
            lambda: parse_positions(positions_class.done())[name]["inbound"][0] == passed,
            "it is done",
        )
        assert sum(event["count"] for event in told(log, query, 1)) == left_out
    finally:
        routing_gateway.jvm.mqlake.log.TaskBatch.leave()


@pytest.mark.campaign("the other tests of this file send to the same log")
def test_a_log_topic_that_is_deleted_holds_nobody_up_and_is_told(
    routing_gateway: ClientServer, log: Log
) -> None:
    gone, never, other = log.create(), "target-that-never-was", log.create()
    query = Query(routing_gateway, log)
    for target in (gone, other):
        query.send(target, b"first")
    query.batch.awaitAcknowledged()
    log.delete(gone)
    for value in numbers(5):
        for target in (gone, other, never):
            query.send(target, value)
    query.batch.awaitAcknowledged()
    assert log.values(other, 6)[1:] == numbers(5)
    counts: dict[str, int] = {}

    def are_told() -> bool:
        counts.clear()
        for event in told(log, query, 2):
            assert event["reason"] == "no_log_topic"
            counts[event["topic"]] = counts.get(event["topic"], 0) + event["count"]
        return counts == {gone: 5, never: 5}

    await_condition(are_told, f"all are told: {counts}")
    # Once it is known, they are left out at once: none waits a second, as for one unknown.
    begun = time.monotonic()
    for value in numbers(200):
        query.send(gone, value)
    query.batch.awaitAcknowledged()
    assert time.monotonic() - begun < within(30)
    await_condition(lambda: log.waiting(query.undelivered) == 0, "nothing waits")


def test_while_the_log_is_away_everything_waits_and_comes_in_order(
    routing_gateway: ClientServer, brokers: Brokers, log: Log
) -> None:
    target = log.create()
    # As if the log were away for long: each request is given up after a moment.
    query = Query(routing_gateway, log, request_timeout_ms="500")
    query.send(target, b"first")
    query.batch.awaitAcknowledged()
    wanted = numbers(50)
    waiting = threading.Thread(target=query.batch.awaitAcknowledged)
    with ExitStack() as pauses:
        for number in (3, PAUSED, STAYS):
            pauses.enter_context(brokers.paused(number))
        for value in wanted:
            query.send(target, value)
        waiting.start()
        waiting.join(AWAY_SECONDS)
        assert waiting.is_alive()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert without_repetitions(log.values(target, 51)[1:]) == wanted


def test_a_target_that_is_away_holds_nobody_up_and_misses_nothing(
    routing_gateway: ClientServer, brokers: Brokers, log: Log
) -> None:
    away, other = log.create(broker=PAUSED), log.create()
    query = Query(routing_gateway, log)
    for target in (away, other):
        query.send(target, b"0")
    query.batch.awaitAcknowledged()
    payload = b" " * 20_000  # more than what may be on its way to one target, all together
    with brokers.paused(PAUSED):
        for value in numbers(250, 1):
            for target in (away, other):
                query.send(target, value + payload)
        query.batch.awaitAcknowledged()
        assert len(log.values(other, 251)) == 251
        # A run that begins now finds what waits; the first of its records are repetitions. It may
        # ask the broker that does not answer first, as one of several does.
        query.start()
        for value in numbers(250, 151):
            for target in (away, other):
                query.send(target, value + payload)
        query.batch.awaitAcknowledged()
    found: list[bytes] = []

    def has_all() -> bool:
        found[:] = log.values(away, 401)
        return int(found[-1]) == 400

    await_condition(has_all, "the target has all")
    assert [int(value) for value in without_repetitions(found)] == list(range(401))
    # From then on its records go straight to it.
    await_condition(lambda: log.waiting(query.undelivered) == 0, "nothing waits any more")
    query.send(away, b"401")
    query.batch.awaitAcknowledged()
    assert log.values(away, len(found) + 1)[-1] == b"401"
    assert log.waiting(query.undelivered) == 0
    assert log.waiting(query.events) == 0


def test_targets_come_back_under_load(
    routing_gateway: ClientServer, brokers: Brokers, log: Log
) -> None:
    """What is sent meanwhile passes nothing; nor where a log topic takes no batch of several.

    What another query has left out meanwhile is told when its events are back; and one that reads
    its own records when it begins waits for them.
    """
    targets = [
        log.create({"max.message.bytes": size}, broker=PAUSED) for size in ("1000000", "600")
    ]
    events, small = log.create(broker=PAUSED), log.create({"max.message.bytes": "1000"})
    query, telling = Query(routing_gateway, log), Query(routing_gateway, log, events=events)
    awaited, behind = log.create(broker=PAUSED), log.create(broker=PAUSED)
    awaiting = Query(routing_gateway, log, awaited=awaited)
    awaiting.send(awaited, b"0")
    awaiting.batch.awaitAcknowledged()
    is_there = threading.Thread(target=awaiting.batch.awaitAcknowledged)
    sent = -1

    def send() -> None:
        nonlocal sent
        sent += 1
        for target in targets:
            query.send(target, b"%d" % sent)

    send()
    query.batch.awaitAcknowledged()
    telling.send(small, b"0")
    telling.batch.awaitAcknowledged()
    with brokers.paused(PAUSED):
        awaiting.send(awaited, b"1")
        awaiting.send(behind, b"1")
        is_there.start()
        telling.send(small, b" " * 2000)
        telling.send(small, b"1")
        while {one.log_topic for one in query.waiting()} != set(targets):
            for _ in range(100):
                send()
        query.batch.awaitAcknowledged()
        assert {one.log_topic for one in query.waiting()} == set(targets)
        telling.batch.awaitAcknowledged()
        (waiting,) = telling.waiting()
        assert (waiting.log_topic, waiting.records) == (events, 1)
        await_condition(lambda: awaiting.waiting() != [], "what was sent last is looked after")
        assert [one.log_topic for one in awaiting.waiting()] == [behind]
        assert is_there.is_alive()
    is_there.join(PATIENCE)
    assert without_repetitions(log.values(awaited, 2)) == [b"0", b"1"]
    while log.waiting(query.undelivered) > 0:
        for _ in range(100):
            send()
    query.batch.awaitAcknowledged()
    for target in targets:
        found = without_repetitions(log.values(target, sent + 1))
        assert [int(value) for value in found] == list(range(sent + 1))
    # What was on its way when the broker stopped may be there, too.
    event, *repetitions = told(log, telling, 1)
    assert (event["topic"], event["reason"], event["count"]) == ("plant/1", "too_large", 1)
    assert all(one == event for one in repetitions)
    assert log.values(small, 2) == [b"0", b"1"]


def refusing(log: Log) -> str:
    """Create a log topic that wants keys: that it refuses one without is not known beforehand."""
    return log.create({"cleanup.policy": "compact"})


def refuse(query: Query, log_topic: str) -> None:
    """Have a run end by a refusal, and begin the next."""
    query.send(log_topic, b"refused", None)
    with pytest.raises(Py4JJavaError, match="did not take a record"):
        query.batch.awaitAcknowledged()
    query.start()


@pytest.mark.campaign("the other tests of this file send to the same log")
def test_a_target_that_refuses_a_record_stops_the_others_once(
    routing_gateway: ClientServer, log: Log
) -> None:
    target, other = refusing(log), log.create()
    query = Query(routing_gateway, log)
    refuse(query, target)
    for number in range(3):
        query.send(target, b"%d" % number, None)
        query.send(other, b"%d" % number)
    query.batch.awaitAcknowledged()
    assert log.values(other, 3) == numbers(3)

    def are_three() -> bool:
        (waiting,) = query.waiting()
        assert waiting.log_topic == target
        return (waiting.records, waiting.size_bytes) == (3, 3 * 129)

    await_condition(are_three, "three wait, also after one was tried")
    log.configure(target, {"cleanup.policy": "delete"})
    assert log.values(target, 3) == numbers(3)
    await_condition(lambda: log.waiting(query.undelivered) == 0, "nothing waits any more")
    assert query.waiting() == []


def test_a_run_that_is_over_sends_nothing(routing_gateway: ClientServer, log: Log) -> None:
    target = log.create()
    query = Query(routing_gateway, log)
    first, batch = query.run, query.batch
    query.start()
    query.send(target, b"0")
    with pytest.raises(Py4JJavaError, match="is over"):
        query.sender(first)
    query.batch = batch
    with pytest.raises(Py4JJavaError, match="did not take a record"):
        query.send(target, b"1")
    query.batch = query.sender(query.run).begin()
    query.send(target, b"2")
    query.batch.awaitAcknowledged()
    assert log.values(target, 2) == [b"0", b"2"]


def test_what_others_let_wait_is_neither_sent_nor_deleted(
    routing_gateway: ClientServer, log: Log
) -> None:
    """As when several processes run the tasks of a query."""
    target, own = log.create(), refusing(log)
    query = Query(routing_gateway, log)
    refuse(query, own)
    producer = Producer({"bootstrap.servers": log.servers})
    header = f"{query.run}/another/0/{target}".encode()
    producer.produce(query.undelivered, b"theirs", headers={"undelivered": header})
    producer.flush(PATIENCE)
    # Now it has something to send, and to delete, itself.
    query.send(own, b"ours", None)
    query.batch.awaitAcknowledged()
    log.configure(own, {"cleanup.policy": "delete"})
    assert log.values(own, 1) == [b"ours"]
    await_condition(lambda: query.waiting() == [], "nothing of ours waits")
    query.send(own, b"more")
    query.batch.awaitAcknowledged()
    assert log.values(own, 2) == [b"ours", b"more"]
    assert log.waiting(query.undelivered) == 2
    assert log.waiting(target) == 0
    # The next run takes over what all senders of earlier ones have left.
    query.start()
    assert log.values(target, 1) == [b"theirs"]
    await_condition(lambda: log.waiting(query.undelivered) == 0, "nothing waits")
