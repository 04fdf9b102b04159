"""MQTT in on one gateway, through Spark, MQTT out on another; real clients, real processes."""

import json
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from ingest.protocol.packets import Publish, Suback, Subscribe, Subscription
from launcher.testing.systems import LocalSystem, await_condition, running_system
from tests.ingest.gateway.harness import Client
from tests.integration.clients.publishing import publish_all, publishing
from tests.integration.thrift import NO_STATE_TABLES

pytestmark = pytest.mark.system

SUBSCRIBED_SECONDS = 180


class Collector:
    """A paho subscriber that keeps what it gets, in order."""

    def __init__(self, port: int, topic_filter: str, qos: int) -> None:
        self.received: list[tuple[str, bytes]] = []
        self._subscribed = threading.Event()
        self._wish = topic_filter, qos
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._client.on_message = lambda _client, _data, message: self.received.append(
            (message.topic, bytes(message.payload))
        )
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        # Each time it is connected: a gateway that waits for a killed one may refuse it once.
        self._client.on_connect = self._subscribe
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def await_subscribed(self) -> "Collector":
        assert self._subscribed.wait(SUBSCRIBED_SECONDS)
        return self

    def _subscribe(self, *_: object) -> None:
        self._client.subscribe(*self._wish)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def collecting(port: int, topic_filter: str, qos: int) -> Iterator[Collector]:
    collector = Collector(port, topic_filter, qos)
    try:
        yield collector.await_subscribed()
    finally:
        collector.close()


def collect_at_once(wishes: Iterable[tuple[int, str]]) -> list[Collector]:
    """Subscribe by QoS 1 to a filter at each of these ports, all at the same time."""
    collectors = [Collector(port, topic_filter, 1) for port, topic_filter in wishes]
    return [one.await_subscribed() for one in collectors]


@pytest.mark.anyio
async def test_two_subscribe_a_third_publishes_and_nobody_waits_for_suback(
    system: LocalSystem,
) -> None:
    port = system.mqtt_port
    for number in range(10):
        topic = f"at-once/{number}"
        # The publisher connects first. Of sockets that have something, epoll tells of the one that
        # was read last before the others, whichever had it first: that is not the publisher's then.
        clients = [await Client.connect(port, f"{topic}/{name}") for name in "abc"]
        publisher, *subscribers = clients
        for client in subscribers:
            client.send(Subscribe(1, [Subscription(topic)]))
        publisher.send(Publish(topic, topic.encode()))
        for client in subscribers:
            packets = [await client.receive() for _ in range(2)]
            assert {type(packet) for packet in packets} == {Suback, Publish}
        for client in clients:
            await client.disconnect()


