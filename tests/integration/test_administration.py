"""Clients, retained messages and gateways through the API and the command line."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from launcher.testing.systems import LocalSystem, await_condition

pytestmark = [
    pytest.mark.campaign("tests/api and tests/ingest/gateway ask the same in one process"),
    pytest.mark.system,
]


class Subscriber:
    """A 5.0 client with a session for an hour; each connection is a paho client of its own."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._client: mqtt.Client
        self._subscribed = False
        self.payloads: list[bytes] = []
        self.session_present: list[bool] = []
        self.reasons: list[int] = []

    def connect(self, port: int) -> None:
        self._client = client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            self._client_id,
            protocol=mqtt.MQTTv5,
            reconnect_on_failure=False,
        )
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_subscribe = self._on_subscribe
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 3600
        known = len(self.session_present)
        client.connect("127.0.0.1", port, clean_start=False, properties=properties)
        client.loop_start()
        await_condition(lambda: len(self.session_present) > known, "a CONNACK")

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self._client.subscribe(topic_filter, qos)
        await_condition(lambda: self._subscribed, "a SUBACK")

    def stop(self) -> None:
        self._client.loop_stop()

    def _on_connect(self, _client: Any, _data: Any, flags: Any, *_more: Any) -> None:
        self.session_present.append(flags.session_present)

    def _on_disconnect(
        self, _client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any
    ) -> None:
        self.reasons.append(reason.value)

    def _on_message(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        self.payloads.append(bytes(message.payload))

    def _on_subscribe(self, *_arguments: Any) -> None:
        self._subscribed = True


@contextmanager
def publisher(port: int) -> Iterator[Callable[..., None]]:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.connect("127.0.0.1", port)
    client.loop_start()

    def publish(topic: str, payload: bytes, *, retain: bool = False) -> None:
        client.publish(topic, payload, qos=1, retain=retain).wait_for_publish(30)

    yield publish
    client.disconnect()
    client.loop_stop()


def ask(system: LocalSystem, method: str, path: str) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{system.api_url}/api/v1{path}",
        headers={"Authorization": f"Bearer {system.api_token}"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def listed(system: LocalSystem, command: str, *arguments: str) -> list[dict[str, Any]]:
    result = system.run(command, *arguments, "--json")
    assert result.returncode == 0, result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_a_client_is_listed_and_its_session_ended(system: LocalSystem) -> None:
    system.await_healthy()
    subscriber = Subscriber("admin/1")
    subscriber.connect(system.mqtt_port)
    subscriber.subscribe("administration/#", 1)

    def client() -> tuple[int, Any]:
        return ask(system, "GET", "/clients/admin%2F1")

    await_condition(
        lambda: client()[1].get("subscription_count") == 1, "the API has read the subscription"
    )
    (shown,) = listed(system, "clients", "--prefix", "admin/")
    assert (shown["client_id"], shown["connected"], shown["gateway"]) == (
        "admin/1",
        True,
        "gateway-1",
    )
    table = system.run("clients", "--connected", "--prefix", "admin/")
    assert "admin/1" in table.stdout
    assert listed(system, "clients", "--offline", "--prefix", "admin/") == []
    assert ask(system, "DELETE", "/clients/admin%2F1")[0] == 202
    await_condition(lambda: subscriber.reasons == [0x98], "an administrator's DISCONNECT")
    await_condition(lambda: client()[0] == 404, "the session has ended")
    subscriber.stop()
    subscriber.connect(system.mqtt_port + 1)
    assert subscriber.session_present == [False, False]
    ask(system, "DELETE", "/clients/admin%2F1")
    await_condition(lambda: len(subscriber.reasons) == 2, "the second end")
    subscriber.stop()


def test_retained_messages_are_listed_and_deleted(system: LocalSystem) -> None:
    system.await_healthy()
    subscriber = Subscriber("admin/2")
    subscriber.connect(system.mqtt_port)
    subscriber.subscribe("administered/+", 1)
    with publisher(system.mqtt_port + 1) as publish:
        publish("administered/1", b"one", retain=True)
        publish("administered/2", b"\xff", retain=True)
    await_condition(
        lambda: len(listed(system, "retained", "administered/#")) == 2,
        "the table has both",
    )
    first, _ = listed(system, "retained", "administered/#")
    assert (first["topic_name"], first["payload"]) == ("administered/1", "one")
    table = system.run("retained", "administered/+").stdout.splitlines()
    assert "one" in table[1]
    assert "…" in table[2]
    assert ask(system, "DELETE", "/retained/administered/1")[0] == 202
    await_condition(lambda: b"" in subscriber.payloads, "subscribers get the empty message")
    await_condition(
        lambda: ask(system, "GET", "/retained/administered/1")[0] == 404,
        "the table has it no more",
    )
    late = Subscriber("admin/3")
    late.connect(system.mqtt_port + 1)
    late.subscribe("administered/+", 1)
    await_condition(lambda: bool(late.payloads), "the other one")
    assert late.payloads == [b"\xff"]
    for client in ("2", "3"):
        ask(system, "DELETE", f"/clients/admin%2F{client}")
    await_condition(lambda: bool(subscriber.reasons and late.reasons), "both are gone")
    subscriber.stop()
    late.stop()
    assert "not valid" not in system.run("retained", "a/#/b").stderr
    assert system.run("retained", "a/#/b").stderr.startswith("mqlake: '#' is not a last level")


def test_a_gateway_is_drained_and_serves_again(system: LocalSystem) -> None:
    system.await_healthy()
    subscriber = Subscriber("admin/4")
    subscriber.connect(system.mqtt_port)
    subscriber.subscribe("drained/#", 1)
    with publisher(system.mqtt_port + 1) as publish:
        publish("drained/1", b"1")
        await_condition(lambda: subscriber.payloads == [b"1"], "the first message")
        drained = system.run(
            "drain", "gateway-1", "--wait", "--rate", "100", "--server-reference", "other:1883"
        )
        assert (drained.returncode, drained.stdout) == (0, "gateway-1 is drained\n")
        assert subscriber.reasons == [0x9C]
        subscriber.stop()
        publish("drained/1", b"2")
    subscriber.connect(system.mqtt_port + 1)
    assert subscriber.session_present == [False, True]
    await_condition(lambda: subscriber.payloads == [b"1", b"2"], "nothing is lost or doubled")
    refused = mqtt.Client(CallbackAPIVersion.VERSION2, reconnect_on_failure=False)
    codes: list[int] = []
    refused.on_connect = lambda *arguments: codes.append(arguments[3].value)
    refused.connect("127.0.0.1", system.mqtt_port)
    refused.loop_start()
    await_condition(lambda: codes == [0x88], "CONNACK 3, which paho shows as 0x88")
    refused.loop_stop()
    undone = system.run("drain", "gateway-1", "--undo", "--wait")
    assert (undone.returncode, undone.stdout) == (0, "gateway-1 is serving\n")
    ask(system, "DELETE", "/clients/admin%2F4")
    await_condition(lambda: len(subscriber.reasons) == 2, "the end")
    subscriber.stop()
    with publisher(system.mqtt_port):
        pass  # clients are let in again
    unknown = system.run("drain", "gateway-9")
    assert unknown.returncode == 1
    assert unknown.stderr == "mqlake: no gateway 'gateway-9'; there are: gateway-1, gateway-2\n"
