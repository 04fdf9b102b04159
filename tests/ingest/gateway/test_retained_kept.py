"""A copy of retained messages that an earlier run has left is gone on with, or thrown away."""

import asyncio
import random
import shutil
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ingest.gateway.base.outbound import InboundMessage
from ingest.gateway.lake.reader import RowsConsumer
from ingest.gateway.log.delivered import Delivered
from ingest.gateway.log.ends import Ends
from ingest.gateway.retained import copying as copying_module
from ingest.gateway.retained.copying import Copying
from ingest.gateway.retained.retained import Retained
from ingest.gateway.store.retained import RetainedRow, open_kept
from mqlake.clock import ManualClock
from mqlake.log.memory import MemoryLog, MemoryLogReader, MemoryRangeReader
from mqlake.records.messages import (
    HEADER_CLIENT_ID,
    HEADER_PROPERTIES,
    HEADER_SOURCE,
    INBOUND,
    LogRecord,
    Source,
    encode_properties,
    encode_source,
    is_retained,
    message_key,
    mqtt_header,
)
from mqlake.records.retained import partitions_of
from mqlake.records.versions import HEADER_MQTT
from tests.cases import case
from tests.ingest.simulations import simulations_wanted

pytestmark = [pytest.mark.promise, pytest.mark.anyio]

SHARDS = 2
TOPICS = [f"plant/{number}" for number in range(12)]
BARRIER = b"\0barrier"
"""Stands for one: a record that is no message."""


@dataclass(slots=True)
class Sent:
    """A retained message, or a removal, as it was published."""

    partition: int
    offset: int
    topic: str
    payload: bytes
    expires_at_ms: int | None

    @property
    def where(self) -> tuple[int | None, int, int]:
        return self.expires_at_ms, self.partition, self.offset


@dataclass
class Site:
    """The log, all that it ever had, and the table that follows it."""

    log: MemoryLog = field(default_factory=MemoryLog)
    clock: ManualClock = field(default_factory=ManualClock)
    partitions: int = SHARDS
    cut: tuple[int, ...] = ()
    """Ends of the partitions that there were before the log grew."""
    sent: list[Sent] = field(default_factory=list)
    table: dict[str, Sent] = field(default_factory=dict)
    table_offsets: list[int] = field(default_factory=lambda: [0] * SHARDS)

    def __post_init__(self) -> None:
        self.log.create(INBOUND, self.partitions)
        self.log.now_ms = self.clock.now_ms

    def partition_of(self, topic: str) -> int:
        return TOPICS.index(topic) % self.partitions

    def publish(
        self, topic: str, payload: bytes, *, retain: bool = True, seconds: int | None = None
    ) -> None:
        headers = [
            (HEADER_MQTT, mqtt_header(5, 1, retain=retain, dup=False)),
            (HEADER_CLIENT_ID, b"c"),
        ]
        expires_at_ms = None
        if seconds is not None:
            properties = encode_properties({"message_expiry_interval": seconds})
            headers.append((HEADER_PROPERTIES, properties))
            expires_at_ms = self.clock.now_ms() + 1000 * seconds
        partition, offset = self.log.store(
            INBOUND, message_key("default", topic), payload, headers, 0, self.partition_of(topic)
        )
        if retain:
            self.sent.append(Sent(partition, offset, topic, payload, expires_at_ms))

    def barriers(self) -> dict[int, int]:
        return dict(
            self.log.store(INBOUND, BARRIER, b"", [], 0, partition)
            for partition in range(self.partitions)
        )

    def ends(self) -> list[int]:
        return [one.end for one in self.log.partitions(INBOUND)]

    def grow(self) -> None:
        self.cut = tuple(self.ends())
        self.partitions *= 2
        self.log.grow(INBOUND, self.partitions)
        self.table_offsets += [0] * (self.partitions - len(self.table_offsets))

    def may_read(self, offsets: list[int], partition: int) -> bool:
        """Tell whether a reader of the old partitions has come to the cut."""
        return partition < len(self.cut) or all(
            offset >= end for offset, end in zip(offsets, self.cut, strict=False)
        )

    def follow(self, ends: list[int]) -> None:
        """Let the table have what was published before some offsets."""
        before, self.table_offsets = self.table_offsets, ends
        for one in self.sent:
            if before[one.partition] <= one.offset < ends[one.partition]:
                self.table[one.topic] = one

    async def retained(self, partitions: Collection[int], on_rows: RowsConsumer) -> dict[int, int]:
        """Be the table."""
        offsets = dict(enumerate(self.table_offsets))
        for one in list(self.table.values()):
            if one.payload and one.partition in partitions:
                where = (one.expires_at_ms, one.partition, one.offset)
                await on_rows(
                    [RetainedRow("default", one.topic, one.payload, 1, None, "c", 1, *where)]
                )
        return offsets

    def expected(self, shard: int, reached: list[int]) -> dict[str, bytes]:
        """Return what is retained by the messages before some offsets."""
        found = {
            one.topic: one
            for one in self.sent
            if one.partition % SHARDS == shard and one.offset < reached[one.partition]
        }
        now_ms = self.clock.now_ms()
        return {
            topic: one.payload
            for topic, one in found.items()
            if one.payload and (one.expires_at_ms is None or one.expires_at_ms > now_ms)
        }


