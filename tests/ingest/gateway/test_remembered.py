"""What was read of the log a moment ago is looked up: read once, and the same as if read anew."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest

from ingest.gateway.history import remembered as module
from ingest.gateway.history.catching_up import CatchingUp
from ingest.gateway.history.remembered import RememberedLog
from ingest.gateway.log.partitions import Partitions
from ingest.session.client.catch_up import Missed
from mqlake.errors import LogError
from mqlake.log.contract import Missing, RangeConsumer
from mqlake.log.memory import MemoryLog, MemoryRangeReader
from mqlake.records.messages import BARRIER_KEY_PREFIX, INBOUND, message_key
from mqlake.topics.matching import filter_matches
from tests.cases import case
from tests.ingest.gateway.harness import until
from tests.ingest.gateway.test_catching_up import LONG, Absent, MemoryLake, check, go_live, taker
from tests.ingest.simulations import simulations_wanted

pytestmark = pytest.mark.anyio

NEVER_LONG = 2**40
"""Offsets beyond which a gap is read from the table."""
FILTERS = ("a", "a/b", "a/+", "a/#", "#", "+", "+/b", "$s/#", "a/b/c", "none", "a/b/+", "c/#")
TOPICS = ("a", "a/b", "a/c", "a/b/c", "c", "$s/a", "ab", "a/", "/b")


class CountingReader(MemoryRangeReader):
    """Counts records that are read, and tells of them."""

    read = 0

    def on_read(self) -> None:
        """Do something between two batches."""

    async def read_range(
        self,
        log_topic: str,
        ranges: Mapping[int, tuple[int, int]],
        on_records: RangeConsumer,
        *,
        timeout_seconds: float = 10.0,
    ) -> list[Missing]:
        async def count(records: list[Any]) -> None:
            self.read += len(records)
            self.on_read()
            await on_records(records)

        return await super().read_range(
            log_topic, ranges, count, timeout_seconds=min(timeout_seconds, 0.05)
        )


class Log:
    """A log that grows, and a reader of what is missed in it."""

    def __init__(
        self, partitions: int, max_bytes: int = module.MAX_BYTES, *, has_table: bool = False
    ) -> None:
        self.log = MemoryLog()
        self.log.create(INBOUND, partitions)
        self.reader = CountingReader(self.log)
        self.remembered = RememberedLog(max_bytes)
        self.table_ends = [0] * partitions
        self.lake = MemoryLake(self.log, self.table_ends)
        self.drops: list[tuple[object, ...]] = []
        self.catching_up = CatchingUp(
            self.reader,
            self.lake if has_table else None,  # type: ignore[arg-type]
            self.ends,
            None,  # type: ignore[arg-type]  # nobody asks for the end of the log
            self,  # type: ignore[arg-type]
            Partitions(partitions, 1, partitions),
            self.remembered,
        )

    def add(self, *drop: object) -> None:
        """Take a drop."""
        self.drops.append(drop)

    def ends(self) -> list[int]:
        return [one.end for one in self.log.partitions(INBOUND)]

    def store(self, topic: str, partition: int = 0, tenant: str = "default") -> None:
        self.log.store(INBOUND, message_key(tenant, topic), b"", [("h", b"1")], 1, partition)

    async def come(self, *absent: Absent) -> int:
        """Bring somebody back; return how many records were read of the log."""
        before = self.reader.read
        await self.catching_up.catch_up(absent, taker, go_live)
        check(self.log, absent)
        return self.reader.read - before

    def absent(self, *filters: str, cursor: int = 0, long_offsets: int = NEVER_LONG) -> Absent:
        ends = self.ends()
        return Absent("x", Missed([cursor] * len(ends), ends, long_offsets), list(filters))


async def test_those_that_come_later_cost_what_they_are_given() -> None:
    log = Log(2)
    for number in range(1000):
        log.store(f"device/{number}/cmd", number % 2)
    assert await log.come(log.absent("device/7/cmd")) == 1000
    for number in range(100):
        absent = log.absent(f"device/{number}/+" if number % 2 else f"device/{number}/cmd")
        assert await log.come(absent) == 0
        assert len(absent.got) == 1


async def test_only_what_is_new_is_read_and_the_last_record_known() -> None:
    log = Log(1)
    for _ in range(10):
        log.store("a")
    assert await log.come(log.absent("a", cursor=4)) == 6
    log.store("b")
    assert await log.come(log.absent("a", "b", cursor=4)) == 2  # 9 once more, and 10
    assert await log.come(log.absent("a")) == 4  # those before
    assert await log.come(log.absent("a")) == 0


async def test_who_begins_behind_what_is_known_leaves_no_hole() -> None:
    log = Log(1)
    for _ in range(10):
        log.store("a")
    await log.come(log.absent("a"))
    for _ in range(10):
        log.store("a")
    assert await log.come(log.absent("a", cursor=15)) == 11
    assert await log.come(log.absent("a")) == 0


async def test_who_begins_far_behind_is_read_for_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEAR_OFFSETS", 3)
    log = Log(1)
    log.store("a")
    await log.come(log.absent("a"))
    for _ in range(10):
        log.store("a")
    assert await log.come(log.absent("a", cursor=8)) == 3
    assert await log.come(log.absent("a", cursor=8)) == 3
    assert await log.come(log.absent("a")) == 11


async def test_what_there_is_no_room_for_is_read_anew() -> None:
    log = Log(1, max_bytes=2_000)
    for _ in range(30):
        log.store("a")
    for _ in range(3):
        await log.come(log.absent("a"))
    assert 0 < log.remembered.size_bytes <= 2_300
    assert 10 < await log.come(log.absent("a")) < 30
    # Before what is known there is no room either.
    log = Log(1, max_bytes=2_000)
    for _ in range(30):
        log.store("a")
    await log.come(log.absent("a", cursor=25))
    for _ in range(3):
        assert await log.come(log.absent("a")) == 25


async def test_messages_that_the_log_has_not_any_more_are_told_of_each_time() -> None:
    log = Log(1)
    for _ in range(10):
        log.store("a")
    log.log.remove_before(INBOUND, 0, 5)
    for drops in range(1, 4):
        absent = log.absent("a", cursor=1)
        await log.catching_up.catch_up([absent], taker, go_live)
        assert [offset for _, offset in absent.got] == [5, 6, 7, 8, 9]
        assert len(log.drops) == drops


async def test_the_table_is_not_asked_for_what_is_known() -> None:
    log = Log(1, has_table=True)
    for _ in range(LONG):
        log.store("a")
    await log.come(log.absent("a", long_offsets=LONG))
    for _ in range(LONG):
        log.store("a")
    assert await log.come(log.absent("a", long_offsets=LONG)) == LONG + 1
    old = log.absent("a", long_offsets=LONG)
    old.missed.is_old = True
    assert await log.come(old) == 0
    assert not log.lake.asked


async def test_the_table_is_asked_where_too_little_is_known() -> None:
    log = Log(1, has_table=True)
    for _ in range(LONG):
        log.store("a")
    await log.come(log.absent("a", cursor=1))
    old = log.absent("a", long_offsets=LONG)
    old.missed.is_old = True  # the log may not have the first
    await log.come(old)
    assert len(log.lake.asked) == 1
    for _ in range(LONG + 1):
        log.store("a")
    await log.come(log.absent("a", cursor=2, long_offsets=LONG))
    assert len(log.lake.asked) == 2


async def test_a_log_that_has_lost_its_end_is_read_anew() -> None:
    log = Log(1)
    for _ in range(10):
        log.store("a")
    await log.come(log.absent("a"))
    held = log.log.partitions(INBOUND)[0]
    del held.records[5:]
    held.end = 5
    for _ in range(10):
        log.store("other")
    absent = log.absent("a", "other")
    with pytest.raises(LogError, match="lost its end"):
        await log.catching_up.catch_up([absent], taker, go_live)
    assert await log.come(log.absent("a", "other")) == 15


async def test_it_is_forgotten_when_nobody_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_SECONDS", 0.01)
    log = Log(1)
    log.store("a")
    await log.come(log.absent("a"))
    assert log.remembered.size_bytes
    await until(lambda: not log.remembered.size_bytes)
    assert await log.come(log.absent("a")) == 1


async def test_who_has_missed_little_and_wants_many_topics_is_read_for() -> None:
    log = Log(1)
    for number in range(100):
        log.store(f"device/{number}")
    await log.come(log.absent("#"))
    assert await log.come(log.absent("#")) == 0
    assert await log.come(log.absent("#", cursor=90)) == 10
    assert await log.come(log.absent("device/95", "device/9/+", cursor=90)) == 0


async def test_what_was_known_when_one_came_is_his_though_it_is_forgotten_meanwhile() -> None:
    log = Log(1)
    for _ in range(10):
        log.store("a")
    await log.come(log.absent("a", cursor=5))
    log.reader.on_read = log.remembered.forget  # type: ignore[method-assign]
    assert await log.come(log.absent("a")) == 5


async def test_topics_are_found_as_the_rule_says() -> None:
    for seed in range(simulations_wanted(100)):
        with case(f"seed {seed}"):
            rng = random.Random(seed)
            log = Log(1)
            for topic in rng.sample(TOPICS, rng.randint(1, len(TOPICS))):
                log.store(topic)
            await log.come(log.absent("none"))
            filters = rng.sample(FILTERS, rng.randint(1, 4))
            known = log.remembered.split({0: (0, log.ends()[0])})
            found = [
                (one.key or b"").decode().partition("/")[2]
                async for records in log.remembered.find({"default": set(filters)}, known)
                for one in records
            ]
            wanted = [
                topic
                for one in log.log.records(INBOUND)
                if any(
                    filter_matches(name, topic := (one.key or b"").decode().partition("/")[2])
                    for name in filters
                )
            ]
            assert found == wanted, filters


@pytest.mark.promise
async def test_each_gets_his_own_once_and_in_order_whatever_is_known() -> None:
    for seed in range(simulations_wanted(150)):
        with case(f"seed {seed}"):
            await a_crowd(random.Random(seed))


async def a_crowd(rng: random.Random) -> None:
    """Let several come, some at once, while the log grows and all is forgotten now and then."""
    partitions = rng.randint(1, 3)
    sizes = [module.MAX_BYTES, 2_000, 8_000]
    log = Log(partitions, rng.choice(sizes), has_table=rng.random() < 0.5)

    def forget_now_and_then() -> None:
        if rng.random() < 0.05:
            log.remembered.forget()

    log.reader.on_read = forget_now_and_then  # type: ignore[method-assign]
    for _ in range(rng.randint(1, 8)):
        for _ in range(rng.randint(0, 60)):
            tenant = rng.choice(["default", "default", "other"])
            log.store(rng.choice(TOPICS), rng.randrange(partitions), tenant)
            if rng.random() < 0.1:
                log.log.store(INBOUND, BARRIER_KEY_PREFIX, b"", [], 1, rng.randrange(partitions))
        log.table_ends[:] = [rng.randint(0, end) for end in log.ends()]
        crowds = [
            [_somebody(rng, log.ends()) for _ in range(rng.randint(1, 5))]
            for _ in range(rng.randint(1, 2))
        ]
        await asyncio.gather(*(log.come(*crowd) for crowd in crowds))


def _somebody(rng: random.Random, ends: list[int]) -> Absent:
    cursor = [rng.randint(0, end) for end in ends]
    aims = [rng.randint(at, end) for at, end in zip(cursor, ends, strict=True)]
    missed = Missed(cursor, aims, rng.choice([NEVER_LONG, LONG]), is_old=rng.random() < 0.2)
    filters = rng.sample(FILTERS, rng.randint(1, 3))
    return Absent("x", missed, filters, rng.choice(["default", "default", "other"]))
