"""Exchanges with paho-mqtt."""

import threading
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.integration.clients.exchange import (
    ANSWER_SECONDS,
    Exchange,
    Message,
    Result,
    Server,
    Version,
)

VERSIONS = {"3.1.1": MQTTProtocolVersion.MQTTv311, "5.0": MQTTProtocolVersion.MQTTv5}


class _Connection:
    def __init__(self, exchange: Exchange, url: str, will: Message | None = None) -> None:
        self.connack = -1
        self.received: list[Message] = []
        self._expected = exchange.expected
        self._connected = threading.Event()
        self._subscribed = threading.Event()
        self._complete = threading.Event()
        server = Server.of(url)
        self._version = exchange.version
        client = self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            protocol=VERSIONS[exchange.version],
            transport=server.transport,
            reconnect_on_failure=False,
        )
        if server.transport == "websockets":
            client.ws_set_options(path=server.path)
        if will is not None:
            client.will_set(
                will.topic,
                will.payload,
                will.qos,
                will.retain,
                properties_of(will, PacketTypes.WILLMESSAGE, exchange.version),
            )
        client.on_connect = self._on_connect
        client.on_subscribe = lambda *_: self._subscribed.set()
        client.on_message = self._on_message
        client.connect(server.host, server.port)
        client.loop_start()
        assert self._connected.wait(ANSWER_SECONDS)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self._client.subscribe(topic_filter, qos)
        assert self._subscribed.wait(ANSWER_SECONDS)

    def publish(self, message: Message) -> None:
        info = self._client.publish(
            message.topic,
            message.payload,
            message.qos,
            message.retain,
            properties_of(message, PacketTypes.PUBLISH, self._version),
        )
        info.wait_for_publish(ANSWER_SECONDS)

    def await_messages(self) -> None:
        assert self._complete.wait(ANSWER_SECONDS), self.received

    def disconnect(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def vanish(self) -> None:
        self._client.loop_stop()
        connection = self._client.socket()
        assert connection is not None
        connection.close()

    def _on_connect(self, _client: Any, _data: Any, _flags: Any, code: Any, _more: Any) -> None:
        self.connack = code.value
        self._connected.set()

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self.received.append(to_message(message.topic, bytes(message.payload), message))
        if len(self.received) >= self._expected:
            self._complete.set()


def properties_of(message: Message, packet_type: int, version: Version) -> Properties | None:
    """Return a message's properties as paho-mqtt wants them."""
    if version != "5.0" or not message.user_properties:
        return None
    properties = Properties(packet_type)  # type: ignore[no-untyped-call]
    properties.UserProperty = list(message.user_properties)
    return properties


def to_message(topic: str, payload: bytes, source: Any) -> Message:
    """Return a message of paho-mqtt as one of ours."""
    pairs = getattr(source.properties, "UserProperty", []) if source.properties else []
    return Message(topic, payload.decode(), source.qos, bool(source.retain), tuple(pairs))


def exchange_with_paho(exchange: Exchange) -> Result:
    publisher = _Connection(exchange, exchange.publisher, exchange.will)
    for message in exchange.kept:
        publisher.publish(message)
    subscriber = _Connection(exchange, exchange.subscriber)
    subscriber.subscribe(exchange.topic_filter, exchange.qos)
    for message in exchange.sent:
        publisher.publish(message)
    if exchange.will is None:
        publisher.disconnect()
    else:
        publisher.vanish()
    subscriber.await_messages()
    subscriber.disconnect()
    return Result(subscriber.connack, subscriber.received)
