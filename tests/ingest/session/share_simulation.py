"""A share group in a simulated world: gateways join, leave, die, stand still, and none is lost.

The world is that of `simulation`; each gateway there has members of one group, too, and a router
gives each message to a gateway that has a route. Only the host is test code: parts run the real
`belong` and owners the real `GroupsOfShard`. The group has a kept session all the time, so nothing
may be lost of it, whoever is there.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from ingest.session.effects import Effect, ShardRecord, discard
from ingest.session.share_acts import Deliveries, Given, GroupEnded, Withdraw
from ingest.session.share_membership import (
    Announce,
    AskToBegin,
    AskToGo,
    GroupPart,
    JoinStart,
    SavePart,
    Serve,
    WithdrawOwn,
    belong,
)
from ingest.session.share_parts import (
    GroupKey,
    MemberRecord,
    PartRecord,
    PartState,
    decode_part,
    decode_part_key,
    encode_member,
    encode_part,
    member_key,
    part_key,
)
from ingest.session.share_table import GroupTable
from mqlake.shard_records import NO_EPOCH, OWNER_KEY, Run, read_stamp, stamp_headers
from tests.ingest.session.share_router import Barrier, Router
from tests.ingest.session.simulation.gateway import Process
from tests.ingest.session.simulation.invariants import QUIET_MS, Violation
from tests.ingest.session.simulation.lease import TICK_MS
from tests.ingest.session.simulation.log import START_MS
from tests.ingest.session.simulation.node import LEASE_MS
from tests.ingest.session.simulation.schedule import LATE_MS, Fault, Schedule, Step, lost_ticks
from tests.ingest.session.simulation.search import run
from tests.ingest.session.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.session.effects import Work
    from ingest.session.open_work import OpenWork
    from ingest.session.ownership import Shard

GROUP: Final = GroupKey("t", "$share/g/a")

_GAPS_MS: Final = (0, 1, 2, 3, 5, 8, 15, 40, 300, 2_000, 4_000, 13_000)
_FAULTS: Final = (
    *("crash", "crash", "crash", "pause", "pause", "pause"),
    *("deaf", "unheard", "mute", "slow", "late"),
)
_AWAY_MS: Final = (50, 500, 3_000, 12_000, 25_000)
_PAUSES_MS: Final = (100, 1_500, 2_900, 3_500, 5_000, 9_500, 10_500, 11_500, 13_000, 30_000)
NOT_KNOWN: Final = 1 << 60
"""`from_delivery` of a part that has not begun."""

_ACK_MS: Final = (3, 5, 20, 200, 3_000)


def make_schedule(seed: int) -> Schedule:
    """Return the schedule of a seed: members come and go, much at the same moment."""
    random = Random(seed)
    gateways = random.choice((2, 2, 3, 3))
    at_ms, steps = 2_500, [Step(2_500, "join", gateway=random.randrange(gateways))]
    for _ in range(random.randint(5, 18)):
        at_ms += random.choice(_GAPS_MS)
        what = random.choices(
            ("join", "leave", "message", "restart", "wait", "compact"), (5, 4, 10, 2, 1, 1)
        )[0]
        steps.append(Step(at_ms, what, random.randrange(gateways), random.randrange(gateways)))
    faults = []
    for _ in range(random.choice((0, 1, 1, 2, 2, 3))):
        what = random.choice(_FAULTS)
        ms = LATE_MS if what == "late" else random.choice(_PAUSES_MS)
        gateway = None if random.random() < 0.7 else random.randrange(gateways)
        faults.append(Fault(random.randint(5, 40 + 25 * len(steps)), what, gateway, ms))
    faults += lost_ticks(seed, gateways, 40 + 25 * len(steps))
    faults += router_crashes(seed, 40 + 25 * len(steps))
    faults.sort(key=lambda fault: fault.event)
    return Schedule(seed, gateways, 1, tuple(steps), tuple(faults))


def router_crashes(seed: int, events: int) -> list[Fault]:
    """Return faults for every third schedule: the router crashes and is away for a time."""
    random = Random(f"router {seed}")
    if random.random() >= 0.33:
        return []
    return [
        Fault(random.randint(5, events), "router", None, random.choice(_AWAY_MS))
        for _ in range(random.choice((1, 1, 2)))
    ]


@dataclass(slots=True)
class Held:
    """A message as a member has it."""

    part: SimPart
    is_acked: bool = False
    is_durable: bool = False
    is_returned: bool = False


class SimPart(GroupPart):
    """A part whose messages are offsets."""

    def __init__(self, process: ShareProcess, number: int) -> None:
        super().__init__(GROUP, process.me, f"{process.me.incarnation}-{number}")
        self.process = process
        self.members = 0
        self.is_open = False
        self.is_reading = False
        self.queue: list[int] = []
        self.held: dict[int, Held] = {}
        self.from_delivery = NOT_KNOWN
        self.work: Work = belong(self, lambda: process.world.now)
        self.effect: Effect[Any] | None = None
        self.is_changed = False
        self.is_written = False
        self.withdrawn = False
        self.asked: object = None

    def __str__(self) -> str:
        return self.part_id

    def open_work(self) -> OpenWork:
        work = self.unread.copy()
        for offset in (*self.queue, *self.held):
            work.add(0, offset)
        return work

    def begin(self, starts: list[int]) -> None:
        super().begin(starts)
        self.queue = [one for one in self.queue if one >= starts[0]]


class ShareProcess(Process):
    """A gateway with members of the group."""

    world: ShareWorld

    def __init__(self, world: World, slot: int, me: Run, since: int) -> None:
        assert isinstance(world, ShareWorld)
        self.shares = world
        self.part: SimPart | None = None
        self.parts = 0
        self.rounds = 0
        self.barriers: dict[str, Callable[[int], None]] = {}
        world.router.deliveries.setdefault(me.gateway, [])
        self.next_delivery = len(world.router.deliveries[me.gateway])
        # What stands before its first barrier is not for this run.
        self.position = len(world.router.stream)
        self.is_asking = False
        self.questions = 0
        self.waiting_to_be_kept: list[Callable[[], None]] = []
        super().__init__(world, slot, me, since)
        self.wake("deliveries")

    def discard_works(self) -> None:
        super().discard_works()
        part = self.part
        if part is not None and inspect.getcoroutinestate(part.work) == inspect.CORO_CREATED:
            discard(part.work)

    # Members

    def join(self) -> None:
        if self.part is None:
            self.part = self._new()
        self.part.members += 1
        if self.part.effect is not None and isinstance(self.part.effect, Serve):
            self.hand_out(self.part)

    def leave(self) -> None:
        part = self.part
        if part is None or not part.members:
            return
        part.members -= 1
        if not part.members:
            for offset, given in list(part.held.items()):
                given.is_returned = True
                part.queue.append(offset)
            part.held.clear()
            part.queue.sort()
            part.is_changed = True
            if isinstance(part.effect, Serve):
                self.step(part, None)

    def _new(self) -> SimPart:
        self.parts += 1
        part = SimPart(self, self.parts)
        self.world.at(0, self.step, part, None, process=self)
        return part

    def step(self, part: SimPart, result: Any) -> None:
        """Give the part the result of its effect, and perform the next one."""
        if part.is_lost:
            part.work.close()
            return
        try:
            effect = part.work.send(result)
        except StopIteration:
            self.part = None
            if part.members:
                self.part = self._new()
                self.part.members = part.members
            return
        part.effect = effect
        self.world.note(self, f"part {part}: {type(effect).__name__}")
        if isinstance(effect, AskToBegin | AskToGo):
            part.is_open = False
            self.ask(part, effect)
        elif isinstance(effect, SavePart):
            self.save_part(part, lambda: self.step(part, None))
        elif isinstance(effect, Announce):
            self.when_kept(lambda: self.announce(part))
        elif isinstance(effect, WithdrawOwn):
            self.shares.send_route(self, is_there=False)
            self.round(lambda _: self.step(part, None))
        elif isinstance(effect, Serve):
            if not part.members:
                self.step(part, None)
            else:
                self.open(part)

    def ask(self, part: SimPart, effect: Effect[Any]) -> None:
        if part.effect is effect and not part.is_lost:
            self.save_part(part, None)
            self.world.at(1_000, self.ask, part, effect, process=self)

    def announce(self, part: SimPart) -> None:
        if part.is_lost:
            return
        self.shares.send_route(self, is_there=True)
        self.round(lambda offset: self.step(part, [offset]))

    def round(self, then: Callable[[int], None]) -> None:
        """Send a barrier behind the route; its place comes back."""
        self.rounds += 1
        name = f"{self.me.incarnation}/{self.rounds}"
        self.barriers[name] = then
        self.shares.send_barrier(self, name)

    # What the log is told

    def save_part(self, part: SimPart, then: Callable[[], None] | None) -> None:
        part.is_changed = False
        part.is_written = True
        if part.state is PartState.LIVE:
            part.given = [max(self.position, (part.given or [0])[0])]
        next_delivery = self.next_delivery
        if part.from_delivery != NOT_KNOWN:
            next_delivery = max(next_delivery, part.from_delivery)
        record = part.record(
            part.open_work(), next_delivery, [self.position], START_MS + self.world.now
        )
        self.shares.judge_snapshot(part, record)
        sent = ShardRecord(
            part_key(record), encode_part(record), stamp_headers(self.me.incarnation)
        )

        def saved(_: int) -> None:
            if then is not None:
                self.when_kept(then)

        self.append_record(0, sent, saved)

    def when_kept(self, then: Callable[[], None]) -> None:
        if self.may_act() and not self.is_asking:
            then()
        else:
            self.waiting_to_be_kept.append(then)

    def write_marks(self) -> None:
        part = self.part
        if part is not None and part.is_changed and part.starts is not None:
            self.save_part(part, None)

    # What comes

    def read(self, what: int | str) -> None:
        if what != "deliveries":
            super().read(what)
            return
        self.is_reading.discard(what)
        if self.deaf_until > self.world.now or not self.may_act():
            if "again" not in self.is_reading:
                self.is_reading.add("again")
                self.world.at(300, self.read_again, process=self)
            return
        deliveries = self.shares.router.deliveries[self.me.gateway]
        while self.next_delivery < len(deliveries):
            at, one = self.next_delivery, deliveries[self.next_delivery]
            self.next_delivery += 1
            if one.offset < self.position:
                continue  # the router repeats itself
            self.position = one.offset + 1
            if one.barrier is not None:
                then = self.barriers.pop(one.barrier, None)
                if then is not None:
                    self.world.at(0, then, one.offset, process=self)
            else:
                self.take(at, one.offset)

    def read_again(self) -> None:
        self.is_reading.discard("again")
        self.wake("deliveries")

    def take(self, at: int, offset: int) -> None:
        part = self.part
        if part is None or at < part.from_delivery:
            return
        if part.starts is not None and offset < part.starts[0]:
            return
        if part.given is not None:
            part.given[0] = max(part.given[0], offset + 1)
        part.queue.append(offset)
        part.is_changed = True
        self.hand_out(part)

    # What goes

    def open(self, part: SimPart) -> None:
        if part.is_lost or part.state is not PartState.LIVE:
            return
        if part.gaps or part.unread:
            part.is_open = False
            if not part.is_reading:
                part.is_reading = True
                self.world.at(self.random.choice((2, 5, 30)), self.read_log, part, process=self)
            return
        part.is_open = not self.is_asking
        self.hand_out(part)

    def read_log(self, part: SimPart) -> None:
        if part.is_lost or part.state is not PartState.LIVE:
            part.is_reading = False
            return
        found = {offset for _, offset in part.unread}
        part.unread.clear()
        has_gap = bool(part.gaps)
        for gap in part.gaps:
            found |= {
                offset
                for offset in range(gap.start[0], gap.end[0])
                if self.shares.router.stream[offset] == "message"
            }
        part.gaps.clear()
        part.queue = sorted(found | set(part.queue))

        def done() -> None:
            part.is_reading = False
            self.open(part)

        if has_gap:
            self.save_part(part, done)
        else:
            done()

    def hand_out(self, part: SimPart) -> None:
        while part.is_open and part.queue and part.members and self.may_act():
            offset = part.queue.pop(0)
            given = part.held[offset] = Held(part)
            self.shares.judge_given(self, offset, given)
            self.world.at(self.random.choice(_ACK_MS), self.acked, part, offset, process=self)

    def acked(self, part: SimPart, offset: int) -> None:
        given = part.held.pop(offset, None)
        if given is not None and not part.is_lost:
            given.is_acked = True
            self.world.note(self, f"message {offset} is acknowledged")
            part.is_changed = True

    # What the owner tells

    def be_told(self, action: str, members: dict[str, Any]) -> None:
        if action != "share":
            super().be_told(action, members)
            return
        part = self.part
        if part is None or members["part"] != part.part_id:
            return
        do = members["do"]
        if do == "begin" and isinstance(part.effect, AskToBegin):
            # What comes before is by a route of an earlier run, and with who settles that.
            part.from_delivery = len(self.shares.router.deliveries[self.me.gateway])
            self.step(part, JoinStart(members["starts"], members["given"], members["since"]))
        elif do == "go" and isinstance(part.effect, AskToGo):
            self.step(part, None)
        elif do == "take":
            left = decode_part(members["left"], GROUP, _dump(members["record"]))
            if part.take_over(left):
                self.save_part(part, None)
                if isinstance(part.effect, Serve):
                    self.open(part)
        elif do == "taken":
            part.forget_taken(members["parts"])
            part.is_changed = True
        elif do == "kept" and part.asks and part.asks == members["asks"]:
            part.asks = 0
            self.look_whether_kept()
        elif do == "lost":
            self.lose(part)

    def lose(self, part: SimPart) -> None:
        self.world.note(self, f"part {part} is lost")
        part.is_lost = True
        part.work.close()
        self.part = None
        if part.members:
            self.part = self._new()
            self.part.members = part.members
        else:
            self.shares.send_route(self, is_there=False)
        self.look_whether_kept()

    def renew(self) -> None:
        super().renew()
        self.is_asking = True
        self.questions += 1
        part = self.part
        if part is not None:
            part.is_open = False
            part.asks = self.questions if part.is_written else 0
            self.ask_whether_kept(part, self.questions)
        self.look_whether_kept()

    def ask_whether_kept(self, part: SimPart, question: int) -> None:
        if part.asks == question and part is self.part:
            self.save_part(part, None)
            self.world.at(1_000, self.ask_whether_kept, part, question, process=self)

    def look_whether_kept(self) -> None:
        if not self.is_asking or (self.part is not None and self.part.asks):
            return
        self.is_asking = False
        parked, self.waiting_to_be_kept = self.waiting_to_be_kept, []
        for then in parked:
            self.when_kept(then)
        if self.part is not None and isinstance(self.part.effect, Serve):
            self.open(self.part)

    # What it does as owner

    def perform(self, shard: Shard, effect: Effect[Any], done: Callable[..., None]) -> None:
        if isinstance(effect, Withdraw):
            self.shares.withdraw(self, effect, done)
        else:
            if isinstance(effect, GroupEnded):
                raise Violation("a kept group stays", f"{effect}")
            super().perform(shard, effect, done)


class ShareWorld(World):
    """Runs one schedule for a group."""

    process_type = ShareProcess

    def __init__(self, schedule: Schedule, transcript: list[str] | None = None) -> None:
        super().__init__(schedule, transcript)
        self.router = Router(self)
        # What is true of the log, as a reader that misses nothing sees it.
        self.table = GroupTable()
        self.owner_epoch = NO_EPOCH
        self.since: int | None = None
        self.given: dict[int, list[Held]] = {}
        self.snapshots: dict[tuple[str, int], list[Held]] = {}
        kept = ShardRecord(
            member_key(GROUP, "kept"), encode_member(MemberRecord()), stamp_headers("i", 0)
        )
        self.append_at_start(kept)

    def append_at_start(self, record: ShardRecord) -> None:
        self.logs[0].append(0, 0, record)
        self.judge_record(record)

    def do(self, step: Step) -> None:
        if step.what == "message":
            self.note("step", f"message {len(self.router.stream)}")
            self.router.put("message")
        elif step.what in {"join", "leave"}:
            self.note("step", f"{step.what} at slot {step.gateway}")
            for process in self.processes:
                if process.slot == step.gateway and process.is_alive:
                    assert isinstance(process, ShareProcess)
                    self.at(1, getattr(process, step.what), process=process)
        else:
            super().do(step)

    def strike(self, fault: Fault, process: Process) -> None:
        if fault.what == "router":
            self.note("router", f"FAULT is away for {fault.ms} ms")
            self.router.crash(fault.ms)
        else:
            super().strike(fault, process)

    def end_faults(self) -> None:
        super().end_faults()
        self.router.return_soon()

    # The router

    def send_route(self, process: ShareProcess, *, is_there: bool) -> None:
        def land() -> int:
            return self.router.route(process.me.gateway, is_there=is_there)

        process.send("routes", land, report=lambda _: None)

    def send_barrier(self, process: ShareProcess, name: str) -> None:
        """Put a barrier behind the routes of a gateway that are on their way."""

        def put(routes: int) -> None:
            self.router.put(Barrier(process.me.gateway, name, routes))

        process.send("routes", lambda: len(self.router.routes), report=put)

    def withdraw(self, process: ShareProcess, effect: Withdraw, done: Callable[..., None]) -> None:
        """Take the route of a dead gateway, and read what it was given up to a barrier."""
        process.rounds += 1
        name = f"{process.me.incarnation}/withdraw/{process.rounds}"

        def put(routes: int) -> None:
            self.router.put(Barrier(effect.gateway, name, routes))
            look()

        def look() -> None:
            deliveries = self.router.deliveries[effect.gateway]
            if not any(one.barrier == name for one in deliveries):
                self.at(20, look, process=process)
                return
            given = [
                Given(0, one.offset, 1, at)
                for at, one in enumerate(deliveries)
                if at >= effect.first and one.barrier is None
            ]
            done(Deliveries({GROUP: given}, None))

        def land() -> int:
            return self.router.route(effect.gateway, is_there=False)

        process.send("routes", land, report=put)

    # What is promised

    def append(self, process: Process, shard: int, record: ShardRecord) -> int:
        offset = super().append(process, shard, record)
        self.judge_record(record, offset)
        return offset

    def judge_record(self, record: ShardRecord, offset: int = 0) -> None:
        if record.key == OWNER_KEY:
            self.owner_epoch = offset
        elif record.key.startswith(b"h/"):
            part_id, group = decode_part_key(record.key.decode().removeprefix("h/"))
            stamp = read_stamp(record.headers)
            counts = self.table.apply_part(
                part_id, group, record.value, stamp, self.owner_epoch, self.now
            )
            if counts and record.value is not None and stamp.owner is None:
                now = decode_part(part_id, group, record.value)
                if self.since is None and now.state is PartState.LIVE and now.starts is not None:
                    self.since = now.starts[0]
                for given in self.snapshots.pop((part_id, now.number), ()):
                    given.is_durable = True

    def judge_snapshot(self, part: SimPart, record: PartRecord) -> None:
        self.snapshots[part.part_id, record.number] = [
            one
            for all_given in self.given.values()
            for one in all_given
            if one.part is part and one.is_acked and not one.is_durable
        ]

    def judge_given(self, process: ShareProcess, offset: int, given: Held) -> None:
        self.note(process, f"message {offset} to a member")
        for before in self.given.setdefault(offset, []):
            if before.is_durable:
                raise Violation(
                    "one member acknowledges a message", f"message {offset} comes after that again"
                )
            if before.is_returned:
                continue
            if before.part is given.part:
                raise Violation("one member has a message", f"message {offset} is given twice")
            now = self.table.get(GROUP, before.part.part_id)
            if now is not None and now.state is not PartState.LEFT:
                raise Violation(
                    "one member has a message",
                    f"message {offset} is given to {given.part} while {before.part} has it",
                )
        self.given[offset].append(given)

    def _run(self) -> None:
        schedule = self.schedule
        for slot in range(schedule.gateways):
            self.start_process(slot, f"g{slot}", self.random.randrange(TICK_MS))
        for step in schedule.steps:
            self.at(step.at_ms, self.do, step)
        last = max((step.at_ms for step in schedule.steps), default=0)
        self.run_until(last + 100)
        self.end_faults()
        self.run_until(self.now + QUIET_MS + LEASE_MS)
        alive = [process.slot for process in self.processes if process.is_alive]
        self.do(Step(self.now, "join", gateway=self.random.choice(alive)))
        self.run_until(self.now + QUIET_MS)
        self.judge_the_end()

    def judge_the_end(self) -> None:
        for offset, entry in enumerate(self.router.stream):
            if entry != "message" or self.since is None or offset < self.since:
                continue
            if not any(one.is_acked for one in self.given.get(offset, ())):
                raise Violation("no message is lost", f"message {offset} reached nobody")
        live = [part for part in self.table.parts(GROUP) if part.state is not PartState.LIVE]
        if live:
            raise Violation("every part gets an answer", f"{live}")
        for process in self.processes:
            assert isinstance(process, ShareProcess)
            if process.is_alive and process.part is not None and process.part.took:
                raise Violation("what was taken is forgotten", str(process.part.took))

    def crash(self, process: Process) -> None:
        super().crash(process)
        assert isinstance(process, ShareProcess)
        if process.part is not None:
            process.part.work.close()


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def search(seeds: range) -> tuple[int, Violation] | None:
    """Return the first seed whose schedule breaks a promise, and which."""
    for seed in seeds:
        found = run(make_schedule(seed), ShareWorld)
        if found is not None:
            return seed, found
    return None
