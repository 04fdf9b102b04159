"""Retained messages on several gateways: each shard is at two of them, and everybody gets all.

Payloads are counted up for each topic, so a value that goes back in time shows.
"""

import asyncio
import contextlib
import logging
import random
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ingest.gateway.retained import advancing, retained_shards
from ingest.gateway.retained.copying import Copying
from ingest.gateway.retained.retained_shards import INCOMPLETE_SECONDS
from ingest.gateway.sending import retained_scans
from ingest.protocol.packets import Disconnect, Puback, Publish, Suback, Subscribe, Subscription
from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.log.memory import MemoryLog
from mqlake.records.messages import (
    INBOUND,
    QUESTION_KEY_PREFIX,
    delivery_topic,
    is_retained,
    message_key,
)
from mqlake.records.progress import RetainedScan
from mqlake.records.retained import ANSWER, decode_answer
from mqlake.tables.catalogue import RETAINED
from tests.ingest.gateway.harness import (
    NAME,
    PARTITIONS,
    Client,
    Harness,
    MemoryRouter,
    new_log,
    running_gateway,
    until,
)
from tests.ingest.gateway.lake.tables import append

pytestmark = [pytest.mark.promise, pytest.mark.programs, pytest.mark.anyio]


ANSWER_KEY = b"\0control/" + ANSWER.encode()


class Site:
    """Gateways on one log."""

    def __init__(
        self,
        log: MemoryLog,
        router: MemoryRouter,
        clock: ManualClock,
        stack: contextlib.AsyncExitStack,
    ) -> None:
        self.log = log
        self.router = router
        self.clock = clock
        self.living: list[Harness] = []
        self._stack = stack

    async def start(self, name: str) -> Harness:
        harness = await self._stack.enter_async_context(
            running_gateway(log=self.log, router=self.router, clock=self.clock, name=name)
        )
        self.living.append(harness)
        await self.settled()
        return harness

    async def kill(self, harness: Harness) -> None:
        self.living.remove(harness)
        await harness.kill()

    async def second(self) -> None:
        """Let a second pass in which the living hear each other."""
        self.clock.advance(1)
        for one in self.living:
            one.process.send_heartbeat()
        await until(lambda: all(one.gateway.peers.is_heard for one in self.living))
        for one in self.living:
            one.gateway.shards.tick()
            one.gateway.retained_shards.tick()
            one.gateway.retained_questions.tick()

    async def settled(self) -> None:
        """Wait until all have heard of each other, and have the shards that are theirs."""
        names = sorted(name_of(one) for one in self.living)

        def is_settled(one: Harness) -> bool:
            gateway = one.gateway
            gateway.shards.tick()
            gateway.retained_shards.tick()
            return (
                gateway.peers.owners() == names
                and gateway.shards.is_settled
                and gateway.retained_shards.is_settled
            )

        async def are_settled() -> bool:
            if all(is_settled(one) for one in self.living):
                return True
            await self.second()
            return False

        await until(are_settled)

    @contextlib.asynccontextmanager
    async def time_passes(self) -> AsyncIterator[None]:
        """Let a second pass again and again."""

        async def pass_time() -> None:
            while True:
                await self.second()
                await asyncio.sleep(0.02)

        passing = asyncio.create_task(pass_time())
        try:
            yield
        finally:
            passing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await passing

    def holders(self, topic: str) -> list[Harness]:
        """Return owner and stand-by of a topic's shard."""
        place = self.living[0].gateway.retained_shards.places[self.shard(topic)]
        return [one for name in place for one in self.living if name_of(one) == name]

    def stranger(self, topic: str) -> Harness:
        """Return a gateway without a copy of a topic's shard."""
        return next(one for one in self.living if one not in self.holders(topic))

    def shard(self, topic: str) -> int:
        return self.living[0].writer.partition_of(message_key("default", topic), PARTITIONS)

    def answered_bytes(self, asker: Harness) -> int:
        """Return how many bytes of payloads are in answers to a gateway."""
        records = self.log.records(delivery_topic(name_of(asker)))
        answers = [decode_answer(one.value or b"") for one in records if one.key == ANSWER_KEY]
        return sum(len(message.payload) for one in answers for message in one.messages)

    def questions(self) -> int:
        return sum(
            (one.key or b"").startswith(QUESTION_KEY_PREFIX) for one in self.log.records(INBOUND)
        )


