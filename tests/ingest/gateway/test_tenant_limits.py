"""What all clients of a tenant may have, at all gateways together."""

from functools import partial

import pytest

from ingest.protocol.packets import (
    Pingreq,
    Pingresp,
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
    Will,
)
from ingest.protocol.reason_codes import ConnackReasonCode, SubackReasonCode
from mqlake.records.tenants import TenantLimits
from tests.ingest.gateway.harness import Client, Harness, until
from tests.ingest.gateway.test_limits import limits
from tests.ingest.gateway.test_survival import site
from tests.ingest.gateway.test_tenants import (
    ACME,
    KEPT,
    answer,
    limit,
    say,
    two,
    two_gateways,
)

pytestmark = pytest.mark.anyio

EXCEEDED = SubackReasonCode.QUOTA_EXCEEDED


async def subscribed(client: Client, *filters: str) -> list[SubackReasonCode]:
    client.send(Subscribe(1, [Subscription(one, 0) for one in filters]))
    return list((await client.expect(Suback)).reason_codes)


async def test_a_tenants_clients_have_no_more_subscriptions_than_they_may() -> None:
    async with two() as (harness, acme, beta):
        clients = [await Client.connect(acme, f"c{number}") for number in range(2)]
        assert await subscribed(clients[0], "a", "b") == [0, 0], "before there was a limit"
        await limit(harness, ACME, subscriptions=3)
        assert await subscribed(clients[1], "a", "b") == [0, EXCEEDED]
        other = await Client.connect(beta, "c")
        assert await subscribed(other, *"abcd") == [0] * 4
        await clients[0].disconnect()
        await until(lambda: len(harness.gateway.connections) == 2)
        assert await subscribed(clients[1], "b", "c", "d") == [0, 0, EXCEEDED]


async def test_filters_of_a_tenants_clients_have_no_more_bytes_than_they_may() -> None:
    async with two() as (harness, acme, beta):
        await limit(harness, ACME, session_bytes=10, queued_bytes=1000)
        client = await Client.connect(acme, "a", properties={"receive_maximum": 1})
        assert await subscribed(client, "a/234", "b/2345", "c/234") == [0, EXCEEDED, 0]
        will = Will("w", b"", 0, False)
        refused = await answer(acme, "b", will=will)
        assert refused.reason_code is ConnackReasonCode.QUOTA_EXCEEDED
        other = await Client.connect(beta, "a", will=will)
        assert await subscribed(other, "a/2345", "b/2345") == [0, 0]


async def test_subscriptions_of_clients_that_are_away_count() -> None:
    async with two() as (harness, acme, beta):
        await limit(harness, ACME, subscriptions=4)
        for port in (acme, beta):
            away = await Client.connect(port, "away", properties=KEPT)
            assert await subscribed(away, "a", "b", "c") == [0, 0, 0]
            await away.disconnect()
        full = partial(harness.gateway.shared_limits.full, "subscriptions", ACME, None)
        await until(lambda: full(2))
        client = await Client.connect(acme, "here")
        assert await subscribed(client, "a", "b") == [0, EXCEEDED]
        back = await Client.connect(acme, "away", clean_start=False, properties=KEPT)
        await until(lambda: not full(0))
        assert await subscribed(back, "a", "d") == [0, EXCEEDED], "each counts once"
        back.send(Unsubscribe(2, ["b"]))
        await back.expect(Unsuback)
        assert await subscribed(back, "d", "e") == [0, EXCEEDED]


async def test_a_tenants_clients_are_let_in_no_more_often_than_they_may() -> None:
    async with two() as (harness, acme, beta):
        await limit(harness, ACME, connects_per_second=2)
        codes = [(await answer(acme, f"c{number}")).reason_code for number in range(5)]
        assert ConnackReasonCode.CONNECTION_RATE_EXCEEDED in codes
        assert codes[:2] == [0, 0]
        for number in range(5):
            assert (await answer(beta, f"c{number}")).reason_code == 0


async def retained_limit(harness: Harness, **limits: int) -> None:
    await limit(harness, ACME, **limits)


