"""Share groups over gateways: every message goes to a member, whoever leaves, in whatever way."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from ingest.gateway.clients.draining import Drain
from ingest.gateway.history import gaps
from ingest.gateway.history.catching_up import CatchingUp
from ingest.gateway.history.gaps import Gap
from ingest.gateway.lake.exchange import HistoryPage
from ingest.gateway.sending.progress import SessionProgress
from ingest.gateway.sharing import share_membership
from ingest.gateway.sharing.share_membership import ShareMembership
from ingest.protocol.packets import (
    Disconnect,
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
)
from ingest.protocol.reason_codes import DisconnectReasonCode, SubackReasonCode
from ingest.session.groups.share_acts import KEPT
from ingest.session.groups.share_records import (
    MembershipRecord,
    MembershipState,
    decode_membership,
    decode_membership_key,
)
from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.log.memory import MemoryLog
from mqlake.records.federation import FEDERATION
from mqlake.records.messages import (
    FLAG_UNSHARED,
    HEADER_CLIENT_ID,
    HEADER_ORIGIN,
    INBOUND,
    ROUTES,
    ROUTES_IN_FORCE,
    SESSIONS,
    LogRecord,
    Route,
    delivery_topic,
    group_header,
    is_message,
    mqtt_header,
    route_key,
)
from mqlake.records.shards import MEMBERSHIP
from mqlake.records.versions import HEADER_MQTT
from tests.ingest.gateway.harness import (
    DEADLINE_SECONDS,
    PARTITIONS,
    Client,
    Harness,
    doubt_owners,
    new_log,
    running_gateway,
    turns,
    until,
)
from tests.ingest.gateway.test_survival import (
    FIRST,
    NEVER,
    SECOND,
    die_out,
    reading_nothing,
    seconds_pass,
    site,
)

if TYPE_CHECKING:
    from ingest.protocol.properties import Properties

pytestmark = pytest.mark.anyio

SHARED = "$share/g/a/#"


@contextlib.asynccontextmanager
async def two_gateways() -> AsyncIterator[tuple[Harness, Harness]]:
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=FIRST) as first,
        running_gateway(log=log, router=router, name=SECOND) as second,
    ):
        both = (first.gateway, second.gateway)
        await until(lambda: all(one.peers.are_there for one in both))
        yield first, second
        await end(first, second)


async def end(*gateways: Harness) -> None:
    """Kill the gateways of a test: one that leaves waits until another takes over."""
    for one in gateways:
        await one.kill()


async def member(harness: Harness, client_id: str, qos: int = 1, *, kept: bool = False) -> Client:
    client = await Client.open(harness.port)
    properties: Properties = NEVER if kept else {}
    connack = await client.handshake(client_id, clean_start=not kept, properties=properties)
    if not connack.session_present:
        await client.subscribe(SHARED, qos)
    return client


async def publish(harness: Harness, count: int, qos: int = 1, *, first: int = 0) -> list[bytes]:
    """Publish numbered messages over several topics."""
    publisher = await Client.connect(harness.port, "publisher")
    payloads = [b"%d" % number for number in range(first, first + count)]
    for payload in payloads:
        await publisher.publish(f"a/{int(payload) % 7}", payload, qos)
    await publisher.disconnect()
    return payloads


async def drain(client: Client) -> list[Publish]:
    """Take and acknowledge what has come up to now."""
    found: list[Publish] = []
    client.send(Pingreq())
    while not isinstance(packet := await client.receive(), Pingresp):
        assert isinstance(packet, Publish), packet
        found.append(packet)
        client.send(Puback(packet.packet_id))
    return found


async def take(client: Client) -> list[Publish]:
    """Take what has come up to now, and go through each exchange up to PUBREC."""
    found: list[Publish] = []
    client.send(Pingreq())
    while not isinstance(packet := await client.receive(), Pingresp):
        if isinstance(packet, Publish):
            found.append(packet)
            answer = Puback if packet.qos == 1 else Pubrec
            client.send(answer(packet.packet_id))
        elif isinstance(packet, Pubrel):
            client.send(Pubcomp(packet.packet_id))
    return found


async def collect(count: int, *clients: Client) -> list[bytes]:
    """Take messages from all clients until there are so many."""
    found: list[bytes] = []

    async def are_here() -> bool:
        for client in clients:
            found.extend(one.payload for one in await drain(client))
        return len(found) >= count

    await until(are_here)
    return found


async def take_all(sent: list[bytes], found: list[bytes], *clients: Client) -> None:
    """Take messages from all clients until each that was sent is among those found."""

    async def are_here() -> bool:
        for client in clients:
            found.extend(one.payload for one in await take(client))
        return set(found) >= set(sent)

    await until(are_here)


def memberships(harness: Harness) -> list[MembershipRecord]:
    """Return the memberships of the groups as the log has them."""
    last = {(one.key or b"").decode(): one.value for one in harness.log.records(SESSIONS)}
    return [
        decode_membership(*decode_membership_key(key.removeprefix(f"{MEMBERSHIP}/")), value)
        for key, value in last.items()
        if value is not None and key.startswith(f"{MEMBERSHIP}/")
    ]


async def is_standing(harness: Harness) -> None:
    """Wait until the group has no membership that is not left."""
    await until(
        lambda: (
            memberships(harness)
            and all(one.state is MembershipState.LEFT for one in memberships(harness))
        )
    )


async def test_each_message_goes_to_one_member_of_all_gateways() -> None:
    async with two_gateways() as (first, second):
        clients = [await member(first, "a"), await member(second, "b"), await member(second, "c")]
        sent = await publish(first, 60)
        await first.delivered()
        await second.delivered()
        found = [[one.payload for one in await drain(client)] for client in clients]
        assert sorted(chain.from_iterable(found)) == sorted(sent)
        assert all(found)


async def test_what_a_member_leaves_goes_to_another_gateway() -> None:
    async with two_gateways() as (first, second):
        leaver, stayer = await member(first, "a"), await member(second, "b")
        sent = await publish(second, 40)
        await first.delivered()
        leaver.send(Disconnect())
        await leaver.expect_end()
        assert sorted(await collect(40, stayer)) == sorted(sent)
        await until(lambda: len(memberships(second)) == 1)
        await stayer.expect_nothing()


async def test_a_group_of_absent_members_loses_nothing() -> None:
    async with two_gateways() as (first, second):
        one, other = await member(first, "a", kept=True), await member(second, "b", kept=True)
        before = await publish(second, 20)
        found = await collect(20, one, other)
        await one.disconnect()
        between = await publish(second, 20, first=20)
        found += await collect(20, other)
        await other.disconnect()
        await is_standing(first)
        after = await publish(first, 20, first=40)
        await first.delivered()
        back = await member(first, "b", kept=True)
        found += await collect(20, back)
        more = await publish(first, 5, first=60)
        found += await collect(5, back)
        assert Counter(found) == Counter(before + between + after + more)
        await back.expect_nothing()


async def test_the_group_survives_everything_being_down() -> None:
    async with site() as (log, router):
        async with running_gateway(log=log, router=router, name=FIRST) as first:
            client = await member(first, "a", kept=True)
            sent = await publish(first, 10)
            assert [(await client.expect(Publish)).packet_id for _ in range(10)]
            await first.saved()
            await first.kill()
        async with running_gateway(log=log, router=router, name=SECOND) as second:
            sent += await publish(second, 10, first=10)
        async with running_gateway(log=log, router=router, name=FIRST) as first:
            sent += await publish(first, 10, first=20)
            client = await member(first, "a", kept=True)
            found = await collect(30, client)
            assert Counter(found) == Counter(sent)
            await client.expect_nothing()


@contextlib.asynccontextmanager
async def two_gateways_in_time() -> AsyncIterator[tuple[Harness, Harness, ManualClock]]:
    """The first may be killed; the second then finds it dead when its time has passed."""
    clock = ManualClock()
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=FIRST, clock=clock) as first,
        running_gateway(log=log, router=router, name=SECOND, clock=clock) as second,
    ):
        both = (first.gateway, second.gateway)
        await until(lambda: all(one.peers.are_there for one in both))
        yield first, second, clock
        await end(first, second)


async def kill(victim: Harness) -> None:
    victim.gateway.share_groups.save_all()
    await victim.saved()
    await victim.kill()


async def test_what_a_dead_gateway_was_given_reaches_another_member() -> None:
    async with two_gateways_in_time() as (first, second, clock):
        victim, survivor = await member(first, "a"), await member(second, "b")
        sent = await publish(second, 40)
        await first.delivered()
        found = [one.payload for one in await drain(victim)]
        await kill(first)
        for _ in range(4):  # until the shards of the dead gateway are the other's
            await seconds_pass(clock, second)
        sent += await publish(second, 40, first=40)
        await die_out(clock, second)
        late = await collect(80 - len(found), survivor)
        assert Counter(late + found) == Counter(sent)
        await survivor.expect_nothing()
        assert [one.gateway for one in memberships(second)] == [SECOND]


async def test_marks_pass_no_message_of_a_membership_whose_record_has_timed_out() -> None:
    async with two_gateways_in_time() as (first, second, clock):
        await member(first, "a")
        survivor = await member(second, "b")
        await first.saved()
        with first.timing_out(MEMBERSHIP.encode()) as timed_out:
            sent = await publish(second, 40)
            await first.delivered()
            await first.saved()
            assert timed_out
            await first.kill()
        found = [one.payload for one in await drain(survivor)]
        assert 0 < len(found) < 40
        await die_out(clock, second)
        found += await collect(40 - len(found), survivor)
        assert sorted(found) == sorted(sent)


@pytest.mark.parametrize(("qos", "kept"), [(1, 0), (2, 0), (2, 6)])
async def test_what_a_dead_gateway_was_given_is_not_lost_with_its_deliveries(
    qos: int, kept: int
) -> None:
    """The log had no room for them, or they waited too long; the group lives on elsewhere."""
    async with two_gateways_in_time() as (first, second, clock):
        victim, survivor = await member(first, "a", qos), await member(second, "b", qos)
        sent = await publish(second, 40, qos)
        await first.delivered()
        found = [one.payload for one in await take(victim)]
        assert 0 < len(found) < 40
        await kill(first)
        first.host.hide()
        for _ in range(4):  # until the shards of the dead gateway are the other's
            await seconds_pass(clock, second)
        sent += await publish(second, 40, qos, first=40)
        log, log_topic = first.log, delivery_topic(FIRST)
        log.remove_before(log_topic, 0, log.partitions(log_topic)[0].end - kept)
        await die_out(clock, second)
        late: list[bytes] = []
        while len(late) + len(found) < 80:
            late += [one.payload for one in await take(survivor)]
        assert Counter(late + found) == Counter(sent)
        assert await take(survivor) == []
        assert first.counters.dropped_unreadable == second.counters.dropped_unreadable == 0


async def test_what_is_gone_of_deliveries_that_the_router_repeats_is_not_lost() -> None:
    """Of those that it repeats the log has the last of the first time."""
    async with two_gateways_in_time() as (first, second, clock):
        await member(first, "a", 2)
        survivor = await member(second, "b", 2)
        await first.saved()
        await kill(first)
        first.host.hide()
        for _ in range(4):  # until the shards of the dead gateway are the other's
            await seconds_pass(clock, second)
        sent = await publish(second, 80, 2)
        log, log_topic = first.log, delivery_topic(FIRST)
        await second.delivered()
        again = log.records(log_topic)[-20:]
        for one in again:
            log.store(log_topic, one.key or b"", one.value, one.headers, one.timestamp_ms, 0)
        log.remove_before(log_topic, 0, log.partitions(log_topic)[0].end - len(again) - 1)
        await die_out(clock, second)
        found: list[bytes] = []
        await take_all(sent, found, survivor)
        assert Counter(found) == Counter(sent)
        assert await take(survivor) == []


@pytest.mark.parametrize("qos", [1, 2])
async def test_where_nobody_knows_who_was_given_a_message_it_comes_again_or_is_told(
    qos: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The notes of what was in force are gone, too."""
    async with two_gateways_in_time() as (first, second, clock):
        await member(first, "a", qos)
        survivor = await member(second, "b", qos)
        await kill(first)
        first.host.hide()
        for _ in range(4):  # until the shards of the dead gateway are the other's
            await seconds_pass(clock, second)
        sent = await publish(second, 40, qos)
        log = first.log
        for log_topic in (delivery_topic(FIRST), ROUTES_IN_FORCE):
            log.remove_before(log_topic, 0, log.partitions(log_topic)[0].end)
        await die_out(clock, second)
        seen: list[bytes] = []
        if qos == 1:
            while set(seen) != set(sent):
                seen += [one.payload for one in await take(survivor)]
            assert second.counters.dropped_unreadable == 0
        else:
            await until(lambda: second.counters.dropped_unreadable == 40)
            seen = [one.payload for one in await take(survivor)]
            assert 0 < len(seen) == len(set(seen)) < 40  # those that came to its own gateway
            assert "another member of their share group may have" in caplog.text
        assert await take(survivor) == []


