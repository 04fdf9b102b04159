"""History again, against a running system: subscriptions with a past, replays, traces."""

import json
import queue
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from api.tracing.scan import KafkaScan, ScanRange, Seen
from launcher.testing.systems import LocalSystem, await_condition
from mqlake.records.messages import INBOUND

pytestmark = [
    pytest.mark.campaign("tests/api/test_replay.py and tests/streaming/test_tracing.py"),
    pytest.mark.system,
]

COUNT = 30


class Receiver:
    """A client that keeps what it gets."""

    def __init__(self, system: LocalSystem, client_id: str, **connect: Any) -> None:
        self.got: queue.Queue[mqtt.MQTTMessage] = queue.Queue()
        self.granted: queue.Queue[Any] = queue.Queue()
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5)
        self.client.on_message = lambda _client, _data, message: self.got.put(message)
        self.client.on_subscribe = lambda _client, _data, _mid, codes, _properties: (
            self.granted.put(codes)
        )
        self.client.connect("127.0.0.1", system.mqtt_port, **connect)
        self.client.loop_start()

    def subscribe(self, topic_filter: str, start: str | None = None) -> None:
        properties = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
        if start is not None:
            properties.UserProperty = [("mqlake-from", start)]
        options = mqtt.SubscribeOptions(qos=1)  # type: ignore[attr-defined]
        self.client.subscribe([(topic_filter, options)], properties=properties)
        assert [code.value for code in self.granted.get(timeout=120)] == [1]

    def take(self, count: int) -> list[mqtt.MQTTMessage]:
        return [self.got.get(timeout=120) for _ in range(count)]


@contextmanager
def receiving(system: LocalSystem, client_id: str, **connect: Any) -> Iterator[Receiver]:
    receiver = Receiver(system, client_id, **connect)
    try:
        yield receiver
    finally:
        receiver.client.disconnect()
        receiver.client.loop_stop()


def publish(system: LocalSystem, topic: str, first: int, last: int) -> None:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "replay-publisher", protocol=mqtt.MQTTv5)
    client.connect("127.0.0.1", system.mqtt_port)
    client.loop_start()
    for number in range(first, last):
        client.publish(topic, b"%d" % number, 1).wait_for_publish(30)
    client.disconnect()
    client.loop_stop()


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


@pytest.fixture(scope="module")
def stored(system: LocalSystem) -> str:
    """Messages of `past/a` in the table; the time before the first."""
    begin = datetime.now(UTC)
    later = begin + timedelta(milliseconds=1)
    await_condition(lambda: datetime.now(UTC) > later, "the first is accepted after that")
    publish(system, "past/a", 0, COUNT)

    def there() -> bool:
        query = "SELECT count(*) AS n FROM messages WHERE topic = 'past/a'"
        found = system.run("sql", query, "--format", "json")
        return bool(found.stdout) and json.loads(found.stdout)[0]["n"] == COUNT

    await_condition(there, "the rows")
    return begin.isoformat()


def test_a_subscription_begins_in_the_past(system: LocalSystem, stored: str) -> None:
    publish(system, "past/a", COUNT, COUNT + 5)  # in the log, perhaps not in the table yet
    with receiving(system, "historian") as receiver:
        receiver.subscribe("past/#", stored)
        publish(system, "past/a", COUNT + 5, COUNT + 10)
        received = [message.payload for message in receiver.take(COUNT + 10)]
        assert received == numbers(0, COUNT + 10)
        publish(system, "past/a", 99, 100)
        assert [message.payload for message in receiver.take(1)] == [b"99"]
        assert receiver.got.empty()


