"""Retained messages: who gets them, which, and in what order to the live ones."""

import pytest

from ingest.protocol.packets import Puback, Publish, Suback, Subscribe, Subscription, Will
from ingest.protocol.reason_codes import SubackReasonCode
from mqlake.clock import ManualClock
from tests.ingest.gateway.harness import Client, Harness, running_gateway, until

pytestmark = pytest.mark.anyio

LEVELS = pytest.mark.parametrize("level", [3, 4, 5], ids=["3.1", "3.1.1", "5.0"])


async def retain(harness: Harness, **messages: bytes) -> None:
    """Publish one retained message for each topic, qos 1."""
    publisher = await Client.connect(harness.port, "publisher")
    for topic, payload in messages.items():
        await publisher.publish(topic.replace("_", "/"), payload, 1, retain=True)
    await publisher.disconnect()
    await harness.delivered()


async def messages(client: Client, count: int) -> dict[str, tuple[bytes, bool]]:
    received = [await client.message() for _ in range(count)]
    return {one.topic_name: (one.payload, one.retain) for one in received}


@LEVELS
async def test_a_new_subscription_gets_what_is_retained(level: int) -> None:
    async with running_gateway() as harness:
        await retain(harness, a_b=b"1", a_c=b"2", b_c=b"3")
        await retain(harness, a_b=b"4")
        client = await Client.connect(harness.port, "alice", level=level)
        await client.subscribe("a/+", 1)
        assert await messages(client, 2) == {"a/b": (b"4", True), "a/c": (b"2", True)}
        await client.expect_nothing()


@LEVELS
async def test_an_empty_payload_deletes(level: int) -> None:
    async with running_gateway() as harness:
        await retain(harness, a=b"1")
        await retain(harness, a=b"")
        client = await Client.connect(harness.port, "alice", level=level)
        await client.subscribe("a", 1)
        await client.expect_nothing()
        assert len(harness.gateway.retained) == 0


async def test_a_live_message_does_not_carry_retain() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", 1)
        await retain(harness, a=b"1")
        assert await messages(client, 1) == {"a": (b"1", False)}
        await client.expect_nothing()


@pytest.mark.parametrize(("handling", "first", "again"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
async def test_retain_handling(handling: int, first: int, again: int) -> None:
    async with running_gateway() as harness:
        await retain(harness, a=b"1")
        client = await Client.connect(harness.port, "alice")
        for count in (first, again):
            await client.subscribe("a", 1, retain_handling=handling)
            assert await messages(client, count) == ({"a": (b"1", True)} if count else {})
            await harness.rounds_are_over()
            await client.expect_nothing()


async def test_a_shared_subscription_gets_none() -> None:
    async with running_gateway() as harness:
        await retain(harness, a=b"1")
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("$share/g/a", 1)
        await harness.rounds_are_over()
        await client.expect_nothing()


async def test_a_second_subscriber_to_a_routed_filter_gets_the_newest() -> None:
    """What was accepted before SUBSCRIBE comes once, as retained or live, never an older one."""
    async with running_gateway() as harness:
        first = await Client.connect(harness.port, "first")
        await first.subscribe("a", 1)
        await retain(harness, a=b"1")
        harness.router.pause()
        publisher = await Client.connect(harness.port, "publisher")
        await publisher.publish("a", b"2", 1, retain=True)
        second = await Client.connect(harness.port, "second")
        await second.subscribe("a", 1)
        await second.expect_nothing()
        harness.router.resume()
        assert await messages(second, 1) == {"a": (b"2", True)}
        await second.expect_nothing()


async def test_qos_is_the_lower_one_and_identifiers_are_told() -> None:
    async with running_gateway() as harness:
        await retain(harness, a=b"1")
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", 0, identifier=9)
        message = await client.message()
        assert (message.qos, message.properties) == (0, {"subscription_identifier": [9]})
        await client.subscribe("a", 2)
        assert (await client.message()).qos == 1


async def test_all_of_many_arrive_under_flow_control() -> None:
    async with running_gateway() as harness:
        publisher = await Client.connect(harness.port, "publisher")
        for number in range(1000):
            publisher.send(Publish(f"a/{number}", b"x" * 100, 0, retain=True))
        await harness.delivered_count(1000)
        client = await Client.open(harness.port)
        await client.handshake("alice", properties={"receive_maximum": 3})
        client.send(Subscribe(1, [Subscription("a/#", 1)]))
        assert await client.expect(Suback) == Suback(1, [SubackReasonCode.GRANTED_QOS_1])
        topics = {(await client.message()).topic_name for _ in range(1000)}
        assert topics == {f"a/{number}" for number in range(1000)}
        await client.expect_nothing()


async def test_messages_while_a_scan_runs_are_neither_lost_nor_doubled_nor_older() -> None:
    async with running_gateway() as harness:
        await retain(harness, **{f"a_{number}": b"old" for number in range(20)})
        client = await Client.open(harness.port)
        await client.handshake("alice", properties={"receive_maximum": 1})
        client.send(Subscribe(1, [Subscription("a/#", 1)]))
        await client.expect(Suback)
        first = await client.expect(Publish)
        await retain(harness, **{f"a_{number}": b"new" for number in range(20)})
        client.send(Puback(first.packet_id))
        seen: dict[str, list[bytes]] = {first.topic_name: [first.payload]}
        while any(values[-1] != b"new" for values in seen.values()) or len(seen) < 20:
            message = await client.message()
            seen.setdefault(message.topic_name, []).append(message.payload)
        await client.expect_nothing()
        assert all(values in ([b"new"], [b"old", b"new"]) for values in seen.values())


async def test_an_expired_message_is_not_sent_and_the_rest_of_its_time_is_told() -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock) as harness:
        publisher = await Client.connect(harness.port, "publisher")
        for topic, seconds in (("a/1", 5), ("a/2", 50)):
            await publisher.publish(
                topic, b"x", 1, retain=True, properties={"message_expiry_interval": seconds}
            )
        await harness.delivered()
        clock.advance(10)
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a/+", 1)
        message = await client.message()
        assert (message.topic_name, message.properties["message_expiry_interval"]) == ("a/2", 40)
        await client.expect_nothing()


async def test_unsubscribe_ends_a_scan() -> None:
    async with running_gateway() as harness:
        await retain(harness, a_1=b"1", a_2=b"2")
        client = await Client.open(harness.port)
        await client.handshake("alice", properties={"receive_maximum": 1})
        client.send(Subscribe(1, [Subscription("a/#", 1)]))
        await client.expect(Suback)
        message = await client.expect(Publish)
        await client.unsubscribe("a/#")
        client.send(Puback(message.packet_id))
        await client.expect_nothing()


async def test_a_retained_will_is_retained() -> None:
    async with running_gateway() as harness:
        dying = await Client.connect(harness.port, "dying", will=Will("a", b"w", 1, retain=True))
        dying.cut()
        await until(lambda: len(harness.gateway.retained) == 1)
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", 1)
        assert await messages(client, 1) == {"a": (b"w", True)}
