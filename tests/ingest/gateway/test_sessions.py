"""Sessions that outlive their connections: what is kept, what is sent again, when they end."""

import pytest

from ingest.protocol.packets import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Will,
)
from ingest.protocol.properties import Properties
from ingest.protocol.reason_codes import DisconnectReasonCode
from mqlake.clock import ManualClock
from mqlake.records.messages import INBOUND
from tests.ingest.gateway.harness import (
    Client,
    Harness,
    running_gateway,
    stored_session,
    turns,
    until,
)

pytestmark = pytest.mark.anyio

LEVELS = pytest.mark.parametrize("level", [3, 4, 5], ids=["3.1", "3.1.1", "5.0"])
NEVER: Properties = {"session_expiry_interval": 0xFFFF_FFFF}


async def resume(harness: Harness, level: int = 5, **fields: object) -> tuple[Client, Connack]:
    """Connect as alice to the session that is there."""
    client = await Client.open(harness.port, level)
    fields.setdefault("properties", NEVER if level == 5 else {})
    return client, await client.handshake("alice", clean_start=False, **fields)


async def publish(harness: Harness, *payloads: bytes, topic: str = "a/b", qos: int = 1) -> None:
    """Publish and wait until the gateway has delivered everything."""
    publisher = await Client.connect(harness.port, "publisher")
    for payload in payloads:
        await publisher.publish(topic, payload, qos)
    await publisher.disconnect()
    await harness.delivered()


async def gone(harness: Harness) -> None:
    """Wait until the log has it that alice has gone, and since when."""
    await until(lambda: (one := stored_session(harness)) is not None and not one.connected)


@LEVELS
async def test_a_session_keeps_subscriptions_and_messages(level: int) -> None:
    async with running_gateway() as harness:
        client, connack = await resume(harness, level)
        assert not connack.session_present
        await client.subscribe("a/+", 1)
        await client.disconnect()
        await publish(harness, b"1", b"2", b"3")
        client, connack = await resume(harness, level)
        assert connack.session_present == (level > 3)  # 3.1 has no such flag
        assert await client.payloads(3) == [b"1", b"2", b"3"]
        await publish(harness, b"4")
        assert await client.payloads(1) == [b"4"]


@LEVELS
async def test_a_clean_start_ends_the_old_session(level: int) -> None:
    async with running_gateway() as harness:
        client, _ = await resume(harness, level)
        await client.subscribe("a/b", 1)
        await client.disconnect()
        await publish(harness, b"1")
        client = await Client.open(harness.port, level)
        assert not (await client.handshake("alice")).session_present
        await client.expect_nothing()
        assert len(harness.gateway.subscriptions) == 0
        await client.disconnect()
        await until(lambda: len(harness.gateway.sessions) == 0)


async def test_qos_0_does_not_wait_for_an_absent_client() -> None:
    async with running_gateway() as harness:
        client, _ = await resume(harness)
        await client.subscribe("a/b", 1)
        await client.disconnect()
        await publish(harness, b"0", qos=0)
        await publish(harness, b"1", qos=1)
        client, _ = await resume(harness)
        assert await client.payloads(1) == [b"1"]
        await client.expect_nothing()


@LEVELS
@pytest.mark.clause("MQTT5-4.4.0-1")
async def test_what_was_not_acknowledged_is_sent_again_in_its_order(level: int) -> None:
    async with running_gateway() as harness:
        client, _ = await resume(harness, level)
        await client.subscribe("a/b", 2)
        await publish(harness, b"1", b"2", qos=1)
        await publish(harness, b"3", b"4", qos=2)
        first = [await client.expect(Publish) for _ in range(4)]
        assert [one.dup for one in first] == [False] * 4
        client.send(Puback(first[0].packet_id), Pubrec(first[3].packet_id))
        assert await client.expect(Pubrel) == Pubrel(first[3].packet_id)
        client.cut()
        await until(lambda: harness.gateway.sessions.connected_count == 0)
        await publish(harness, b"5", qos=1)
        client, _ = await resume(harness, level)
        assert await client.expect(Pubrel) == Pubrel(first[3].packet_id)
        again = [await client.expect(Publish) for _ in range(3)]
        assert [(one.payload, one.packet_id, one.dup) for one in again[:2]] == [
            (b"2", first[1].packet_id, True),
            (b"3", first[2].packet_id, True),
        ]
        assert (again[2].payload, again[2].dup) == (b"5", False)
        client.send(Pubcomp(first[3].packet_id), Puback(first[1].packet_id))
        await client.expect_nothing()


async def test_resends_respect_the_receive_maximum_of_the_new_connection() -> None:
    async with running_gateway() as harness:
        client, _ = await resume(harness)
        await client.subscribe("a/b", 1)
        await publish(harness, b"1", b"2", b"3")
        for _ in range(3):
            await client.expect(Publish)
        client.cut()
        await until(lambda: harness.gateway.sessions.connected_count == 0)
        client, _ = await resume(harness, properties={**NEVER, "receive_maximum": 1})
        for payload in (b"1", b"2", b"3"):
            message = await client.expect(Publish)
            assert (message.payload, message.dup) == (payload, True)
            await client.expect_nothing()
            client.send(Puback(message.packet_id))


