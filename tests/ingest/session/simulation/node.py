"""One run of a gateway in a simulated world: what it reads and sends, and how faults hinder it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from ingest.session.ownership import Shard
from ingest.session.shard.effects import ShardRecord
from mqlake.records.shards import shard_of
from tests.ingest.session.simulation.log import START_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.session.shard.effects import Work
    from mqlake.errors import LogError
    from mqlake.records.shards import Key, Run
    from mqlake.records.versions import Headers
    from tests.ingest.session.simulation.world import World

LEASE_MS: Final = 10_000
DELIVERY_MS: Final = 4_000
"""What a client has published is given up so long after the lease of a gateway that stands still:
later than the shorter of the long pauses, and before its owner may think that it never comes."""

GIVEN_UP: Final = -1
"""In the place of an offset: it is not known whether the log has it."""

LOOK_AGAIN_MS: Final = 500
"""How often it is looked whether a fault is over; the end of the schedule ends it."""


class SimClock:
    """The clocks of a machine: wrong by so much, and not as fast as others."""

    def __init__(self, world: World, ahead_ms: int, rate: float) -> None:
        self.world = world
        self.ahead_ms = ahead_ms
        self.rate = rate
        self.stands_until = 0
        """Until then its machine is frozen."""
        self._stood_ms = 0

    @property
    def running_ms(self) -> int:
        """How long it has run since the world began."""
        return int((max(self.world.now, self.stands_until) - self._stood_ms) * self.rate)

    def stand_until(self, until: int) -> None:
        """Stand still until then: its machine is frozen, and notices nothing."""
        self._stood_ms += until - max(self.world.now, self.stands_until)
        self.stands_until = until

    def monotonic(self) -> float:
        return self.running_ms / 1000

    def now_ms(self) -> int:
        return START_MS + self.running_ms + self.ahead_ms


class Node:
    """A process between the log and others.

    Args:
        world: Where.
        slot: Which of its gateways; another run may follow there.
        me: This run.
    """

    def __init__(self, world: World, slot: int, me: Run) -> None:
        self.world = world
        self.slot = slot
        self.me = me
        self.random = Random(world.schedule.seed * 101 + len(world.processes))
        self.clock = SimClock(world, *world.schedule.clocks[slot])
        self.rate = self.clock.rate
        self.is_alive = True
        self.paused_until = 0
        self.cut_off_until = 0
        self.mute_until = 0
        self.unheard_until = 0
        self.slow_until = 0
        self.late_until = 0
        self.unsure_until = 0
        self.stopped_until = 0
        self.times_out_until = 0
        self.lost_after = 1 << 60
        """What would land later is lost with the process."""
        self.lands_before: dict[object, int] = {}
        shards = world.schedule.shards
        self.shards = [Shard(n, world.open_store(), me, self.start) for n in range(shards)]
        self.ends = [log.next_offset for log in world.logs]
        self.inbound = len(world.inbound)
        self.is_reading: set[object] = set()
        self.waits: list[list[tuple[int, Callable[[], None]]]] = [[] for _ in range(shards)]

    def __str__(self) -> str:
        return "/".join(self.me)

    @property
    def local_ms(self) -> int:
        """Time since the world began, by this machine."""
        return self.clock.running_ms

    @property
    def is_unsure(self) -> bool:
        """Whether the log does not answer for what clients publish."""
        return self.unsure_until > self.world.now

    def freeze_until(self, until: int) -> None:
        """Stand still with the machine: no clock of it tells how long that was."""
        self.paused_until = max(self.paused_until, until)
        self.clock.stand_until(self.paused_until)

    def thaw_by(self, now: int) -> None:
        """Stand still no longer than that."""
        if self.paused_until > now:
            self.paused_until = now
            if self.clock.stands_until > now:
                self.clock.stand_until(now)

    # What it is for

    def start(self, shard: Shard, work: Work) -> None:
        """Begin an act of the owner of a shard."""
        raise NotImplementedError

    def heard_log(self, at_ms: int) -> None:
        """Take the time of a record that the log has just shown, or has just taken from here."""
        raise NotImplementedError

    def take_control(self, action: str, value: bytes) -> None:
        """Take a control record of another gateway."""
        raise NotImplementedError

    def take_inbound(self) -> None:
        """Take what has come of messages."""
        raise NotImplementedError

    # What is read

    def wake(self, what: int | str) -> None:
        if what not in self.is_reading:
            self.is_reading.add(what)
            self.world.at(self.random.choice((1, 1, 2, 4)), self.read, what, process=self)

    def read(self, what: int | str) -> None:
        until = self.cut_off_until
        if not isinstance(what, str):
            until = max(until, self.slow_until)
        if until > self.world.now:
            delay = min(until - self.world.now, LOOK_AGAIN_MS)
            self.world.at(delay, self.read, what, process=self)
            return
        self.is_reading.discard(what)
        if isinstance(what, str):
            self.take_inbound()
            return
        shard = self.shards[what]
        records = self.world.logs[what].since(shard.next_offset)
        if records:
            self.heard_log(records[-1].timestamp_ms)
        for record in records:
            shard.apply(record)
        self.check_waits(what)

    def check_waits(self, number: int) -> None:
        waits, self.waits[number] = self.waits[number], []
        for offset, call in waits:
            if offset < self.shards[number].next_offset:
                self.world.at(0, call, process=self)
            else:
                self.waits[number].append((offset, call))

    # What is written

    def send(
        self,
        where: object,
        land: Callable[..., int],
        *args: Any,
        report: Callable[[int], None],
        waits: bool = False,
    ) -> None:
        """Send a request; it lands behind those before it, and is reported if we are there.

        One that waits is still in our client library when we stand still: it lands when we go on,
        or is given up, and then `GIVEN_UP` is reported.
        """
        sent = self.world.now
        lands = max(
            self.world.now + self.random.choice((1, 1, 2, 3)),
            self.lands_before.get(where, 0),
            self.late_until,
        )
        self.lands_before[where] = lands

        def landed() -> None:
            now = self.world.now
            if waits and self.paused_until > now:
                self.world.at(min(self.paused_until - now, LOOK_AGAIN_MS), landed)
            elif lands <= self.lost_after:
                offset = GIVEN_UP if now - sent > LEASE_MS + DELIVERY_MS else land(*args)
                if offset != GIVEN_UP or waits:
                    self.world.at(self.random.choice((1, 2)), report, offset, process=self)

        self.world.at(lands - self.world.now, landed)

    def append_record(self, shard: int, record: ShardRecord, report: Callable[[int], None]) -> None:
        append: Callable[..., int] = self.world.append
        landed_at = START_MS

        def land() -> int:
            nonlocal landed_at
            landed_at = START_MS + self.world.now
            return append(self, shard, record)

        def landed(offset: int) -> None:
            self.heard_log(landed_at)
            report(offset)

        self.send(shard, land, report=landed)

    def append(
        self,
        shard: int,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        on_appended: Callable[[int, LogError | None], None],
    ) -> None:
        record = ShardRecord(key, value, headers)
        self.append_record(shard, record, lambda offset: on_appended(offset, None))

    def shard_number(self, key: Key) -> int:
        return shard_of(*key, len(self.shards))