async def test_a_gateway_that_is_back_leaves_the_routes_of_its_parts_to_who_settles_these() -> None:
    async with site() as (log, router):
        async with running_gateway(log=log, router=router, name=FIRST) as first:
            client = await member(first, "a", kept=True)
            await client.subscribe("b", 1)
            await kill(first)
        async with running_gateway(log=log, router=router, name=FIRST) as first:
            routes = {record.key: record for record in first.log.records(ROUTES)}
            shared = routes[route_key(Route(FIRST, "default", SHARED))]
            plain = routes[route_key(Route(FIRST, "default", "b"))]
            assert shared.value is plain.value is None
            # What a run withdraws of itself says by which run.
            assert [len(record.headers) for record in (shared, plain)] == [1, 4]


async def test_a_group_without_kept_sessions_ends_with_its_last_member() -> None:
    async with two_gateways() as (first, second):
        client = await member(first, "a")
        await client.disconnect()
        await until(lambda: not memberships(first) and not memberships(second))
        await publish(second, 5)
        client = await member(second, "a")
        await client.expect_nothing()
        assert await publish(first, 5) == sorted(await collect(5, client))


async def test_qos_2_is_not_sent_to_a_second_client() -> None:
    async with two_gateways() as (first, second):
        one = await member(first, "a", 2)
        sent = await publish(second, 10, 2)
        received = [await one.expect(Publish) for _ in range(10)]
        one.send(Pubrec(received[0].packet_id))
        await one.expect(Pubrel)
        other = await member(second, "b", 2)
        one.cut()
        await until(lambda: first.gateway.sessions.connected_count == 0)
        await until(lambda: len(memberships(second)) == 1)
        await other.expect_nothing()
        assert sorted(message.payload for message in received) == sorted(sent)