def name_of(harness: Harness) -> str:
    return harness.gateway.settings.name


@contextlib.asynccontextmanager
async def site(count: int) -> AsyncIterator[Site]:
    names = [f"gateway-{number}" for number in range(1, count + 1)]
    log = new_log(*names)
    router = MemoryRouter(log)
    await router.start()
    async with contextlib.AsyncExitStack() as stack:
        found = Site(log, router, ManualClock(), stack)
        for name in names:
            await found.start(name)
        yield found
    await router.close()


async def retain(harness: Harness, messages: dict[str, bytes]) -> None:
    """Publish one retained message for each topic, qos 1."""
    publisher = await Client.connect(harness.port)
    for topic, payload in messages.items():
        await publisher.publish(topic, payload, 1, retain=True)
    await publisher.disconnect()
    await harness.delivered()


async def slow_subscriber(harness: Harness, topic_filter: str) -> tuple[Client, Publish]:
    """Subscribe with room for one message; return it, not acknowledged."""
    client = await Client.open(harness.port)
    await client.handshake("slow", properties={"receive_maximum": 1})
    client.send(Subscribe(1, [Subscription(topic_filter, 1)]))
    await client.expect(Suback)
    return client, await client.expect(Publish)


async def every(client: Client, count: int) -> dict[str, bytes]:
    found = [await client.message() for _ in range(count)]
    assert all(one.retain for one in found)
    assert len({one.topic_name for one in found}) == count
    return {one.topic_name: one.payload for one in found}


def topics(count: int) -> list[str]:
    return [f"plant/{number % 7}/{number}" for number in range(count)]


async def test_a_retained_message_goes_to_owner_and_standby_and_not_to_all() -> None:
    async with site(4) as here:
        await retain(here.living[0], dict.fromkeys(topics(60), b"1"))
        for one in here.living:
            await one.delivered()
        copies = [
            (name_of(one), record.key)
            for one in here.living
            for record in here.log.records(delivery_topic(name_of(one)))
            if is_retained(dict(record.headers))
        ]
        expected = [
            (name_of(one), message_key("default", topic))
            for topic in topics(60)
            for one in here.holders(topic)
        ]
        assert sorted(copies) == sorted(expected)
        assert len(expected) == 2 * 60
        assert sum(len(one.gateway.retained) for one in here.living) == 60


async def test_exact_and_wildcard_subscriptions_get_all_at_every_gateway() -> None:
    async with site(4) as here:
        values = {topic: topic.encode() for topic in topics(300)}
        await retain(here.living[0], values)
        for one in here.living:
            client = await Client.connect(one.port)
            await client.subscribe("plant/#", 1)
            assert await every(client, 300) == values
            await client.expect_nothing()
        topic = "plant/3/3"
        for one in (*here.holders(topic), here.stranger(topic)):
            asked = here.questions()
            client = await Client.connect(one.port)
            await client.subscribe(topic, 1)
            assert await every(client, 1) == {topic: topic.encode()}
            await client.expect_nothing()
            assert here.questions() - asked == (one not in here.holders(topic))
        assert all(not len(one.gateway.retained_questions) for one in here.living)


async def test_one_gateway_asks_nobody() -> None:
    async with site(1) as here:
        await retain(here.living[0], dict.fromkeys(topics(200), b"1"))
        client = await Client.connect(here.living[0].port)
        await client.subscribe("#", 1)
        await every(client, 200)
        assert here.questions() == 0
        assert len(here.living[0].gateway.retained) == 200


async def test_what_is_removed_and_what_has_expired_is_not_answered() -> None:
    async with site(3) as here:
        topic = "a/b"
        stranger = here.stranger(topic)
        publisher = await Client.connect(stranger.port)
        await publisher.publish(topic, b"1", 1, retain=True)
        await publisher.publish(topic, b"", 1, retain=True)
        client = await Client.connect(stranger.port)
        await client.subscribe(topic, 1)
        await until(lambda: not len(stranger.gateway.retained_questions))
        await client.expect_nothing()
        await publisher.publish(
            topic, b"2", 1, retain=True, properties={"message_expiry_interval": 10}
        )
        for seconds, found in ((4, 1), (6, 0)):
            here.clock.advance(seconds)
            client = await Client.connect(stranger.port)
            asked = here.questions()
            await client.subscribe(topic, 1)
            await until(lambda asked=asked: here.questions() > asked)
            for _ in range(found):
                assert (await client.message()).properties["message_expiry_interval"] == 6
            await until(lambda: not len(stranger.gateway.retained_questions))
            await client.expect_nothing()


