import pytest

from ingest.protocol.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from ingest.protocol.reason_codes import PubrecReasonCode, PubrelReasonCode
from mqlake.clock import ManualClock
from tests.ingest.gateway.harness import Client, Harness, running_gateway, until

pytestmark = pytest.mark.anyio

LEVELS = pytest.mark.parametrize("level", [3, 4, 5], ids=["3.1", "3.1.1", "5.0"])


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
@LEVELS
async def test_a_message_comes_with_the_lower_qos(level: int, published: int, granted: int) -> None:
    async with running_gateway() as harness:
        subscriber = await Client.connect(harness.port, "subscriber", level=level)
        publisher = await Client.connect(harness.port, "publisher", level=9 - max(level, 4))
        await subscriber.subscribe("a/#", granted)
        await publisher.publish("a/b", b"payload", published)
        message = await subscriber.message()
        assert (message.topic_name, message.payload) == ("a/b", b"payload")
        assert message.qos == min(published, granted)
        assert not message.retain
        assert not message.dup
        await subscriber.expect_nothing()


async def test_a_clients_receive_maximum_is_its_window() -> None:
    async with running_gateway() as harness:
        subscriber = await Client.connect(
            harness.port, "subscriber", properties={"receive_maximum": 2}
        )
        await subscriber.subscribe("a", 2)
        publisher = await Client.connect(harness.port, "publisher")
        for number in range(5):
            await publisher.publish("a", b"%d" % number, 1 + number % 2)
        await publisher.publish("a", b"not held back", 0)
        waiting = [await subscriber.expect(Publish) for _ in range(3)]
        assert [one.payload for one in waiting] == [b"0", b"1", b"not held back"]
        await subscriber.expect_nothing()
        subscriber.send(Puback(waiting[0].packet_id))
        third = await subscriber.expect(Publish)
        assert third.payload == b"2"
        subscriber.send(Pubrec(waiting[1].packet_id))
        await subscriber.expect(Pubrel)
        await subscriber.expect_nothing()
        subscriber.send(Pubcomp(waiting[1].packet_id))
        assert await subscriber.payloads(1) == [b"3"]
        subscriber.send(Puback(third.packet_id))
        assert await subscriber.payloads(1) == [b"4"]


async def test_a_queue_is_bounded_and_the_newest_go() -> None:
    async with running_gateway(max_inflight_messages=1, max_queued_messages=2) as harness:
        subscriber = await Client.connect(harness.port, "subscriber", level=4)
        await subscriber.subscribe("a", 1)
        publisher = await Client.connect(harness.port, "publisher")
        for number in range(5):
            await publisher.publish("a", b"%d" % number, 1)
        await until(lambda: harness.counters.dropped_queue_full == 2)
        assert await subscriber.payloads(3) == [b"0", b"1", b"2"]
        await subscriber.expect_nothing()


async def test_a_refused_qos_2_message_is_over() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", properties={"receive_maximum": 1})
        await client.subscribe("a", 2)
        for number in range(2):
            await client_publishes(harness, b"%d" % number)
        first = await client.expect(Publish)
        client.send(Pubrec(first.packet_id, PubrecReasonCode.QUOTA_EXCEEDED))
        assert await client.payloads(1) == [b"1"]


async def client_publishes(harness: Harness, payload: bytes) -> None:
    publisher = await Client.connect(harness.port)
    await publisher.publish("a", payload, 2)
    await publisher.disconnect()


@LEVELS
async def test_acknowledgements_of_nothing_are_taken_calmly(level: int) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice", level=level)
        client.send(Puback(7), Pubcomp(7), Pubrec(7))
        expected = (
            PubrelReasonCode.PACKET_IDENTIFIER_NOT_FOUND if level == 5 else PubrelReasonCode.SUCCESS
        )
        assert await client.expect(Pubrel) == Pubrel(7, expected)
        if level == 5:
            client.send(Pubrec(7, PubrecReasonCode.UNSPECIFIED_ERROR))
        await client.expect_nothing()


@pytest.mark.clause("MQTT5-3.1.2-25")
async def test_a_message_larger_than_the_client_takes_is_dropped_as_if_sent() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(
            harness.port, "alice", properties={"maximum_packet_size": 50, "receive_maximum": 1}
        )
        await client.subscribe("a", 2)
        publisher = await Client.connect(harness.port, "publisher", level=4)
        for qos in (0, 1, 2):
            await publisher.publish("a", bytes(100), qos)
            await publisher.publish("a", b"small", qos)
        received = [await client.message() for _ in range(3)]
        assert [one.qos for one in received] == [0, 1, 2]
        await until(lambda: harness.counters.dropped_too_large == 3)