class Coming:
    """Members that come and go by chance; each notes what it has acknowledged."""

    def __init__(self, seed: int, gateways: list[Harness]) -> None:
        self.random = Random(seed)
        self.gateways = gateways
        self.clients: dict[str, Client] = {}
        self.acknowledged: Counter[bytes] = Counter()
        self.settled: set[bytes] = set()
        self.doubtful: set[bytes] = set()

    async def save(self) -> None:
        """Let the log know of everything up to now: none of it may come again."""
        for harness in self.gateways:
            harness.gateway.share_groups.save_all()
            await harness.saved()
        self.settled |= set(self.acknowledged) - self.doubtful

    async def come(self, name: str) -> None:
        harness = self.random.choice(self.gateways)
        self.clients[name] = await member(harness, name, kept=name.startswith("kept"))

    async def take(self, name: str, share: float) -> None:
        """Take what has come and acknowledge a part of it, until the gateway has heard of that."""
        answered = await self._answer(name, share)
        while answered:
            answered = await self._answer(name, share if share == 1 else 0)

    async def take_all(self, names: list[str], count: int) -> None:
        """Take and acknowledge until so many messages are."""

        async def are_acknowledged() -> bool:
            for name in names:
                await self.take(name, 1)
            return len(self.acknowledged) >= count

        await until(are_acknowledged)

    async def _answer(self, name: str, share: float) -> int:
        client = self.clients[name]
        client.send(Pingreq())
        answered = 0
        while not isinstance(packet := await client.receive(), Pingresp):
            assert isinstance(packet, Publish), packet
            assert packet.payload not in self.settled
            if self.random.random() < share:
                client.send(Puback(packet.packet_id))
                self.acknowledged[packet.payload] += 1
                answered += 1
        return answered

    async def go(self, name: str) -> None:
        await self.take(name, self.random.choice([0.0, 0.5, 1.0]))
        client = self.clients.pop(name)
        if self.random.random() < 0.5:
            client.send(Disconnect())
            await client.expect_end()
        else:
            client.cut()

    async def step(self, names: list[str]) -> None:
        name = self.random.choice(names)
        if name in self.clients:
            await self.go(name)
        else:
            await self.come(name)


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_is_lost_or_acknowledged_twice_however_members_come_and_go(seed: int) -> None:
    async with two_gateways() as (first, second):
        coming = Coming(seed, [first, second])
        names = ["kept-1", "kept-2", "clean-1", "clean-2", "clean-3"]
        await coming.come("kept-1")
        sent: list[bytes] = []
        for _ in range(25):
            sent += await publish(
                coming.random.choice([first, second]), coming.random.randrange(12), first=len(sent)
            )
            await coming.step(names)
        for name in names:
            if name not in coming.clients:
                await coming.come(name)
        await coming.take_all(names, len(sent))
        for harness in (first, second):
            await harness.delivered()
        for name in names:
            await coming.take(name, 1)
        assert coming.acknowledged == Counter(sent)


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_is_lost_however_gateways_die(seed: int) -> None:
    clock = ManualClock()
    async with (
        site() as (log, router),
        contextlib.AsyncExitStack() as stack,
    ):

        async def start(name: str) -> Harness:
            harness = await stack.enter_async_context(
                running_gateway(log=log, router=router, name=name, clock=clock)
            )
            running.append(harness)
            return harness

        running: list[Harness] = []
        coming = Coming(seed, running)
        names = ["kept-1", "kept-2", "clean-1", "clean-2", "clean-3"]
        third = await start("gateway-3")  # takes what is published
        running.clear()
        for name in (FIRST, SECOND):
            await start(name)
        everybody = [third, *running]
        await until(lambda: all(one.gateway.peers.are_there for one in everybody))
        await coming.come("kept-1")
        sent: list[bytes] = []
        for _ in range(4):
            for _ in range(4):
                sent += await publish(third, coming.random.randrange(15), first=len(sent))
                await coming.step(names)
                if coming.random.random() < 0.7:
                    await coming.save()
            victim = coming.random.choice(running)
            running.remove(victim)
            sent += await publish(third, 10, first=len(sent))
            await victim.kill()
            coming.doubtful |= set(coming.acknowledged) - coming.settled
            for name, client in list(coming.clients.items()):
                if client.writer.get_extra_info("peername")[1] == victim.port:
                    del coming.clients[name]
            if coming.random.random() < 0.5:
                await die_out(clock, third, *running)
            sent += await publish(third, 10, first=len(sent))
            await start(victim.gateway.settings.name)
        await die_out(clock, third, *running)
        for name in names:
            if name not in coming.clients:
                await coming.come(name)
        await coming.take_all(names, len(sent))
        assert set(coming.acknowledged) == set(sent)


