"""What many have missed is read once for all: each gets his own, once and in order."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from ingest.gateway.history.catching_up import MOST_FILTERS, CatchingUp, Pages
from ingest.gateway.lake.exchange import HistoryPage, TableError
from ingest.gateway.log.partitions import Partitions
from ingest.session.client.catch_up import Missed
from mqlake.log.memory import MemoryLog, MemoryRangeReader
from mqlake.records.messages import INBOUND, LogRecord, message_key
from mqlake.topics.matching import filter_matches
from tests.ingest.simulations import simulations_wanted

pytestmark = pytest.mark.anyio

LONG = 20
"""Offsets beyond which a gap is read from the table."""


@dataclass(eq=False)
class Absent:
    """Somebody with filters; `got` is what he was handed, by partition and offset."""

    client_id: str
    missed: Missed
    topic_filters: list[str]
    tenant: str = "default"
    is_over: bool = False
    pages: Pages = field(default_factory=lambda: Pages(messages=7))
    got: list[tuple[int, int]] = field(default_factory=list)
    is_live: bool = False

    def __post_init__(self) -> None:
        self.begun = list(self.missed.cursor)

    def filters(self) -> list[str]:
        return self.topic_filters

    def wants(self, record: LogRecord) -> bool:
        tenant, _, topic = (record.key or b"").decode().partition("/")
        return tenant == self.tenant and any(
            filter_matches(one, topic) for one in self.topic_filters
        )


class MemoryLake:
    """The table `messages`, which has the log's records up to some offsets."""

    def __init__(self, log: MemoryLog, ends: Sequence[int]) -> None:
        self._log = log
        self._ends = ends
        self.asked: list[tuple[str, Mapping[int, tuple[int, int]], set[str]]] = []
        self.fails_at = -1

    async def messages(
        self,
        tenant: str,
        ranges: Mapping[int, tuple[int, int]],
        topic_filters: Collection[str],
        *,
        limit: int,
        not_before_ms: int | None,
        max_bytes: int,
    ) -> HistoryPage:
        assert (not_before_ms, max_bytes) == (None, Pages().max_bytes)
        if len(self.asked) == self.fails_at:
            raise TableError("no table")
        self.asked.append((tenant, ranges, set(topic_filters)))
        reader = Absent("table", Missed([], [], 0), list(topic_filters), tenant)
        found = [
            one
            for one in self._log.records(INBOUND)
            if one.partition in ranges
            and ranges[one.partition][0] <= one.offset < ranges[one.partition][1]
            and one.offset < self._ends[one.partition]
            and reader.wants(one)
        ]
        after = {p: max(start, min(self._ends[p], end)) for p, (start, end) in ranges.items()}
        page = found[:limit]
        if has_more := len(page) == limit:
            last = page[-1]
            after |= {p: start for p, (start, _) in ranges.items() if p > last.partition}
            after[last.partition] = last.offset + 1
        return HistoryPage(page, after, has_more)


def taker(absent: Sequence[Absent]) -> Any:
    begun = [(one, list(one.missed.cursor)) for one in absent]

    async def take(records: list[LogRecord]) -> None:
        for record in records:
            for one, cursor in begun:
                start = cursor[record.partition] if record.partition < len(cursor) else 0
                if record.offset >= start and one.wants(record):
                    one.got.append((record.partition, record.offset))

    return take


def go_live(absent: Absent) -> None:
    absent.is_live = True


def a_log(partitions: int, sizes: Sequence[int], topics: Sequence[str]) -> MemoryLog:
    log = MemoryLog()
    log.create(INBOUND, partitions)
    for partition, size in enumerate(sizes):
        for number in range(size):
            key = message_key(("default", "other")[number % 5 == 0], topics[number % len(topics)])
            log.store(INBOUND, key, b"", [], 1, partition)
    return log


def reader_of(log: MemoryLog, lake: MemoryLake, ends: Sequence[int]) -> CatchingUp:
    async def no_ends() -> dict[int, int]:
        raise AssertionError("nobody asks for the end of the log")

    partitions = Partitions(len(ends), 1, len(ends))
    return CatchingUp(
        MemoryRangeReader(log),
        lake,  # type: ignore[arg-type]
        lambda: list(ends),
        no_ends,
        None,  # type: ignore[arg-type]  # nothing is dropped
        partitions,
    )