async def test_message_expiry_counts_down() -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock) as harness:
        subscriber = await Client.connect(harness.port, "new", properties={"receive_maximum": 1})
        older = await Client.connect(harness.port, "old", level=4)
        await subscriber.subscribe("a", 1)
        await older.subscribe("a", 1)
        publisher = await Client.connect(harness.port, "publisher")
        await publisher.publish("a", b"0", 1)
        for number, expiry in enumerate((10, 100), 1):
            await publisher.publish(
                "a", b"%d" % number, 1, properties={"message_expiry_interval": expiry}
            )
        assert await older.payloads(3) == [b"0", b"1", b"2"]
        first = await subscriber.expect(Publish)
        clock.advance(15.5)
        subscriber.send(Puback(first.packet_id))
        last = await subscriber.message()
        assert last.payload == b"2"
        assert last.properties == {"message_expiry_interval": 85}
        assert harness.counters.dropped_expired == 1
        clock.step_calendar(-60_000)
        harness.router.pause()
        await publisher.publish("a", b"3", 1, properties={"message_expiry_interval": 10})
        clock.step_calendar(-30_000)
        harness.router.resume()
        message = await subscriber.message()
        assert message.properties == {"message_expiry_interval": 10}, "never more than was given"


async def test_a_message_that_expired_on_its_way_is_not_delivered() -> None:
    clock = ManualClock()
    async with running_gateway(clock=clock) as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", 1)
        harness.router.pause()
        await client.publish("a", b"1", 1, properties={"message_expiry_interval": 5})
        await client.publish("a", b"2", 1, properties={"message_expiry_interval": 50})
        clock.advance(6)
        harness.router.resume()
        assert await client.payloads(1) == [b"2"]
        assert harness.counters.dropped_expired == 1


async def test_retain_is_told_to_who_asked_for_it() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", 1, retain_as_published=True)
        other = await Client.connect(harness.port, "bob")
        await other.subscribe("a", 1)
        publisher = await Client.connect(harness.port, "old", level=4)
        await publisher.publish("a", b"x", 1, retain=True)
        assert (await client.message()).retain
        assert not (await other.message()).retain


async def test_properties_reach_the_subscriber() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", 1, identifier=12)
        await client.subscribe("+", 0, identifier=268_435_455)
        other = await Client.connect(harness.port, "bob", level=4)
        await other.subscribe("a", 1)
        publisher = await Client.connect(harness.port, "publisher")
        await publisher.publish(
            "a",
            b"x",
            1,
            properties={
                "payload_format_indicator": 1,
                "content_type": "text/plain",
                "response_topic": "answers",
                "correlation_data": b"\0\xff",
                "user_property": [("k", "1"), ("k", "2")],
            },
        )
        properties = (await client.message()).properties
        assert sorted(properties.pop("subscription_identifier")) == [12, 268_435_455]
        assert properties == {
            "payload_format_indicator": 1,
            "content_type": "text/plain",
            "response_topic": "answers",
            "correlation_data": b"\0\xff",
            "user_property": [("k", "1"), ("k", "2")],
        }
        assert (await other.message()).properties == {}


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_slow_client_costs_bounded_memory_and_holds_up_nobody(qos: int) -> None:
    buffer, payload, count = 64 * 1024, bytes(50_000), 400
    async with running_gateway(max_write_buffer_bytes=buffer) as harness:
        slow = await Client.connect(harness.port, "slow", level=4)
        await slow.subscribe("a", qos)
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        connection = harness.connection("slow")
        transport = connection.transport
        assert transport is not None
        publisher = await Client.connect(harness.port, "publisher", level=4)
        harness.router.pause()
        for _ in range(count):
            publisher.send(Publish("a", payload, qos, packet_id=qos and 1))
        if qos:
            for _ in range(count):
                await publisher.expect(Puback)
        await until(lambda: len(harness.inbound()) == count)
        most = 0

        def watch() -> bool:
            nonlocal most
            most = max(most, transport.get_write_buffer_size())
            return bool(harness.counters.deliveries_received >= count)

        harness.router.resume()  # one batch: all of it within one turn of the loop
        await until(watch)
        watch()
        assert most < buffer + 3 * len(payload)
        assert not connection.is_writable
        await publisher.expect_nothing()
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        if qos:
            assert len(await slow.payloads(count)) == count
        else:
            sent = harness.counters.messages_sent
            assert sent + harness.counters.dropped_slow_client == count
            assert len(await slow.payloads(sent)) == sent
        await publisher.publish("a", b"after", qos)
        assert await slow.payloads(1) == [b"after"]