async def spread(
    strategy: str, publishers: int = 4, messages: int = 25
) -> dict[str, list[Publish]]:
    """Return what each of three members gets, two of them at one gateway."""
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=FIRST, share_strategy=strategy) as first,
        running_gateway(log=log, router=router, name=SECOND, share_strategy=strategy) as second,
    ):
        members = {
            "a": await member(first, "a"),
            "b": await member(second, "b"),
            "c": await member(second, "c"),
        }
        await until(lambda: sum(one.members for one in router.members.values()) == 3)
        for number in range(publishers):
            publisher = await Client.connect(first.port, f"p{number}")
            for message in range(messages):
                await publisher.publish(f"a/{message % 9}", f"p{number}".encode(), 1)
        await first.delivered()
        await second.delivered()
        found = {name: await drain(client) for name, client in members.items()}
        await end(first, second)
    return found


async def test_round_robin_gives_every_member_the_same_share() -> None:
    found = await spread("round_robin", messages=75)
    assert sum(map(len, found.values())) == 300
    assert all(len(got) == pytest.approx(100, abs=8) for got in found.values())


async def test_sticky_means_one_member_of_the_whole_group() -> None:
    found = await spread("sticky")
    assert [len(got) for got in found.values()] == [100, 0, 0]


@pytest.mark.parametrize("strategy", ["hash_topic", "hash_client_id"])
async def test_a_hash_leads_to_one_member_wherever_it_is(strategy: str) -> None:
    found = await spread(strategy, publishers=9, messages=18)
    taken: dict[object, set[str]] = {}
    for name, got in found.items():
        for one in got:
            key = one.topic_name if strategy == "hash_topic" else one.payload
            taken.setdefault(key, set()).add(name)
    assert len(taken) == 9
    assert all(len(names) == 1 for names in taken.values())
    assert len({name for names in taken.values() for name in names}) > 1


async def test_random_reaches_everybody() -> None:
    found = await spread("random", messages=50)
    assert sum(map(len, found.values())) == 200
    assert all(len(got) > 30 for got in found.values())


@contextlib.contextmanager
def standing_still(harness: Harness) -> Iterator[None]:
    """Have a gateway neither speak nor read, as a stopped process."""
    with reading_nothing(harness), pytest.MonkeyPatch.context() as unheard:
        unheard.setattr(harness.gateway.peers, "send_heartbeat", lambda _: None)
        yield


@pytest.mark.parametrize("known_first", ["sessions", "memberships"])
async def test_a_gateway_taken_for_dead_begins_anew_and_doubles_nothing(known_first: str) -> None:
    """It was only stopped for a while; meanwhile others have got what it was given."""
    async with two_gateways_in_time() as (first, second, clock):
        one, other = await member(first, "a"), await member(second, "b")
        sent = await publish(second, 20)
        await first.delivered()
        found = [message.payload for message in await drain(one)]
        found += [message.payload for message in await drain(other)]
        first.gateway.share_groups.save_all()
        await first.saved()
        await second.delivered()
        go_on: list[Callable[[], None]] = []
        if known_first == "memberships":
            hold_back_sessions(first, go_on)
        with standing_still(first):
            for _ in range(4):  # until the shards of the stopped gateway are the other's
                await seconds_pass(clock, second)
            sent += await publish(second, 30, first=20)
            for _ in range(9):
                await seconds_pass(clock, second)
            found += await collect(50 - len(found), other)
            assert Counter(found) == Counter(sent)
        if known_first == "memberships":
            await until(lambda: go_on and any(has_begun(one, FIRST) for one in memberships(second)))
            go_on[0]()
        await one.expect_disconnect(DisconnectReasonCode.SESSION_TAKEN_OVER)
        one = await member(first, "a")
        await until(lambda: {one.gateway for one in memberships(second)} == {FIRST, SECOND})
        await until(lambda: all(one.state is MembershipState.LIVE for one in memberships(second)))
        await one.expect_nothing()
        again = await publish(second, 30, first=50)
        assert Counter(await collect(30, one, other)) == Counter(again)


def hold_back_sessions(harness: Harness, go_on: list[Callable[[], None]]) -> None:
    """Keep from a gateway that its sessions are known, until it is told to go on."""
    sessions = harness.gateway.sessions
    confirm = sessions.confirm

    def hold_back(on_confirmed: Callable[[], None]) -> None:
        confirm(lambda: go_on.append(on_confirmed))

    sessions.confirm = hold_back  # type: ignore[method-assign]


def has_begun(membership: MembershipRecord, gateway: str) -> bool:
    return (
        membership.gateway == gateway
        and membership.state is MembershipState.JOINING
        and membership.starts is not None
    )


async def test_a_withdrawn_route_comes_back_only_with_a_part() -> None:
    """What the router gives to a gateway between would be nobody's."""
    async with two_gateways_in_time() as (first, second, clock):
        one, leaver = await member(first, "a"), await member(first, "b")
        other = await member(second, "c")
        await until(lambda: all(one.state is MembershipState.LIVE for one in memberships(second)))
        go_on: list[Callable[[], None]] = []
        hold_back_sessions(first, go_on)
        with standing_still(first):
            for _ in range(13):
                await seconds_pass(clock, second)
            await until(lambda: routes_of(first)[-1] is None)
            leaver.cut()
            await until(lambda: len(first.gateway.connections) == 1)
            first.gateway.routes.flush()
            assert routes_of(first)[-1] is None
        await until(lambda: go_on and any(has_begun(one, FIRST) for one in memberships(second)))
        sent = await publish(second, 30)
        first.gateway.routes.flush()
        assert routes_of(first)[-1] is None
        assert Counter(await collect(30, other)) == Counter(sent)
        go_on[0]()
        await one.expect_disconnect(DisconnectReasonCode.SESSION_TAKEN_OVER)
        one = await member(first, "a")
        await until(lambda: routes_of(first)[-1] is not None)
        again = await publish(second, 30, first=30)
        assert Counter(await collect(30, one, other)) == Counter(again)


