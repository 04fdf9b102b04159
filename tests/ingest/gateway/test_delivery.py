from typing import Any
from unittest.mock import patch

import pytest

from ingest.gateway.process.control import Control
from ingest.protocol.packets import Publish
from mqlake.log.growth import MOST_PARTITIONS
from mqlake.records.messages import ROUTES, Barrier, LogRecord, barrier_key, mqtt_header
from tests.ingest.gateway.harness import (
    PARTITIONS,
    Client,
    Harness,
    MemoryRouter,
    new_log,
    running_gateway,
    until,
)

pytestmark = pytest.mark.anyio

MQTT = ("mqtt", mqtt_header(4, 1, retain=False, dup=False))
CLIENT_ID = ("client_id", b"somebody")


@pytest.mark.parametrize(
    ("topic_filter", "topic_name", "matches"),
    [
        ("#", "a/b", True),
        ("+/b", "a/b", True),
        ("a/#", "a", True),
        ("+", "a/b", False),
        ("#", "$own/a", False),
        ("+/a", "$own/a", False),
        ("$own/#", "$own/a", True),
        ("/+", "/a", True),
        ("+", "/a", False),
        ("a//b", "a//b", True),
        ("ä/+", "ä/€", True),
    ],
)
async def test_wildcards_and_dollar_topics(
    topic_filter: str, topic_name: str, matches: bool
) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe(topic_filter)
        await client.subscribe("the end/#")
        publisher = await Client.connect(harness.port, "publisher")
        await publisher.publish(topic_name, b"x", 1)
        if matches:
            assert (await client.message()).topic_name == topic_name
        await publisher.publish("the end/x", b"", 1)
        assert (await client.message()).topic_name == "the end/x"
        await client.expect_nothing()


async def test_overlapping_subscriptions_give_one_copy() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a/#", 0, identifier=1)
        await client.subscribe("a/+", 2, identifier=2)
        publisher = await Client.connect(harness.port, "publisher")
        await publisher.publish("a/b", b"x", 2)
        message = await client.message()
        assert message.qos == 2
        assert sorted(message.properties["subscription_identifier"]) == [1, 2]
        await client.expect_nothing()


async def test_no_local_keeps_a_clients_own_messages_from_it() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", no_local=True)
        await client.publish("a", b"own", 1)
        other = await Client.connect(harness.port, "bob")
        await other.publish("a", b"foreign", 1)
        assert await client.payloads(1) == [b"foreign"]


async def test_order_is_kept_per_topic() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=4)
        await client.subscribe("t/#", 2)
        publisher = await Client.connect(harness.port, "publisher")
        for number in range(200):
            await publisher.publish(f"t/{number % 4}", b"%d" % number, number % 3)
        received: dict[str, list[int]] = {}
        for _ in range(200):
            message = await client.message()
            received.setdefault(message.topic_name, []).append(int(message.payload))
        assert all(numbers == sorted(numbers) for numbers in received.values())


async def test_a_replay_of_the_router_is_dropped() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a/#", 1)
        for number in range(20):
            await client_publish(harness.port, f"a/{number}")
        await client.payloads(20)
        before = harness.counters.deliveries_received
        harness.router.repeat_all()
        await until(lambda: harness.counters.deliveries_received > before + 20)
        repeated = harness.counters.deliveries_received - before
        await until(lambda: harness.counters.deliveries_repeated == repeated)
        await client.expect_nothing()
        await client_publish(harness.port, "a/after")
        assert (await client.message()).topic_name == "a/after"


async def client_publish(port: int, topic_name: str) -> None:
    publisher = await Client.connect(port)
    await publisher.publish(topic_name, b"x", 1)
    await publisher.disconnect()


SOURCE = ("source", b"0:1000:5")


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        (b"default/a", [MQTT, CLIENT_ID]),
        (b"default/a", [MQTT, CLIENT_ID, ("source", b"nonsense")]),
        (b"default/a", [MQTT, CLIENT_ID, ("source", b"\xff\xff")]),
        (b"default/a", [MQTT, CLIENT_ID, ("source", b"%d:0:0" % MOST_PARTITIONS)]),
        (b"default/a", [MQTT, CLIENT_ID, ("source", b"-1:0:0")]),
        (b"default/a", [CLIENT_ID, SOURCE]),
        (b"default/a", [("mqtt", b"\x00\x04\x01"), CLIENT_ID, SOURCE]),
        (b"default/a", [("mqtt", b"\x01\x04\x03"), CLIENT_ID, SOURCE]),
        (b"default/a", [MQTT, ("client_id", b"\xff"), SOURCE]),
        (b"default/a", [MQTT, CLIENT_ID, SOURCE, ("properties", b"[]")]),
        (b"default/a", [MQTT, CLIENT_ID, SOURCE, ("properties", b"{")]),
        (b"default/a", [MQTT, CLIENT_ID, SOURCE, ("properties", b'{"novel":1}')]),
        (b"default/a", [MQTT, CLIENT_ID, SOURCE, ("properties", b'{"content_type":1}')]),
        (b"default/a", [MQTT, CLIENT_ID, SOURCE, ("properties", b'{"topic_alias":1}')]),
        (b"default/a", [MQTT, CLIENT_ID, SOURCE, ("properties", b'{"user_property":[["a"]]}')]),
        (b"default/a", [MQTT, CLIENT_ID, SOURCE, ("properties", b'{"user_property":7}')]),
        (
            b"default/a",
            [MQTT, CLIENT_ID, SOURCE, ("properties", b'{"message_expiry_interval":"x"}')],
        ),
        (b"default/\xff", [MQTT, CLIENT_ID, SOURCE]),
        (b"default/", [MQTT, CLIENT_ID, SOURCE]),
        (b"default/a+", [MQTT, CLIENT_ID, SOURCE]),
    ],
)
@pytest.mark.parametrize("level", [4, 5])
async def test_a_delivery_that_cannot_be_read_is_counted_and_passed_over(
    level: int, key: bytes, headers: list[tuple[str, bytes]]
) -> None:
    async with running_gateway(max_inflight_messages=1) as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        await client.subscribe("#", 2)
        await harness.delivered()
        before = harness.counters.deliveries_received
        harness.deliver(key, b"x", headers)
        harness.deliver(b"default/a", b"good", [MQTT, CLIENT_ID, ("source", b"0:1001:5")])
        assert await client.payloads(1) == [b"good"]
        assert harness.counters.deliveries_malformed == 1
        assert harness.counters.deliveries_received == before + 2


