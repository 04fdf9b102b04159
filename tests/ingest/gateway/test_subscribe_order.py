"""SUBSCRIBE counts from the moment the gateway has read it: nobody waits for SUBACK."""

import asyncio
from typing import Any

import pytest

from ingest.protocol.packets import Publish, Suback, Subscribe, Subscription
from ingest.protocol.reason_codes import SubackReasonCode
from mqlake.errors import LogError
from mqlake.records.messages import INBOUND, ROUTES
from tests.ingest.gateway.harness import PARTITIONS, Client, Harness, running_gateway, until

pytestmark = pytest.mark.anyio

TIMES = 20


async def _until_read(harness: Harness, packets: int) -> None:
    """Wait until the gateway has taken so many packets from its sockets."""
    await until(lambda: harness.counters.packets_received >= packets)


async def _receive_both(client: Client) -> list[object]:
    """Receive SUBACK and a message, in whichever order."""
    packets = [await client.receive() for _ in range(2)]
    assert {type(packet) for packet in packets} == {Suback, Publish}, packets
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


async def _two_subscribe_and_a_third_publishes(
    harness: Harness, clients: list[Client], topic: str, qos: int
) -> None:
    first, second, third = clients
    read = harness.counters.packets_received
    for number, client in enumerate((first, second)):
        client.send(Subscribe(client.next_packet_id(), [Subscription(topic, qos)]))
        await _until_read(harness, read + number + 1)
    third.send(Publish(topic, topic.encode(), qos, packet_id=9 if qos else 0))
    await _until_read(harness, read + 3)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("held", [None, "", ROUTES, INBOUND])
async def test_a_message_that_is_read_after_two_subscribes_goes_to_both(
    held: str | None, qos: int
) -> None:
    """However slowly the log takes routes, barriers or all of it."""
    async with running_gateway() as harness:
        clients = [await Client.connect(harness.port, name) for name in ("a", "b", "c")]
        for number in range(TIMES):
            topic = f"t/{number}"
            if held is not None:
                harness.log.hold_reports(held)
            await _two_subscribe_and_a_third_publishes(harness, clients, topic, qos)
            harness.log.release_reports()
            for client in clients[:2]:
                assert await _receive_both(client) == [topic.encode()]
            await clients[2].expect_answered()


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_message_that_comes_before_the_log_has_answered_for_the_barriers_is_delivered(
    qos: int,
) -> None:
    """Its own barrier, which comes before it, says from where on the subscription counts."""
    async with running_gateway() as harness:
        clients = [await Client.connect(harness.port, name) for name in ("a", "b", "c")]
        for number in range(TIMES):
            topic = f"t/{number}"
            harness.log.delay_reports()
            await _two_subscribe_and_a_third_publishes(harness, clients, topic, qos)
            for client in clients[:2]:
                assert (await client.message()).payload == topic.encode()
            harness.log.release_reports()
            for client in clients[:2]:
                await client.expect(Suback)
            await clients[2].expect_answered()


@pytest.mark.parametrize("qos", [0, 1])
async def test_it_counts_where_the_log_is_full_too(qos: int) -> None:
    """Messages wait until all barriers are in it."""
    async with running_gateway(max_queued_records=2) as harness:
        clients = [await Client.connect(harness.port, name) for name in ("a", "b", "c")]
        for number in range(TIMES):
            topic = f"t/{number}"
            await _two_subscribe_and_a_third_publishes(harness, clients, topic, qos)
            for client in clients[:2]:
                assert await _receive_both(client) == [topic.encode()]
            await clients[2].expect_answered()


async def test_a_message_that_was_acknowledged_before_is_not_delivered() -> None:
    async with running_gateway() as harness:
        first = await Client.connect(harness.port, "first")
        await first.subscribe("t/#")
        second = await Client.connect(harness.port, "second")
        publisher = await Client.connect(harness.port, "publisher")
        for number in range(TIMES):
            await publisher.publish(f"t/{number}", b"early", 1)
            second.send(Subscribe(second.next_packet_id(), [Subscription(f"t/{number}")]))
            await second.expect(Suback)
            await publisher.publish(f"t/{number}", b"late", 1)
            assert (await second.message()).payload == b"late"


async def test_what_is_retained_meanwhile_comes_once_and_nothing_older_after_it() -> None:
    async with running_gateway() as harness:
        clients = [await Client.connect(harness.port, name) for name in ("a", "b", "c")]
        publisher = clients[2]
        for number in range(TIMES):
            topic = f"t/{number}"
            await publisher.publish(topic, b"old", 1, retain=True)
            read = harness.counters.packets_received
            harness.log.delay_reports()
            clients[0].send(Subscribe(clients[0].next_packet_id(), [Subscription(topic)]))
            await _until_read(harness, read + 1)
            publisher.send(Publish(topic, b"new", 0, retain=True))
            assert (await clients[0].message()).payload == b"new"
            harness.log.release_reports()
            await clients[0].expect(Suback)
            await clients[0].expect_nothing()


async def test_a_session_that_is_cut_off_before_suback_does_not_have_the_subscription() -> None:
    """Where it starts is not known: nobody could go on with it."""
    async with running_gateway() as harness:
        options: dict[str, Any] = {
            "properties": {"session_expiry_interval": 100},
            "clean_start": False,
        }
        client = await Client.connect(harness.port, "alice", **options)
        await client.subscribe("kept", 1)
        harness.log.hold_reports(INBOUND)
        client.send(Subscribe(7, [Subscription("t", 1)]))
        await until(lambda: len(harness.gateway.subscriptions) == 2)
        other = await Client.open(harness.port)
        connack = asyncio.create_task(other.handshake("alice", **options))
        await until(lambda: len(harness.gateway.subscriptions) == 0)
        harness.log.release_reports()
        assert (await connack).session_present
        await other.expect_nothing()
        assert list(harness.gateway.sessions.get("default", "alice").subscriptions) == ["kept"]
        await until(lambda: len(harness.gateway.routes) == PARTITIONS + 2)  # "t" lingers
        await other.subscribe("t", 1)


async def test_a_subscription_that_fails_is_not_in_force() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        harness.log.hold_reports()
        client.send(Subscribe(7, [Subscription("t", 1)]))
        await until(lambda: harness.writer.queued())
        assert len(harness.gateway.subscriptions) == 1
        harness.log.fail_next(LogError("no", definite=True), log_topic=ROUTES)
        harness.log.release_reports()
        failed = Suback(7, [SubackReasonCode.UNSPECIFIED_ERROR])
        assert await client.expect(Suback) == failed
        assert len(harness.gateway.subscriptions) == 0
        publisher = await Client.connect(harness.port, "publisher")
        await publisher.publish("t", b"x", 1)
        await harness.delivered()
        await client.expect_nothing()