async def test_an_answer_from_before_a_second_silence_opens_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others may have settled the membership since it was kept."""
    async with two_gateways_in_time() as (first, second, clock):
        one, other = await member(first, "a"), await member(second, "b")
        groups = first.gateway.share_groups
        [membership] = groups.memberships.values()
        await until(lambda: membership.is_written)  # else there is nothing to ask for
        with monkeypatch.context() as unasked:
            unasked.setattr(first.gateway.share_log, "save_membership", lambda *_: None)
            groups.suspend()
            sent = await publish(second, 20)
            await first.delivered()
            assert len(membership.snapshot().open) > 5
            clock.advance(20)
            groups.told(kept_answer(membership))
            # Behind this a membership asks each second, and has its answer.
            await one.expect_nothing()
        for _ in range(3):
            await seconds_pass(clock, first, second)
        assert Counter(await collect(20, one, other)) == Counter(sent)


def kept_answer(membership: ShareMembership) -> dict[str, Any]:
    """Return what the owner of a shard tells a membership that it has."""
    return {
        "do": KEPT,
        "tenant": membership.group.tenant,
        "filter": membership.group.topic_filter,
        "part": membership.standing.membership_id,
        "incarnation": membership.standing.run.incarnation,
        "asks": membership.standing.asks,
    }


def routes_of(harness: Harness) -> list[bytes | None]:
    """Return the values of a gateway's route of the group, in the order of the log."""
    key = route_key(Route(harness.gateway.context.me.gateway, "default", SHARED))
    return [record.value for record in harness.log.records(ROUTES) if record.key == key]


@pytest.mark.parametrize("ending", ["stop", "drain"])
async def test_what_a_gateway_holds_when_it_stops_goes_to_another(ending: str) -> None:
    async with two_gateways() as (first, second):
        leaver, stayer = await member(first, "a"), await member(second, "b")
        sent = await publish(second, 40)
        await first.delivered()
        if ending == "drain":
            first.gateway.draining.begin(Drain())
            await until(lambda: first.gateway.draining.state == "drained")
        else:
            first.stop.set()
            await asyncio.wait([first.task])
        await leaver.expect_end()
        assert Counter(await collect(40, stayer)) == Counter(sent)
        await stayer.expect_nothing()


async def test_the_last_members_of_two_gateways_leave_at_once() -> None:
    async with two_gateways() as (first, second):
        one, other = await member(first, "a", kept=True), await member(second, "b", kept=True)
        sent = await publish(second, 20)
        await first.delivered()
        one.cut()
        other.cut()
        sent += await publish(second, 20, first=20)
        await is_standing(first)
        sent += await publish(second, 20, first=40)
        back = await member(second, "a", kept=True)
        also = await member(first, "b", kept=True)
        assert Counter(await collect(60, back, also)) == Counter(sent)


async def test_limits_of_absent_clients_hold_for_groups() -> None:
    async with (
        site() as (log, router),
        running_gateway(
            log=log,
            router=router,
            name=FIRST,
            max_queued_messages=10,
            when_queue_full="drop_oldest",
        ) as first,
    ):
        client = await member(first, "a", kept=True)
        await client.disconnect()
        await is_standing(first)
        publisher = await Client.connect(first.port, "publisher")
        sent = [b"%d" % number for number in range(30)]
        for payload in sent:
            await publisher.publish("a/b", payload, 1)
            await publisher.publish("a/b", b"QoS 0 does not wait", 0)
        client = await member(first, "a", kept=True)
        assert await collect(10, client) == sent[-10:]
        assert first.counters.dropped_queue_full == 20
        await client.expect_nothing()


async def test_another_member_gets_what_an_expired_session_had_not_acknowledged() -> None:
    clock = ManualClock()
    async with (
        site() as (log, router),
        running_gateway(log=log, router=router, name=FIRST, clock=clock) as first,
    ):
        one = await Client.connect(
            first.port, "a", properties={"session_expiry_interval": 60}, clean_start=True
        )
        await one.subscribe(SHARED, 1)
        sent = await publish(first, 10)
        for _ in range(10):
            await one.expect(Publish)
        one.cut()
        await until(lambda: first.gateway.sessions.connected_count == 0)
        other = await member(first, "b")
        await other.expect_nothing()
        clock.advance(61)
        assert sorted(await collect(10, other)) == sorted(sent)


async def test_a_shared_subscription_to_what_gateways_say_is_refused() -> None:
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "a")
        client.send(Subscribe(1, [Subscription("$share/g/$SYS/#", 0)]))
        codes = (await client.expect(Suback)).reason_codes
        assert codes == [SubackReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED]