@LEVELS
@pytest.mark.clause("MQTT5-4.3.3-10")
async def test_a_qos_2_message_sent_again_on_a_new_connection_is_taken_once(level: int) -> None:
    async with running_gateway() as harness:
        client, _ = await resume(harness, level)
        client.send(Publish("a/b", b"once", 2, packet_id=7))
        assert await client.expect(Pubrec) == Pubrec(7)
        client.cut()
        await until(lambda: harness.gateway.sessions.connected_count == 0)
        client, _ = await resume(harness, level)
        client.send(Publish("a/b", b"once", 2, dup=True, packet_id=7))
        assert await client.expect(Pubrec) == Pubrec(7)
        client.send(Pubrel(7))
        assert await client.expect(Pubcomp) == Pubcomp(7)
        assert [record.value for record in harness.inbound()] == [b"once"]


async def test_a_qos_2_message_that_a_slow_log_held_up_is_taken_once() -> None:
    async with running_gateway() as harness:
        client, _ = await resume(harness)
        harness.log.hold_reports()
        client.send(Publish("a/b", b"once", 2, packet_id=7))
        await until(lambda: harness.counters.messages_received == 1)
        client.cut()
        await until(lambda: harness.gateway.sessions.connected_count == 0)
        client = await Client.open(harness.port)
        client.send(Connect("alice", 5, clean_start=False, properties=NEVER))
        await turns()
        harness.log.release_reports()
        assert (await client.expect(Connack)).session_present
        client.send(Publish("a/b", b"once", 2, dup=True, packet_id=7))
        assert await client.expect(Pubrec) == Pubrec(7)
        client.send(Pubrel(7))
        assert await client.expect(Pubcomp) == Pubcomp(7)
        assert len(harness.inbound()) == 1


@pytest.mark.parametrize(("policy", "kept"), [("oldest", [b"3", b"4"]), ("newest", [b"1", b"2"])])
async def test_only_so_many_messages_wait(policy: str, kept: list[bytes]) -> None:
    async with running_gateway(max_queued_messages=2, when_queue_full=f"drop_{policy}") as harness:
        client, _ = await resume(harness)
        await client.subscribe("a/b", 1)
        await client.disconnect()
        await publish(harness, b"1", b"2", b"3", b"4")
        client, _ = await resume(harness)
        assert await client.payloads(2) == kept
        await client.expect_nothing()
        assert harness.counters.dropped_queue_full == 2
        await until(lambda: harness.events("message.dropped"))
        (dropped,) = harness.events("message.dropped")
        assert dropped["reason"] == "queue_full"
        assert dropped["client_id"] == "alice"
        assert dropped["topic"] == "a/b"
        assert dropped["count"] == 2


async def test_a_message_that_expires_while_it_waits_is_dropped_and_recorded() -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock) as harness:
        client, _ = await resume(harness)
        await client.subscribe("a/b", 1)
        await client.disconnect()
        publisher = await Client.connect(harness.port, "publisher")
        for seconds in (5, 50):
            properties: Properties = {"message_expiry_interval": seconds}
            await publisher.publish("a/b", b"%d" % seconds, 1, properties=properties)
        await harness.delivered()
        clock.advance(10)
        client, _ = await resume(harness)
        message = await client.message()
        assert (message.payload, message.properties["message_expiry_interval"]) == (b"50", 40)
        await until(lambda: harness.events("message.dropped"))
        assert harness.events("message.dropped")[0]["reason"] == "expired"


async def test_a_session_ends_when_its_expiry_has_passed() -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock, lease_seconds=300) as harness:
        client, _ = await resume(harness, properties={"session_expiry_interval": 10})
        await client.subscribe("a/b", 1)
        await client.disconnect()
        await gone(harness)
        clock.advance(9)
        harness.gateway.shards.tick()
        assert len(harness.gateway.sessions) == 1
        clock.advance(1)
        harness.gateway.shards.tick()
        await until(lambda: len(harness.gateway.sessions) == 0)
        assert len(harness.gateway.subscriptions) == 0
        _, connack = await resume(harness)
        assert not connack.session_present


async def test_a_session_that_is_resumed_does_not_expire() -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock, lease_seconds=300) as harness:
        client, _ = await resume(harness, properties={"session_expiry_interval": 10})
        await client.disconnect()
        client, connack = await resume(harness, properties={"session_expiry_interval": 10})
        assert connack.session_present
        clock.advance(11)
        harness.gateway.shards.tick()
        await client.expect_nothing()
        assert len(harness.gateway.sessions) == 1


async def test_disconnect_may_change_the_expiry() -> None:
    async with running_gateway() as harness:
        client, _ = await resume(harness)
        await client.disconnect(Disconnect(properties={"session_expiry_interval": 0}))
        await until(lambda: len(harness.gateway.sessions) == 0)


