"""Deliveries of a gateway that nobody confirms: bounded in memory, read again, none twice."""

import asyncio
from typing import Any

import pytest

from ingest.gateway.base.drops import DropReason
from ingest.gateway.log import withheld
from ingest.gateway.log.withheld import Withheld
from ingest.gateway.process.control import Control
from ingest.protocol.packets import Pingreq, Pingresp, Puback, Pubcomp, Publish, Pubrec, Pubrel
from mqlake.records.messages import CONTROL_KEY_PREFIX, INBOUND, LogRecord, delivery_topic
from tests.ingest.gateway.harness import (
    DEADLINE_SECONDS,
    NAME,
    Client,
    Harness,
    doubt_owners,
    running_gateway,
    turns,
    until,
)

pytestmark = [pytest.mark.promise, pytest.mark.anyio]

MOST = 10
BYTES = 1_000


@pytest.fixture(autouse=True)
def _scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(withheld, "MOST_RECORDS", MOST)
    monkeypatch.setattr(withheld, "MOST_BYTES", BYTES)


def record(offset: int, size: int = 1) -> LogRecord:
    return LogRecord(0, offset, 0, b"default/a", bytes(size), [])


def offsets(held: Withheld) -> list[int]:
    return [one.offset for one in held.take()]


def test_what_fits_waits_in_its_order() -> None:
    held = Withheld()
    assert held.is_empty
    for offset in range(5, 5 + MOST):
        held.add(record(offset))
    assert not held.is_empty
    assert held.gap is None
    assert offsets(held) == [*range(5, 5 + MOST)]
    assert held.is_empty