@pytest.mark.parametrize("kept", [False, True])
async def test_qos_2_is_sent_to_one_client_though_gateways_die(kept: bool) -> None:
    """What a client was sent is its own; what waited for it goes to another."""
    async with two_gateways_in_time() as (first, second, clock):
        victim = await Client.open(first.port)
        properties: Properties = {"receive_maximum": 5}
        if kept:
            properties["session_expiry_interval"] = 0xFFFF_FFFF
        await victim.handshake("a", clean_start=True, properties=properties)
        await victim.subscribe(SHARED, 2)
        survivor = await member(second, "b", 2)
        sent = await publish(second, 40, 2)
        await first.delivered()
        seen = [await victim.expect(Publish) for _ in range(5)]
        await first.saved()
        await first.kill()
        await die_out(clock, second)
        await until(lambda: {one.gateway for one in memberships(second)} == {SECOND})
        found: list[bytes] = []
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(found) < 35:
                found.append((await survivor.message()).payload)
        await survivor.expect_nothing()
        assert Counter(found) + Counter(one.payload for one in seen) == Counter(sent)
        if kept:
            back = await Client.open(second.port)
            connack = await back.handshake("a", clean_start=False, properties=NEVER)
            assert connack.session_present
            again = [await back.message() for _ in range(5)]
            assert [one.payload for one in again] == [one.payload for one in seen]
            assert all(one.dup for one in again)
            await back.expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_a_session_was_given_and_its_progress_does_not_know_goes_to_others(
    qos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway dies when the shard of the group has what is in flight, and no other has."""
    async with two_gateways_in_time() as (first, second, clock):
        victim, survivor = await member(first, "a", qos, kept=True), await member(second, "b", qos)
        sent = await publish(second, 20, qos)
        await first.delivered()
        found = [one.payload for one in await take(victim)]
        await first.saved()
        monkeypatch.setattr(first.gateway.session_log, "save_progress", lambda *_, **__: None)
        sent += await publish(second, 20, qos, first=20)
        await first.delivered()
        await kill(first)
        await die_out(clock, second)
        back = await member(second, "a", qos, kept=True)
        await take_all(sent, found, survivor, back)
        assert Counter(found) == Counter(sent)


async def test_what_a_session_knows_and_the_shard_of_its_group_does_not_goes_to_one_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gateway dies when nothing came to the shard of the group, and all else to the log."""
    async with two_gateways_in_time() as (first, second, clock):
        victim, survivor = await member(first, "a", 2, kept=True), await member(second, "b", 2)
        sent = await publish(second, 20, 2)
        await first.delivered()
        found = [one.payload for one in await take(victim)]
        await first.saved()
        for name in ("save_membership", "save_member"):
            monkeypatch.setattr(first.gateway.share_log, name, lambda *_: None)
        monkeypatch.setattr(first.gateway.session_log, "save_marks", lambda *_: None)
        sent += await publish(second, 20, 2, first=20)
        await first.delivered()
        await turns(20)
        await kill(first)
        await die_out(clock, second)
        await take_all(sent, found, survivor)
        back = await member(second, "a", 2, kept=True)
        await turns(20)
        found += [one.payload for client in (survivor, back) for one in await take(client)]
        assert Counter(found) == Counter(sent)


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("progress", [False, True])
async def test_qos_2_whose_member_record_timed_out_goes_to_one_client(
    progress: bool, is_stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether the shard of the group has it when the gateway dies."""
    async with two_gateways_in_time() as (first, second, clock):
        victim, survivor = await member(first, "a", 2, kept=True), await member(second, "b", 2)
        sent = await publish(second, 20, 2)
        await first.delivered()
        found = [one.payload for one in await take(victim)]
        await first.saved()
        append, timed_out = first.writer.append, LogError("timed out", definite=False)

        def time_out(
            log_topic: str, key: bytes, value: Any, headers: Any, report: Any, **options: Any
        ) -> None:
            if log_topic != SESSIONS or not key.startswith(b"m/"):
                append(log_topic, key, value, headers, report, **options)
            elif is_stored:
                late = lambda *place: report(*place[:2], timed_out)  # noqa: E731
                append(log_topic, key, value, headers, late, **options)
            else:
                asyncio.get_running_loop().call_soon(report, -1, -1, timed_out)

        monkeypatch.setattr(first.writer, "append", time_out)
        if not progress:
            monkeypatch.setattr(first.gateway.session_log, "save_progress", lambda *_, **__: None)
        sent += await publish(second, 20, 2, first=20)
        await first.delivered()
        first.gateway.share_groups.save_all()
        await turns(50)
        assert not await take(victim), "it may be another's"
        await first.kill()
        await die_out(clock, second)
        back = await member(second, "a", 2, kept=True)
        await take_all(sent, found, survivor, back)
        assert Counter(found) == Counter(sent)


async def test_a_part_holds_what_the_shard_does_not_know_to_be_a_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_gateways() as (first, second):
        await member(first, "a", 2, kept=True)
        groups = first.gateway.share_groups
        monkeypatch.setattr(groups, "after_saved", lambda *_: None)
        monkeypatch.setattr(SessionProgress, "touch", lambda _: None)
        await publish(second, 5, 2)
        await first.delivered()
        (membership,) = groups.memberships.values()
        session = first.gateway.sessions.get("default", "a")
        assert (len(membership.snapshot().open), session.snapshot().outgoing) == (5, [])
        session.save_member()
        assert len(membership.snapshot().open) == 5, "until the log has the record"
        await until(lambda: not membership.snapshot().open)
        assert session.snapshot().outgoing == []


@pytest.mark.parametrize("kept", [False, True])
async def test_qos_2_that_a_client_was_not_sent_goes_to_others_when_its_session_ends(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_gateways() as (first, second):
        client, other = await member(first, "a", 2, kept=kept), await member(second, "b", 2)
        groups, held = first.gateway.share_groups, list[Callable[[], None]]()
        with monkeypatch.context() as patch:
            patch.setattr(groups, "after_saved", lambda _, __, go, ___: held.append(go))
            sent = await publish(second, 20, 2)
            await first.delivered()
            await client.disconnect(Disconnect(properties={"session_expiry_interval": 0}))
            await until(lambda: first.gateway.sessions.connected_count == 0)
        for proceed in held:
            proceed()
        found: list[bytes] = []
        await take_all(sent, found, other)
        assert sorted(found) == sorted(sent)


async def test_a_session_is_released_when_the_shard_of_its_group_knows_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_gateways() as (first, second):
        client = await member(first, "a", 2, kept=True)
        share_log, held = first.gateway.share_log, list[Callable[[], None]]()
        with monkeypatch.context() as patch:
            save_membership, save_member = share_log.save_membership, share_log.save_member
            patch.setattr(
                share_log,
                "save_membership",
                lambda *args: held.append(partial(save_membership, *args)),
            )
            patch.setattr(
                share_log, "save_member", lambda *args: held.append(partial(save_member, *args))
            )
            sent = await publish(second, 5, 2)
            await first.delivered()
            await client.disconnect()
            sessions = first.gateway.sessions
            await until(lambda: sessions.connected_count == 0)
            await turns(20)
            assert not sessions.is_idle
        for proceed in held:
            proceed()
        back = await member(second, "a", 2, kept=True)
        found: list[bytes] = []
        await take_all(sent, found, back)
        assert sorted(found) == sent


async def test_what_comes_between_route_and_membership_waits_for_the_member() -> None:
    """The router gives to a gateway whose first member is not in its tree yet."""
    async with two_gateways() as (first, second):
        one = await member(first, "a")
        publisher = await Client.connect(first.port, "publisher")
        sent = 0
        for number in range(10):
            joining = await Client.connect(second.port, f"b{number}")
            joining.send(Subscribe(1, [Subscription(SHARED, 1)]))
            for _ in range(20):
                publisher.send(Publish("a/b", b"%d" % sent, 1, packet_id=sent + 1))
                sent += 1
                await asyncio.sleep(0)
            joining.send(Disconnect())
            await joining.expect_end()
        found = await collect(sent, one)
        assert set(found) == {b"%d" % number for number in range(sent)}
        assert len(found) == sent
        assert first.counters.dropped_no_member == second.counters.dropped_no_member == 0


async def test_a_group_goes_on_from_its_record_when_deliveries_are_gone() -> None:
    """Everything was down for longer than deliveries are kept."""
    async with site() as (log, router):
        async with running_gateway(log=log, router=router, name=FIRST) as first:
            client = await member(first, "a", kept=True)
            sent = await publish(first, 5)
            assert sorted(await collect(5, client)) == sorted(sent)
            await kill(first)
        async with running_gateway(log=log, router=router, name=SECOND) as second:
            sent = await publish(second, 20, first=5)
            await second.delivered()
        end = log.partitions(delivery_topic(FIRST))[0].end
        log.remove_before(delivery_topic(FIRST), 0, end)
        async with running_gateway(log=log, router=router, name=FIRST) as first:
            client = await member(first, "a", kept=True)
            assert sorted(await collect(20, client)) == sorted(sent)
            await client.expect_nothing()


@pytest.mark.parametrize("kept", [0, 6])
async def test_a_gateway_that_lost_deliveries_gives_its_members_what_was_its_own(kept: int) -> None:
    """Others have theirs, and nobody has one twice."""
    async with two_gateways() as (first, second):
        late, other = await member(first, "a", 2), await member(second, "b", 2)
        doubt_owners(first)
        first.gateway.renewal.tick = lambda: None  # type: ignore[method-assign]
        sent = await publish(second, 60, 2)
        await second.delivered()
        found = [one.payload for one in await take(other)]
        assert 0 < len(found) < 60
        log, log_topic = first.log, delivery_topic(FIRST)
        log.remove_before(log_topic, 0, log.partitions(log_topic)[0].end - kept)
        first.gateway.delivery.gone()
        first.gateway.lease.assure()
        first.gateway.delivery.confirmed()
        sent += await publish(second, 20, 2, first=60)
        while len(found) < 80:
            found += [one.payload for one in (*await take(late), *await take(other))]
        assert Counter(found) == Counter(sent)
        assert await take(late) == await take(other) == []
        assert not first.task.done()
        assert first.counters.dropped_unreadable == 0


async def one_at_a_time(harness: Harness, client_id: str) -> Client:
    """Return a member that has room for one message."""
    client = await Client.open(harness.port)
    await client.handshake(client_id, clean_start=True, properties={"receive_maximum": 1})
    await client.subscribe(SHARED, 1)
    return client


async def test_what_waits_goes_to_whoever_has_room() -> None:
    """A slow member holds up nothing but what it has."""
    async with running_gateway() as harness:
        slow, quick = await one_at_a_time(harness, "slow"), await one_at_a_time(harness, "quick")
        sent = await publish(harness, 30)
        await harness.delivered()
        held = (await slow.expect(Publish)).payload
        found = await collect(29, quick)
        assert Counter([held, *found]) == Counter(sent)
        # Each topic in its order.
        for topic in range(7):
            numbers = [int(one) for one in found if int(one) % 7 == topic]
            assert numbers == sorted(numbers)


async def test_what_does_not_fit_into_memory_stays_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_membership, "QUEUE_MESSAGES", 5)
    monkeypatch.setattr(share_membership, "READ_BELOW", 3)
    monkeypatch.setattr(share_membership, "READ_AT_ONCE", 4)
    async with running_gateway() as harness:
        client = await one_at_a_time(harness, "a")
        sent = await publish(harness, 40)
        await harness.delivered()
        (membership,) = harness.gateway.share_groups.memberships.values()
        assert len(membership.standing.unread) == 34  # of 40, one is out and five are in memory
        assert len(membership.snapshot().open) == 40
        sent += await publish(harness, 5, first=40)
        found = await collect(45, client)
        assert Counter(found) == Counter(sent)
        for topic in range(7):
            numbers = [int(one) for one in found if int(one) % 7 == topic]
            assert numbers == sorted(numbers)
        assert len(membership.snapshot().open) == 0
        # It is back to memory alone.
        await publish(harness, 3, first=45)
        assert await collect(3, client)
        assert not membership.standing.unread


async def test_bytes_that_wait_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_membership, "QUEUE_BYTES", 3_000)
    async with running_gateway() as harness:
        client = await one_at_a_time(harness, "a")
        publisher = await Client.connect(harness.port, "publisher")
        for number in range(20):
            await publisher.publish("a/b", b"%03d" % number * 300, 1)
        await harness.delivered()
        (membership,) = harness.gateway.share_groups.memberships.values()
        assert len(membership.standing.unread) == 15  # of 20, one is out
        assert len(await collect(20, client)) == 20


async def test_more_than_may_wait_is_dropped_and_counted() -> None:
    async with running_gateway(max_queued_messages=10) as harness:
        client = await one_at_a_time(harness, "a")
        sent = await publish(harness, 20)
        await harness.delivered()
        assert harness.counters.dropped_queue_full == 9
        assert await collect(11, client) == sent[:11]


async def test_a_group_with_nothing_to_do_writes_nothing() -> None:
    async with running_gateway() as harness:
        client = await member(harness, "a")
        await publish(harness, 3)
        await collect(3, client)
        harness.gateway.share_groups.save_all()
        await harness.saved()
        (membership,) = harness.gateway.share_groups.memberships.values()
        number = membership.snapshot().number
        publisher = await Client.connect(harness.port, "publisher")
        await publisher.publish("b", b"for nobody", 1)
        for _ in range(5):
            harness.gateway.share_groups.save_all()
        assert membership.snapshot().number == number + 1  # each that is written has its own


def bring(harness: Harness, number: int) -> None:
    """Have another site bring a message to plain subscribers, and hand two to groups."""
    mqtt = mqtt_header(4, 1, retain=False, dup=False)
    unshared = bytes((mqtt[0], mqtt[1], mqtt[2] | FLAG_UNSHARED))
    for name, value in (
        ("copy", unshared),
        ("given", group_header(mqtt, ["$share/other/#", SHARED])),
        ("other", group_header(mqtt, ["$share/other/a/#"])),
    ):
        origin = (HEADER_ORIGIN, b"far/gateway-1")
        headers = [(HEADER_MQTT, value), (HEADER_CLIENT_ID, b"far"), origin]
        payload = f"{name} {number}".encode()
        harness.writer.append(INBOUND, b"default/a/b", payload, headers, lambda *_: None)


async def test_another_sites_message_is_for_the_groups_that_it_names_or_for_none() -> None:
    """Also when the group reads later what it has missed."""
    async with two_gateways() as (first, _):
        shared = await member(first, "shared", kept=True)
        plain = await Client.connect(first.port, "plain")
        await plain.subscribe("a/#", 1)
        bring(first, 1)
        assert await collect(1, shared) == [b"given 1"]
        shared.send(Disconnect())
        await shared.expect_end()
        await is_standing(first)
        bring(first, 2)
        assert await collect(2, plain) == [b"copy 1", b"copy 2"]
        shared = await member(first, "shared", kept=True)
        assert await collect(1, shared) == [b"given 2"]
        assert await drain(shared) == []


class Table:
    """The table `messages`: it has what is a message for everybody, and no word of groups."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.kept: list[LogRecord] = []
        self.asked = 0

    def keep(self) -> None:
        """Write what the log has."""
        inbound = self._log.records(INBOUND)
        self.kept = [one for one in inbound if is_message(one.key, dict(one.headers))]

    async def messages(self, _tenant: str, ranges: Any, _filters: Any, **_more: Any) -> HistoryPage:
        self.asked += 1
        mqtt = (HEADER_MQTT, mqtt_header(4, 1, retain=False, dup=False))
        found = [
            LogRecord(
                one.partition,
                one.offset,
                one.timestamp_ms,
                one.key,
                one.value,
                [mqtt, *one.headers[1:]],
            )
            for one in self.kept
            if one.partition in ranges
            and ranges[one.partition][0] <= one.offset < ranges[one.partition][1]
        ]
        return HistoryPage(found, {one: end for one, (_, end) in ranges.items()}, has_more=False)

    async def retained(self, *_: object) -> dict[int, int]:
        return {}

    async def close(self) -> None: ...


class Reads:
    """Reads for groups that have missed something; one goes on when its gate is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        """For how many groups each was."""
        self.fails_once = False
        self.gate = asyncio.Event()
        self.gate.set()
        read = CatchingUp.read

        async def go_on(catching_up: CatchingUp, absent: Sequence[Gap], taker: Any) -> None:
            if all(isinstance(one.whom, ShareMembership) for one in absent):
                gate = self.gate
                self.sizes.append(len(absent))
                await gate.wait()
                if self.fails_once:
                    self.fails_once = False
                    raise LogError("nothing for 10 s", definite=True)
            await read(catching_up, absent, taker)

        monkeypatch.setattr(CatchingUp, "read", go_on)

    def close_gate(self) -> Callable[[], None]:
        """Have reads wait that begin from now on; return what lets them go on."""
        self.gate = asyncio.Event()
        return self.gate.set


@contextlib.asynccontextmanager
async def absent_groups(
    monkeypatch: pytest.MonkeyPatch, count: int, *, has_sites: bool = True
) -> AsyncIterator[tuple[Harness, Table, Reads, Callable[..., Awaitable[list[Client]]]]]:
    """Have groups whose members have gone and that have missed messages, too many for the log.

    The last value has the members come back, or some of them.
    """
    monkeypatch.setattr(gaps, "LONG_GAP_OFFSETS", 0)
    log, reads = new_log(), Reads(monkeypatch)
    table = Table(log)
    monkeypatch.setattr("ingest.gateway.process.gateway.LakeReader", lambda _folder: table)
    async with running_gateway(log=log, lake_dir=Path("replaced")) as harness:

        async def come(*numbers: int) -> list[Client]:
            clients = []
            for number in numbers or range(count):
                client = await Client.open(harness.port)
                await client.handshake(f"kept-{number}", clean_start=False, properties=NEVER)
                clients.append(client)
            return clients

        for number, client in enumerate(await come()):
            await client.subscribe(f"$share/g{number or ''}/a/#", 1)
            client.send(Disconnect())
            await client.expect_end()
        await until(lambda: harness.gateway.share_groups.is_idle)
        if has_sites:
            harness.log.create(FEDERATION, 1)
            harness.log.store(FEDERATION, b"checkpoint", b"{}", [], 0, 0)
            bring(harness, 1)
        await publish(harness, 5)
        table.keep()
        yield harness, table, reads, come


async def want_to_read(harness: Harness, count: int) -> None:
    """Wait until the memberships of so many groups wait for what they have missed."""
    memberships = harness.gateway.share_groups.memberships
    await until(lambda: sum(one.is_reading for one in memberships.values()) == count)
    await turns(20)


EVERYBODYS = [b"0", b"1", b"2", b"3", b"4"]


async def test_a_long_gap_of_a_group_is_read_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async with absent_groups(monkeypatch, 1) as (_, table, _, come):
        (client,) = await come()
        assert sorted(await collect(6, client)) == [*EVERYBODYS, b"given 1"]
        await client.expect_nothing()
        assert not table.asked


async def test_what_many_groups_have_missed_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with absent_groups(monkeypatch, 5) as (harness, table, reads, come):
        go_on = reads.close_gate()
        clients = await come()
        await want_to_read(harness, 5)
        go_on()
        for number, client in enumerate(clients):
            more = [] if number else [b"given 1"]
            assert sorted(await collect(5 + len(more), client)) == [*EVERYBODYS, *more]
            await client.expect_nothing()
        assert reads.sizes == [1, 4]
        assert not table.asked


async def test_a_short_gap_does_not_wait_for_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with absent_groups(monkeypatch, 3) as (_, _, reads, come):
        go_on = reads.close_gate()
        (slow,) = await come(1)
        await until(lambda: reads.sizes == [1])
        monkeypatch.setattr(gaps, "LONG_GAP_OFFSETS", 1_000)
        reads.gate = asyncio.Event()
        reads.gate.set()
        (client,) = await come(2)
        assert sorted(await collect(5, client)) == EVERYBODYS
        await slow.expect_nothing()
        go_on()
        assert sorted(await collect(5, slow)) == EVERYBODYS


async def test_groups_that_wait_behind_one_that_has_ended_are_read_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with absent_groups(monkeypatch, 2) as (harness, _, reads, come):
        go_on = reads.close_gate()
        first, second = await come()
        await want_to_read(harness, 2)
        first.send(Disconnect(properties={"session_expiry_interval": 0}))
        await first.expect_end()
        go_on()
        assert sorted(await collect(5, second)) == EVERYBODYS


async def test_what_the_log_has_no_more_is_read_from_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It misses what other sites have handed to the group, and that is told.

    What they have brought besides is for their own groups.
    """
    async with absent_groups(monkeypatch, 1) as (harness, table, _, come):
        for partition in range(PARTITIONS):
            end = harness.log.partitions(INBOUND)[partition].end
            harness.log.remove_before(INBOUND, partition, end)
        bring(harness, 2)
        (client,) = await come()
        expected = [*EVERYBODYS, b"given 2"]
        assert sorted(await collect(len(expected), client)) == expected
        await client.expect_nothing()
        assert table.asked == 1
        assert harness.counters.dropped_unreadable == 1


async def test_without_other_sites_a_long_gap_is_read_from_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with absent_groups(monkeypatch, 2, has_sites=False) as (harness, table, _, come):
        for client in await come():
            assert sorted(await collect(5, client)) == EVERYBODYS
            await client.expect_nothing()
        assert table.asked
        assert harness.counters.dropped_unreadable == 0


async def test_a_gap_is_read_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with absent_groups(monkeypatch, 2) as (_, _, reads, come):
        reads.fails_once = True
        first, second = await come()
        assert sorted(await collect(6, first)) == [*EVERYBODYS, b"given 1"]
        assert sorted(await collect(5, second)) == EVERYBODYS