@pytest.mark.usefixtures("mosquitto_clients")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_mosquitto_clients_meet_across_gateways(
    system: LocalSystem, version: str, qos: int
) -> None:
    one, two = system.mqtt_port, system.mqtt_port + 1
    topic = f"plant/{version}-{qos}/temperature"
    with subprocess.Popen(
        [
            # Line by line, also into a pipe.
            "stdbuf",
            "-oL",
            "mosquitto_sub",
            "-p",
            str(two),
            "-V",
            version,
            "-q",
            str(qos),
            "-d",
            "-t",
            "plant/+/temperature",
            "-C",
            "3",
            "-W",
            "60",
            "-F",
            "%t %p",
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as subscriber:
        assert subscriber.stdout is not None
        while "SUBACK" not in (line := subscriber.stdout.readline()):
            assert line, "mosquitto_sub ended before SUBACK"
        for value in ("20.5", "21.0", "21.5"):
            subprocess.run(
                [
                    "mosquitto_pub",
                    "-p",
                    str(one),
                    "-V",
                    version,
                    "-q",
                    str(qos),
                    "-t",
                    topic,
                    "-m",
                    value,
                ],
                check=True,
                timeout=60,
            )
        lines = [line.strip() for line in subscriber.stdout if line.startswith("plant/")]
        assert subscriber.wait(180) == 0
    assert lines == [f"{topic} {value}" for value in ("20.5", "21.0", "21.5")]


def test_a_message_acknowledged_before_subscribe_is_not_delivered(system: LocalSystem) -> None:
    one, two = system.mqtt_port, system.mqtt_port + 1
    for run in range(10):
        with publishing(one) as client:
            publish_all(client, [(f"before/{run}", b"early")])
            with collecting(two, f"before/{run}", 1) as subscriber:
                publish_all(client, [(f"before/{run}", b"late")])
                await_condition(lambda s=subscriber: bool(s.received), "a message")  # type: ignore[misc]
        assert subscriber.received == [(f"before/{run}", b"late")]


def test_every_published_message_is_in_the_history_once(system: LocalSystem) -> None:
    messages = [(f"history/{number % 7}", b"%d" % number) for number in range(2_000)]
    with publishing(system.mqtt_port) as client:
        publish_all(client, messages)

    def counted() -> list[dict[str, str]]:
        query = (
            "SELECT topic, count(*) AS n, count(DISTINCT cast(payload AS string)) AS d"
            " FROM messages WHERE topic LIKE 'history/%' GROUP BY topic ORDER BY topic"
        )
        result = system.run("sql", query, "--format", "json")
        assert result.returncode == 0, result.stderr
        rows: list[dict[str, str]] = json.loads(result.stdout)
        return rows

    expected = [
        {"topic": f"history/{k}", "n": n, "d": n}
        for k in range(7)
        for n in [len(range(k, 2_000, 7))]
    ]
    await_condition(lambda: counted() == expected, "2,000 rows in the history")


@pytest.mark.campaign("the crash of all gateways has three as well")
def test_three_gateways_and_spark_executors_in_processes_of_their_own(tmp_path: Path) -> None:
    environment = {
        "MQLAKE_ROUTER_MASTER": "local-cluster[2,1,1024]",
        "MQLAKE_LOCAL_LOG_PARTITIONS": "4",
        **NO_STATE_TABLES,
    }
    with running_system(tmp_path / "data", gateways=3, environment=environment) as system:
        ports = [system.mqtt_port + number for number in range(3)]
        subscribers = collect_at_once((port, "all/#") for port in ports)
        expected = []
        for number, port in enumerate(ports):
            messages = [(f"all/{number}/{k % 5}", b"%d" % k) for k in range(100)]
            expected += messages
            with publishing(port) as client:
                publish_all(client, messages)
        for subscriber in subscribers:
            await_condition(
                lambda s=subscriber: len(s.received) >= len(expected),  # type: ignore[misc]
                "every message on every gateway",
            )
            assert sorted(subscriber.received) == sorted(expected)
            subscriber.close()
        _everybody_gets_what_is_retained(system, ports)


def _everybody_gets_what_is_retained(system: LocalSystem, ports: list[int]) -> None:
    """Each shard is at two of three gateways; the third asks, also while one of them is dead."""
    kept = {f"kept/{number % 7}/{number}": b"%d" % number for number in range(400)}
    with publishing(ports[0]) as client:
        publish_all(client, list(kept.items()), retain=True)
        publish_all(client, [("kept/0/0", b"")], retain=True)
        del kept["kept/0/0"]

    topics = [f"kept/{number % 7}/{number}" for number in range(1, 9)]

    def expect_all(among: list[int]) -> None:
        wishes = [(port, one) for port in among for one in ("kept/#", *topics)]
        found = collect_at_once(wishes)
        counts = [len(kept) if one == "kept/#" else 1 for _, one in wishes]
        await_condition(lambda: [len(one.received) for one in found] == counts, "what is retained")
        for (_, wish), one in zip(wishes, found, strict=True):
            expected = kept if wish == "kept/#" else {wish: kept[wish]}
            assert dict(one.received) == expected
            one.close()

    def counted() -> list[int]:
        names = ("gateway-1", "gateway-2", "gateway-3")
        return [system.process(name)["figures"]["retained"] for name in names]

    expect_all(ports)
    await_condition(lambda: sum(counted()) == len(kept), "each is at one gateway")
    assert all(count < len(kept) for count in counted())
    system.kill("gateway-2")
    expect_all([ports[0], ports[2]])
    system.await_healthy()
    expect_all(ports)