async def test_a_takeover_hands_the_session_on() -> None:
    async with running_gateway() as harness:
        old, _ = await resume(harness)
        await old.subscribe("a/b", 1)
        await publish(harness, b"1")
        await old.expect(Publish)
        new, connack = await resume(harness)
        assert connack.session_present
        await old.expect_disconnect(DisconnectReasonCode.SESSION_TAKEN_OVER)
        message = await new.message()
        assert (message.payload, message.dup) == (b"1", True)


def will(delay: int = 0) -> Will:
    return Will("will", b"gone", 1, properties={"will_delay_interval": delay} if delay else {})


async def test_a_delayed_will_is_published_when_its_time_has_come() -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock, lease_seconds=300) as harness:
        client, _ = await resume(harness, will=will(10))
        client.cut()
        await gone(harness)
        clock.advance(9)
        harness.gateway.shards.tick()
        assert harness.inbound() == []
        clock.advance(1)
        harness.gateway.shards.tick()
        await until(harness.inbound)
        assert [record.value for record in harness.inbound()] == [b"gone"]


@pytest.mark.clause("MQTT5-3.1.3-9")
async def test_a_delayed_will_is_not_published_when_the_client_comes_back() -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock, lease_seconds=300) as harness:
        client, _ = await resume(harness, will=will(10))
        client.cut()
        await gone(harness)
        await resume(harness)
        clock.advance(11)
        harness.gateway.shards.tick()
        assert harness.inbound() == []


async def test_a_delayed_will_is_published_when_the_session_ends_before() -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock, lease_seconds=300) as harness:
        properties = {"session_expiry_interval": 5}
        client, _ = await resume(harness, will=will(10), properties=properties)
        client.cut()
        await gone(harness)
        clock.advance(5)
        harness.gateway.shards.tick()
        await until(harness.inbound)
        assert [record.value for record in harness.inbound()] == [b"gone"]


async def test_a_clean_start_publishes_the_will_that_waits() -> None:
    async with running_gateway() as harness:
        client, _ = await resume(harness, will=will(10))
        client.cut()
        await until(lambda: harness.gateway.sessions.connected_count == 0)
        await Client.connect(harness.port, "alice")
        await until(harness.inbound)
        assert [record.value for record in harness.inbound()] == [b"gone"]


async def test_lifecycle_is_told_to_the_log() -> None:
    async with running_gateway() as harness:
        client, _ = await resume(harness, keep_alive=30)
        await client.subscribe("a", 1)
        await client.unsubscribe("a")
        await client.disconnect()
        await until(lambda: harness.events("client.disconnected"))
        (connected,) = harness.events("client.connected")
        assert connected["client_id"] == "alice"
        assert connected["keep_alive"] == 30
        (subscribed,) = harness.events("session.subscribed")
        assert (subscribed["filter"], subscribed["qos"]) == ("a", 1)
        assert harness.events("session.unsubscribed")[0]["filter"] == "a"
        assert harness.events("client.disconnected")[0]["reason"] == "the client disconnected"


async def test_what_a_leaving_member_has_not_acknowledged_goes_to_another() -> None:
    async with running_gateway() as harness:
        leaving = await Client.open(harness.port)
        await leaving.handshake("leaving", properties={"receive_maximum": 1})
        await leaving.subscribe("$share/g/a/b", 1)
        await publish(harness, b"1", b"2", b"3")
        assert (await leaving.expect(Publish)).payload == b"1"
        staying = await Client.connect(harness.port, "staying")
        await staying.subscribe("$share/g/a/b", 1)
        assert await staying.payloads(2) == [b"2", b"3"]  # a member with room gets what waits
        leaving.cut()
        assert await staying.payloads(1) == [b"1"]
        await staying.expect_nothing()


@pytest.mark.clause("MQTT5-4.8.2-4")
async def test_what_a_member_was_sent_waits_for_it_while_its_session_lasts() -> None:
    async with running_gateway() as harness:
        client, _ = await resume(harness, properties={**NEVER, "receive_maximum": 1})
        await client.subscribe("$share/g/a/b", 2)
        await publish(harness, b"1", b"2", qos=2)
        sent = await client.expect(Publish)
        staying = await Client.connect(harness.port, "staying")
        await staying.subscribe("$share/g/a/b", 2)
        client.cut()
        assert await staying.payloads(1) == [b"2"]
        client, _ = await resume(harness)
        again = await client.expect(Publish)
        assert (again.payload, again.packet_id, again.dup) == (b"1", sent.packet_id, True)


async def test_a_session_that_others_settle_while_it_leaves_is_gone_without_a_trace() -> None:
    """Its client had gone, and the log had not answered for its QoS 2 message yet."""
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", clean_start=False, properties=NEVER)
        await client.subscribe("a/b", 1)
        await client.subscribe("$share/g/c", 1)
        harness.log.hold_reports(INBOUND)
        client.send(Publish("t", b"2", 2, packet_id=9))
        sessions = harness.gateway.sessions
        connection = harness.connection("alice")
        await until(lambda: not connection.is_answered)
        await client.disconnect()
        assert not sessions.is_idle
        sessions.abandon(("default", "alice"))
        assert sessions.is_idle
        assert len(harness.gateway.subscriptions) == 0
        harness.log.release_reports()
