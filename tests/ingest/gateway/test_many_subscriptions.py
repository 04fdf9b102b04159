"""Sessions with more subscriptions than their record holds: the rest have records of their own."""

import json
from collections import Counter
from collections.abc import Iterable

import pytest

from ingest.gateway.sessions import client_session
from ingest.protocol.packets import Disconnect, Suback, Subscribe, Subscription, Unsubscribe
from ingest.protocol.properties import Properties
from ingest.session.shard.subscription_records import MOST_IN_SESSION
from mqlake.log.memory import MemoryLog
from mqlake.records.messages import SESSIONS
from mqlake.records.sessions import (
    decode_session,
    decode_subscription_record,
    session_key,
    subscription_key,
)
from mqlake.records.versions import RECORD_VERSION
from tests.ingest.gateway.harness import (
    Client,
    Harness,
    MemoryRouter,
    new_log,
    running_gateway,
    until,
)

pytestmark = pytest.mark.anyio

NEVER: Properties = {"session_expiry_interval": 0xFFFF_FFFF}
KEY = ("default", "alice")
MANY = MOST_IN_SESSION + 8


async def use_records(*harnesses: Harness) -> None:
    """Wait until the version of this release is in force."""
    await until(lambda: all(one.gateway.peers.version == RECORD_VERSION for one in harnesses))


async def alice(harness: Harness, *, is_known: bool, clean_start: bool = False) -> Client:
    client = await Client.open(harness.port)
    connack = await client.handshake("alice", clean_start=clean_start, properties=NEVER)
    assert (connack.reason_code, connack.session_present) == (0, is_known)
    return client


def filters(count: int, first: int = 0) -> list[str]:
    return [f"plant/{number}/temperature" for number in range(first, first + count)]


async def subscribe(client: Client, topic_filters: Iterable[str]) -> None:
    for topic_filter in topic_filters:
        await client.subscribe(topic_filter, 1)


async def subscribe_at_once(client: Client, topic_filters: list[str]) -> None:
    # Without retained messages: what of them is owed is one record.
    asked = [Subscription(one, 1, retain_handling=2) for one in topic_filters]
    client.send(Subscribe(client.next_packet_id(), asked, {}))
    assert (await client.expect(Suback)).reason_codes == [1] * len(asked)


def stored(log: MemoryLog) -> tuple[set[str], set[str]]:
    """Return what the last records of alice's session have: in it, and by themselves."""
    last = {one.key: one.value for one in log.records(SESSIONS)}
    session = last.get(session_key(*KEY))
    inside = (
        set()
        if session is None
        else {one.topic_filter for one in decode_session(session).subscriptions}
    )
    prefix = subscription_key(*KEY, "")
    own = {
        key[len(prefix) :].decode()
        for key, value in last.items()
        if key and value and key.startswith(prefix)
    }
    return inside, own


async def test_what_a_session_does_not_hold_has_its_own_record() -> None:
    async with running_gateway() as harness:
        await use_records(harness)
        client = await alice(harness, is_known=False)
        await subscribe(client, filters(MANY))
        inside, own = stored(harness.log)
        assert inside == set(filters(MOST_IN_SESSION))
        assert own == set(filters(MANY)) - inside
        record = next(
            one
            for one in harness.log.records(SESSIONS)
            if one.key == subscription_key(*KEY, filters(MANY)[-1])
        )
        found = decode_subscription_record(record.value or b"")
        assert found.session_id == harness.gateway.sessions.get(*KEY).session_id
        # The record that comes when it leaves says how many more there are.
        await client.disconnect()
        await until(lambda: last_session(harness.log)["connected"] is False)
        assert last_session(harness.log)["more"] == MANY - MOST_IN_SESSION


def last_session(log: MemoryLog) -> dict[str, object]:
    values = [one.value for one in log.records(SESSIONS) if one.key == session_key(*KEY)]
    found: dict[str, object] = json.loads(values[-1] or b"{}")
    return found


async def test_what_a_subscribe_writes_does_not_grow() -> None:
    async with running_gateway() as harness:
        await use_records(harness)
        client = await alice(harness, is_known=False)
        sizes = []
        for first in range(0, 800, 200):
            ends = [one.end for one in harness.log.partitions(SESSIONS)]
            await subscribe(client, filters(200, first))
            new = [
                one for one in harness.log.records(SESSIONS) if one.offset >= ends[one.partition]
            ]
            sizes.append(sum(len(one.key or b"") + len(one.value or b"") for one in new))
        assert sizes[3] < 1.1 * sizes[1] < 200 * 1_000
        for first in range(800, 10_800, 2_000):
            await subscribe_at_once(client, filters(2_000, first))
        client.cut()
        await until(lambda: not harness.gateway.sessions.connected_count)
        client = await alice(harness, is_known=True)
        assert set(harness.gateway.sessions.get(*KEY).subscriptions) == set(filters(10_800))
        publisher = await Client.connect(harness.port, "publisher")
        for number in (0, 5_678, 10_799):
            await publisher.publish(f"plant/{number}/temperature", b"%d" % number, 1)
        assert await client.payloads(3) == [b"0", b"5678", b"10799"]


