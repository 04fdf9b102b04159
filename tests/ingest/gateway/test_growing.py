"""The log gets more partitions while gateways run: no topic loses its order, nobody a message."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import pytest

from ingest.gateway.peers.peers import Peers
from ingest.protocol.packets import Publish
from mqlake.log.contract import Missing, RangeConsumer
from mqlake.log.growth import Growth, GrowthStep, encode_growth
from mqlake.log.memory import MemoryLog, MemoryLogReader, MemoryLogWriter, MemoryRangeReader
from mqlake.log.partitioning import partition_of
from mqlake.records.gateway_heartbeat import GatewayHeartbeat
from mqlake.records.messages import GATEWAYS, GROWTH_KEY, INBOUND, message_key
from tests.ingest.gateway.harness import (
    PARTITIONS,
    Client,
    Harness,
    MemoryRouter,
    new_log,
    running_gateway,
    turns,
    until,
)

pytestmark = pytest.mark.anyio

TOPICS = [f"plant/{number}" for number in range(20)]
AWAY = {"alone": "plant/+", "member": "$share/group/plant/+"}
NEVER = {"session_expiry_interval": 0xFFFF_FFFF}


@pytest.fixture(autouse=True)
def the_last_partition_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it may from Kafka, when several are read together."""
    read = MemoryRangeReader.read_range

    async def read_range(
        reader: MemoryRangeReader,
        log_topic: str,
        ranges: Mapping[int, tuple[int, int]],
        on_records: RangeConsumer,
    ) -> list[Missing]:
        return await read(reader, log_topic, dict(reversed([*ranges.items()])), on_records)

    monkeypatch.setattr(MemoryRangeReader, "read_range", read_range)


def said_by(one: Harness) -> GatewayHeartbeat:
    said = GatewayHeartbeat()
    one.gateway.growing.add_to(said)
    return said


class Growing:
    """A site whose log grows, step by step."""

    def __init__(self, log: MemoryLog, router: MemoryRouter) -> None:
        self.log = log
        self.router = router
        self.growth = Growth(PARTITIONS, 2 * PARTITIONS)
        self.gateways: list[Harness] = []
        self.counts = dict.fromkeys(TOPICS, 0)
        self._chosen = random.Random(1)

    async def say(self, growth: Growth) -> None:
        self.growth = growth
        writer = MemoryLogWriter(self.log)
        await writer.append_durably(GATEWAYS, GROWTH_KEY, encode_growth(growth), [], partition=0)
        await writer.close()

    async def words(self) -> dict[str, Any]:
        found = await MemoryLogReader(self.log).read_compacted(GATEWAYS)
        return {
            key.decode(): json.loads(one.value or b"null")
            for key, one in found.items()
            if not key.startswith(b"\0")
        }

    async def heard(self, **members: Any) -> None:
        """Wait until every gateway would say so with its next word."""
        await until(
            lambda: all(
                getattr(said_by(one), name) == value
                for one in self.gateways
                for name, value in members.items()
            )
        )

    async def publish(self, *publishers: Client, messages: int = 40, retain: bool = False) -> None:
        """Publish to topics; those of a publisher are its own, and each has numbers in a row."""
        for _ in range(messages):
            topic = self._chosen.choice(TOPICS)
            self.counts[topic] += 1
            publisher = publishers[TOPICS.index(topic) % len(publishers)]
            await publisher.publish(topic, b"%d" % self.counts[topic], 1, retain=retain)

    def cut(self) -> Growth:
        ends = {number: one.end for number, one in enumerate(self.log.partitions(INBOUND))}
        return self.growth.cut_at(ends)

    async def announce(self) -> None:
        await self.say(self.growth)
        await self.heard(fixed=True)
        self.log.grow(INBOUND, self.growth.after)

    async def move(self) -> None:
        await self.say(self.growth.moved())
        await self.heard(partitions=self.growth.after)

    async def grow(self) -> None:
        await self.announce()
        await self.move()
        await self.say(self.cut())
        await self.router.read_up_to(self.growth.after)


@contextlib.asynccontextmanager
async def site(*names: str) -> AsyncIterator[tuple[Growing, list[Harness]]]:
    log = new_log(*names)
    router = MemoryRouter(log)
    await router.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(router.close)
        gateways = [
            await stack.enter_async_context(running_gateway(log=log, router=router, name=name))
            for name in names
        ]
        growing = Growing(log, router)
        growing.gateways = gateways
        yield growing, gateways


