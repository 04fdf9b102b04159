"""Messages that are published as fast as they are acknowledged, by paho-mqtt."""

from collections.abc import Iterator
from contextlib import contextmanager

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion


@contextmanager
def publishing(port: int) -> Iterator[mqtt.Client]:
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.max_inflight_messages_set(500)
    client.max_queued_messages_set(0)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


def publish_all(
    client: mqtt.Client, messages: list[tuple[str, bytes]], qos: int = 1, *, retain: bool = False
) -> None:
    """Publish and return when all are acknowledged."""
    sent = [client.publish(topic, payload, qos, retain) for topic, payload in messages]
    for one in sent:
        one.wait_for_publish(60)


def publish(port: int, topic: str, *payloads: bytes) -> None:
    """Publish to one topic with a client that comes and goes for it."""
    with publishing(port) as client:
        publish_all(client, [(topic, payload) for payload in payloads])