def test_a_replay_publishes_below_a_prefix(system: LocalSystem, stored: str) -> None:
    with receiving(system, "again") as receiver:
        receiver.subscribe("again/#")
        query = "SELECT * FROM messages WHERE topic = 'past/a'"
        result = system.run(
            "replay", query, "--prefix", "again/", "--limit", str(COUNT), "--speed", "1000"
        )
        assert f"{COUNT} messages" in result.stdout, result.stderr
        received = receiver.take(COUNT)
        assert [message.payload for message in received] == numbers(0, COUNT)
        assert {message.topic for message in received} == {"again/past/a"}
        assert received[0].properties is not None
        names = [name for name, _ in vars(received[0].properties)["UserProperty"]]
        assert names == ["mqlake-replay", "mqlake-replay-id", "mqlake-replay-time"]


def test_one_client_gets_what_nobody_else_does(system: LocalSystem, stored: str) -> None:
    keep = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    keep.SessionExpiryInterval = 300
    with receiving(system, "only", properties=keep) as only, receiving(system, "none") as other:
        for receiver in (only, other):
            receiver.subscribe("past/#")
        await_condition(
            lambda: system.run("clients", "--json").stdout.find('"only"') >= 0, "the session"
        )
        query = "SELECT * FROM messages WHERE topic = 'past/a'"
        result = system.run("replay", query, "--client", "only", "--limit", "10")
        assert "10 messages" in result.stdout, result.stderr
        assert [message.payload for message in only.take(10)] == numbers(0, 10)
        assert other.got.empty()
    refused = system.run("replay", query, "--client", "only")
    assert refused.returncode == 1
    assert "not connected" in refused.stderr


def test_a_query_without_the_columns_says_which(system: LocalSystem, stored: str) -> None:
    result = system.run("replay", "SELECT topic FROM messages")
    assert result.returncode == 1
    assert "payload_bytes" in result.stderr
    assert "SELECT * has them" in result.stderr


def test_a_trace_says_where_a_message_went(system: LocalSystem, stored: str) -> None:
    keep = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    keep.SessionExpiryInterval = 300
    with receiving(system, "traced", properties=keep) as kept, receiving(system, "plain") as plain:
        for receiver in (kept, plain):
            receiver.subscribe("traced/+")
        subscribed_ms = time.time_ns() // 1_000_000
        # Events have milliseconds, and the message is to be behind the subscriptions.
        await_condition(lambda: time.time_ns() // 1_000_000 > subscribed_ms, "a millisecond later")
        publish(system, "traced/1", 7, 8)
        for receiver in (kept, plain):
            assert receiver.take(1)[0].payload == b"7"
        found: list[Seen] = []
        scan = KafkaScan(system.state().bootstrap_servers)
        wanted = b"default/traced/1"

        def take(record: Seen) -> bool:
            if record.key == wanted:
                found.append(record)
            return bool(found)

        with closing(scan):
            scan.read(ScanRange(INBOUND), take)
        message_id = found[0].headers["id"].hex()

        def settled() -> dict[str, Any]:
            result = system.run("trace", message_id, "--json")
            assert result.returncode == 0, result.stderr
            trace: dict[str, Any] = json.loads(result.stdout)
            return trace

        def told() -> bool:
            # Other tests have left sessions that want everything.
            outcomes = {one["client_id"]: one["outcome"] for one in settled()["subscribers"]}
            expected = {"traced": "handed_over", "plain": "unknown"}
            return outcomes | expected == outcomes

        await_condition(told, "both subscribers")
    trace = settled()
    accepted = trace["accepted"]
    assert (accepted["topic_name"], accepted["client_id"]) == ("traced/1", "replay-publisher")
    assert (accepted["partition"], accepted["offset"]) == (found[0].partition, found[0].offset)
    routed = [(one["gateway"], one["basis"]) for one in trace["routed"]]
    assert ("gateway-1", "recorded") in routed
    assert trace["rules"] == []
    assert not any("no longer in the log" in one for one in trace["not_known"])
    assert trace["recording"] == {"delivered": False, "acked": False}
    other = system.run("trace", message_id, "--client", "historian")
    assert "no subscription of 'historian' matched it" in other.stdout
    missing = system.run("trace", "0" * 32)
    assert missing.returncode == 1
    assert "there is no message" in missing.stderr