async def messages(client: Client, count: int) -> list[Publish]:
    return [await client.message() for _ in range(count)]


async def received(client: Client, counts: dict[str, int]) -> None:
    """Take all messages up to these counts: each once, and each topic's in its order."""
    left = sum(counts.values())
    last = dict.fromkeys(counts, 0)
    for one in await messages(client, left):
        assert int(one.payload) == last[one.topic_name] + 1, one.topic_name
        last[one.topic_name] += 1
    assert last == counts


async def test_a_gateway_that_has_not_followed_yet_takes_messages_of_new_partitions() -> None:
    """It may have stood still while the log grew, and hears of its messages first."""
    async with running_gateway() as harness:
        client = await Client.connect(harness.port, "alice")
        await client.subscribe("#", 1)
        await harness.delivered()
        source = ("source", b"%d:7:5" % (PARTITIONS + 1))
        headers = [("mqtt", b"\x01\x04\x01"), ("client_id", b"somebody"), source]
        for payload in (b"x", b"again"):
            harness.deliver(b"default/a", payload, headers)
        harness.deliver(b"default/b", b"y", [*headers[:2], ("source", b"0:1001:5")])
        assert await client.payloads(2) == [b"x", b"y"]
        marks = harness.gateway.delivered.marks
        assert (len(marks), marks[PARTITIONS + 1]) == (PARTITIONS + 2, 7)


async def test_topics_move_in_order_and_sessions_miss_nothing() -> None:
    async with site("one", "two") as (growing, (one, two)):
        away = await Client.connect(one.port, "away", properties=NEVER)
        await away.subscribe("plant/+", 1)
        await away.disconnect()
        live = await Client.connect(two.port, "live")
        await live.subscribe("plant/+", 1)
        publishers = [await Client.connect(each.port, f"p-{each.port}") for each in (one, two)]
        await growing.publish(*publishers)
        await growing.announce()
        await growing.publish(*publishers)
        assert not any(each.end for each in growing.log.partitions(INBOUND)[PARTITIONS:])
        await growing.move()
        await growing.publish(*publishers)
        early = await Client.connect(one.port, "early")
        subscribing = asyncio.create_task(early.subscribe("plant/+", 1))
        await growing.say(growing.cut())
        await growing.router.read_up_to(growing.growth.after)
        await subscribing
        before = dict(growing.counts)
        await growing.publish(*publishers)
        await received(live, growing.counts)
        back = await Client.open(two.port)
        await back.handshake("away", clean_start=False, properties=NEVER)
        await received(back, growing.counts)
        await received_from(early, before, growing.counts)
        moved = {each.partition for each in growing.log.records(INBOUND) if each.value}
        assert moved == set(range(2 * PARTITIONS))


async def test_who_was_away_while_the_log_grew_twice_gets_each_topic_in_its_order() -> None:
    """A session, and a share group without members; their gateway has begun anew, too."""
    async with site("one") as (growing, (one,)):
        two = partial(running_gateway, log=growing.log, router=growing.router, name="two")
        async with two() as gateway:
            for name, topic_filter in AWAY.items():
                away = await Client.connect(gateway.port, name, properties=NEVER)
                await away.subscribe(topic_filter, 1)
                await away.disconnect()
        publisher = await Client.connect(one.port, "publisher")
        await growing.publish(publisher)
        for growth in (growing.growth, Growth(2 * PARTITIONS, 4 * PARTITIONS)):
            growing.growth = growth
            await growing.announce()
            await growing.publish(publisher)
            await growing.move()
            await growing.publish(publisher)
            await growing.say(growing.cut())
            await growing.router.read_up_to(growth.after)
            await growing.publish(publisher)
            await growing.say(growing.growth.finished())
        async with two() as gateway:
            for name in AWAY:
                back = await Client.open(gateway.port)
                connack = await back.handshake(name, clean_start=False, properties=NEVER)
                assert connack.session_present
                await received(back, growing.counts)


