"""Messages of the past that one client is given."""

from base64 import b64encode
from typing import Any

import pytest

from ingest.protocol.packets import Subscribe, Subscription
from tests.ingest.gateway.harness import Client, Harness, running_gateway, until
from tests.ingest.gateway.test_draining import ask
from tests.ingest.gateway.test_survival import resume

pytestmark = pytest.mark.anyio


def stored(payload: bytes, topic: str = "a/b", **fields: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "payload": b64encode(payload).decode("ascii"),
        "qos": 1,
        "retain": False,
        "from_client_id": "sensor",
        "received_at": 1_600_000_000_000,
        "properties": {},
        **fields,
    }


def deliver(harness: Harness, *messages: dict[str, Any], client_id: str = "alice") -> None:
    ask(harness, "deliver", tenant="default", client_id=client_id, messages=list(messages))


async def test_a_client_gets_what_its_subscriptions_match_and_nobody_else() -> None:
    async with running_gateway() as harness:
        alice = await Client.connect(harness.port, "alice")
        await alice.subscribe("a/+", 1, identifier=5)
        other = await Client.connect(harness.port, "other")
        await other.subscribe("#", 1)
        properties = {"user_property": [["k", "v"]], "correlation_data": {"base64": "AAE="}}
        deliver(
            harness,
            stored(b"1", properties=properties),
            stored(b"2", "elsewhere"),
            stored(b"3", qos=2),
        )
        first = await alice.message()
        assert (first.topic_name, first.payload, first.qos) == ("a/b", b"1", 1)
        assert first.properties == {
            "user_property": [("k", "v")],
            "correlation_data": b"\x00\x01",
            "subscription_identifier": [5],
        }
        assert await alice.payloads(1) == [b"3"]
        await alice.expect_nothing()
        await other.expect_nothing()
        assert harness.inbound() == []


async def test_it_does_not_move_where_the_session_is() -> None:
    async with running_gateway() as harness:
        client, _ = await resume(harness)
        await client.subscribe("a/b", 1)
        publisher = await Client.connect(harness.port, "publisher")
        await publisher.publish("a/b", b"live", 1)
        assert await client.payloads(1) == [b"live"]
        deliver(harness, stored(b"old"))
        assert await client.payloads(1) == [b"old"]
        client.cut()
        await until(lambda: harness.gateway.sessions.connected_count == 1)
        client, connack = await resume(harness)
        assert connack.session_present
        await client.expect_nothing()


async def test_no_local_counts_and_so_does_expiry() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(Subscribe(1, [Subscription("a/b", 1, no_local=True)]))
        await client.receive()
        deliver(
            harness,
            stored(b"mine", from_client_id="alice"),
            stored(b"over", properties={"message_expiry_interval": 5}),
            stored(b"good"),
        )
        assert await client.payloads(1) == [b"good"]
        assert harness.counters.dropped_expired == 1


async def test_what_is_no_message_is_refused_and_the_rest_of_the_gateway_goes_on() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a/b", 1)
        deliver(harness, stored(b"x", qos=3))
        deliver(harness, stored(b"x", topic="a/+"))
        deliver(harness, {"topic": "a/b"})
        deliver(harness, stored(b"x"), client_id="nobody")
        deliver(harness, stored(b"good"))
        assert await client.payloads(1) == [b"good"]
        assert harness.counters.deliveries_malformed == 3