async def test_properties_and_a_payload_larger_than_a_page_come_as_they_are() -> None:
    async with site(3) as here:
        topic = "a/b"
        payload = bytes(range(256)) * 1024
        publisher = await Client.connect(here.living[0].port)
        properties = {"content_type": "ü", "user_property": [("a", "1"), ("a", "2")]}
        await publisher.publish(topic, payload, 2, retain=True, properties=properties)  # type: ignore[arg-type]
        client = await Client.connect(here.stranger(topic).port)
        await client.subscribe(topic, 2)
        message = await client.message()
        assert (message.payload, message.qos, message.retain) == (payload, 2, True)
        assert message.properties == properties


async def test_a_slow_client_costs_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_scans, "PAGE_BYTES", 2000)
    monkeypatch.setattr(retained_scans, "AHEAD_BYTES", 500)
    async with site(4) as here:
        await retain(here.living[0], dict.fromkeys(topics(200), b"x" * 100))
        # The one without a copy of any shard, if there is: else with the fewest.
        harness = min(
            here.living,
            key=lambda one: sum(map(one.gateway.retained.is_complete, range(PARTITIONS))),
        )
        client, first = await slow_subscriber(harness, "plant/#")
        session = harness.gateway.sessions.get("default", "slow")
        received = 1
        most = 0
        while received < 200:
            asked = here.questions()
            await client.expect_nothing()
            held = here.answered_bytes(harness) - 100 * received
            most = max(most, held)
            assert held <= 2000 + 3 * 500 + 4 * 100
            assert here.questions() == asked, "nothing is asked for while there is no room"
            client.send(Puback(first.packet_id))
            first = await client.expect(Publish)
            received += 1
        assert most >= 2000
        client.send(Puback(first.packet_id))
        await client.expect_nothing()
        assert session.sender.pending_retained() == []


@pytest.mark.parametrize("victim", ["owner", "standby", "both"])
async def test_a_scan_goes_on_when_gateways_die_in_the_middle_of_it(victim: str) -> None:
    async with site(4) as here:
        of_one_shard = [topic for topic in topics(400) if here.shard(topic) == 1]
        await retain(here.living[0], dict.fromkeys(of_one_shard, b"1"))
        owner, standby = here.holders(of_one_shard[0])
        asker, writer = (one for one in here.living if one not in (owner, standby))
        client, message = await slow_subscriber(asker, "plant/#")
        assert 100 < len(of_one_shard) < 200, "two pages"
        for harness in {"owner": [owner], "standby": [standby], "both": [owner, standby]}[victim]:
            await here.kill(harness)
        seen: dict[str, list[bytes]] = defaultdict(list)
        newest = {**dict.fromkeys(of_one_shard, b"1"), **dict.fromkeys(of_one_shard[::3], b"2")}
        async with here.time_passes():
            await retain(writer, dict.fromkeys(of_one_shard[::3], b"2"))
            while True:
                seen[message.topic_name].append(message.payload)
                client.send(Puback(message.packet_id))
                if {topic: values[-1] for topic, values in seen.items()} == newest:
                    break
                message = await client.expect(Publish)
        assert all(values in ([b"1"], [b"2"], [b"1", b"2"]) for values in seen.values())
        await here.settled()
        assert sum(len(one.gateway.retained) for one in here.living) == len(of_one_shard)


async def test_a_scan_goes_on_when_shards_change_hands_in_the_middle_of_it() -> None:
    async with site(2) as here:
        values = dict.fromkeys(topics(100), b"1")
        await retain(here.living[0], values)
        client, message = await slow_subscriber(here.living[0], "plant/#")
        await here.start("gateway-3")
        await here.start("gateway-4")
        found = {message.topic_name: message.payload}
        for _ in range(99):
            client.send(Puback(message.packet_id))
            message = await client.expect(Publish)
            assert message.topic_name not in found
            found[message.topic_name] = message.payload
        client.send(Puback(message.packet_id))
        await client.expect_nothing()
        assert found == values


