"""Routes of share groups as they were are read as far back as they matter, and up to the end."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ingest.gateway.log.ends import Ends
from ingest.gateway.sharing import share_routes
from ingest.gateway.sharing.share_routes import ShareRoutes
from ingest.session.groups.share_records import GroupKey
from ingest.session.groups.share_routes import RoutesThen
from mqlake.clock import ManualClock
from mqlake.log.memory import MemoryLog, MemoryLogReader, MemoryRangeReader
from mqlake.records.messages import (
    HEADER_SOURCE,
    ROUTES,
    ROUTES_IN_FORCE,
    Route,
    Source,
    encode_source,
    route_key,
)
from tests.ingest.gateway.harness import turns

pytestmark = pytest.mark.anyio

GROUP = GroupKey("default", "$share/g/a")
PATIENCE = 10
AT_MS = 1_600_000_000_000


class Site:
    """A log in which router and gateways have written."""

    def __init__(self) -> None:
        self.log = log = MemoryLog()
        log.create(ROUTES, 1)
        log.create(ROUTES_IN_FORCE, 1)
        self.clock = ManualClock(now_ms=AT_MS)
        settings = SimpleNamespace(barrier_timeout_seconds=PATIENCE)
        context: Any = SimpleNamespace(clock=self.clock, settings=settings)
        self.ranges = Reads(log)
        self._routes = ShareRoutes(context, self.ranges, Ends(MemoryLogReader(log)))

    def route(self, gateway: str, topic_filter: str, value: bytes | None) -> None:
        key = route_key(Route(gateway, "default", topic_filter))
        self.log.store(ROUTES, key, value, [], AT_MS, 0)

    def note(self, partition: int, offset: int, routes: int | str) -> None:
        source = encode_source(Source(partition, offset, 5, (str(routes),)))
        self.log.store(ROUTES_IN_FORCE, b"%d" % partition, b"", [(HEADER_SOURCE, source)], AT_MS, 0)

    async def read(self, first: list[int], before: list[int], last: int) -> RoutesThen:
        return await self._routes.read([GROUP], first, before, last)


class Reads(MemoryRangeReader):
    """Says which notes were read."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.of_notes: list[tuple[int, int]] = []

    async def read_range(self, log_topic: str, ranges: Any, *args: Any, **more: Any) -> Any:
        if log_topic == ROUTES_IN_FORCE:
            self.of_notes.append(ranges[0])
        return await super().read_range(log_topic, ranges, *args, **more)


def names(then: RoutesThen, partition: int, start: int, end: int) -> list[str]:
    count = partition + 1
    chosen = then.chosen(GROUP, "b", [start] * count, [end] * count, 0)
    found = [chosen.weights(partition, offset) for offset in range(start, end)]
    return ["?" if one is None else "".join(sorted(one)) for one in found]


async def test_notes_are_read_back_to_where_they_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_routes, "NOTES_AT_ONCE", 1)
    site = Site()
    site.route("b", GROUP.topic_filter, b"1")
    for offset in range(20):
        site.note(0, offset, 0)
        site.note(1, offset, 0)
    then = await site.read([17, 0], [20, 0], 0)
    assert site.ranges.of_notes == [(39, 40), (35, 39), (19, 35)], "of partition 1 nothing matters"
    assert names(then, 0, 17, 20) == ["b"] * 3


async def test_what_is_no_note_or_route_of_the_groups_is_passed_over() -> None:
    site = Site()
    site.route("b", GROUP.topic_filter, b"2 round_robin 7")
    site.route("c", GROUP.topic_filter, b"odd")
    site.route("c", "$share/other/a", b"1")
    site.route("c", "a", b"1")
    site.route("d", GROUP.topic_filter, b"1")
    site.route("d", GROUP.topic_filter, None)
    site.log.store(ROUTES, b"odd", None, [], AT_MS, 0)
    site.note(0, 5, 0)
    site.note(0, 6, "odd")
    site.log.store(ROUTES_IN_FORCE, b"0", b"", [], AT_MS, 0)
    site.note(0, 7, 5)
    then = await site.read([5], [9], 5)
    assert names(then, 0, 5, 9) == ["b"] * 4
    assert then.chosen(GROUP, "b", [5], [9], 0).states[0]["b"].members == 2


async def test_the_last_note_is_waited_for() -> None:
    site = Site()
    site.route("b", GROUP.topic_filter, b"1")
    site.route("c", GROUP.topic_filter, b"1")
    site.note(0, 5, 0)
    reading = asyncio.create_task(site.read([5], [9], 1))
    await turns()
    assert not reading.done()
    site.note(0, 7, 1)
    assert names(await reading, 0, 5, 9) == ["b", "b", "bc", "bc"]


async def test_without_the_last_note_of_a_partition_nothing_is_known_of_it() -> None:
    site = Site()
    site.route("b", GROUP.topic_filter, b"1")
    site.route("c", GROUP.topic_filter, b"1")
    for partition in (0, 1):
        site.note(partition, 5, 0)
    site.note(1, 7, 1)
    reading = asyncio.create_task(site.read([5, 5], [9, 9], 1))
    await turns()
    site.clock.advance(PATIENCE + 1)
    then = await reading
    assert names(then, 0, 5, 9) == ["?"] * 4
    assert names(then, 1, 5, 9) == ["b", "b", "bc", "bc"]
