"""Clients slower than what comes: what a stored session gets, in which order, how often."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from ingest.gateway.sessions import slow_clients
from ingest.protocol.packets import (
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Unsuback,
    Unsubscribe,
)
from ingest.session.subscriptions import NOT_YET
from mqlake.clock import ManualClock
from mqlake.records.messages import INBOUND
from tests.ingest.gateway.harness import (
    Client,
    Harness,
    MemoryRouter,
    doubt_owners,
    new_log,
    running_gateway,
    turns,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ingest.protocol.properties import Properties

pytestmark = [pytest.mark.promise, pytest.mark.anyio]

KEPT: Properties = {"session_expiry_interval": 0xFFFF_FFFF, "receive_maximum": 2}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_clients, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(slow_clients, "ROUND_SECONDS", 0.0)


@asynccontextmanager
async def slow(**settings: Any) -> AsyncIterator[Harness]:
    async with running_gateway(**{"max_queued_messages": 3, "lease_seconds": 2, **settings}) as one:
        yield one


async def come(harness: Harness, client_id: str = "alice", **fields: Any) -> Client:
    client = await Client.open(harness.port)
    await client.handshake(client_id, clean_start=False, properties={**KEPT, **fields})
    return client


async def publish(harness: Harness, *payloads: bytes, topic: str = "a/b", qos: int = 2) -> None:
    publisher = await Client.connect(harness.port)
    for payload in payloads:
        await publisher.publish(topic, payload, qos)
    await publisher.disconnect()
    await harness.delivered()


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


async def another_is_read_for(harness: Harness) -> None:
    """Have another client read for: when there is one place, all others hold none, and no page."""
    behind = len(harness.gateway.slow_clients)
    client = await come(harness, "another")
    await client.subscribe("another", 1)
    await publish(harness, *numbers(1, 20), topic="another")
    assert len(harness.gateway.slow_clients) == behind + 1
    assert await client.payloads(20) == numbers(1, 20)
    await until(lambda: len(harness.gateway.slow_clients) == behind)


def is_live(harness: Harness, count: int = 1) -> bool:
    return len(harness.gateway.subscriptions) == count and not len(harness.gateway.slow_clients)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("max_queued_messages", [0, 1, 3])
async def test_a_stored_session_gets_what_its_queue_has_no_room_for(
    qos: int, max_queued_messages: int
) -> None:
    async with slow(max_queued_messages=max_queued_messages) as harness:
        client = await come(harness)
        await client.subscribe("a/+", qos)
        await publish(harness, *numbers(1, 40), qos=qos)
        assert len(harness.gateway.slow_clients) == 1
        assert len(harness.gateway.subscriptions) == 0
        assert harness.gateway.sessions.waiting_count <= 2 + max_queued_messages
        assert await client.payloads(40) == numbers(1, 40)
        # Live with all acknowledged: without room in its window it falls behind once more
        await until(lambda: is_live(harness) and not harness.gateway.sessions.waiting_count)
        await publish(harness, b"live", qos=qos)
        assert await client.payloads(1) == [b"live"]
        await client.expect_nothing()
        assert harness.counters.dropped_queue_full == 0
        assert harness.counters.clients_fell_behind == 1


async def test_messages_that_come_meanwhile_keep_their_places() -> None:
    async with slow() as harness:
        client = await come(harness)
        await client.subscribe("#", 1)
        got: list[Publish] = []
        for first in (1, 11, 21):
            for topic in ("a", "b"):
                await publish(harness, *numbers(first, first + 9), topic=topic)
            # It takes fewer than come.
            got += [await client.message() for _ in range(12)]
        got += [await client.message() for _ in range(60 - 36)]
        for topic in ("a", "b"):
            assert [one.payload for one in got if one.topic_name == topic] == numbers(1, 30)
        await client.expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("max_queued_messages", [0, 1, 3])
async def test_an_absent_client_gets_what_a_slow_one_gets(
    qos: int, max_queued_messages: int
) -> None:
    async with slow(max_queued_messages=max_queued_messages) as harness:
        client = await come(harness)
        await client.subscribe("#", qos)
        await client.disconnect()
        for topic in ("a", "b", "c"):
            await publish(harness, *numbers(1, 10), topic=topic, qos=qos)
        client = await come(harness)
        await publish(harness, b"live", topic="d", qos=qos)
        got = [await client.message() for _ in range(31)]
        for topic in ("a", "b", "c"):
            assert [one.payload for one in got if one.topic_name == topic] == numbers(1, 10)
        await until(lambda: is_live(harness) and not harness.gateway.sessions.waiting_count)
        await publish(harness, b"live", topic="a", qos=qos)
        assert await client.payloads(1) == [b"live"]
        await client.expect_nothing()
        assert harness.counters.dropped_queue_full == 0


async def test_one_that_goes_again_before_it_has_all_loses_nothing() -> None:
    async with slow() as harness:
        client = await come(harness)
        await client.subscribe("a/b", 1)
        await client.disconnect()
        await publish(harness, *numbers(1, 40))
        got: list[bytes] = []
        while len(got) < 40:
            client = await come(harness)
            got += await client.payloads(min(7, 40 - len(got)))
            await client.expect_answered()
            await harness.saved()
            client.cut()
            await until(lambda: harness.gateway.sessions.connected_count == 0)
        assert list(dict.fromkeys(got)) == numbers(1, 40)
        assert harness.counters.dropped_queue_full == 0


async def test_those_that_come_back_together_share_a_reading_and_not_their_places() -> None:
    async with slow(max_queued_messages=10) as harness:
        names = ["few", "many", "none"]
        for name in names:
            client = await come(harness, client_id=name)
            await client.subscribe("a/#" if name == "many" else f"a/{name}", 1)
            await client.disconnect()
        for number in range(40):
            await publish(harness, b"%d" % number, topic="a/few" if number % 8 == 0 else "a/b")
        clients = {name: await come(harness, client_id=name) for name in names}
        got = await clients["many"].payloads(40)
        assert sorted(got, key=int) == numbers(0, 39)
        few = [one for one in got if int(one) % 8 == 0]
        assert few == sorted(few, key=int)
        assert await clients["few"].payloads(5) == [b"0", b"8", b"16", b"24", b"32"]
        await clients["none"].expect_nothing()
        assert harness.counters.clients_fell_behind == 1


async def test_a_session_that_ends_with_its_connection_drops() -> None:
    async with slow() as harness:
        client = await come(harness, session_expiry_interval=0)
        await client.subscribe("a/b", 1)
        await publish(harness, *numbers(1, 10))
        assert harness.counters.dropped_queue_full == 5
        assert await client.payloads(5) == numbers(1, 5)
        await client.expect_nothing()


async def test_so_does_a_stored_one_by_setting() -> None:
    async with slow(when_queue_full="drop_newest") as harness:
        client = await come(harness)
        await client.subscribe("a/b", 1)
        await publish(harness, *numbers(1, 10))
        assert harness.counters.dropped_queue_full == 5
        assert await client.payloads(5) == numbers(1, 5)
        await client.expect_nothing()


@pytest.mark.parametrize("taken", [0, 1, 5, 6, 19])
@pytest.mark.parametrize("is_killed", [True, False])
async def test_it_goes_on_at_another_gateway(taken: int, is_killed: bool) -> None:
    log = new_log()
    router = MemoryRouter(log)
    await router.start()
    async with slow(log=log, router=router) as first:
        client = await come(first)
        await client.subscribe("a/b", 2)
        await publish(first, *numbers(1, 20))
        got = await client.payloads(taken)
        await first.saved()
        if is_killed:
            await first.kill()
        else:
            client.send(Disconnect())
            await client.expect_end()
            client.close()
            await until(lambda: first.gateway.sessions.is_idle)
            await first.saved()
        async with slow(log=log, router=router, name="gateway-2") as second:
            client = await come(second)
            while len(got) < 20:
                packet = await client.receive()
                if isinstance(packet, Pubrel):
                    client.send(Pubcomp(packet.packet_id))
                    continue
                assert isinstance(packet, Publish)
                client.send(Pubrec(packet.packet_id))
                got.append(packet.payload)
            await publish(second, b"21")
            while len(got) < 21:
                packet = await client.receive()
                if isinstance(packet, Pubrel):
                    client.send(Pubcomp(packet.packet_id))
                elif isinstance(packet, Publish):
                    client.send(Pubrec(packet.packet_id))
                    got.append(packet.payload)
            assert got == numbers(1, 21)
            assert second.counters.dropped_queue_full == 0
    await router.close()


async def test_nothing_of_an_unsubscribed_filter_comes_any_more() -> None:
    async with slow() as harness:
        client = await come(harness)
        await client.subscribe("a/b", 1)
        await client.subscribe("c", 1)
        await publish(harness, *numbers(1, 20))
        await publish(harness, b"c", topic="c")
        got = [await client.message() for _ in range(7)]
        await unsubscribe_while_messages_come(client, "a/b", got)
        await until(lambda: is_live(harness))
        await publish(harness, b"more")
        await publish(harness, b"c2", topic="c")
        while got[-1].payload != b"c2":
            got.append(await client.message())
        of_a = [one.payload for one in got if one.topic_name == "a/b"]
        assert of_a == numbers(1, len(of_a))
        assert [one.payload for one in got if one.topic_name == "c"] == [b"c", b"c2"]


async def unsubscribe_while_messages_come(
    client: Client, topic_filter: str, got: list[Publish]
) -> None:
    client.send(Unsubscribe(900, [topic_filter]))
    while not isinstance(packet := await client.receive(), Unsuback):
        assert isinstance(packet, Publish)
        got.append(packet)
        client.send(Puback(packet.packet_id))


async def test_a_new_filter_of_one_that_is_behind_is_served_at_once() -> None:
    async with slow() as harness:
        client = await come(harness, receive_maximum=1)
        await client.subscribe("a/b", 1)
        await publish(harness, *numbers(1, 20))
        await client.subscribe("new", 1)
        await publish(harness, *numbers(1, 10), topic="new")
        got = [await client.message() for _ in range(30)]
        assert [one.payload for one in got if one.topic_name == "a/b"] == numbers(1, 20)
        assert [one.payload for one in got if one.topic_name == "new"] == numbers(1, 10)
        await until(lambda: is_live(harness, 2))
        await client.expect_nothing()


async def test_options_may_change_meanwhile() -> None:
    async with slow() as harness:
        client = await come(harness)
        await client.subscribe("a/b", 1)
        await publish(harness, *numbers(1, 20))
        await client.subscribe("a/b", 1, identifier=7)
        got = [await client.message() for _ in range(20)]
        assert [one.payload for one in got] == numbers(1, 20)
        assert got[-1].properties["subscription_identifier"] == [7]
        await client.expect_nothing()


async def test_qos_0_does_not_wait_and_keeps_its_order() -> None:
    async with slow() as harness:
        client = await come(harness)
        await client.subscribe("a/b", 1)
        await client.subscribe("apart", 0)
        await publish(harness, *numbers(1, 6), qos=1)
        await publish(harness, b"7", qos=0)
        await publish(harness, b"at once", topic="apart", qos=1)
        await publish(harness, b"8", qos=1)
        got = [await client.message() for _ in range(9)]
        assert [one.payload for one in got if one.topic_name == "a/b"] == numbers(1, 8)
        assert got[2].payload == b"at once"  # a filter with QoS 0 that meets no other stays live
        await client.expect_nothing()


async def test_a_filter_with_qos_0_that_meets_another_gives_no_double() -> None:
    async with slow() as harness:
        client = await come(harness)
        await client.subscribe("a/#", 2)
        await client.subscribe("a/b", 0)
        await publish(harness, *numbers(1, 20))
        assert await client.payloads(20) == numbers(1, 20)
        await until(lambda: is_live(harness, 2))
        await client.expect_nothing()


async def test_a_message_that_expires_meanwhile_is_dropped_as_expired() -> None:
    clock = ManualClock()
    async with slow(clock=clock) as harness:
        client = await come(harness)
        await client.subscribe("a/b", 1)
        await publish(harness, *numbers(1, 5))
        publisher = await Client.connect(harness.port)
        await publisher.publish("a/b", b"brief", 1, properties={"message_expiry_interval": 5})
        await publisher.publish("a/b", b"7", 1)
        await harness.delivered()
        clock.advance(6)
        assert await client.payloads(6) == [*numbers(1, 5), b"7"]
        assert harness.counters.dropped_expired == 1


async def test_what_the_log_has_lost_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_clients, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(slow_clients, "MOST_READING", 1)
    async with slow() as harness:
        client = await come(harness)
        await client.subscribe("a/b", 1)
        await publish(harness, *numbers(1, 20))
        await another_is_read_for(harness)
        records = [one for one in harness.inbound() if one.key == b"default/a/b"]
        partition, offset = records[-1].partition, records[-3].offset
        harness.log.remove_before(INBOUND, partition, offset)
        got = await client.payloads(5)
        assert got == numbers(1, 5)
        while got[-1] != b"20":
            got += await client.payloads(1)
        assert got[5:] == sorted(got[5:])
        assert harness.counters.dropped_unreadable == 1


async def test_bytes_that_others_have_taken_cost_a_stored_session_nothing() -> None:
    async with slow(limits={"queued_bytes": 3_000}, max_queued_messages=100) as harness:
        client = await come(harness)
        await client.subscribe("a/b", 1)
        payloads = [b"%02d" % number * 500 for number in range(20)]
        await publish(harness, *payloads)
        assert await client.payloads(20) == payloads
        assert harness.counters.dropped_queue_full == 0


async def test_a_message_for_a_group_goes_to_the_group_and_not_away() -> None:
    async with slow(share_strategy="hash_topic", max_queued_messages=4) as harness:
        client = await come(harness)
        await client.subscribe("$share/g/a/b", 1)
        await client.subscribe("a/b", 1)
        await publish(harness, *numbers(1, 6))
        got = await client.payloads(12)
        assert sorted(got) == sorted([*numbers(1, 6), *numbers(1, 6)])
        await client.expect_nothing()
        assert harness.counters.dropped_queue_full == 0


async def test_messages_of_the_gateway_itself_are_not_in_the_log() -> None:
    async with slow() as harness:
        client = await come(harness)
        await client.subscribe("$SYS/#", 1)
        await client.subscribe("a/b", 1)
        await publish(harness, *numbers(1, 20))
        behind = [name for one in harness.gateway.slow_clients for name in one.topic_filters]
        assert behind in ([], ["a/b"])
        got: list[bytes] = []
        while len(got) < 20:
            packet = await client.message()
            if packet.topic_name == "a/b":
                got.append(packet.payload)
        assert got == numbers(1, 20)


async def test_one_that_takes_nothing_holds_no_place_and_no_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slow_clients, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(slow_clients, "MOST_READING", 1)
    async with slow() as harness:
        client = await come(harness)
        await client.subscribe("a/b", 1)
        await publish(harness, *numbers(1, 20))
        assert await client.payloads(5) == numbers(1, 5)  # its queue; then it is read for
        await another_is_read_for(harness)


async def test_it_does_not_go_to_and_fro(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_clients, "LEAST_SECONDS", 1_000.0)
    async with slow() as harness:
        client = await come(harness)
        await client.subscribe("a/b", 1)
        for first in (1, 21, 41):
            await publish(harness, *numbers(first, first + 19))
            assert await client.payloads(20) == numbers(first, first + 19)
        await turns(20)
        assert harness.counters.clients_fell_behind == 1
        assert len(harness.gateway.subscriptions) == 0


async def test_it_is_told() -> None:
    async with slow() as harness:
        client = await come(harness)
        await client.subscribe("a/b", 1)
        await publish(harness, *numbers(1, 20))
        assert harness.gateway.status.gauges()["clients_behind"] == 1
        await client.payloads(20)
        await until(lambda: is_live(harness))
        assert harness.gateway.status.gauges()["clients_behind"] == 0
        harness.gateway.context.events.flush()
        await until(lambda: harness.events("client.caught_up"))
        assert [one["client_id"] for one in harness.events("client.fell_behind")] == ["alice"]
        assert [one["client_id"] for one in harness.events("client.caught_up")] == ["alice"]


async def test_a_filter_whose_start_is_not_known_yet_loses_nothing() -> None:
    async with slow() as harness:
        client = await come(harness)
        await client.subscribe("a/b", 1)
        (subscription,) = harness.gateway.sessions.get("default", "alice").subscriptions.values()
        await publish(harness, *numbers(1, 5))
        starts = [NOT_YET] * 3
        harness.gateway.subscriptions.remove("default", subscription)
        subscription.starts = starts
        harness.gateway.subscriptions.add("default", subscription)
        await publish(harness, b"before")
        at = harness.inbound()[-1]
        starts[:] = [0, 0, 0]
        starts[at.partition] = at.offset + 1
        await publish(harness, *numbers(6, 20))
        assert await client.payloads(20) == numbers(1, 20)
        await client.expect_nothing()


async def test_one_that_goes_live_ahead_of_its_gateway_gets_nothing_twice() -> None:
    log = new_log()
    router = MemoryRouter(log)
    await router.start()
    async with slow(log=log, router=router) as harness:
        client = await come(harness)
        await client.subscribe("a/b", 2)
        await publish(harness, *numbers(1, 20))
        router.pause()
        publisher = await Client.connect(harness.port)
        for number in range(21, 31):
            await publisher.publish("a/b", b"%d" % number, 2)
        await publisher.disconnect()
        assert await client.payloads(30) == numbers(1, 30)
        await until(lambda: is_live(harness))
        await harness.saved()
        client.send(Disconnect())
        await client.expect_end()
        client.close()
        await until(lambda: harness.gateway.sessions.is_idle)
        router.resume()
        await harness.delivered()
        client = await come(harness)
        await until(lambda: is_live(harness))
        await client.expect_nothing()
        await publish(harness, b"31")
        assert await client.payloads(1) == [b"31"]
    await router.close()


async def test_nothing_is_read_while_its_session_may_be_anothers() -> None:
    async with slow() as harness:
        client = await come(harness)
        await client.subscribe("a/b", 1)
        await publish(harness, *numbers(1, 20))
        tick = harness.gateway.renewal.tick
        harness.gateway.renewal.tick = lambda: None  # type: ignore[method-assign]
        doubt_owners(harness)
        assert await client.payloads(5) == numbers(1, 5)  # of its queue
        await client.expect_nothing()
        harness.gateway.renewal.tick = tick  # type: ignore[method-assign]
        assert await client.payloads(15) == numbers(6, 20)