async def test_a_copy_that_was_let_go_of_is_made_anew() -> None:
    """What was removed meanwhile does not come back."""
    async with site(2) as here:
        one, _ = here.living
        await retain(one, dict.fromkeys(topics(30), b"1"))
        third = await here.start("gateway-3")
        left = [shard for shard in range(PARTITIONS) if not one.gateway.retained.is_complete(shard)]
        assert left
        gone = [topic for topic in topics(30) if here.shard(topic) in left]
        await retain(one, {gone[0]: b"", gone[1]: b"2"})
        third.stop.set()
        await third.task
        here.living.remove(third)
        await here.settled()
        client = await Client.connect(one.port)
        asked = here.questions()
        await client.subscribe("plant/#", 1)
        expected = {**dict.fromkeys(topics(30), b"1"), gone[1]: b"2"}
        del expected[gone[0]]
        assert await every(client, 29) == expected
        await client.expect_nothing()
        assert here.questions() == asked


async def trimmed() -> tuple[MemoryLog, int]:
    """Return a log that has lost the first of three retained messages, and their shard."""
    log = new_log(NAME)
    async with running_gateway(log=log) as harness:
        await retain(harness, {"a": b"1"})
        await retain(harness, {"a": b"2"})
        await retain(harness, {"a": b""})
        shard = harness.writer.partition_of(message_key("default", "a"), PARTITIONS)
        same = (f"b{number}" for number in range(100))
        other = next(
            one
            for one in same
            if harness.writer.partition_of(message_key("default", one), PARTITIONS) == shard
        )
        await retain(harness, {other: b"3"})
    offsets = [one.offset for one in log.records(INBOUND) if one.value == b"2"]
    log.remove_before(INBOUND, shard, offsets[0])
    return log, shard


def of_table(topic: str, shard: int, offset: int) -> dict[str, Any]:
    ids = {"id": "00" * 16, "client_id": "c", "ts": 1_700_000_000_000_000}
    row = {"tenant": "default", "topic": topic, "payload": b"of the table", "qos": 1}
    return {**ids, **row, "log_partition": shard, "log_offset": offset}


async def test_a_copy_that_lacks_something_is_not_served_before_the_table_has_caught_up(
    tmp_path: Path,
) -> None:
    log, shard = await trimmed()
    clock = ManualClock()
    async with running_gateway(log=log, lake_dir=tmp_path, clock=clock) as harness:
        gateway = harness.gateway
        is_healthy, detail = gateway.status.health()
        assert is_healthy
        assert f"retained messages are missing in shards [{shard}]" in detail
        assert gateway.status.gauges()["retained_incomplete_shards"] == 1
        client = await Client.connect(harness.port)
        await client.subscribe("#", 1)
        await client.expect_nothing()
        clock.advance(INCOMPLETE_SECONDS)
        gateway.retained_shards.tick()
        await until(lambda: gateway.retained_shards.is_settled)
        gateway.retained_questions.tick()
        await client.expect_nothing()
        begin = log.partitions(INBOUND)[shard].begin
        append(tmp_path, RETAINED, [of_table("old", shard, 0)], next_offsets={shard: begin})
        clock.advance(INCOMPLETE_SECONDS)
        gateway.retained_shards.tick()
        await until(lambda: gateway.retained.is_complete(shard))
        await until(lambda: gateway.status.health() == (True, "1 clients, 1 subscriptions"))
        gateway.retained_questions.tick()
        found = await every(client, 2)
        assert found.pop("old") == b"of the table"
        assert list(found.values()) == [b"3"]
        await client.expect_nothing()


async def test_without_tables_the_log_is_all_there_is() -> None:
    log, shard = await trimmed()
    async with running_gateway(log=log) as harness:
        assert f"are missing in shards [{shard}]" in harness.gateway.status.health()[1]
        client = await Client.connect(harness.port)
        await client.subscribe("#", 1)
        assert list((await every(client, 1)).values()) == [b"3"]
        await client.expect_nothing()


async def test_a_question_does_not_wait_for_the_barriers_of_its_subscription() -> None:
    async with site(3) as here:
        topic = "a/b"
        await retain(here.living[0], {topic: b"1"})
        client = await Client.connect(here.stranger(topic).port)
        here.router.pause()
        client.send(Subscribe(1, [Subscription(topic, 1)]))
        await until(lambda: here.questions() == 1)
        await client.expect_nothing()
        here.router.resume()
        await client.expect(Suback)
        assert await every(client, 1) == {topic: b"1"}
        assert here.questions() == 1