@pytest.mark.parametrize(("count", "size"), [(MOST + 1, 1), (2, BYTES // 2)])
def test_what_does_not_fit_is_a_gap_and_takes_no_memory(count: int, size: int) -> None:
    held = Withheld()
    for offset in range(5, 5 + count):
        held.add(record(offset, size))
    assert held.gap == (5, 5 + count)
    assert held.size == 0
    assert not held.is_empty


def test_records_wait_behind_a_gap_until_it_was_read() -> None:
    held = Withheld()
    for offset in range(MOST + 3):
        held.add(record(offset))
    assert held.gap == (0, MOST + 1)
    held.passed(4)
    assert held.gap == (4, MOST + 1)
    held.passed(MOST + 1)
    assert held.gap is None
    assert offsets(held) == [MOST + 1, MOST + 2]


def test_a_gap_that_is_read_grows_by_what_does_not_fit_behind_it() -> None:
    held = Withheld()
    for offset in range(MOST + 1):
        held.add(record(offset))
    held.passed(7)
    for offset in range(MOST + 1, 2 * MOST + 2):
        held.add(record(offset))
    assert held.gap == (7, 2 * MOST + 2)
    held.passed(2 * MOST + 2)
    assert held.is_empty


@pytest.mark.parametrize("count", [1, MOST, MOST + 1, 5 * MOST, 20 * MOST])
async def test_all_that_came_meanwhile_is_handed_over_in_order_and_once(count: int) -> None:
    async with running_gateway() as harness:
        client = await subscriber(harness)
        doubt(harness)
        await publish(harness, range(count))
        await harness_has_read(harness)
        assert harness.gateway.delivery.withheld_bytes <= BYTES
        await client.expect_nothing()
        settle(harness)
        await publish(harness, range(count, count + 3))
        assert await client.payloads(count + 3) == numbers(count + 3)
        await client.expect_nothing()
        assert not harness.task.done()


async def test_a_control_record_behind_the_deliveries_settles_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness: Harness
    monkeypatch.setattr(Control, "process", lambda *_: settle(harness))
    async with running_gateway() as harness:
        client = await subscriber(harness)
        doubt(harness)
        await publish(harness, range(5 * MOST))
        await harness_has_read(harness)
        harness.deliver(CONTROL_KEY_PREFIX + b"confirm", b"x", [])
        assert await client.payloads(5 * MOST) == numbers(5 * MOST)
        await client.expect_nothing()


async def test_control_records_among_them_act_once(monkeypatch: pytest.MonkeyPatch) -> None:
    acted: list[bytes] = []
    monkeypatch.setattr(Control, "process", lambda _self, _action, value: acted.append(value))
    async with running_gateway() as harness:
        client = await subscriber(harness)
        doubt(harness)
        await publish(harness, range(2 * MOST))
        harness.deliver(CONTROL_KEY_PREFIX + b"confirm", b"once", [])
        await publish(harness, range(2 * MOST, 4 * MOST))
        await harness_has_read(harness)
        settle(harness)
        assert await client.payloads(4 * MOST) == numbers(4 * MOST)
        assert acted == [b"once"]


async def test_reading_again_stops_when_it_is_in_doubt_again() -> None:
    async with running_gateway() as harness:
        client = await subscriber(harness)
        doubt(harness)
        await publish(harness, range(5 * MOST))
        await harness_has_read(harness)
        settle(harness)
        doubt(harness)  # before anything was read
        await turns(20)
        await client.expect_nothing()
        settle(harness)
        assert await client.payloads(5 * MOST) == numbers(5 * MOST)
        await client.expect_nothing()


@pytest.mark.parametrize("left", [0, 1, MOST], ids=lambda left: f"{left} left")
async def test_what_the_log_has_removed_meanwhile_comes_from_where_it_was_published(
    left: int,
) -> None:
    """As for a client that was away, and the gateway goes on."""
    async with running_gateway() as harness:
        client = await subscriber(harness)
        await publish(harness, range(1))
        doubt(harness)
        await publish(harness, range(1, 2 * MOST))
        await harness_has_read(harness)
        remove_deliveries(harness, left)
        settle(harness)
        await publish(harness, range(2 * MOST, 2 * MOST + 3))
        assert await client.payloads(2 * MOST + 3) == numbers(2 * MOST + 3)
        await client.expect_nothing()
        assert not harness.task.done()
        assert not has_dropped(harness)
        await until(lambda: not len(harness.gateway.slow_clients))
        await publish(harness, range(3))  # live again
        assert await client.payloads(3) == numbers(3)


async def test_a_client_is_told_alone_of_what_is_nowhere_any_more() -> None:
    async with running_gateway() as harness:
        await subscriber(harness)
        late = await Client.connect(harness.port, "without subscriptions")
        doubt(harness)
        await publish(harness, range(2 * MOST))
        await harness_has_read(harness)
        remove_deliveries(harness, 1)
        for partition, entry in enumerate(harness.log.partitions(INBOUND)):
            harness.log.remove_before(INBOUND, partition, entry.end)
        settle(harness)
        await until(lambda: harness.counters.dropped_unreadable)
        await until(lambda: harness.events("message.dropped"))
        assert {one["client_id"] for one in harness.events("message.dropped")} == {"alice"}
        assert not harness.task.done()
        await late.disconnect()


async def test_a_subscription_of_qos_0_goes_on_and_is_told() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("a", 0)
        doubt(harness)
        await publish(harness, range(2 * MOST))
        await harness_has_read(harness)
        remove_deliveries(harness, 1)
        settle(harness)
        await until(lambda: harness.counters.dropped_unreadable)
        await publish(harness, range(3))
        assert await client.payloads(3) == numbers(3)


async def test_retained_messages_are_read_anew() -> None:
    async with running_gateway() as harness:
        await subscriber(harness)
        publisher = await Client.connect(harness.port)
        await publisher.publish("r", b"old", 1, retain=True)
        await harness.delivered()
        doubt(harness)
        await publisher.publish("r", b"new", 1, retain=True)
        await publish(harness, range(2 * MOST))
        await harness_has_read(harness)
        remove_deliveries(harness, 0)
        settle(harness)
        await until(lambda: harness.gateway.delivered.gone_at_ms is None)
        await until(lambda: harness.gateway.retained_shards.is_settled)
        client = await Client.connect(harness.port, "late")
        await client.subscribe("r", 1)
        assert await client.payloads(1) == [b"new"]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("left", [0, 1, MOST], ids=lambda left: f"{left} left")
async def test_a_share_group_goes_on_in_order(left: int, qos: int) -> None:
    """Its routes tell which messages were given to this gateway."""
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("$share/g/a", qos)
        await publish(harness, range(1), qos)
        assert await take(client, 1) == numbers(1)
        doubt(harness)
        await publish(harness, range(1, 2 * MOST), qos)
        await harness_has_read(harness)
        remove_deliveries(harness, left)
        settle(harness)
        await publish(harness, range(2 * MOST, 2 * MOST + 3), qos)
        assert await take(client, 2 * MOST + 2) == numbers(2 * MOST + 3)[1:]
        await publish(harness, range(3), qos)  # live again
        assert await take(client, 3) == numbers(3)
        assert await take(client, 0) == []
        assert not harness.task.done()
        assert not has_dropped(harness)


async def test_a_share_group_is_told_what_is_nowhere_any_more() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("$share/g/a", 1)
        doubt(harness)
        await publish(harness, range(2 * MOST))
        await harness_has_read(harness)
        remove_deliveries(harness, 1)
        for partition, entry in enumerate(harness.log.partitions(INBOUND)):
            harness.log.remove_before(INBOUND, partition, entry.end)
        settle(harness)
        await until(lambda: harness.counters.dropped_unreadable)
        await publish(harness, range(3))
        assert await take(client, 3) == numbers(3)
        assert not harness.task.done()


async def test_a_share_group_of_qos_0_goes_on_and_is_told() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("$share/g/a", 0)
        doubt(harness)
        await publish(harness, range(2 * MOST), 0)
        await until(lambda: len(harness.inbound()) == 2 * MOST)
        await harness_has_read(harness)
        remove_deliveries(harness, 1)
        settle(harness)
        await until(lambda: harness.counters.dropped_unreadable == 2 * MOST)
        await publish(harness, range(3), 0)
        assert await client.payloads(3) == numbers(3)


async def test_members_that_come_while_it_is_found_out_lose_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their gateway has a route for them before it knows where it goes on."""
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("$share/g/a", 1)
        doubt(harness)
        await publish(harness, range(2 * MOST))
        await harness_has_read(harness)
        remove_deliveries(harness, 1)
        may_go_on = asyncio.Event()
        missed = harness.gateway.share_groups.missed

        async def late(*args: Any) -> Any:
            found = await missed(*args)
            await may_go_on.wait()
            return found

        monkeypatch.setattr(harness.gateway.share_groups, "missed", late)
        settle(harness)
        await turns(20)
        (membership,) = harness.gateway.share_groups.memberships.values()
        noticed_at_ms = harness.gateway.delivered.gone_at_ms
        assert membership.snapshot().at_ms == noticed_at_ms is not None
        monkeypatch.undo()
        bob = await Client.connect(harness.port, "bob")
        subscribing = asyncio.create_task(bob.subscribe("$share/h/a", 1))
        await turns(20)
        may_go_on.set()
        await subscribing
        await publish(harness, range(2 * MOST, 2 * MOST + 3))
        assert await take(client, 2 * MOST + 3) == numbers(2 * MOST + 3)
        assert (await take(bob, 3))[-3:] == numbers(2 * MOST + 3)[-3:]


def remove_deliveries(harness: Harness, left: int) -> None:
    """Have the log remove what waits for a gateway, but for so many records."""
    topic = delivery_topic(NAME)
    harness.log.remove_before(topic, 0, harness.log.partitions(topic)[0].end - left)


async def subscriber(harness: Harness) -> Client:
    client = await Client.connect(harness.port, "alice")
    await client.subscribe("a", 1)
    return client


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def take(client: Client, count: int) -> list[bytes]:
    """Return payloads of so many messages of any QoS, and of those that come with them."""
    found: list[bytes] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(found) < count or not count:
            packets = await exchange(client)
            found += packets
            if not count and not packets:
                break
    return found


async def exchange(client: Client) -> list[bytes]:
    """Answer what has come, until the gateway has answered a ping."""
    found: list[bytes] = []
    client.send(Pingreq())
    while not isinstance(packet := await client.receive(), Pingresp):
        match packet:
            case Publish(qos=1):
                client.send(Puback(packet.packet_id))
            case Publish(qos=2):
                client.send(Pubrec(packet.packet_id))
            case Pubrel():
                client.send(Pubcomp(packet.packet_id))
        if isinstance(packet, Publish):
            found.append(packet.payload)
    await asyncio.sleep(0)
    return found


async def publish(harness: Harness, payloads: range, qos: int = 1) -> None:
    publisher = await Client.connect(harness.port)
    for number in payloads:
        await publisher.publish("a", b"%d" % number, qos)
    await publisher.disconnect()


async def harness_has_read(harness: Harness) -> None:
    """Wait until the gateway has been handed all that is in its delivery topic."""
    inbound = len(harness.inbound())
    topic = delivery_topic(NAME)

    def messages() -> int:
        return sum((one.key or b"").startswith(b"default/") for one in harness.log.records(topic))

    await until(lambda: messages() == inbound)
    reader: Any = harness.gateway.reader
    await until(lambda: reader.positions[0] == harness.log.partitions(topic)[0].end)


def has_dropped(harness: Harness) -> bool:
    counters = harness.counters
    return any(getattr(counters, f"dropped_{one.value}") for one in DropReason)


def doubt(harness: Harness) -> None:
    """Have nobody say which sessions are this gateway's."""
    doubt_owners(harness)
    harness.gateway.renewal.tick = lambda: None  # type: ignore[method-assign]


def settle(harness: Harness) -> None:
    harness.gateway.lease.assure()
    harness.gateway.delivery.confirmed()