async def test_another_gateway_gets_all_of_them_in_pages() -> None:
    log = new_log()
    router = MemoryRouter(log)
    await router.start()
    async with (
        running_gateway(name="gateway-1", log=log, router=router) as one,
        running_gateway(name="gateway-2", log=log, router=router) as two,
    ):
        await use_records(one, two)
        client = await alice(one, is_known=False)
        wanted = filters(1_000)
        await subscribe_at_once(client, wanted)
        for harness in (two, one, two):
            taken = await alice(harness, is_known=True)
            assert set(harness.gateway.sessions.get(*KEY).subscriptions) == set(wanted)
        await taken.unsubscribe(wanted[0])
        await taken.unsubscribe(wanted[-1])
        await taken.disconnect()
        await alice(one, is_known=True)
        assert set(one.gateway.sessions.get(*KEY).subscriptions) == set(wanted[1:-1])
    await router.close()


async def test_an_unsubscribed_filter_has_no_record() -> None:
    async with running_gateway() as harness:
        await use_records(harness)
        client = await alice(harness, is_known=False)
        await subscribe(client, filters(MANY))
        for topic_filter in filters(2, MANY - 2):
            await client.unsubscribe(topic_filter)
        assert stored(harness.log)[1] == set(filters(MANY - MOST_IN_SESSION - 2, MOST_IN_SESSION))
        await client.unsubscribe(filters(1)[0])
        await client.subscribe("in/its/place", 1)  # the session has room again
        inside, own = stored(harness.log)
        assert inside == {*filters(MOST_IN_SESSION - 1, 1), "in/its/place"}
        assert len(own) == MANY - MOST_IN_SESSION - 2
        # Other options of one that has a record of its own are written there.
        last = filters(1, MOST_IN_SESSION)[0]
        await client.subscribe(last, 2)
        client.cut()
        await until(lambda: not harness.gateway.sessions.connected_count)
        await alice(harness, is_known=True)
        session = harness.gateway.sessions.get(*KEY)
        assert session.subscriptions[last].qos == 2
        assert set(session.subscriptions) == inside | own


async def test_a_session_that_ends_leaves_no_records() -> None:
    async with running_gateway() as harness:
        await use_records(harness)
        client = await alice(harness, is_known=False)
        await subscribe(client, filters(MANY))
        await client.disconnect()
        again = await alice(harness, is_known=False, clean_start=True)
        await subscribe(again, filters(MANY, 10))
        expected = set(filters(MANY, 10))
        await until(lambda: set.union(*stored(harness.log)) == expected)
        await again.disconnect(Disconnect(properties={"session_expiry_interval": 0}))
        await until(lambda: stored(harness.log) == (set(), set()))
        await alice(harness, is_known=False)


async def test_a_wide_filter_has_its_own_record_sooner() -> None:
    async with running_gateway() as harness:
        await use_records(harness)
        client = await alice(harness, is_known=False)
        wide = [f"{letter * 3000}" for letter in "abc"]
        await subscribe(client, [*wide, "narrow"])
        assert stored(harness.log) == ({wide[0], "narrow"}, set(wide[1:]))


async def test_a_session_of_an_earlier_release_moves_out_of_its_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Gateways side by side are of two releases: take the last one for that which began with it.
    monkeypatch.setattr(client_session, "OWN_RECORDS_SINCE", RECORD_VERSION)
    log = new_log()
    router = MemoryRouter(log)
    await router.start()
    wanted = filters(600)
    old = RECORD_VERSION - 1
    async with (
        running_gateway(name="gateway-1", log=log, router=router, records=old) as before,
        running_gateway(name="gateway-2", log=log, router=router) as after,
    ):
        for harness, first in ((before, 0), (after, 300)):
            client = await alice(harness, is_known=first > 0)
            await subscribe_at_once(client, filters(300, first))
            await client.disconnect()
        await until(lambda: last_session(log)["connected"] is False)
        assert stored(log) == (set(wanted), set())
    async with running_gateway(name="gateway-2", log=log, router=router) as after:
        await use_records(after)
        counts = Counter[int]()
        for _ in range(3):
            client = await alice(after, is_known=True)
            assert set(after.gateway.sessions.get(*KEY).subscriptions) == set(wanted)
            await client.disconnect()
            await until(lambda: last_session(log)["connected"] is False)
            inside, own = stored(log)
            assert inside | own == set(wanted)
            counts[len(inside)] += 1
        assert counts == {100: 1, MOST_IN_SESSION: 2}  # so many at once, no more
    await router.close()


async def test_a_crash_between_two_records_loses_nothing_that_was_acknowledged() -> None:
    log = new_log()
    router = MemoryRouter(log)
    await router.start()
    async with running_gateway(name="gateway-2", log=log, router=router) as other:
        async with running_gateway(name="gateway-1", log=log, router=router) as first:
            await use_records(first, other)
            client = await alice(first, is_known=False)
            await subscribe(client, filters(MANY))
            # Some of a packet's records reach the log, and then there is no gateway any more.
            asked = [Subscription(one, 1) for one in filters(50, MANY)]
            client.send(Subscribe(client.next_packet_id(), asked, {}))
            client.send(Unsubscribe(client.next_packet_id(), filters(1, MOST_IN_SESSION)))
            await until(lambda: set.union(*stored(log)) - set(filters(MANY)))
            await first.kill()
        await alice(other, is_known=True)
        found = set(other.gateway.sessions.get(*KEY).subscriptions)
        assert set(filters(MANY)) - found <= set(filters(1, MOST_IN_SESSION))
        assert found <= set(filters(MANY + 50))
    await router.close()