@pytest.mark.parametrize(
    "key", [b"\0barrier/nonsense", barrier_key(Barrier("gateway-1", "x", 1, 1))]
)
async def test_a_barrier_of_nobody_is_passed_over(key: bytes) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", 1)
        harness.deliver(key, b"", [("source", b"0:999:0")])
        harness.deliver(b"default/a", b"good", [MQTT, CLIENT_ID, ("source", b"0:1001:5")])
        assert await client.payloads(1) == [b"good"]


async def test_a_share_group_gets_each_message_once_across_gateways() -> None:
    log = new_log("gateway-1", "gateway-2")
    router = MemoryRouter(log)
    await router.start()
    async with (
        running_gateway(log=log, router=router, name="gateway-1") as one,
        running_gateway(log=log, router=router, name="gateway-2") as two,
    ):
        members = [
            await Client.connect(harness.port, f"member-{number}")
            for number, harness in enumerate((one, one, two))
        ]
        for member in members:
            await member.subscribe("$share/g/a/#", 1)
        await until(lambda: router.members["gateway-1", "default", "$share/g/a/#"].members == 2)
        plain = await Client.connect(two.port, "plain")
        await plain.subscribe("a/+", 1)
        for number in range(30):
            await client_publish(one.port, f"a/{number}")
        assert len(await plain.payloads(30)) == 30
        await until(lambda: one.counters.messages_sent + two.counters.messages_sent == 60)
        share = two.counters.messages_sent - 30
        assert 5 <= share <= 15
        assert len(await members[2].payloads(share)) == share
    await router.close()


async def test_what_was_for_a_share_group_of_an_earlier_run_is_left_to_who_settles_that() -> None:
    async with running_gateway() as harness:
        before = harness.counters.deliveries_received
        harness.deliver(b"default/a", b"x", [MQTT, CLIENT_ID, ("source", b"0:1000:5\n$share/g/a")])
        await until(lambda: harness.counters.deliveries_received == before + 1)
        assert harness.counters.dropped_no_member == 0


async def test_another_tenants_messages_are_not_seen() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", 1)
        harness.deliver(b"other/a", b"foreign", [MQTT, CLIENT_ID, ("source", b"0:1000:5")])
        harness.deliver(b"default/a", b"own", [MQTT, CLIENT_ID, ("source", b"0:1001:5")])
        assert await client.payloads(1) == [b"own"]


async def test_a_value_of_none_is_an_empty_payload() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", 1)
        values: Any = [MQTT, ("source", b"0:1000:5")]
        harness.log.store("mqlake.delivery.gateway-1", b"default/a", None, values, 1, 0)
        assert await client.payloads(1) == [b""]


async def test_subscriptions_settle() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", 1)
        subscription = harness.gateway.sessions.get("default", "alice").subscriptions["a"]
        assert subscription.is_conditional
        await until(lambda: not subscription.is_conditional)
        await client_publish(harness.port, "a")
        assert await client.payloads(1) == [b"x"]


async def test_messages_wait_for_an_absent_router() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", 1)
        harness.router.pause()
        for number in range(10):
            publisher = await Client.connect(harness.port)
            await publisher.publish("a", b"%d" % number, 2)
        await client.expect_nothing()
        harness.router.resume()
        assert await client.payloads(10) == [b"%d" % number for number in range(10)]
        assert len(harness.log.records(ROUTES)) == PARTITIONS + 1
        assert len(harness.inbound()) == 10


async def test_deliveries_behind_the_last_answer_of_owners_are_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gateway was cut off; the record that ends its waiting comes in the middle of a batch."""
    harness: Harness
    monkeypatch.setattr(Control, "process", lambda *_: harness.gateway.renewal.confirmed())
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("#", 0)
        await harness.delivered()
        gateway = harness.gateway
        with patch.object(gateway.lease.clock, "monotonic", lambda: float("inf")):
            assert gateway.lease.is_lost()
        delivery = gateway.delivery
        keys = [b"default/before", b"\0control/confirm", b"default/behind"]
        delivery.receive_records(
            [
                LogRecord(0, 2_000 + at, 0, key, b"x", [MQTT, CLIENT_ID, ("source", source)])
                for at, (key, source) in enumerate(
                    zip(keys, (b"0:1001:5", b"0:0:5", b"0:1002:5"), strict=True)
                )
            ]
        )
        harness.deliver(b"default/later", b"x", [MQTT, CLIENT_ID, ("source", b"0:1003:5")])
        topics = [(await client.expect(Publish)).topic_name for _ in range(3)]
        assert topics == ["before", "behind", "later"]