async def test_a_filter_that_is_unsubscribed_is_asked_about_no_more() -> None:
    async with site(3) as here:
        topic = "a/b"
        stranger = here.stranger(topic)
        await retain(here.living[0], {topic: b"1"})
        client = await Client.connect(stranger.port)
        here.log.hold_reports(delivery_topic(name_of(stranger)))  # the answer comes late
        await client.subscribe(topic, 1)
        await client.subscribe("other/#", 1)
        await until(lambda: here.questions() == 1)
        await client.unsubscribe(topic)
        here.log.release_reports()
        await until(lambda: not len(stranger.gateway.retained_questions))
        await client.expect_nothing()


async def test_a_copy_behind_what_a_session_was_given_of_the_past_waits() -> None:
    async with site(1) as here:
        (harness,) = here.living
        topic = "a/b"
        await retain(harness, {topic: b"1"})
        client = await Client.connect(harness.port, "late")
        session = harness.gateway.sessions.get("default", "late")
        next_offsets = harness.gateway.delivered.next_offsets()
        scan = RetainedScan(topic, 1, (), next_offsets, here.shard(topic))
        floor = list(next_offsets)
        floor[here.shard(topic)] += 2  # it has got two messages that this gateway has not
        session.sender.retained.restore(scan)
        session.sender.caught_up(floor)
        session.sender.send_waiting()
        await client.expect_nothing()
        await retain(harness, {topic: b"2"})
        await retain(harness, {topic: b"3"})
        await until(lambda: session.sender.pending_retained() == [])
        await client.expect_nothing()  # it has 2 and 3 from the log


async def test_a_question_that_is_lost_is_asked_again() -> None:
    async with site(3) as here:
        topic = "a/b"
        await retain(here.living[0], {topic: b"1"})
        owner, standby = here.holders(topic)
        stranger = here.stranger(topic)
        owner.gateway.reader.pause()  # it is alive and hears nothing
        client = await Client.connect(stranger.port)
        await client.subscribe(topic, 1)
        await until(lambda: len(stranger.gateway.retained_questions) == 1)
        await client.expect_nothing()
        await here.second()
        assert await every(client, 1) == {topic: b"1"}
        owner.gateway.reader.resume()
        await owner.delivered()
        await standby.delivered()
        await stranger.delivered()
        await client.expect_nothing()


async def test_a_router_that_repeats_itself_answers_nothing_twice() -> None:
    async with site(3) as here:
        topic = "a/b"
        await retain(here.living[0], {topic: b"1"})
        stranger = here.stranger(topic)
        client = await Client.connect(stranger.port)
        await client.subscribe(topic, 1)
        assert await every(client, 1) == {topic: b"1"}
        answers = len(here.log.records(delivery_topic(name_of(stranger))))
        here.router.repeat_all()
        for one in here.living:
            await one.delivered()
        await client.expect_nothing()
        assert len(here.log.records(delivery_topic(name_of(stranger)))) > answers


async def test_a_page_that_is_overtaken_by_a_live_message_is_not_sent() -> None:
    async with site(3) as here:
        topic = "a/b"
        await retain(here.living[0], {topic: b"1"})
        stranger = here.stranger(topic)
        client = await Client.connect(stranger.port)
        here.log.hold_reports(delivery_topic(name_of(stranger)))  # the answer comes late
        await client.subscribe(topic, 1)
        await until(lambda: here.questions() == 1)
        await until(lambda: any(one.writer.queued() for one in here.holders(topic)))
        publisher = await Client.connect(here.living[0].port)
        await publisher.publish(topic, b"2", 1, retain=True)
        message = await client.message()
        assert (message.payload, message.retain) == (b"2", False)
        here.log.release_reports()
        await until(lambda: not len(stranger.gateway.retained_questions))
        await client.expect_nothing()