async def test_the_table_is_asked_once_for_all_that_missed_about_the_same() -> None:
    log = a_log(2, [200, 200], ["a", "b", "c"])
    lake = MemoryLake(log, [190, 180])
    near = [
        Absent(str(number), Missed([100 - number % 3, 99], [200, 200], LONG), ["abc"[number % 3]])
        for number in range(30)
    ]
    far = Absent("far", Missed([0, 0], [200, 200], LONG), ["a"])
    short = Absent("short", Missed([195, 195], [200, 200], LONG), ["a"])
    others = Absent("others", Missed([100, 100], [200, 200], LONG), ["b"], tenant="other")
    everybody = [far, *near, short, others]
    for one in everybody:
        one.pages = Pages()
    await reader_of(log, lake, [200, 200]).catch_up(everybody, taker, go_live)
    assert [(tenant, filters) for tenant, _, filters in lake.asked] == [
        ("default", {"a", "b", "c"}),
        ("default", {"a"}),
        ("other", {"b"}),
    ]
    assert lake.asked[0][1] == {0: (98, 200), 1: (99, 200)}
    check(log, everybody)


async def test_so_many_filters_are_asked_for_at_once() -> None:
    log = a_log(1, [100], ["a"])
    lake = MemoryLake(log, [100])
    absent = [
        Absent(str(number), Missed([0], [100], LONG), [f"{number}/{one}" for one in range(600)])
        for number in range(4)
    ]
    await reader_of(log, lake, [100]).catch_up(absent, taker, go_live)
    assert [len(filters) for _, _, filters in lake.asked] == [1800, 600]
    assert MOST_FILTERS >= 1800


async def test_a_reader_with_more_filters_than_that_is_asked_for_by_himself() -> None:
    log = a_log(1, [100], ["a"])
    lake = MemoryLake(log, [100])
    many = [f"x/{one}" for one in range(MOST_FILTERS + 1)]
    absent = [
        Absent("few", Missed([0], [100], LONG), ["a"]),
        Absent("many", Missed([0], [100], LONG), many),
    ]
    await reader_of(log, lake, [100]).catch_up(absent, taker, go_live)
    assert {len(filters) for _, _, filters in lake.asked} == {1, MOST_FILTERS + 1}
    check(log, absent)


async def test_each_gets_his_own_once_and_in_order_whatever_the_table_has() -> None:
    for seed in range(simulations_wanted(150)):
        await a_return(seed)


async def a_return(seed: int) -> None:
    rng = random.Random(seed)
    partitions = rng.randint(1, 3)
    sizes = [rng.randint(0, 120) for _ in range(partitions)]
    log = a_log(partitions, sizes, ["a", "b", "a/b", "c"][: rng.randint(1, 4)])
    lake = MemoryLake(log, [rng.randint(0, size) for size in sizes])
    if rng.random() < 0.2:
        lake.fails_at = rng.randint(0, 3)
    absent = []
    for number in range(rng.randint(1, 8)):
        cursor = [rng.randint(0, size) for size in sizes]
        ends = [rng.randint(at, size) for at, size in zip(cursor, sizes, strict=True)]
        filters = rng.sample(["a", "b", "+", "a/#", "c", "none"], rng.randint(1, 3))
        tenant = rng.choice(["default", "default", "other"])
        missed = Missed(cursor, ends, LONG, is_old=rng.random() < 0.3)
        absent.append(Absent(str(number), missed, filters, tenant))
    await reader_of(log, lake, sizes).catch_up(absent, taker, go_live)
    try:
        check(log, absent)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


def check(log: MemoryLog, absent: Sequence[Absent]) -> None:
    """See that each is live, and has what he missed: of each partition in order, and once."""
    records = log.records(INBOUND)
    for one in absent:
        assert one.is_live, one
        for partition in range(len(log.partitions(INBOUND))):
            start = one.begun[partition] if partition < len(one.begun) else 0
            end = one.missed.cursor[partition]
            wanted = [
                record.offset
                for record in records
                if record.partition == partition
                and start <= record.offset < end
                and one.wants(record)
            ]
            got = [offset for at, offset in one.got if at == partition]
            assert got == wanted, f"{one.client_id}, partition {partition}: {got}, {wanted}"
