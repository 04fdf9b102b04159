"""A share group in a simulated world: gateways join, leave, die, stand still, and none is lost.

The world is that of `simulation`; each gateway there has members of one group, too, and a router
gives each message to a gateway that has a route. Only the host is test code: memberships run the
real `belong` and owners the real `GroupsOfShard`. The group has a kept session all the time, so
nothing may be lost of it, whoever is there. Stored sessions get messages by QoS 2
(`share_member.py`), and appends may time out: then it shows later whether the log has them.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from ingest.gateway.sharing.share_log import ShareLog
from ingest.gateway.sharing.share_saving import MembershipSaver
from ingest.session.groups.share_acts import Deliveries, Given, GoneDeliveries, GroupEnded, Withdraw
from ingest.session.groups.share_membership import (
    Announce,
    AskToBegin,
    AskToGo,
    GroupMembership,
    JoinStart,
    SaveMembership,
    Serve,
    WithdrawOwn,
    belong,
)
from ingest.session.groups.share_records import (
    GroupKey,
    MemberRecord,
    MembershipRecord,
    MembershipState,
    ShareGap,
    decode_membership,
    decode_membership_key,
    encode_member,
    member_key,
)
from ingest.session.groups.share_table import GroupTable
from ingest.session.shard.effects import Effect, ShardRecord, discard
from mqlake.errors import LogError
from mqlake.records.shards import NO_EPOCH, OWNER_KEY, Run, read_stamp, stamp_headers
from tests.ingest.session.share_member import ShareMember, StoredSession
from tests.ingest.session.share_router import Barrier, Router, choose
from tests.ingest.session.simulation.gateway import Process
from tests.ingest.session.simulation.invariants import QUIET_MS, Violation
from tests.ingest.session.simulation.lease import TICK_MS
from tests.ingest.session.simulation.log import START_MS
from tests.ingest.session.simulation.node import GIVEN_UP, LEASE_MS
from tests.ingest.session.simulation.schedule import (
    LATE_MS,
    Fault,
    Schedule,
    Step,
    lost_ticks,
    with_freeze,
)
from tests.ingest.session.simulation.search import run
from tests.ingest.session.simulation.world import World

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from ingest.gateway.base.ending import Ending
    from ingest.gateway.log.lease import Lease
    from ingest.gateway.sending.group_step import GroupMember
    from ingest.gateway.sharing.share_membership import ShareMembership
    from ingest.session.groups.open_work import OpenWork
    from ingest.session.ownership import Shard
    from ingest.session.shard.effects import Work
    from mqlake.log.contract import LogWriter
    from mqlake.records.progress import ProgressRecord
    from mqlake.records.shards import Key
    from mqlake.records.versions import Headers

GROUP: Final = GroupKey("t", "$share/g/a")

_GAPS_MS: Final = (0, 1, 2, 3, 5, 8, 15, 40, 300, 2_000, 4_000, 13_000)
_FAULTS: Final = (
    *("crash", "crash", "crash", "pause", "pause", "pause"),
    *("cut_off", "unheard", "mute", "slow", "late"),
)
_AWAY_MS: Final = (50, 500, 3_000, 12_000, 25_000)
_PAUSES_MS: Final = (100, 1_500, 2_900, 3_500, 5_000, 9_500, 10_500, 11_500, 13_000, 30_000)
NOT_KNOWN: Final = 1 << 60
"""`from_delivery` of a membership that has not begun."""

_ACK_MS: Final = (3, 5, 20, 200, 3_000)

_TIME_OUT_MS: Final = (1, 3, 30, 700)
"""When an append that times out is reported."""


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


def with_lost_deliveries(seed: int) -> Schedule:
    """Return the schedule of a seed with more messages, whose deliveries the log does not keep.

    One more gateway dies.
    """
    schedule, random = make_schedule(seed), Random(f"gone {seed}")
    steps = list(schedule.steps)
    for step in schedule.steps:
        at_ms = step.at_ms
        for _ in range(random.choice((0, 1, 3))):
            at_ms += random.choice(_GAPS_MS)
            steps.append(Step(at_ms, "message"))
    event = random.randint(5, 40 + 25 * len(schedule.steps))
    faults = [*schedule.faults, Fault(5, "gone", None), Fault(event, "crash", None)]
    return replace(
        schedule,
        steps=tuple(sorted(steps, key=lambda step: step.at_ms)),
        faults=tuple(sorted(faults, key=lambda fault: fault.event)),
    )


def with_stored_sessions(seed: int) -> Schedule:
    """Return the schedule of a seed in which stored sessions are members and appends time out."""
    schedule, random = with_lost_deliveries(seed), Random(f"stored {seed}")
    first = schedule.steps[0]
    steps = [replace(first, what="store", who=0, at_ms=first.at_ms + 1), *schedule.steps]
    steps += [
        Step(step.at_ms, "store", 1, random.randrange(schedule.gateways))
        for step in schedule.steps
        if random.random() < 0.2
    ]
    faults = [one for one in schedule.faults if one.what != "gone" or random.random() < 0.2]
    events = 40 + 25 * len(schedule.steps)
    for _ in range(random.choice((0, 1, 2, 3))):
        event, slot = random.randint(60, events), random.randrange(schedule.gateways)
        faults.append(Fault(event, "time_out", slot, random.choice((20, 300, 3_000))))
        if random.random() < 0.5:
            faults.append(Fault(event + random.randint(3, 40), "crash", slot))
    return replace(
        schedule,
        steps=tuple(sorted(steps, key=lambda step: step.at_ms)),
        faults=tuple(sorted(faults, key=lambda fault: fault.event)),
    )


@dataclass(slots=True)
class Held:
    """A message as a member has it."""

    membership: SimMembership
    is_acked: bool = False
    is_durable: bool = False
    is_returned: bool = False
    by_qos_2: bool = False


class SimMembership(GroupMembership):
    """A membership whose messages are offsets."""

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
        return self.membership_id

    def open_work(self) -> OpenWork:
        work = self.unread.copy()
        in_flight = [
            offset
            for member in self.process.session_members
            for _, offset in member.outbox.shared_positions(self.group.topic_filter)
        ]
        for offset in (*self.queue, *self.held, *in_flight):
            work.add(0, offset)
        return work

    @property
    def standing(self) -> SimMembership:
        return self

    def snapshot(self) -> MembershipRecord:
        """Return it as it is now, for the log."""
        process = self.process
        if self.state is MembershipState.LIVE:
            self.given = [max(process.position, (self.given or [0])[0])]
        next_delivery = process.next_delivery
        if self.from_delivery != NOT_KNOWN:
            next_delivery = max(next_delivery, self.from_delivery)
        record = self.record(
            self.open_work(), next_delivery, [process.position], START_MS + process.world.now
        )
        process.shares.judge_snapshot(self, record)
        return record

    def begin(self, starts: list[int]) -> None:
        super().begin(starts)
        self.queue = [one for one in self.queue if one >= starts[0]]


class ShareProcess(Process):
    """A gateway with members of the group."""

    world: ShareWorld

    def __init__(self, world: World, slot: int, me: Run, since: int) -> None:
        assert isinstance(world, ShareWorld)
        self.shares = world
        self.membership: SimMembership | None = None
        self.memberships = 0
        self.rounds = 0
        self.barriers: dict[str, Callable[[int], None]] = {}
        world.router.deliveries.setdefault(me.gateway, [])
        self.next_delivery = len(world.router.deliveries[me.gateway])
        # What stands before its first barrier is not for this run.
        self.position = len(world.router.stream)
        self.is_asking = False
        self.questions = 0
        self.waiting_to_be_kept: list[Callable[[], None]] = []
        self.session_members: list[ShareMember] = []
        super().__init__(world, slot, me, since)
        loop = cast("AbstractEventLoop", self)
        self.share_log = ShareLog(
            cast("LogWriter", SimpleNamespace(append=self.write)),
            me,
            cast("Lease", SimpleNamespace(holds=lambda: self.may_act() and not self.is_asking)),
            cast("Ending", SimpleNamespace(is_trusted=True)),
            1,
            loop,
        )
        self.group_saver = MembershipSaver(self.share_log, loop, {})
        self.wake("deliveries")

    def discard_works(self) -> None:
        super().discard_works()
        membership = self.membership
        if (
            membership is not None
            and inspect.getcoroutinestate(membership.work) == inspect.CORO_CREATED
        ):
            discard(membership.work)

    # Members

    def join(self) -> None:
        if self.membership is None:
            self.membership = self._new()
        self.membership.members += 1
        if self.membership.effect is not None and isinstance(self.membership.effect, Serve):
            self.hand_out(self.membership)

    def leave(self) -> None:
        membership = self.membership
        if membership is None or not membership.members:
            return
        membership.members -= 1
        if not membership.members:
            if any(one.outbox.giving for one in self.session_members):
                membership.members += 1  # they are not released yet
                self.world.at(5, self.leave, process=self)
                return
            for offset, given in list(membership.held.items()):
                given.is_returned = True
                membership.queue.append(offset)
            membership.held.clear()
            membership.queue.sort()
            membership.is_changed = True
            if isinstance(membership.effect, Serve):
                self.step(membership, None)

    def _new(self) -> SimMembership:
        self.memberships += 1
        membership = SimMembership(self, self.memberships)
        self.world.at(0, self.step, membership, None, process=self)
        return membership

    def step(self, membership: SimMembership, result: Any) -> None:
        """Give the membership the result of its effect, and perform the next one."""
        if membership.is_lost:
            membership.work.close()
            return
        try:
            effect = membership.work.send(result)
        except StopIteration:
            self.membership = None
            if membership.members:
                self.membership = self._new()
                self.membership.members = membership.members
            return
        membership.effect = effect
        self.world.note(self, f"membership {membership}: {type(effect).__name__}")
        if isinstance(effect, AskToBegin | AskToGo):
            membership.is_open = False
            self.ask(membership, effect)
        elif isinstance(effect, SaveMembership):
            self.save_membership(membership, lambda: self.step(membership, None))
        elif isinstance(effect, Announce):
            self.when_kept(lambda: self.announce(membership))
        elif isinstance(effect, WithdrawOwn):
            self.shares.send_route(self, is_there=False)
            self.round(lambda _: self.step(membership, None))
        elif isinstance(effect, Serve):
            if not membership.members:
                self.step(membership, None)
            else:
                self.open(membership)

    def ask(self, membership: SimMembership, effect: Effect[Any]) -> None:
        if membership.effect is effect and not membership.is_lost:
            self.save_membership(membership, None)
            self.world.at(1_000, self.ask, membership, effect, process=self)

    def announce(self, membership: SimMembership) -> None:
        if membership.is_lost:
            return
        self.shares.send_route(self, is_there=True)
        self.round(lambda offset: self.step(membership, [offset]))

    def round(self, then: Callable[[int], None]) -> None:
        """Send a barrier behind the route; its place comes back."""
        self.rounds += 1
        name = f"{self.me.incarnation}/{self.rounds}"
        self.barriers[name] = then
        self.shares.send_barrier(self, name)

    # What the log is told

    def save_membership(self, membership: SimMembership, then: Callable[[], None] | None) -> None:
        membership.is_changed = False
        membership.is_written = True

        def saved(error: LogError | None) -> None:
            if membership.is_lost:
                return
            if error is None:
                if then is not None:
                    self.when_kept(then)
            elif then is None:
                membership.is_changed = True
            else:
                self.world.at(200, self.save_membership, membership, then, process=self)

        self.share_log.save_membership(membership.snapshot(), saved)

    def after_saved(
        self,
        _tenant: str,
        shared_filter: str,
        proceed: Callable[[], None],
        member: GroupMember | None = None,
    ) -> None:
        """Implement `ingest.gateway.sending.group_step.SavedGroups`."""
        membership = cast("ShareMembership", self.membership) if shared_filter else None
        self.group_saver.after_saved(membership, proceed, member)

    def write(
        self,
        _log_topic: str,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        report: Callable[[int, int, LogError | None], None],
        *,
        partition: int,
    ) -> None:
        """Implement `mqlake.log.contract.LogWriter.append`."""
        record = ShardRecord(key, value, headers)
        land = partial(self.shares.append, self, partition, record)
        self.write_unsure(partition, land, lambda error: report(partition, 0, error))

    def write_unsure(
        self, where: object, land: Callable[[], int], report: Callable[[LogError | None], None]
    ) -> None:
        """Send a request that may time out, and be in the log or not, or come to be there."""
        times_out = self.times_out_until > self.world.now and self.random.random() < 0.5

        def landed(offset: int) -> None:
            timed_out = LogError("timed out", definite=False) if offset == GIVEN_UP else None
            if timed_out is None:
                self.heard_log(START_MS + self.world.now)
            if not times_out:
                report(timed_out)

        if times_out:
            delay = self.random.choice(_TIME_OUT_MS)
            timed_out = LogError("timed out", definite=False)
            self.world.at(delay, report, timed_out, process=self)
        if not times_out or self.random.random() < 0.5:
            self.send(where, land, report=landed, waits=True)

    def save_progress(
        self,
        key: Key,
        progress: ProgressRecord,
        epoch: int,
        on_saved: Callable[[LogError | None], None] | None = None,
    ) -> None:
        assert on_saved is not None
        session = self.shares.stored[key[1]]

        def report(error: LogError | None) -> None:
            self.once_counted(partial(on_saved, error))

        self.write_unsure("session", partial(session.save, epoch, progress), report)

    def when_kept(self, then: Callable[[], None]) -> None:
        if self.may_act() and not self.is_asking:
            then()
        else:
            self.waiting_to_be_kept.append(then)

    def write_marks(self) -> None:
        membership = self.membership
        if membership is not None and membership.is_changed and membership.starts is not None:
            self.save_membership(membership, None)

    # What comes

    def read(self, what: int | str) -> None:
        if what != "deliveries":
            super().read(what)
            return
        self.is_reading.discard(what)
        if self.cut_off_until > self.world.now or not self.may_act():
            if "again" not in self.is_reading:
                self.is_reading.add("again")
                self.world.at(300, self.read_again, process=self)
            return
        deliveries = self.shares.router.deliveries[self.me.gateway]
        if self.next_delivery < self.shares.router.begins.get(self.me.gateway, 0):
            # It ends itself, and is started again.
            self.world.at(0, self.world.crash, self, process=self)
            self.world.at(1_000, self.world.restart, self.slot)
            return
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
        membership = self.membership
        if membership is None or at < membership.from_delivery:
            return
        if membership.starts is not None and offset < membership.starts[0]:
            return
        if membership.given is not None:
            membership.given[0] = max(membership.given[0], offset + 1)
        membership.queue.append(offset)
        membership.is_changed = True
        self.hand_out(membership)

    # What goes

    def open(self, membership: SimMembership) -> None:
        if membership.is_lost or membership.state is not MembershipState.LIVE:
            return
        if membership.gaps or membership.unread:
            membership.is_open = False
            if not membership.is_reading and not membership.taking:
                membership.is_reading = True
                self.world.at(
                    self.random.choice((2, 5, 30)), self.read_log, membership, process=self
                )
            return
        membership.is_open = not self.is_asking
        self.hand_out(membership)

    def read_log(self, membership: SimMembership) -> None:
        is_live = membership.state is MembershipState.LIVE and not membership.taking
        if membership.is_lost or not is_live:
            membership.is_reading = False
            return
        found = {offset for _, offset in membership.unread}
        membership.unread.clear()
        has_gap = bool(membership.gaps)
        for gap in membership.gaps:
            found |= {
                offset
                for offset in range(gap.start[0], gap.end[0])
                if self.shares.router.stream[offset] == "message" and is_meant(gap, offset)
            }
        membership.gaps.clear()
        membership.queue = sorted(found | set(membership.queue))

        def done() -> None:
            membership.is_reading = False
            self.open(membership)

        if has_gap:
            self.save_membership(membership, done)
        else:
            done()

    def hand_out(self, membership: SimMembership) -> None:
        while membership.is_open and membership.queue and membership.members and self.may_act():
            offset = membership.queue.pop(0)
            given = Held(membership)
            with_room = [one for one in self.session_members if one.has_room]
            if with_room and self.random.random() < 0.7:
                given.by_qos_2 = True
                self.shares.judge_given(self, offset, given)
                self.random.choice(with_room).deliver(offset, given)
                membership.is_changed = True
                continue
            membership.held[offset] = given
            self.shares.judge_given(self, offset, given)
            self.world.at(self.random.choice(_ACK_MS), self.acked, membership, offset, process=self)

    def acked(self, membership: SimMembership, offset: int) -> None:
        given = membership.held.pop(offset, None)
        if given is not None and not membership.is_lost:
            given.is_acked = True
            self.world.note(self, f"message {offset} is acknowledged")
            membership.is_changed = True

    # What the owner tells

    def be_told(self, action: str, members: dict[str, Any]) -> None:
        if action != "share":
            super().be_told(action, members)
            return
        membership = self.membership
        if membership is None or members["part"] != membership.membership_id:
            return
        do = members["do"]
        if do == "begin" and isinstance(membership.effect, AskToBegin):
            # What comes before is by a route of an earlier run, and with who settles that.
            membership.from_delivery = len(self.shares.router.deliveries[self.me.gateway])
            self.step(membership, JoinStart(members["starts"], members["given"], members["since"]))
        elif do == "go" and isinstance(membership.effect, AskToGo):
            self.step(membership, None)
        elif do == "take":
            left = decode_membership(members["left"], GROUP, _dump(members["record"]))
            if membership.take_over(left):
                self.save_membership(membership, lambda: self.end_taking(membership))
        elif do == "taken":
            membership.forget_taken_over(members["parts"])
            membership.is_changed = True
        elif do == "kept" and membership.asks and membership.asks == members["asks"]:
            membership.asks = 0
            self.look_whether_kept()
        elif do == "lost":
            self.lose(membership, members["record"])

    def end_taking(self, membership: SimMembership) -> None:
        membership.taking -= 1
        if isinstance(membership.effect, Serve):
            self.open(membership)

    def lose(self, membership: SimMembership, record: dict[str, Any] | None) -> None:
        self.world.note(self, f"membership {membership} is lost")
        if record is not None:
            left = decode_membership(membership.membership_id, GROUP, _dump(record))
            for member in self.session_members:
                member.leave_to_others(left)
        membership.is_lost = True
        membership.work.close()
        self.membership = None
        if membership.members:
            self.membership = self._new()
            self.membership.members = membership.members
        else:
            self.shares.send_route(self, is_there=False)
        self.look_whether_kept()

    def renew(self) -> None:
        self.is_asking = True
        self.questions += 1
        membership = self.membership
        if membership is not None:
            membership.is_open = False
            membership.asks = self.questions if membership.is_written else 0
        super().renew()
        if membership is not None:
            self.ask_whether_kept(membership, self.questions)
        self.look_whether_kept()

    def ask_whether_kept(self, membership: SimMembership, question: int) -> None:
        if membership.asks == question and membership is self.membership:
            self.save_membership(membership, None)
            self.world.at(1_000, self.ask_whether_kept, membership, question, process=self)

    def look_whether_kept(self) -> None:
        if not self.is_asking or (self.membership is not None and self.membership.asks):
            return
        self.is_asking = False
        self.share_log.confirmed()
        self.go_on_kept()

    def go_ahead(self) -> None:
        super().go_ahead()
        if not self.is_asking:
            self.share_log.confirmed()
            self.go_on_kept()

    def go_on_kept(self) -> None:
        parked, self.waiting_to_be_kept = self.waiting_to_be_kept, []
        for then in parked:
            self.when_kept(then)
        self.go_on_serving()

    def go_on_serving(self) -> None:
        if self.membership is not None and isinstance(self.membership.effect, Serve):
            self.open(self.membership)

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
        self.group = GROUP
        self.router = Router(self, GROUP)
        self.stored: dict[str, StoredSession] = {}
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
        elif step.what == "store":
            name = f"c{step.who}"
            session = self.stored.setdefault(name, StoredSession(self, name))
            for process in self.gateways():
                if process.slot == step.gateway and process.is_alive:
                    self.at(1, session.connect, process, process=process)
        else:
            super().do(step)

    def gateways(self) -> list[ShareProcess]:
        return cast("list[ShareProcess]", self.processes)

    def strike(self, fault: Fault, process: Process) -> None:
        if fault.what == "router":
            self.note("router", f"FAULT is away for {fault.ms} ms")
            self.router.crash(fault.ms)
        elif fault.what == "gone":
            self.note("log", "FAULT removes deliveries before they are settled")
            self.router.keeps_deliveries = False
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
            look(routes)

        def look(routes: int) -> None:
            deliveries = self.router.deliveries[effect.gateway]
            is_there = any(one.barrier == name for one in deliveries)
            if not is_there or not self.router.has_noted(routes):
                self.at(20, look, routes, process=process)
                return
            begin = max(self.router.remove_some(effect.gateway), effect.first)
            given = [
                Given(0, one.offset, 1, at)
                for at, one in enumerate(deliveries)
                if at >= begin and one.barrier is None
            ]
            before = deliveries[begin].offset
            gone = None
            if begin > effect.first:
                gone = GoneDeliveries([before], self.router.routes_then())
            done(Deliveries({GROUP: given}, gone))

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
            membership_id, group = decode_membership_key(record.key.decode().removeprefix("h/"))
            stamp = read_stamp(record.headers)
            counts = self.table.apply_membership(
                membership_id, group, record.value, stamp, self.owner_epoch, self.now
            )
            if counts and record.value is not None and stamp.owner is None:
                now = decode_membership(membership_id, group, record.value)
                if (
                    self.since is None
                    and now.state is MembershipState.LIVE
                    and now.starts is not None
                ):
                    self.since = now.starts[0]
                for given in self.snapshots.pop((membership_id, now.number), ()):
                    given.is_durable = True

    def judge_snapshot(self, membership: SimMembership, record: MembershipRecord) -> None:
        self.snapshots[membership.membership_id, record.number] = [
            one
            for all_given in self.given.values()
            for one in all_given
            if one.membership is membership and one.is_acked and not one.is_durable
        ]

    def judge_given(self, process: ShareProcess, offset: int, given: Held) -> None:
        self.note(process, f"message {offset} to a member")
        if any(offset in session.received for session in self.stored.values()):
            raise Violation("QoS 2 goes to one client once", f"message {offset} is given again")
        for before in self.given.setdefault(offset, []):
            if before.by_qos_2:
                continue  # it was not sent: it may go to others
            if before.is_durable:
                raise Violation(
                    "one member acknowledges a message", f"message {offset} comes after that again"
                )
            if before.is_returned:
                continue
            if before.membership is given.membership:
                raise Violation("one member has a message", f"message {offset} is given twice")
            now = self.table.get(GROUP, before.membership.membership_id)
            if now is not None and now.state is not MembershipState.LEFT:
                raise Violation(
                    "one member has a message",
                    f"message {offset} goes to {given.membership}, {before.membership} has it",
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
            has_got = any(offset in session.received for session in self.stored.values())
            if not has_got and not any(one.is_acked for one in self.given.get(offset, ())):
                raise Violation("no message is lost", f"message {offset} reached nobody")
        live = [
            one for one in self.table.memberships(GROUP) if one.state is not MembershipState.LIVE
        ]
        if live:
            raise Violation("every membership gets an answer", f"{live}")
        for process in self.processes:
            assert isinstance(process, ShareProcess)
            membership = process.membership
            if process.is_alive and membership is not None and membership.taken_over:
                raise Violation("what was taken is forgotten", str(membership.taken_over))

    def crash(self, process: Process) -> None:
        super().crash(process)
        assert isinstance(process, ShareProcess)
        if process.membership is not None:
            process.membership.work.close()


def is_meant(gap: ShareGap, offset: int) -> bool:
    """Tell whether a message is one of a gap's."""
    if gap.chosen is None:
        return True
    if (0, offset) in gap.chosen.in_flight:
        return False
    weights = gap.chosen.weights(0, offset)
    if weights is None:
        raise Violation("routes are known", f"not those of message {offset}")
    return bool(weights) and choose(sorted(weights), offset) == gap.chosen.gateway


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def frozen(seed: int) -> Schedule:
    """Return the schedule of a seed in which a machine is frozen."""
    return with_freeze(make_schedule(seed), 25)


def search(
    seeds: range, make: Callable[[int], Schedule] = make_schedule
) -> tuple[Schedule, Violation] | None:
    """Return the first schedule that breaks a promise, and which."""
    for seed in seeds:
        schedule = make(seed)
        found = run(schedule, ShareWorld)
        if found is not None:
            return schedule, found
    return None