class Run:
    """A run of a gateway, as far as it keeps retained messages, on a folder."""

    def __init__(self, site: Site, folder: Path, *, boot: str = "boot") -> None:
        self.site = site
        self.folder = folder
        self.database = open_kept(folder, "gateway-1", SHARDS, boot)
        self.retained = Retained(self.database, SHARDS, site.clock)
        self.delivered = Delivered(site.partitions)
        self.ranges = MemoryRangeReader(site.log)
        self.copying = Copying(
            self.retained,
            self.ranges,
            Ends(MemoryLogReader(site.log)),
            site,  # type: ignore[arg-type]
        )
        self.ends: dict[int, int] = {}
        self.went_on = 0

    async def start(self) -> None:
        """Get copies, as `RetainedShards` does."""
        first = self.site.barriers()
        self.delivered.marks[:] = [offset - 1 for offset in first.values()]
        lacking = set(range(SHARDS))
        while lacking:
            lacking = await self._copy(sorted(lacking))

    async def _copy(self, shards: list[int]) -> set[int]:
        await self.copying.begin(shards, self.site.partitions)
        self.went_on += sum(bool(self.retained.places(shard)) for shard in shards)
        for shard in shards:
            self.retained.hold(shard)
        starts = self.site.barriers()
        ends = {
            partition: starts[partition]
            for shard in shards
            for partition in partitions_of(shard, SHARDS, len(starts))
        }
        self.ends |= ends
        lacking = await self.copying.load(ends)
        for shard in shards:
            if shard in lacking:
                await self.copying.empty(shard)
            else:
                self.retained.complete(shard)
        return lacking

    def deliver(self, partition: int, count: int) -> None:
        """Give a number of the next deliveries, as `Delivery` does."""
        self.delivered.grow(self.site.partitions)
        marks = self.delivered.marks
        for _ in range(count):
            if not self.site.may_read([mark + 1 for mark in marks], partition):
                break
            held = self.site.log.partitions(INBOUND)[partition]
            found = held.records[held.at(marks[partition] + 1) :][:1]
            if not found:
                break
            self._receive(found[0])
        self.retained.save(self.delivered)

    def _receive(self, record: LogRecord) -> None:
        source = Source(record.partition, record.offset, record.timestamp_ms)
        headers = [*record.headers, (HEADER_SOURCE, encode_source(source))]
        self.delivered.marks[record.partition] = record.offset
        self.delivered.last[record.partition] = record._replace(headers=headers)
        if is_retained(dict(record.headers)):
            take(self.retained, record)

    def seen(self, shard: int) -> dict[str, bytes]:
        page = self.retained.page(shard, "default", "#", None, 1000, 1 << 20)
        assert page.position is None
        return {one.topic_name: one.payload for one in page.messages}

    def check(self) -> None:
        """See that each copy that may be used shows what has been delivered, and nothing else."""
        reached = [mark + 1 for mark in self.delivered.marks]
        reached += [0] * (self.site.partitions - len(reached))
        for partition, end in self.ends.items():
            reached[partition] = max(reached[partition], end)
        for shard in range(SHARDS):
            if self.retained.is_complete(shard):
                assert self.seen(shard) == self.site.expected(shard, reached)

    def kill(self) -> Path:
        """Leave the files as they are at this moment."""
        left = self.folder.with_name(f"{self.folder.name}x")
        shutil.copytree(self.folder, left)
        self.database.close()
        return left

    def stop(self) -> Path:
        self.retained.save(self.delivered)
        self.database.close()
        return self.folder