async def test_a_scan_goes_on_at_another_gateway() -> None:
    async with site(4) as here:
        values = dict.fromkeys(topics(200), b"1")
        await retain(here.living[0], values)
        kept = {"session_expiry_interval": 600, "receive_maximum": 1}
        client = await Client.open(here.living[0].port)
        await client.handshake("alice", properties=kept)
        client.send(Subscribe(1, [Subscription("plant/#", 1)]))
        await client.expect(Suback)
        found: dict[str, bytes] = {}
        for at in (1, 2, 3, 0):
            for _ in range(50):
                message = await client.expect(Publish)
                assert message.topic_name not in found or message.dup
                found[message.topic_name] = message.payload
                client.send(Puback(message.packet_id))
            await client.disconnect()
            client = await Client.open(here.living[at].port)
            connack = await client.handshake("alice", clean_start=False, properties=kept)
            assert connack.session_present
        while len(found) < 200:
            message = await client.expect(Publish)
            found[message.topic_name] = message.payload
            client.send(Puback(message.packet_id))
        await client.expect_nothing()
        assert found == values


@pytest.mark.parametrize("seed", range(20))
async def test_nothing_goes_back_in_time_and_the_last_arrives(seed: int) -> None:
    """Publishers, subscribers that come and go, and gateways that come and die, by a seed."""
    chance = random.Random(seed)
    names = [f"t/{number}/{number % 3}" for number in range(40)]
    newest = dict.fromkeys(names, 0)
    async with site(3) as here:
        await retain(here.living[0], dict.fromkeys(names, b"0"))
        publisher = await Client.connect(here.living[0].port)
        watchers: list[tuple[Harness, Watcher, asyncio.Task[None]]] = []
        started = 3
        for step in range(60):
            for _ in range(chance.randrange(8)):
                topic = chance.choice(names)
                newest[topic] += 1
                await publisher.publish(topic, b"%d" % newest[topic], 1, retain=True)
            if chance.random() < 0.4:
                harness = chance.choice(here.living)
                watcher = Watcher(chance.choice(["t/#", "t/+/1", "+/+/2", *names]))
                async with here.time_passes():
                    client = await Client.connect(
                        harness.port, properties={"receive_maximum": chance.choice([1, 3, 100])}
                    )
                client.send(Subscribe(1, [Subscription(watcher.topic_filter, 1)]))
                watchers.append((harness, watcher, asyncio.create_task(watcher.watch(client))))
            if step in (20, 45):
                started += 1
                await here.start(f"gateway-{started}")
            if step == 35:
                victim = chance.choice(here.living[1:])
                await here.kill(victim)
                watchers = [one for one in watchers if one[0] is not victim]
            if chance.random() < 0.5:
                await here.second()

        def missing() -> list[tuple[str, dict[str, int]]]:
            wanted = {
                one: {topic: newest[topic] for topic in names if one.matches(topic)}
                for _, one, _ in watchers
            }
            return [(one.topic_filter, one.last) for one in wanted if one.last != wanted[one]]

        async with here.time_passes():
            with contextlib.suppress(TimeoutError):
                await until(lambda: not missing(), 20)
        assert missing() == []
        assert [one.wrong for _, one, _ in watchers if one.wrong] == []
        assert here.questions()
        for _, _, task in watchers:
            task.cancel()


class Watcher:
    """Takes everything that comes for one filter and notes what is older than what came before."""

    def __init__(self, topic_filter: str) -> None:
        self.topic_filter = topic_filter
        self.last: dict[str, int] = {}
        self.wrong: list[tuple[str, int, int]] = []

    def matches(self, topic: str) -> bool:
        levels = self.topic_filter.split("/")
        if levels[-1] == "#":
            return True
        return all(one in ("+", name) for one, name in zip(levels, topic.split("/"), strict=True))

    async def watch(self, client: Client) -> None:
        while (packet := await client.receive()) is not None:
            if not isinstance(packet, Publish):
                assert isinstance(packet, Suback | Disconnect)
                continue
            client.send(Puback(packet.packet_id))
            value = int(packet.payload)
            before = self.last.get(packet.topic_name, -1)
            if value <= before:
                self.wrong.append((packet.topic_name, before, value))
            self.last[packet.topic_name] = value