async def put(client: Client, topic_name: str, payload: bytes, qos: int) -> int:
    """Publish with RETAIN; return the reason code."""
    packet_id = client.next_packet_id() if qos else 0
    client.send(Publish(topic_name, payload, qos, True, packet_id=packet_id))
    if not qos:
        client.send(Pingreq())
        await client.expect(Pingresp)
        return 0
    answered: Puback | Pubrec = await client.expect(Puback if qos == 1 else Pubrec)
    if qos == 2 and answered.reason_code < 0x80:
        client.send(Pubrel(packet_id))
        await client.expect(Pubcomp)
    return int(answered.reason_code)


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_tenant_has_no_more_retained_messages_than_it_may(level: int, qos: int) -> None:
    async with two() as (harness, acme, beta):
        await retained_limit(harness, retained_messages=2)
        client = await Client.connect(acme, "says", level=level)
        assert [await put(client, topic, b"1", qos) for topic in "ab"] == [0, 0]
        refused = 0x97 if level == 5 and qos else 0
        assert await put(client, "c", b"1", qos) == refused
        await until(lambda: harness.counters.dropped_retained_full == 1)
        await until(lambda: harness.gateway.retained.usage(ACME)[0] == 2)
        assert [await put(client, topic, b"2", qos) for topic in "ab"] == [0, 0], "in its place"
        assert len(harness.inbound()) == 4, "what was refused is nowhere"
        other = await Client.connect(beta, "says", level=level)
        assert [await put(other, topic, b"1", qos) for topic in "abcd"] == [0] * 4
        late = await Client.connect(acme, "late")
        await late.subscribe("#", 0)
        assert {(await late.message()).payload for _ in range(2)} == {b"2"}
        await late.expect_nothing()
        # What is removed makes room, as soon as it does not count as on its way.
        assert await put(client, "a", b"", qos) == 0
        await until(lambda: harness.gateway.retained.usage(ACME)[0] == 1)


async def test_a_tenant_has_no_more_retained_bytes_than_it_may() -> None:
    async with two() as (harness, acme, _):
        await retained_limit(harness, retained_bytes=1000)
        client = await Client.connect(acme, "says")
        assert await put(client, "a", bytes(600), 1) == 0
        assert await put(client, "b", bytes(600), 1) == 0x97
        await until(lambda: harness.gateway.retained.usage(ACME)[1] == 601)
        assert await put(client, "a", bytes(500), 1) == 0, "it takes less room than before"
        assert await put(client, "t" * 600, b"1", 1) == 0x97, "names of topics count"


async def test_what_is_not_retained_may_go_to_subscribers_all_the_same() -> None:
    settings = limits(when_retained_full="forward")
    async with two(**settings) as (harness, acme, _):
        await retained_limit(harness, retained_messages=1)
        hears = await Client.connect(acme, "hears")
        await hears.subscribe("#", 1)
        client = await Client.connect(acme, "says")
        assert [await put(client, topic, topic.encode(), 1) for topic in "ab"] == [0, 0]
        assert sorted(await hears.payloads(2)) == [b"a", b"b"]
        assert harness.counters.dropped_retained_full == 1
        late = await Client.connect(acme, "late")
        await late.subscribe("#", 1)
        assert (await late.message()).payload == b"a"
        await late.expect_nothing()


async def test_a_will_finds_no_room_either() -> None:
    async with two() as (harness, acme, _):
        await retained_limit(harness, retained_messages=1)
        client = await Client.connect(acme, "says")
        assert await put(client, "a", b"1", 1) == 0
        hears = await Client.connect(acme, "hears")
        await hears.subscribe("will", 1)
        mortal = await Client.connect(acme, "mortal", will=Will("will", b"gone", 1, True))
        mortal.cut()
        assert (await hears.message()).payload == b"gone"
        await until(lambda: harness.counters.dropped_retained_full == 1)
        late = await Client.connect(acme, "late")
        await late.subscribe("will", 1)
        await late.expect_nothing()


async def test_two_gateways_count_what_is_retained_together() -> None:
    async with site() as (log, router):
        say(log, ACME, limits=TenantLimits(retained_messages=20))
        async with two_gateways(log, router) as (ports, opened):
            clients = [await Client.connect(port, f"c{port}") for port in ports]
            for number, client in enumerate(clients):
                for topic in range(10):
                    assert await put(client, f"{number}/{topic}", b"1", 1) == 0
            for one in opened:
                full = one.shared_limits.full
                await until(partial(full, "retained_messages", ACME, None, 1))
            for client in clients:
                assert await put(client, "further", b"1", 1) == 0x97
