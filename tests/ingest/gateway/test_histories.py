"""Subscriptions that get history first: what they get, when, once, and after which crash."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingest.gateway.sessions.histories import read_time
from ingest.protocol.packets import (
    Connack,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from ingest.protocol.properties import Properties
from ingest.protocol.reason_codes import SubackReasonCode
from mqlake.log.memory import MemoryLog
from mqlake.records.messages import EVENTS, INBOUND, Message, message_headers, message_key
from mqlake.tables.catalogue import MESSAGES
from tests.ingest.gateway.harness import (
    Client,
    Harness,
    MemoryRouter,
    new_log,
    running_gateway,
    turns,
    until,
)
from tests.ingest.gateway.lake.tables import append, row_of

pytestmark = [pytest.mark.promise, pytest.mark.programs, pytest.mark.anyio]

NOW_MS = 1_790_000_000_000
NEVER: Properties = {"session_expiry_interval": 0xFFFF_FFFF}
BEGINNING = "2020-01-01T00:00:00Z"


def message(number: int, *, topic: str = "a/b", qos: int = 1, at_ms: int = NOW_MS) -> Message:
    return Message(
        tenant="default",
        topic_name=topic,
        payload=b"%d" % number,
        qos=qos,
        retain=False,
        message_id=number.to_bytes(16, "big"),
        client_id="sensor",
        received_at_ms=at_ms,
        origin="local/gateway-1",
    )


def store(log: MemoryLog, *messages: Message) -> None:
    """Put messages into partition 0, where topic `a/b` has its place in these tests."""
    for one in messages:
        key = message_key(one.tenant, one.topic_name)
        log.store(INBOUND, key, one.payload, message_headers(one), one.received_at_ms, 0)


def numbers(first: int, last: int) -> Iterator[bytes]:
    return (b"%d" % number for number in range(first, last + 1))


def asked(
    start: str | int, *filters: str, packet_id: int = 1, qos: int = 1, **options: Any
) -> Subscribe:
    properties: Properties = {"user_property": [("mqlake-from", str(start))]}
    subscriptions = [Subscription(one, qos, **options) for one in filters or ("a/b",)]
    return Subscribe(packet_id, subscriptions, properties)


async def subscribe(client: Client, packet: Subscribe) -> None:
    client.send(packet)
    codes = [SubackReasonCode(one.qos) for one in packet.subscriptions]
    assert await client.expect(Suback) == Suback(packet.packet_id, codes)


async def resume(harness: Harness, **fields: Any) -> tuple[Client, Connack]:
    client = await Client.open(harness.port)
    return client, await client.handshake(
        "alice", clean_start=False, properties={**NEVER, **fields}
    )


async def live(harness: Harness, count: int = 1) -> None:
    """Wait until so many subscriptions are in force."""
    await until(lambda: len(harness.gateway.subscriptions) == count)


async def test_what_was_comes_before_what_is() -> None:
    log = new_log()
    store(log, *(message(number) for number in range(1, 4)), message(9, topic="c"))
    async with running_gateway(log=log) as harness:
        client = await Client.connect(harness.port, "alice")
        await subscribe(client, asked(BEGINNING))
        assert await client.payloads(3) == [*numbers(1, 3)]
        await live(harness)
        await client.publish("a/b", b"4", 1)
        assert await client.payloads(1) == [b"4"]
        await client.expect_nothing()


async def test_what_was_accepted_before_the_time_is_left_out() -> None:
    log = new_log()
    store(log, *(message(number, at_ms=NOW_MS + number) for number in range(1, 6)))
    async with running_gateway(log=log) as harness:
        client = await Client.connect(harness.port, "alice")
        await subscribe(client, asked(NOW_MS + 4))
        assert await client.payloads(2) == [b"4", b"5"]
        await live(harness)
        await client.expect_nothing()


async def test_messages_wait_for_the_clients_window_and_none_is_lost_or_doubled() -> None:
    log = new_log()
    store(log, *(message(number) for number in range(1, 301)))
    async with running_gateway(log=log, max_queued_messages=0) as harness:
        client = await Client.connect(harness.port, "alice", properties={"receive_maximum": 2})
        await subscribe(client, asked(BEGINNING))
        first = [await client.expect(Publish) for _ in range(2)]
        await client.expect_nothing()
        assert len(harness.gateway.subscriptions) == 0
        publisher = await Client.connect(harness.port, "publisher")
        for number in range(301, 321):
            key, one = b"default/a/b", message(number)
            log.store(INBOUND, key, one.payload, message_headers(one), NOW_MS, 0)
        await harness.delivered()
        client.send(*(Puback(one.packet_id) for one in first))
        received = [one.payload for one in first] + await client.payloads(318)
        assert received == [*numbers(1, 320)]
        await live(harness)
        await publisher.publish("a/b", b"321", 1)
        assert await client.payloads(1) == [b"321"]
        await client.expect_nothing()
        assert harness.counters.dropped_queue_full == 0


async def test_filters_of_one_subscribe_give_a_message_once() -> None:
    log = new_log()
    store(log, message(1), message(2, topic="a/c"))
    async with running_gateway(log=log) as harness:
        client = await Client.connect(harness.port, "alice")
        await subscribe(client, asked(BEGINNING, "a/+", "a/b", "#"))
        assert await client.payloads(2) == [b"1", b"2"]
        await live(harness, 3)
        await client.publish("a/b", b"3")
        assert await client.payloads(1) == [b"3"]
        await client.expect_nothing()


async def test_a_live_subscription_that_asks_for_history_has_no_gap() -> None:
    log = new_log()
    async with running_gateway(log=log) as harness:
        client = await Client.connect(harness.port, "alice", properties={"receive_maximum": 1})
        await client.subscribe("a/b", 1)
        await client.publish("a/b", b"1", 1)
        assert await client.payloads(1) == [b"1"]
        await subscribe(client, asked(0, packet_id=7))
        again = await client.expect(Publish)
        await client.publish("a/b", b"2", 1)
        await harness.delivered()
        client.send(Puback(again.packet_id))
        assert (again.payload, again.dup) == (b"1", False)
        assert await client.payloads(1) == [b"2"]
        await live(harness)
        await client.expect_nothing()


async def test_options_of_a_subscription_can_change_while_it_gets_its_history() -> None:
    log = new_log()
    store(log, *(message(number) for number in range(1, 4)))
    async with running_gateway(log=log) as harness:
        client = await Client.connect(harness.port, "alice", properties={"receive_maximum": 1})
        await subscribe(client, asked(BEGINNING))
        first = await client.expect(Publish)
        client.send(Subscribe(5, [Subscription("a/b", 0)], {"subscription_identifier": [3]}))
        await client.expect(Suback)
        client.send(Puback(first.packet_id))
        rest = [await client.expect(Publish) for _ in range(2)]
        assert [(one.payload, one.qos) for one in rest] == [(b"2", 0), (b"3", 0)]
        assert rest[0].properties["subscription_identifier"] == [3]
        await live(harness)


async def test_unsubscribe_ends_it() -> None:
    log = new_log()
    store(log, *(message(number) for number in range(1, 4)))
    async with running_gateway(log=log) as harness:
        client = await Client.connect(harness.port, "alice", properties={"receive_maximum": 1})
        await subscribe(client, asked(BEGINNING))
        first = await client.expect(Publish)
        await client.unsubscribe("a/b")
        client.send(Puback(first.packet_id))
        await until(lambda: len(harness.gateway.histories) == 0)
        await client.expect_nothing()
        assert len(harness.gateway.subscriptions) == 0


async def test_it_goes_on_where_it_was_when_the_client_comes_back() -> None:
    log = new_log()
    store(log, *(message(number) for number in range(1, 8)))
    async with running_gateway(log=log) as harness:
        client, _ = await resume(harness, receive_maximum=2)
        await client.subscribe("other", 1)
        await subscribe(client, asked(BEGINNING, packet_id=9))
        first = [await client.expect(Publish) for _ in range(2)]
        client.send(Puback(first[0].packet_id))
        assert (await client.expect(Publish)).payload == b"3"
        client.cut()
        await until(lambda: harness.gateway.sessions.connected_count == 0)
        publisher = await Client.connect(harness.port, "publisher")
        await publisher.publish("other", b"x", 1)
        store(log, message(8))
        await harness.delivered()
        client, connack = await resume(harness)
        assert connack.session_present
        again = [await client.expect(Publish) for _ in range(2)]
        assert [(one.payload, one.dup) for one in again] == [(b"2", True), (b"3", True)]
        client.send(*(Puback(one.packet_id) for one in again))
        assert sorted(await client.payloads(6)) == sorted([*numbers(4, 8), b"x"])
        await live(harness, 2)
        await publisher.publish("a/b", b"9", 1)
        assert await client.payloads(1) == [b"9"]
        await client.expect_nothing()


async def test_it_goes_on_at_another_gateway_after_a_crash() -> None:
    log = new_log()
    router = MemoryRouter(log)
    await router.start()
    store(log, *(message(number, qos=2) for number in range(1, 6)))
    async with running_gateway(log=log, router=router, lease_seconds=2) as first:
        client, _ = await resume(first, receive_maximum=2)
        await subscribe(client, asked(BEGINNING, qos=2))
        assert await client.payloads(3) == [*numbers(1, 3)]
        await first.saved()
        await first.kill()
        async with running_gateway(
            log=log, router=router, name="gateway-2", lease_seconds=2
        ) as second:
            client = await Client.open(second.port)
            connack = await client.handshake("alice", clean_start=False, properties=NEVER)
            assert connack.session_present
            received: list[bytes] = []
            while len(received) < 2:
                packet = await client.receive()
                if isinstance(packet, Pubrel):  # of 3, unless the log had its end
                    client.send(Pubcomp(packet.packet_id))
                    continue
                assert isinstance(packet, Publish)
                client.send(Pubrec(packet.packet_id))
                received.append(packet.payload)
            assert received == [b"4", b"5"]
            for _ in received:
                released = await client.expect(Pubrel)
                client.send(Pubcomp(released.packet_id))
            await live(second)
            store(log, message(6))
            assert await client.payloads(1) == [b"6"]
            await client.expect_nothing()
    await router.close()


async def test_a_session_that_goes_live_ahead_of_its_gateway_repeats_nothing() -> None:
    log = new_log()
    router = MemoryRouter(log)
    await router.start()
    store(log, message(1), message(2))
    async with running_gateway(log=log, router=router) as harness:
        client, _ = await resume(harness, receive_maximum=1)
        await subscribe(client, asked(BEGINNING))
        first = await client.expect(Publish)
        store(log, message(3))
        await harness.delivered()
        router.pause()
        store(log, message(4), message(5))
        client.send(Puback(first.packet_id))
        assert await client.payloads(4) == [*numbers(2, 5)]
        await live(harness)
        await client.disconnect()
        await until(lambda: harness.gateway.sessions.connected_count == 0)
        router.resume()
        await harness.delivered()
        client, _ = await resume(harness)
        await live(harness)
        await client.expect_nothing()
        store(log, message(6))
        assert await client.payloads(1) == [b"6"]
    await router.close()


@pytest.mark.parametrize("start", ["yesterday", "", "2026-01-31T12:00:00", "-1", "9" * 16])
async def test_a_time_that_is_none_is_refused(start: str) -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(asked(start))
        suback = await client.expect(Suback)
        assert suback.reason_codes == [SubackReasonCode.IMPLEMENTATION_SPECIFIC_ERROR]
        assert "mqlake-from" in suback.properties["reason_string"]
        assert len(harness.gateway.subscriptions) == 0
        await client.subscribe("a/b", 1)


async def test_share_groups_and_the_gateways_own_topics_have_no_history() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        client.send(asked(BEGINNING, "$share/g/a", "$SYS/#", "a"))
        refused = SubackReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        suback = await client.expect(Suback)
        assert suback.reason_codes == [refused, refused, SubackReasonCode.GRANTED_QOS_1]
        await live(harness)


async def test_only_so_many_are_read_at_the_same_time() -> None:
    log = new_log()
    store(log, message(1), message(2))
    async with running_gateway(log=log, max_history_reads=1) as harness:
        first = await Client.connect(harness.port, "first", properties={"receive_maximum": 1})
        await subscribe(first, asked(BEGINNING))
        one = await first.expect(Publish)
        second = await Client.connect(harness.port, "second")
        second.send(asked(BEGINNING))
        suback = await second.expect(Suback)
        assert suback.reason_codes == [SubackReasonCode.QUOTA_EXCEEDED]
        first.send(Puback(one.packet_id))
        assert await first.payloads(1) == [b"2"]
        await until(lambda: len(harness.gateway.histories) == 0)
        await subscribe(second, asked(BEGINNING))
        assert await second.payloads(2) == [b"1", b"2"]


async def test_retained_messages_come_as_history_only() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.publish("a/b", b"kept", 1, retain=True)
        await harness.delivered()
        await subscribe(client, asked(BEGINNING))
        publish = await client.expect(Publish)
        assert (publish.payload, publish.retain) == (b"kept", False)
        client.send(Puback(publish.packet_id))
        await live(harness)
        await client.expect_nothing()


async def test_what_the_log_no_longer_holds_comes_from_the_table(tmp_path: Path) -> None:
    log = new_log()
    stored = [message(number, at_ms=NOW_MS + number) for number in range(1, 8)]
    store(log, *stored)
    rows = [
        row_of(one, 0, offset, at_ms=one.received_at_ms) for offset, one in enumerate(stored[:5])
    ]
    append(tmp_path, MESSAGES, rows)
    log.remove_before(INBOUND, 0, 4)
    async with running_gateway(log=log, lake_dir=tmp_path) as harness:
        client, _ = await resume(harness, receive_maximum=2)
        await subscribe(client, asked(NOW_MS + 2))
        first = [await client.expect(Publish) for _ in range(2)]
        assert [one.payload for one in first] == [b"2", b"3"]
        client.cut()
        await until(lambda: harness.gateway.sessions.connected_count == 0)
        # What was in flight is not in the log either.
        client, _ = await resume(harness)
        again = [await client.expect(Publish) for _ in range(2)]
        assert [(one.payload, one.dup) for one in again] == [(b"2", True), (b"3", True)]
        client.send(*(Puback(one.packet_id) for one in again))
        assert await client.payloads(4) == [*numbers(4, 7)]
        await live(harness)
        await client.expect_nothing()
        assert harness.counters.dropped_unreadable == 0
        harness.gateway.context.events.flush()
        await turns()
        assert not [one for one in log.records(EVENTS) if b"message.dropped" in (one.value or b"")]


async def in_flight_and_unsubscribed(harness: Harness) -> list[Publish]:
    """Leave a session with two messages in flight whose subscription is gone."""
    client, _ = await resume(harness, receive_maximum=2)
    await subscribe(client, asked(NOW_MS, qos=2))
    sent = [await client.expect(Publish) for _ in range(2)]
    client.send(Unsubscribe(2, ["a/b"]))
    await client.expect(Unsuback)
    client.cut()
    await until(lambda: harness.gateway.sessions.connected_count == 0)
    return sent


async def test_what_is_in_flight_is_completed_after_unsubscribe_from_the_table(
    tmp_path: Path,
) -> None:
    log = new_log()
    stored = [message(1), message(2, qos=2), message(3)]
    store(log, *stored)
    rows = [row_of(one, 0, offset, at_ms=one.received_at_ms) for offset, one in enumerate(stored)]
    append(tmp_path, MESSAGES, rows)
    async with running_gateway(log=log, lake_dir=tmp_path) as harness:
        sent = await in_flight_and_unsubscribed(harness)
        log.remove_before(INBOUND, 0, 3)
        client, _ = await resume(harness)
        again = [await client.expect(Publish) for _ in range(2)]  # [MQTT5-3.10.4-3]
        assert [(one.packet_id, one.payload, one.qos, one.dup) for one in again] == [
            (sent[0].packet_id, b"1", 1, True),
            (sent[1].packet_id, b"2", 2, True),
        ]
        await client.expect_nothing()
        assert harness.counters.dropped_unreadable == 0


async def test_the_exchange_of_a_message_that_nobody_has_any_more_is_finished() -> None:
    log = new_log()
    store(log, message(1), message(2, qos=2), message(3))
    async with running_gateway(log=log) as harness:
        sent = await in_flight_and_unsubscribed(harness)
        log.remove_before(INBOUND, 0, 3)
        client, _ = await resume(harness)
        # Else a client that has it would pass over the next one under its packet identifier.
        pubrel = await client.expect(Pubrel)
        assert pubrel.packet_id == sent[1].packet_id
        client.send(Pubcomp(pubrel.packet_id))
        await client.expect_nothing()
        assert harness.counters.dropped_unreadable == 2


def test_times_are_rfc_3339_or_milliseconds() -> None:
    assert read_time("1790000000000") == 1_790_000_000_000
    assert read_time("2026-09-21T14:13:20Z") == 1_790_000_000_000
    assert read_time("2026-09-21T16:13:20.500+02:00") == 1_790_000_000_500
    assert read_time("1960-01-01T00:00:00Z") == 0


async def test_a_history_that_is_over_is_not_told_again() -> None:
    log = new_log()
    store(log, message(1), message(2))
    async with running_gateway(log=log) as harness:
        client, _ = await resume(harness)
        await subscribe(client, asked(BEGINNING))
        assert await client.payloads(2) == [b"1", b"2"]
        await live(harness)
        store(log, message(3))
        assert await client.payloads(1) == [b"3"]
        await harness.delivered()
        await harness.saved()
        await client.disconnect()
        await until(lambda: harness.gateway.sessions.connected_count == 0)
        client, _ = await resume(harness)
        await live(harness)
        await client.expect_nothing()
