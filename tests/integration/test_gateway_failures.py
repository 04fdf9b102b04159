"""Two gateways of a running system, one of which is killed, or falls too far behind."""

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from paho.mqtt.enums import CallbackAPIVersion

from launcher.ports import free_ports, is_free
from launcher.testing.systems import PROGRAM, LocalSystem, await_condition
from mqlake.log.admin import END_OFFSETS, offsets
from mqlake.log.security import client_config, environment_of
from mqlake.records.messages import delivery_topic
from tests.pace import within

pytestmark = [pytest.mark.promise, pytest.mark.system]

MESSAGES = 3000
LATE_MESSAGES = 500
RATE = 500
KILLED_AFTER = 1000
SAVED_SECONDS = 0.75
"""The log knows at the latest after so long, on a machine without other work, what a gateway's
members have acknowledged."""


class Member:
    """A clean-session member that notes what it gets, and when."""

    def __init__(self, port: int, client_id: str) -> None:
        self.received: list[tuple[float, bytes]] = []
        self.is_subscribed = threading.Event()
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id, reconnect_on_failure=False)
        client.on_message = self._receive
        client.on_subscribe = lambda *_: self.is_subscribed.set()
        client.connect("127.0.0.1", port)
        client.loop_start()
        client.subscribe("$share/workers/jobs/#", 1)
        assert self.is_subscribed.wait(120)
        self.client = client

    def _receive(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        self.received.append((time.monotonic(), bytes(message.payload)))

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def test_a_killed_gateway_costs_a_share_group_no_message(system: LocalSystem) -> None:
    doomed, other = system.mqtt_port + 1, system.mqtt_port
    members = [Member(doomed, "m1"), Member(doomed, "m2"), Member(other, "m3")]
    members.append(Member(other, "m4"))
    publisher = mqtt.Client(CallbackAPIVersion.VERSION2, "publisher")
    publisher.max_inflight_messages_set(1000)
    publisher.connect("127.0.0.1", other)
    publisher.loop_start()
    begin = time.monotonic()
    sent = [b"%d" % number for number in range(MESSAGES)]
    published = []
    killed_at = 0.0
    for number, payload in enumerate(sent):
        if number == KILLED_AFTER:
            killed_at = time.monotonic()  # at the earliest: who it is has to be looked up
            system.kill("gateway-2")
        delay = begin + number / RATE - time.monotonic()
        if delay > 0:
            time.sleep(delay)
        published.append(publisher.publish(f"jobs/{number % 50}", payload, 1))
    for one in published:
        one.wait_for_publish(120)
    await_condition(lambda: missing(sent, members) == 0, "every message")
    check(members, killed_at)
    system.await_healthy()
    for member in members:
        member.close()
    publisher.disconnect()
    publisher.loop_stop()


def test_a_gateway_that_falls_too_far_behind_costs_a_session_no_message(
    system: LocalSystem,
) -> None:
    """It stands still while what it should deliver is removed from the log, all but the end."""
    servers, log_topic = system.state().bootstrap_servers, delivery_topic("gateway-2")
    # Kept to the end: without its client a request of the log's administration gets no answer.
    admin = AdminClient(client_config(servers))
    received: list[bytes] = []
    is_subscribed = threading.Event()
    subscriber = mqtt.Client(CallbackAPIVersion.VERSION2, "late", clean_session=False)
    subscriber.on_message = lambda _client, _data, message: received.append(bytes(message.payload))
    subscriber.on_subscribe = lambda *_: is_subscribed.set()
    subscriber.reconnect_delay_set(1, 1)
    subscriber.connect("127.0.0.1", system.mqtt_port + 1)
    subscriber.loop_start()
    subscriber.subscribe("late/#", 1)
    assert is_subscribed.wait(60)
    publisher = mqtt.Client(CallbackAPIVersion.VERSION2, "in time")
    publisher.connect("127.0.0.1", system.mqtt_port)
    publisher.loop_start()
    begin = offsets(servers, log_topic, END_OFFSETS, 120.0)[0]
    gateway = system.process("gateway-2")["pid"]
    sent = [b"%d" % number for number in range(LATE_MESSAGES)]
    os.kill(gateway, signal.SIGSTOP)
    try:
        for payload in sent:
            publisher.publish("late/a", payload, 1)
        await_condition(
            lambda: offsets(servers, log_topic, END_OFFSETS, 120.0)[0] >= begin + LATE_MESSAGES,
            "the router has done its part",
        )
        last = TopicPartition(log_topic, 0, begin + LATE_MESSAGES - 10)
        admin.delete_records([last])[last].result(120)
    finally:
        os.kill(gateway, signal.SIGCONT)
    await_condition(lambda: len(set(received)) >= LATE_MESSAGES, "every message")
    assert list(dict.fromkeys(received)) == sent
    assert system.process("gateway-2")["pid"] == gateway
    for client in (publisher, subscriber):
        client.disconnect()
        client.loop_stop()


@pytest.mark.campaign("tests/ingest/gateway/test_retiring.py retires gateways")
def test_a_gateway_that_is_gone_for_good_is_retired_with_all_it_held(
    system: LocalSystem, tmp_path: Path
) -> None:
    """The router knows it, too: nothing comes to a topic that is not there any more."""
    name, port = "gateway-gone", free_ports(1)[0]
    restarts = system.process("router")["restarts"]
    servers = system.state().bootstrap_servers
    environment = {
        **os.environ,
        "MQLAKE_GATEWAY_NAME": name,
        "MQLAKE_GATEWAY_PORT": str(port),
        **environment_of(servers, "gateway"),
        "MQLAKE_GATEWAY_STORE_DIR": str(tmp_path),
    }
    received: list[bytes] = []
    with subprocess.Popen([PROGRAM, "gateway"], env=environment) as gateway:
        try:
            await_condition(lambda: not is_free(port), "it listens")
            refused = retire(system, name)
            assert refused.returncode == 1
            assert f"{name} is running" in refused.stderr
            subscribe(port, "kept", "gone/#", received)
        finally:
            gateway.kill()
    publisher = mqtt.Client(CallbackAPIVersion.VERSION2, "meanwhile")
    publisher.connect("127.0.0.1", system.mqtt_port)
    publisher.loop_start()
    retired = retire(system, name)
    assert retired.returncode == 0, retired.stderr
    admin = AdminClient(client_config(servers))
    await_condition(
        lambda: delivery_topic(name) not in admin.list_topics(timeout=30).topics, "it is removed"
    )
    assert "knows no gateway" in retire(system, name).stderr
    for number in range(20):
        publisher.publish("gone/a", b"%d" % number, 1).wait_for_publish(120)
    back = subscribe(system.mqtt_port, "kept", None, received)
    await_condition(lambda: len(received) >= 20, "every message")
    assert received == [b"%d" % number for number in range(20)]
    assert system.process("router")["restarts"] == restarts
    for client in (publisher, back):
        client.disconnect()
        client.loop_stop()


def subscribe(
    port: int, client_id: str, topic_filter: str | None, received: list[bytes]
) -> mqtt.Client:
    """Connect a client whose session is kept; with a filter, until it is subscribed."""
    ready = threading.Event()
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2, client_id, clean_session=False, reconnect_on_failure=False
    )
    client.on_message = lambda _client, _data, message: received.append(bytes(message.payload))
    client.on_subscribe = lambda *_: ready.set()
    client.connect("127.0.0.1", port)
    client.loop_start()
    if topic_filter is not None:
        client.subscribe(topic_filter, 1)
        assert ready.wait(60)
    return client


def retire(system: LocalSystem, name: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [PROGRAM, "gateway", "retire", name, "--data-dir", str(system.data_dir)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def missing(sent: list[bytes], members: list[Member]) -> int:
    received = {payload for member in members for _, payload in list(member.received)}
    return len(set(sent) - received)


def check(members: list[Member], killed_at: float) -> None:
    """Whatever came twice came first to the killed gateway, just before the end."""
    times = Counter(payload for member in members for _, payload in member.received)
    twice = {payload for payload, count in times.items() if count > 1}
    doomed = members[:2]
    since = killed_at - within(SAVED_SECONDS)
    last = {payload for member in doomed for at, payload in member.received if at > since}
    assert twice <= last
    assert max(times.values()) <= 2
    assert all(len(member.received) > 100 for member in members)
