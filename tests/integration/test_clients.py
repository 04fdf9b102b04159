"""Clients as people use them, each kind in each version, meet across two gateways."""

from dataclasses import dataclass, replace

import pytest

from launcher.testing.systems import LocalSystem
from tests.integration.clients.exchange import Client, Exchange, Message, Version
from tests.integration.clients.with_aiomqtt import exchange_with_aiomqtt
from tests.integration.clients.with_mosquitto import exchange_with_mosquitto
from tests.integration.clients.with_mqttjs import exchange_with_mqttjs
from tests.integration.clients.with_paho import exchange_with_paho

pytestmark = [
    pytest.mark.system,
    # Clients that vanish leave their sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KINDS: dict[str, tuple[Client, str]] = {
    "paho-mqtt": (exchange_with_paho, "mqtt"),
    "paho-mqtt-ws": (exchange_with_paho, "ws"),
    "aiomqtt": (exchange_with_aiomqtt, "mqtt"),
    "mosquitto": (exchange_with_mosquitto, "mqtt"),
    "mqtt.js": (exchange_with_mqttjs, "mqtt"),
    "mqtt.js-ws": (exchange_with_mqttjs, "ws"),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A kind of client, its version, and where its publisher and its subscriber connect."""

    client: Client
    blank: Exchange
    prefix: str
    """Of all topics, so that no other test meets them."""


@pytest.fixture(params=["3.1.1", "5.0"])
def version(request: pytest.FixtureRequest) -> Version:
    param: Version = request.param
    return param


@pytest.fixture(params=list(KINDS))
def setting(request: pytest.FixtureRequest, system: LocalSystem, version: Version) -> Setting:
    """Publishers connect to the first gateway, subscribers to the second; it has no WebSocket."""
    client, scheme = KINDS[request.param]
    one, two = system.state().gateways
    (websocket,) = (url for url in one.listeners if url.startswith("ws:"))
    publisher, subscriber = (one.url, two.url) if scheme == "mqtt" else (websocket, websocket)
    prefix = f"clients/{request.param}/{version}"
    blank = Exchange(version, publisher, subscriber, f"{prefix}/#", qos=1, expected=0)
    return Setting(client, blank, prefix)


def test_connect(setting: Setting) -> None:
    message = Message(f"{setting.prefix}/connect", "hello")
    result = setting.client(
        replace(setting.blank, topic_filter=message.topic, sent=(message,), expected=1)
    )
    assert result.connack == 0
    assert result.received == [message]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_a_topic_come_in_order_with_their_qos(setting: Setting, qos: int) -> None:
    topic = f"{setting.prefix}/qos{qos}"
    sent = tuple(Message(topic, f"{number} °C", qos) for number in range(5))
    result = setting.client(
        replace(setting.blank, topic_filter=topic, qos=qos, sent=sent, expected=5)
    )
    assert result.received == [*sent]


@pytest.mark.parametrize(
    ("topic_filter", "matching"),
    [
        ("+/temperature", ["a/temperature", "b/temperature"]),
        ("a/#", ["a", "a/temperature", "a/temperature/max"]),
    ],
)
def test_wildcard(setting: Setting, topic_filter: str, matching: list[str]) -> None:
    under = f"{setting.prefix}/wild/{len(matching)}"
    names = ["a", "a/temperature", "a/temperature/max", "b/temperature", "b/humidity"]
    sent = tuple(Message(f"{under}/{name}", name, qos=1) for name in names)
    result = setting.client(
        replace(
            setting.blank, topic_filter=f"{under}/{topic_filter}", sent=sent, expected=len(matching)
        )
    )
    # Topics lie in different partitions: there is no order between them.
    assert sorted(message.payload for message in result.received) == matching


def test_retained(setting: Setting) -> None:
    topic = f"{setting.prefix}/retained"
    blank = replace(setting.blank, topic_filter=topic)
    kept = tuple(Message(topic, payload, qos=1, retain=True) for payload in ("old", "new"))
    live = Message(topic, "live", qos=1, retain=True)
    first = setting.client(replace(blank, kept=kept, sent=(live,), expected=2))
    # Retained ones carry the flag, live ones do not.
    assert first.received == [kept[1], replace(live, retain=False)]

    cleared = Message(topic, "", qos=1, retain=True)
    after = Message(topic, "after", qos=1)
    blank = replace(blank, topic_filter=f"{topic}/#", kept=(cleared,))
    second = setting.client(replace(blank, sent=(after,), expected=1))
    assert second.received == [after]


def test_will(setting: Setting) -> None:
    will = Message(f"{setting.prefix}/will", "gone", qos=1)
    result = setting.client(replace(setting.blank, topic_filter=will.topic, will=will, expected=1))
    assert result.received == [will]


@pytest.mark.parametrize("version", ["5.0"], indirect=True)
def test_user_properties_pass_in_order(setting: Setting) -> None:
    pairs = (("unit", "°C"), ("unit", "K"), ("a", ""))
    message = Message(f"{setting.prefix}/properties", "20", qos=1, user_properties=pairs)
    result = setting.client(
        replace(setting.blank, topic_filter=message.topic, sent=(message,), expected=1)
    )
    assert result.received == [message]