async def test_who_comes_back_while_gateways_move_waits_for_the_cut() -> None:
    """Another gateway has written it before it moved, and the log takes it later."""
    async with site("one") as (growing, (one,)):
        away = await Client.connect(one.port, "away", properties=NEVER)
        await away.subscribe("plant/+", 1)
        await away.disconnect()
        await growing.announce()
        await growing.move()
        keys = [message_key("default", topic) for topic in TOPICS]
        key = next(one for one in keys if partition_of(one, 2 * PARTITIONS) >= PARTITIONS)
        new = partition_of(key, 2 * PARTITIONS)

        def store(payload: bytes, partition: int) -> None:
            headers = [("mqtt", b"\x01\x04\x01"), ("client_id", b"somebody")]
            growing.log.store(INBOUND, key, payload, headers, 5, partition)

        store(b"2", new)
        back = await Client.open(one.port)
        await back.handshake("away", clean_start=False, properties=NEVER)
        await turns(100)  # it would have got the second one by now
        store(b"1", new - PARTITIONS)
        await growing.say(growing.cut())
        await growing.router.read_up_to(growing.growth.after)
        store(b"3", new)
        assert await back.payloads(3) == [b"1", b"2", b"3"]


async def received_from(client: Client, before: dict[str, int], counts: dict[str, int]) -> None:
    for one in await messages(client, sum(counts.values()) - sum(before.values())):
        before[one.topic_name] += 1
        assert int(one.payload) == before[one.topic_name]


async def test_retained_messages_stay_with_their_topics() -> None:
    async with site("one", "two", "three") as (growing, gateways):
        publisher = await Client.connect(gateways[0].port, "publisher")
        await growing.publish(publisher, retain=True)
        await growing.grow()
        await growing.publish(publisher, retain=True)
        async with running_gateway(log=growing.log, router=growing.router, name="four") as four:
            for each in (*gateways, four):
                client = await Client.connect(each.port, f"s-{each.port}")
                await client.subscribe("plant/+", 1)
                known = {topic: count for topic, count in growing.counts.items() if count}
                found = {
                    one.topic_name: int(one.payload) for one in await messages(client, len(known))
                }
                assert found == known


async def test_a_gateway_that_starts_in_between_follows_before_it_takes_a_message() -> None:
    async with site("one") as (growing, _):
        await growing.announce()
        await growing.say(growing.growth.moved())
        async with running_gateway(
            log=growing.log, router=growing.router, name="two", answered=False
        ) as two:
            assert two.gateway.partitions.inbound == 2 * PARTITIONS
            words = await growing.words()
            assert words["two"]["partitions"] == 2 * PARTITIONS
            assert words["two"]["fixed"]
            # It says all that a heartbeat has; the fan-out once it has measured.
            assert {*words["two"], "fan_out"} == set(GatewayHeartbeat.model_fields)
            assert words["two"]["lease"] == two.gateway.settings.lease_seconds


async def test_a_gateway_that_began_before_a_step_has_followed_it_when_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with site("one") as (growing, _):
        await growing.announce()
        listen = Peers.open

        async def open_late(peers: Peers) -> None:
            """Have all be said between what a starting gateway reads and its first word."""
            await listen(peers)
            await growing.say(growing.growth.moved())

        monkeypatch.setattr(Peers, "open", open_late)
        async with running_gateway(
            log=growing.log, router=growing.router, name="two", answered=False
        ) as two:
            client = await Client.connect(two.port, "publisher")
            for topic in TOPICS:
                await client.publish(topic, b"1", 1)
            places = {each.partition for each in growing.log.records(INBOUND) if each.value}
            assert places - set(range(PARTITIONS))


async def test_a_gateway_says_that_it_has_moved_when_the_log_has_what_it_wrote_before() -> None:
    async with site("one") as (growing, (one,)):
        await growing.announce()
        growing.log.hold_reports(INBOUND)
        publisher = await Client.connect(one.port, "publisher")
        publisher.send(Publish(TOPICS[0], b"1", 1, packet_id=1))
        await growing.say(growing.growth.moved())
        await until(lambda: one.gateway.partitions.inbound == 2 * PARTITIONS)
        assert said_by(one).partitions == PARTITIONS
        growing.log.release_reports()
        await until(lambda: said_by(one).partitions == 2 * PARTITIONS)
        assert said_by(one).fixed
        await growing.say(growing.cut())
        await growing.say(growing.growth.finished())
        await until(lambda: not said_by(one).fixed)
        assert growing.growth.step is GrowthStep.DONE


async def test_what_nobody_can_read_changes_nothing() -> None:
    async with site("one") as (growing, (one,)):
        writer = MemoryLogWriter(growing.log)
        for value in (b"{", b'{"v":1}', None):
            await writer.append_durably(GATEWAYS, GROWTH_KEY, value, [], partition=0)
        await growing.announce()
        assert one.gateway.partitions.inbound == PARTITIONS
