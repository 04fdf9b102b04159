"""The log gets more partitions while everything runs: 4 to 8 under load, with sessions away."""

import json
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from launcher.testing.systems import PROGRAM, LocalSystem, await_condition, running_system
from mqlake.log.admin import LogAdmin
from mqlake.log.partitioning import partition_of
from mqlake.records.messages import INBOUND, message_key
from tests.integration.test_rules_api import Rest
from tests.integration.thrift import FEW_TABLE_BATCHES

pytestmark = [
    pytest.mark.promise,
    pytest.mark.campaign(
        "tests/mqlake/log/test_growth_watch.py and gateway/test_growing.py hold the order"
    ),
    pytest.mark.system,
    pytest.mark.timeout(900),
]

TOPICS = 16
PAUSE_SECONDS = 0.8
FILTER = "growing/#"
AWAY = {"a session": FILTER, "a member": f"$share/group/{FILTER}"}
COPIED = "SELECT payload.n AS n FROM 'growing/+/mqtt/+'"
LAG = 10
ENVIRONMENT = {
    **FEW_TABLE_BATCHES,
    "MQLAKE_LOCAL_LOG_PARTITIONS": "4",
}


class Load(threading.Thread):
    """Publishes numbers in a row to topics of its own."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.counts: dict[str, int] = defaultdict(int)
        self._topics = [f"growing/{name}/mqtt/{number}" for number in range(TOPICS)]
        self._stopping = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, f"load-{name}")
        self._client.max_inflight_messages_set(LAG)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def run(self) -> None:
        sent: list[mqtt.MQTTMessageInfo] = []
        while not self._stopping.wait(PAUSE_SECONDS):
            for topic in self._topics:
                self.counts[topic] += 1
                number = json.dumps({"n": self.counts[topic]})
                sent.append(self._client.publish(topic, number, 1, retain=topic.endswith("0")))
            while len(sent) > LAG:
                sent.pop(0).wait_for_publish(60)
        for one in sent:
            one.wait_for_publish(60)

    def stop(self) -> dict[str, int]:
        self._stopping.set()
        self.join(60)
        assert not self.is_alive(), "everything is acknowledged"
        self._client.disconnect()
        self._client.loop_stop()
        return dict(self.counts)


class Subscriber:
    """Keeps the numbers that come, by topic."""

    def __init__(self, port: int, name: str, topic_filter: str) -> None:
        self.numbers: dict[str, list[int]] = defaultdict(list)
        self.count = 0
        self.is_there = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, name, protocol=mqtt.MQTTv5)
        self._client.on_message = self._keep
        self._filter = topic_filter
        self._client.on_connect = self._subscribe
        self._client.on_subscribe = lambda *_: self.is_there.set()
        forever: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        forever.SessionExpiryInterval = 0xFFFF_FFFF
        self._client.connect("127.0.0.1", port, clean_start=False, properties=forever)
        self._client.loop_start()
        assert self.is_there.wait(60)

    def _subscribe(self, client: mqtt.Client, _user: object, flags: Any, *_: object) -> None:
        if flags.session_present:  # to subscribe again would ask for retained messages
            self.is_there.set()
        else:
            client.subscribe(self._filter, 1)

    def _keep(self, _client: mqtt.Client, _user: object, message: mqtt.MQTTMessage) -> None:
        self.numbers[message.topic].append(json.loads(message.payload)["n"])
        self.count += 1

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def has(self, counts: dict[str, int]) -> bool:
        return self.count >= sum(counts.values())


@contextmanager
def subscribed(port: int, name: str, topic_filter: str) -> Iterator[Subscriber]:
    subscriber = Subscriber(port, name, topic_filter)
    try:
        yield subscriber
    finally:
        subscriber.close()


def all_in_order(subscriber: Subscriber, counts: dict[str, int], what: str) -> None:
    """Each topic's numbers from 1 on, none twice and none missing."""
    await_condition(lambda: subscriber.has(counts), what)
    for topic, count in counts.items():
        assert subscriber.numbers[topic] == list(range(1, count + 1)), f"{what}: {topic}"


def grow(system: LocalSystem, partitions: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            str(PROGRAM),
            "log",
            "grow",
            "--data-dir",
            str(system.data_dir),
            "--partitions",
            str(partitions),
            "--timeout",
            "500",
        ],
        capture_output=True,
        text=True,
        timeout=520,
        check=False,
    )


def publish_by_http(rest: Rest, counts: dict[str, int]) -> None:
    for number in range(8):
        topic = f"growing/api/http/{number}"
        counts[topic] = counts.get(topic, 0) + 1
        payload = json.dumps({"n": counts[topic]})
        body: dict[str, Any] = {"topic_name": topic, "qos": 1, "payload": payload}
        status, answer = rest.ask("POST", "/publish", body)
        assert status == 200, answer


def test_topics_keep_their_order_and_nobody_misses_a_message(tmp_path: Path) -> None:
    with running_system(tmp_path / "data", gateways=2, environment=ENVIRONMENT) as system:
        one, two = system.mqtt_port, system.mqtt_port + 1
        rest = Rest(system)
        republish = {"function": "republish", "args": {"topic": "copied/${$topic}", "qos": 1}}
        rule = {"id": "copied", "sql": COPIED, "actions": [republish]}
        rest.make("/rules", rule)
        system.await_healthy()  # the lake, too: it starts after the router
        for name, topic_filter in AWAY.items():
            Subscriber(one, name, topic_filter).close()
        with (
            subscribed(two, "live", FILTER) as live,
            subscribed(one, "copies", "copied/#") as copies,
        ):
            loads = [Load(port, f"g{port}") for port in (one, two)]
            by_http: dict[str, int] = {}
            for load in loads:
                load.start()
            publish_by_http(rest, by_http)
            grown: list[subprocess.CompletedProcess[str]] = []
            growing = threading.Thread(target=lambda: grown.append(grow(system, 8)), daemon=True)
            growing.start()
            while growing.is_alive():
                publish_by_http(rest, by_http)
                growing.join(PAUSE_SECONDS)
            assert grown[0].returncode == 0, grown[0].stderr
            assert grown[0].stdout == "messages are in 8 partitions\n"
            publish_by_http(rest, by_http)
            of_mqtt = {topic: count for load in loads for topic, count in load.stop().items()}
            counts = of_mqtt | by_http
            moved = [one for one in counts if partition_of(message_key("default", one), 8) > 3]
            assert 5 < len(moved) < len(counts) - 5
            all_in_order(live, counts, "a live subscriber")
            copied = {f"copied/{topic}": count for topic, count in of_mqtt.items()}
            all_in_order(copies, copied, "what a rule makes")
        for name, topic_filter in AWAY.items():
            with subscribed(two, name, topic_filter) as back:
                all_in_order(back, counts, f"{name}, which was away")
        with subscribed(one, "late", FILTER) as late:
            retained = {topic: count for topic, count in of_mqtt.items() if topic.endswith("0")}
            await_condition(lambda: late.has(dict.fromkeys(retained, 1)), "retained messages")
            assert late.numbers == {topic: [count] for topic, count in retained.items()}
        ends = LogAdmin(system.state().bootstrap_servers).ends(INBOUND)
        assert len(ends) == 8
        assert all(ends.values())
        again = grow(system, 12)
        assert again.returncode != 0
        assert "expected a multiple, 16 say" in again.stderr
        assert system.status()["healthy"]
