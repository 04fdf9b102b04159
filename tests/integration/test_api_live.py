"""The API of a running system: keys, publishing, live streams, what was seen lately."""

import threading
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from api.access.callers import Callers
from api.access.materialised import MaterialisedAccess
from api.log.following import LogFollower
from launcher.testing.systems import LocalSystem, await_condition
from mqlake.api_client import ApiClient
from mqlake.clock import SystemClock
from mqlake.records.messages import ACCESS

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def api(system: LocalSystem) -> ApiClient:
    system.await_healthy()
    return ApiClient(system.data_dir)


def test_what_is_published_is_shown_live_and_remembered(api: ApiClient) -> None:
    seen: dict[str, list[str]] = {"api-live/a": [], "api-live/b": []}

    def read() -> None:
        for name, data in api.events("/live/messages", topic_filter=["api-live/+"]):
            if name == "message":
                seen[data["topic_name"]].append(data["payload"])
            if len(seen["api-live/b"]) == 20:
                return

    def is_open() -> bool:
        api.post("/publish", {"topic_name": "api-live/a"})
        return bool(seen["api-live/a"])

    reader = threading.Thread(target=read)
    reader.start()
    await_condition(is_open, "the stream is open")
    for number in range(20):
        api.post("/publish", {"topic_name": "api-live/b", "payload": number, "qos": 1})
    reader.join(120)
    assert seen["api-live/b"] == [str(number) for number in range(20)]
    (topic,) = api.get("/topics", topic_filter="api-live/b")["items"]
    assert (topic["messages"], topic["last"]["payload"]) == (20, "19")
    assert topic["rate"] > 0


def test_a_subscriber_gets_what_is_published(api: ApiClient, system: LocalSystem) -> None:
    messages: list[mqtt.MQTTMessage] = []
    subscribed: list[int] = []
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.on_message = lambda _client, _data, message: messages.append(message)
    client.on_subscribe = lambda _c, _u, number, _r, _p: subscribed.append(number)
    client.connect("127.0.0.1", system.mqtt_port + 1)
    client.subscribe("api-mqtt/#", 1)
    client.loop_start()
    try:
        await_condition(lambda: bool(subscribed), "subscribed")
        properties = {"content_type": "text/plain", "user_property": [["unit", "°C"]]}
        body = {"topic_name": "api-mqtt/a", "payload": "21.5", "qos": 2, "properties": properties}
        api.post("/publish", body)
        await_condition(lambda: bool(messages), "the message has come")
    finally:
        client.disconnect()
        client.loop_stop()
    (message,) = messages
    assert (message.topic, message.payload, message.qos) == ("api-mqtt/a", b"21.5", 1)
    told: Any = message.properties
    assert (told.ContentType, told.UserProperty) == ("text/plain", [("unit", "°C")])


def test_many_messages_are_published_in_their_order(api: ApiClient) -> None:
    messages = [{"topic_name": "api-bulk/a", "payload": number} for number in range(500)]
    answer = api.post("/publish/bulk", {"messages": messages})
    assert answer["failed"] == 0
    offsets = [one["offset"] for one in answer["items"]]
    assert offsets == sorted(offsets)
    assert len({one["partition"] for one in answer["items"]}) == 1


def test_metrics_tell_of_gateways_and_processes(api: ApiClient, system: LocalSystem) -> None:
    found = api.get("/metrics")
    assert [one["name"] for one in found["gateways"]] == ["gateway-1", "gateway-2"]
    assert "messages_received" in found["gateways"][0]["counters"]
    assert {"log", "router", "lake", "api"} <= {one["name"] for one in found["processes"]}
    name, live = next(api.events("/live/metrics"))
    assert (name, len(live["gateways"])) == ("metrics", 2)


def test_another_process_knows_a_key_and_that_it_was_revoked(
    api: ApiClient, system: LocalSystem
) -> None:
    view = MaterialisedAccess()
    callers = Callers("unknown", view, SystemClock())
    first = api.post("/keys", {"description": "made before", "role": "viewer"})
    follower = LogFollower(system.state().bootstrap_servers, "access", {ACCESS: (view,)})
    follower.start()
    try:
        await_condition(lambda: view.is_complete, "the log has been read")
        caller = callers.by_token(first["key"])
        assert caller is not None
        assert (caller.name, caller.role) == (f"key:{first['id']}", "viewer")
        second = api.post("/keys", {"description": "made later", "role": "editor"})
        await_condition(lambda: callers.by_token(second["key"]) is not None, "it is known")
        for key in (first, second):
            api.delete(f"/keys/{key['id']}")
        await_condition(lambda: not callers.is_current(caller), "it is known no more")
    finally:
        follower.stop()