def how_loaded(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return what gateways said of copies that were complete, oldest first."""
    said = [one for one in caplog.records if one.getMessage() == "retained messages loaded"]
    return [vars(one)["fields"] for one in said]


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
async def test_a_start_goes_on_from_the_store_of_the_last_run(
    tmp_path: Path, killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ingest.gateway.retained")
    log = new_log(NAME)
    router = MemoryRouter(log)
    await router.start()
    last = tmp_path / "last"
    async with running_gateway(log=log, router=router, store_dir=last) as harness:
        await retain(harness, dict.fromkeys(topics(30), b"1"))
        shards = range(PARTITIONS)
        noted = {one: harness.gateway.retained.places(one)[one].offset for one in shards}
        if killed:
            shutil.copytree(last, tmp_path / "next")
            await harness.kill()
            last = tmp_path / "next"
    for partition, offset in noted.items():
        log.remove_before(INBOUND, partition, offset)
    async with running_gateway(log=log, router=router, store_dir=last) as harness:
        assert harness.gateway.status.health()[1] == "0 clients, 0 subscriptions"
        client = await Client.connect(harness.port)
        await client.subscribe("plant/#", 1)
        assert await every(client, 30) == dict.fromkeys(topics(30), b"1")
        await retain(harness, {"plant/1/1": b"", "plant/2/2": b"2"})
        client = await Client.connect(harness.port)
        await client.subscribe("plant/2/2", 1)
        assert (await client.message()).payload == b"2"
    first, second = how_loaded(caplog)
    assert first["kept"] == []
    assert second["kept"] == list(range(PARTITIONS))
    assert sum(second["to"].values()) - sum(second["from"].values()) < 10 * PARTITIONS
    await router.close()


async def test_a_log_that_fails_costs_no_kept_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "ingest.gateway.retained")
    monkeypatch.setattr(retained_shards, "RETRY_SECONDS", 0)
    log = new_log(NAME)
    router = MemoryRouter(log)
    await router.start()
    async with running_gateway(log=log, router=router, store_dir=tmp_path) as harness:
        await retain(harness, dict.fromkeys(topics(30), b"1"))
    load, failures = Copying.load, iter([True])

    async def fail_once(copying: Copying, ends: Mapping[int, int]) -> set[int]:
        if next(failures, False):
            raise LogError("the log is away", definite=True)
        return await load(copying, ends)

    monkeypatch.setattr(Copying, "load", fail_once)
    async with running_gateway(log=log, router=router, store_dir=tmp_path) as harness:
        assert len(harness.gateway.retained) == 30
    assert [one["kept"] for one in how_loaded(caplog)] == [[], list(range(PARTITIONS))]
    await router.close()


async def test_what_a_store_has_of_other_gateways_shards_is_dropped(tmp_path: Path) -> None:
    async with site(3) as here:
        one = here.living[0]
        await retain(one, dict.fromkeys(topics(60), b"1"))
        others = [
            shard for shard in range(PARTITIONS) if not one.gateway.retained.is_complete(shard)
        ]
        assert others
        alone = new_log(name_of(one))
        async with running_gateway(log=alone, name=name_of(one), store_dir=tmp_path) as harness:
            await retain(harness, dict.fromkeys(topics(60), b"1"))
            assert harness.gateway.retained.stored() == set(range(PARTITIONS))
        await here.kill(one)
        async with running_gateway(
            log=here.log,
            router=here.router,
            clock=here.clock,
            name=name_of(one),
            store_dir=tmp_path,
        ) as again:
            here.living[0:0] = [again]
            await here.settled()
            retained = again.gateway.retained

            async def is_dropped() -> bool:
                again.gateway.retained_shards.tick()
                wanted = {one for one in range(PARTITIONS) if retained.is_complete(one)}
                return retained.stored() == wanted

            await until(is_dropped)
            assert len(retained.stored()) < PARTITIONS
            here.living.remove(again)


async def test_a_gateway_that_hears_nothing_has_barriers_tell_how_far_the_router_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(advancing, "FEW_OFFSETS", 5)
    clock = ManualClock()
    async with running_gateway(clock=clock) as harness:
        await harness.delivered()
        gateway = harness.gateway
        barriers = len(harness.log.records(INBOUND))
        await gateway.advancing.look()
        assert len(harness.log.records(INBOUND)) == barriers
        publisher = await Client.connect(harness.port)
        for _ in range(6):
            await publisher.publish("a", b"1", 1)
        partition = harness.writer.partition_of(message_key("default", "a"), PARTITIONS)
        end = harness.log.partitions(INBOUND)[partition].end
        assert gateway.delivered.next_offsets()[partition] < end
        await gateway.advancing.look()
        await until(lambda: gateway.delivered.next_offsets()[partition] > end)
        await harness.delivered()
        records = len(harness.log.records(INBOUND))
        clock.advance(advancing.OLD_SECONDS + 1)
        await gateway.advancing.look()
        assert len(harness.log.records(INBOUND)) >= records + PARTITIONS