def take(retained: Retained, record: LogRecord) -> None:
    headers = dict(record.headers)
    inbound = InboundMessage(record, headers)
    message = inbound.read(record.timestamp_ms)
    retained.apply(inbound.tenant, inbound.publisher, message, headers.get(HEADER_PROPERTIES))


def deliver_all(run: Run) -> None:
    for _ in range(2):
        for partition in range(run.site.partitions):
            run.deliver(partition, 10_000)


class Schedule:
    """Publishers, gateway runs that are killed, the table and the log's retention, by a seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.site = Site()
        self.folder = folder
        self.number = 0
        self.went_on = 0
        self.boot = 0

    def step(self, run: Run | None) -> None:
        """Let something happen."""
        chance, site = self.chance, self.site
        what = chance.random()
        if what < 0.5:
            topic = chance.choice(TOPICS)
            self.number += 1
            payload = b"" if chance.random() < 0.3 else b"%d" % self.number
            seconds = chance.choice([None, None, None, 5, 2000]) if payload else None
            site.publish(topic, payload, retain=chance.random() < 0.7, seconds=seconds)
        elif what < 0.75 and run is not None:
            run.deliver(chance.randrange(site.partitions), chance.randrange(1, 6))
        elif what < 0.85:
            ends = [
                chance.randint(at, end)
                for at, end in zip(site.table_offsets, site.ends(), strict=True)
            ]
            if all(site.may_read(ends, one) or not ends[one] for one in range(site.partitions)):
                site.follow(ends)
        elif what < 0.9:
            partition = chance.randrange(site.partitions)
            held = site.log.partitions(INBOUND)[partition]
            most = site.table_offsets[partition]
            if run is not None:  # the router has read what the log removes
                most = min(most, (run.delivered.marks + [-1] * site.partitions)[partition] + 1)
            offset = chance.randint(held.begin, max(held.begin, most))
            site.log.remove_before(INBOUND, partition, offset)
        elif what < 0.95:
            site.clock.advance(chance.choice([0.3, 1, 3]))
        elif run is not None:
            run.retained.purge()

    async def run(self) -> None:
        """Run a gateway, from its start to its end, at any moment."""
        chance, site = self.chance, self.site
        if chance.random() < 0.1:
            self.boot += 1
        run = Run(site, self.folder, boot=f"boot-{self.boot}")
        start = asyncio.create_task(run.start())
        dies_early = chance.random() < 0.3
        for _ in range(chance.randrange(1, 40) if dies_early else 10_000):
            await asyncio.sleep(0)
            if run.ends and chance.random() < 0.5:
                self.step(run)
                run.check()
            if start.done():
                break
        if start.done():
            await start
            self.went_on += run.went_on
            run.check()
            if chance.random() < 0.15 and site.partitions == SHARDS:
                site.grow()
            for _ in range(chance.randrange(60)):
                self.step(run)
                run.check()
            if chance.random() < 0.3:
                deliver_all(run)
                run.check()
        self.folder = run.stop() if start.done() and chance.random() < 0.4 else run.kill()
        start.cancel()
        await asyncio.wait([start])
        await run.ranges.close()
        for _ in range(chance.randrange(30)):
            self.step(None)
        site.clock.advance(chance.choice([0, 1, 10, 2000]))


async def test_a_kept_copy_never_shows_what_is_not_retained_and_lacks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying_module, "FEW_OFFSETS", 60)
    went_on = 0
    for seed in range(simulations_wanted(30)):
        with case(f"seed {seed}"):
            schedule = Schedule(seed, tmp_path / f"{seed}")
            for _ in range(8):
                await schedule.run()
            went_on += schedule.went_on
    assert went_on > simulations_wanted(30)


async def left_behind(site: Site, folder: Path) -> Path:
    """Have a run retain a message for each topic, and be killed; return its folder."""
    run = Run(site, folder)
    await run.start()
    for topic in TOPICS:
        site.publish(topic, b"1")
    deliver_all(run)
    run.check()
    return run.kill()


async def test_the_next_run_reads_the_log_alone_from_where_the_last_one_was(tmp_path: Path) -> None:
    site = Site()
    folder = await left_behind(site, tmp_path / "a")
    site.publish(TOPICS[0], b"2")
    site.publish(TOPICS[1], b"")
    for partition, held in enumerate(site.log.partitions(INBOUND)):
        site.log.remove_before(INBOUND, partition, held.end - 2)
    run = Run(site, folder)
    await run.start()
    assert run.went_on == SHARDS
    run.check()
    assert run.seen(0)[TOPICS[0]] == b"2"
    assert TOPICS[1] not in run.seen(1)
    assert run.retained.usage(None)[0] == len(TOPICS) - 1


async def test_a_place_goes_on_when_no_retained_message_comes(tmp_path: Path) -> None:
    site = Site()
    run = Run(site, tmp_path / "a")
    await run.start()
    for _ in range(3):
        site.publish(TOPICS[0], b"1", retain=False)
    deliver_all(run)
    site.clock.advance(1)
    run.retained.save(run.delivered)
    assert run.retained.places(0)[0].offset == site.ends()[0] - 1


@pytest.mark.parametrize("has_lost_only_its_end", [False, True])
async def test_a_copy_of_another_log_is_thrown_away(
    tmp_path: Path, has_lost_only_its_end: bool, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site()
    folder = await left_behind(site, tmp_path / "a")
    site.clock.advance(1)
    other = Site(clock=site.clock)
    if has_lost_only_its_end:
        for partition, held in enumerate(site.log.partitions(INBOUND)):
            other.log.partitions(INBOUND)[partition].records.extend(held.records[:4])
            other.log.partitions(INBOUND)[partition].end = 4
        other.sent = [one for one in site.sent if one.offset < 4]
    for _ in range(3):
        for topic in TOPICS[2:]:
            other.publish(topic, b"other")
    assert all(end > before for end, before in zip(other.ends(), site.ends(), strict=True))
    run = Run(other, folder)
    await run.start()
    assert run.went_on == 0
    run.check()
    reasons = [one.fields["reason"] for one in caplog.records if hasattr(one, "fields")]
    assert sum("where the log has another record" in str(one) for one in reasons) == SHARDS


async def test_a_copy_is_thrown_away_whose_place_the_log_does_not_have(tmp_path: Path) -> None:
    site = Site()
    folder = await left_behind(site, tmp_path / "a")
    shorter = Site(clock=site.clock)
    run = Run(shorter, folder)
    await run.start()
    assert run.went_on == 0
    run.check()
    assert run.seen(0) == {}


async def test_what_is_far_behind_is_copied_from_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying_module, "FEW_OFFSETS", 10)
    site = Site()
    folder = await left_behind(site, tmp_path / "a")
    for _ in range(20):
        site.publish(TOPICS[0], b"0", retain=False)
    site.publish(TOPICS[0], b"")
    site.follow(site.ends())
    run = Run(site, folder)
    await run.start()
    assert run.went_on == 1
    run.check()


async def test_a_copy_that_lacks_something_is_not_kept(tmp_path: Path) -> None:
    site = Site()
    run = Run(site, tmp_path / "a")
    await run.start()
    run.retained.incomplete = {1}
    deliver_all(run)
    assert [bool(run.retained.places(shard)) for shard in range(SHARDS)] == [True, False]
