"""Gateways, clients and the log in one simulated world: everything that happens comes from a seed.

A `Schedule` says what clients do and which faults strike before which event. `World` runs it on a
virtual clock: a heap of events, each of which one process (or the log, or a client) takes. Only
the host is test code, `Process`; it runs the real `Shard`, `Holder` and acts. `Judge` sees what
clients see and what the log has, and raises `Violation` with the name of a broken promise.

What is taken for granted: requests of one process to one partition land in their order, within
LATE_MS after they were sent, whatever becomes of the process; clocks run at one rate.
"""

from __future__ import annotations

import inspect
import json
import os
from bisect import bisect_left
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ingest.session.effects import (
    Append,
    Effect,
    Fenced,
    Find,
    NextOffsets,
    PublishWills,
    ShardRecord,
    Tell,
    Work,
)
from ingest.session.holder import Grant, Holder
from ingest.session.memory_shards import MemoryShardStore
from ingest.session.ownership import Shard
from ingest.session.placement import Place, place
from mqlake.log.contract import LogRecord
from mqlake.session_records import (
    NEVER_EXPIRES,
    MarksRecord,
    Outgoing,
    ProgressRecord,
    SessionRecord,
    StoredSubscription,
    StoredWill,
    decode_progress,
    decode_session,
    encode_marks,
    encode_progress,
    encode_session,
    exchange_name,
    marks_key,
    progress_key,
    session_key,
    will_exchange,
)
from mqlake.shard_records import OWNER_KEY, Key, Run, encode_run, shard_of, stamp_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mqlake.errors import LogError
    from mqlake.records import Headers

TICK_MS: Final = 1_000
LEASE_MS: Final = 10_000
MARGIN_MS: Final = 1_000
SILENCE_MS: Final = 3_000
DELIVERY_MS: Final = 4_000
"""What a client has published is given up so long after the lease of a gateway that stands still:
later than the shorter of the long pauses, and before its owner may think that it never comes."""

LATE_MS: Final = 900
COMPACTION_LAG_MS: Final = 20_000
OPEN_SECONDS: Final = 30.0
START_MS: Final = 1_700_000_000_000
"""The log's time when the world begins."""

QUIET_MS: Final = 20_000
"""A lease and its margin, a tick each to notice and to act, and what is in between."""

_LOOK_AGAIN_MS: Final = 500
"""How often it is looked whether a fault is over; the end of the schedule ends it."""

TENANT: Final = "t"


class Violation(AssertionError):  # noqa: N818 - what is broken, not how
    """A promise is broken.

    Attributes:
        name: Of the invariant.
    """

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Step:
    """What a client, an operator or the log does."""

    at_ms: int
    what: str
    """connect, disconnect, drop, publish, message, restart, wait (for nothing) or compact."""
    who: int = 0
    """Client, or slot of a gateway."""
    gateway: int = 0
    clean: bool = False
    will_delay: int | None = None
    expiry: int = 0
    qos: int = 2
    is_half_open: bool = False
    """The client's connection before it stays open at the server: nothing has told it."""

    def __str__(self) -> str:
        told = {
            "connect": f"client {self.who} connects to g{self.gateway}"
            f" clean={self.clean} will={self.will_delay} expiry={self.expiry}"
            f" half-open={self.is_half_open}",
            "message": f"a message of QoS {self.qos} is published",
            "restart": f"slot {self.who} is started again",
            "compact": "the log is compacted",
        }
        return told.get(self.what, f"client {self.who}: {self.what}")


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong before an event, counted over all gateways."""

    event: int
    what: str
    """crash, pause, or for a time: deaf to all, unheard (deaf to beats and control records), mute
    (no beats), slow (deaf to shards), late (appends take longer)."""
    gateway: int | None
    """Slot; None: the gateway whose event it is."""
    ms: int = 0

    def __str__(self) -> str:
        return f"{self.what} {self.gateway} {self.ms} ms before event {self.event}"


@dataclass(frozen=True, slots=True)
class Schedule:
    seed: int
    gateways: int
    shards: int
    steps: tuple[Step, ...]
    faults: tuple[Fault, ...]


CLIENTS: Final = 2
_GAPS_MS: Final = (0, 1, 2, 3, 5, 8, 15, 40, 300, 2_000, 4_000, 13_000)
_FAULTS: Final = (
    *("crash", "crash", "crash", "pause", "pause", "pause"),
    *("deaf", "unheard", "mute", "slow", "late"),
)
_PAUSES_MS: Final = (100, 1_500, 2_900, 3_500, 5_000, 9_500, 10_500, 11_500, 13_000, 30_000)
_EXPIRIES: Final = (NEVER_EXPIRES, NEVER_EXPIRES, NEVER_EXPIRES, 0, 0, 8)
_WILLS: Final = (None, None, 0, 0, 3)


def make_schedule(seed: int) -> Schedule:
    """Return the schedule of a seed: few gateways and clients, much at the same moment."""
    random = Random(seed)
    gateways = random.choice((2, 2, 2, 3, 3, 4))
    at_ms, steps = 2_500, []
    who = 0
    for _ in range(random.randint(4, 14)):
        at_ms += random.choice(_GAPS_MS)
        if random.random() < 0.4:
            who = random.randrange(CLIENTS)
        what = random.choices(
            ("connect", "disconnect", "drop", "publish", "message", "restart", "wait", "compact"),
            (8, 2, 3, 5, 6, 2, 1, 1),
        )[0]
        if what == "connect":
            options = (random.random() < 0.25, random.choice(_WILLS), random.choice(_EXPIRIES))
            if random.random() < 0.2:
                options = (True, None, 0)  # what an owner may begin at once
            step = Step(at_ms, what, who, random.randrange(gateways), *options)
            step = replace(step, is_half_open=random.random() < 0.4)
        elif what in {"restart", "wait"}:
            step = Step(at_ms, what, random.randrange(gateways))
        elif what == "message":
            step = Step(at_ms, what, qos=random.choice((1, 2, 2)))
        else:
            step = Step(at_ms, what, who)
        steps.append(step)
    faults = []
    for _ in range(random.choice((0, 1, 1, 2, 2, 3))):
        what = random.choice(_FAULTS)
        ms = LATE_MS if what == "late" else random.choice(_PAUSES_MS)
        gateway = None if random.random() < 0.7 else random.randrange(gateways)
        faults.append(Fault(random.randint(5, 40 + 18 * len(steps)), what, gateway, ms))
    faults.sort(key=lambda fault: fault.event)
    shards = 2 if random.random() < 0.2 else 1
    return Schedule(seed, gateways, shards, tuple(steps), tuple(faults))


# The log


class Log:
    """One partition of `mqlake.sessions`."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.next_offset = 0

    def append(self, now: int, shard: int, record: ShardRecord) -> int:
        offset = self.next_offset
        self.records.append(LogRecord(shard, offset, START_MS + now, *_fields(record)))
        self.next_offset += 1
        return offset

    def since(self, offset: int) -> list[LogRecord]:
        return self.records[bisect_left(self.records, offset, key=lambda one: one.offset) :]

    def compacted(self, before_ms: int) -> list[LogRecord]:
        """Return what compaction leaves: the last record of each key, and all recent ones."""
        last = {record.key: record.offset for record in self.records}
        return [
            record
            for record in self.records
            if record.timestamp_ms >= before_ms or last[record.key] == record.offset
        ]


def _fields(record: ShardRecord) -> tuple[bytes, bytes | None, Headers]:
    return record.key, record.value, record.headers


class Message(NamedTuple):
    """A record of `mqlake.inbound`, which has one partition here."""

    kind: str
    """message (for subscribers), published (by a client) or will."""
    name: str
    qos: int = 0
    exchange: bytes = b""


class Beat(NamedTuple):
    lands: int
    run: Run
    sent: int


# Clients


@dataclass(slots=True, eq=False)
class Connection:
    """A network connection, seen from both ends."""

    number: int
    client: Client
    process: Process
    options: Step
    is_concluded: bool = False
    """The server has answered CONNECT, one way or the other."""
    is_acked: bool = False
    """CONNACK was sent."""
    is_closed: bool = False
    """By the server, or with it."""
    closed_at: int = 0
    session_id: str = ""
    exchange: bytes = b""
    """Of its will."""
    has_disconnected: bool = False
    """DISCONNECT came, and is durable under an epoch that counted."""
    asked_to_disconnect: bool = False

    def __str__(self) -> str:
        return f"connection {self.number} of {self.client.client_id} at {self.process}"


@dataclass(slots=True, eq=False)
class Client:
    """What a client and the person at it know."""

    number: int
    client_id: str
    connection: Connection | None = None
    is_connected: bool = False
    subscribed: str | None = None
    """Of the session that has its subscription, by SUBACK."""
    session_id: str | None = None
    """Of the session that must be there when it comes back; None: it may be gone."""
    expected: list[Message] = field(default_factory=list)
    received: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By session and message."""
    packet_ids: set[tuple[str, int]] = field(default_factory=set)
    """QoS 2 messages it has received in a session that are not released."""
    publishing: dict[tuple[str, int], tuple[str, bool]] = field(default_factory=dict)
    """Session and packet identifier -> message, whether PUBREC came."""
    published: list[str] = field(default_factory=list)
    """What was acknowledged by PUBREC."""
    connections: list[Connection] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return (TENANT, self.client_id)


class Judge:
    """Says what must not be."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dead_sessions: set[str] = set()
        self.begun: dict[str, set[str]] = {}
        self.created: dict[str, Connection] = {}
        self.last_expiry: dict[str, int] = {}
        self.by_exchange: dict[bytes, Connection] = {}
        self.wills: Counter[bytes] = Counter()

    def connack(self, connection: Connection, *, is_present: bool) -> None:
        client, sid = connection.client, connection.session_id
        for process in self.world.processes:
            serving = process.serving.get(client.key)
            if (
                process is not connection.process
                and serving is not None
                and serving.connection.is_acked
                and not serving.connection.is_closed
                and process.is_leased
            ):
                raise Violation("one holder", f"{connection} while {serving.connection}")
        must = client.session_id
        if is_present:
            if self.created[sid] is connection:
                raise Violation("session present", f"{sid} is new, {connection}")
            if sid in self.dead_sessions or self.last_expiry.get(sid) == 0:
                raise Violation("session present", f"{sid} had ended, {connection}")
            if must not in {None, sid}:
                raise Violation("session present", f"{sid} instead of {must}, {connection}")
        elif must is not None:
            raise Violation("nothing is missing", f"{must} is gone, {connection}")
        else:
            before = self.begun.setdefault(client.client_id, set())
            self.dead_sessions |= before - {sid}
            before.add(sid)
        self.last_expiry[sid] = connection.options.expiry

    def published(self, message: Message) -> None:
        if message.kind != "will":
            return
        self.wills[message.exchange] += 1
        connection = self.by_exchange[message.exchange]
        if self.wills[message.exchange] > 1:
            raise Violation("a will once", f"twice that of {connection}")
        if connection.has_disconnected:
            raise Violation("a will once", f"after DISCONNECT on {connection}")
        for other in connection.client.connections:
            is_served = other.is_acked and not other.is_closed and other.process.is_leased
            if other.number >= connection.number and is_served:
                raise Violation("a will once", f"that of {connection} while {other} is served")

    def at_the_end(self) -> None:
        """Judge what must have come true in a quiet time."""
        world = self.world
        alive = {process.me for process in world.processes if process.is_alive}
        for process in world.processes:
            if not process.is_alive:
                continue
            for shard in process.shards:
                if shard.store.waiting():
                    raise Violation("liveness", f"claims wait at {process}")
                if dead := set(shard.store.holders()) - alive:
                    raise Violation("liveness", f"dead runs hold sessions: {dead}")
        for number in range(world.schedule.shards):
            owners = [p for p in world.processes if p.is_alive and p.shards[number].is_active]
            if len(owners) != 1:
                raise Violation("liveness", f"{len(owners)} owners of shard {number}")
        for client in world.clients:
            connection = client.connection
            was_asked = connection is not None and connection.options.what == "final"
            if was_asked and not client.is_connected:
                raise Violation("liveness", f"no CONNACK on {connection}")
            self._judge_messages(client)
            self._judge_wills(client)
        self._judge_log()

    def _judge_messages(self, client: Client) -> None:
        for message in client.expected:
            if not client.received[client.session_id or "", message.name]:
                raise Violation("nothing is missing", f"{message.name} to {client.client_id}")
        stored = Counter(one.name for one in self.world.inbound if one.kind == "published")
        if twice := [name for name, count in stored.items() if count > 1]:
            raise Violation("exactly once", f"{twice} of {client.client_id} stored twice")
        if lost := [name for name in client.published if not stored[name]]:
            raise Violation("nothing is missing", f"{lost} of {client.client_id}")

    def _judge_wills(self, client: Client) -> None:
        for connection in client.connections:
            delay_s = connection.options.will_delay
            if (
                delay_s is None
                or not connection.is_acked
                or not connection.is_closed
                or connection.asked_to_disconnect
                or self.wills[connection.exchange]
            ):
                continue
            until = connection.closed_at + delay_s * 1000 + QUIET_MS
            is_later = any(other.number > connection.number for other in client.connections)
            if self.world.now > until and not (delay_s and is_later):
                raise Violation("a will once", f"that of {connection} was not published")

    def _judge_log(self) -> None:
        """A fresh reader, of the whole log or of what compaction leaves, knows what others do."""
        world = self.world
        for number, log in enumerate(world.logs):
            owner = next(p for p in world.processes if p.is_alive and p.shards[number].is_active)
            expected = _state(owner.shards[number], world.clients)
            copies = {
                "as it is": log.records,
                "compacted": log.compacted(START_MS + world.now - COMPACTION_LAG_MS),
                "compacted to the end": log.compacted(START_MS + world.now),
            }
            for name, records in copies.items():
                fresh = Shard(number, MemoryShardStore(), Run("", "fresh"), lambda _, __: None)
                for record in records:
                    fresh.apply(record)
                if (found := _state(fresh, world.clients)) != expected:
                    raise Violation("one order", f"{name}: {found}, expected {expected}")

    def received(self, client: Client, sid: str, message: Message) -> None:
        client.received[sid, message.name] += 1
        if message.qos == 2 and client.received[sid, message.name] > 1:
            raise Violation("exactly once", f"{message.name} twice to {client.client_id}")


def _state(shard: Shard, clients: Sequence[Client]) -> dict[str, object]:
    states: dict[str, object] = {"owner": shard.owner}
    for client in clients:
        entry = shard.store.get(client.key)
        if entry is None or (entry.session is None and entry.holder is None):
            continue
        states[client.client_id] = (
            entry.epoch,
            entry.holder,
            entry.session,
            entry.claim,
            shard.store.progress(client.key),
        )
    return states


# Gateways


class Serving:
    """A session that a gateway holds for a connection."""

    def __init__(
        self,
        connection: Connection,
        session: SessionRecord,
        progress: ProgressRecord,
        *,
        stored: bool,
    ) -> None:
        self.connection = connection
        self.session = session
        self.progress = progress
        self.is_stored = stored
        self.is_open = True
        self.appending = 0
        """QoS 2 messages on their way into the log."""
        self.after_appending: Callable[[], None] | None = None
        self.is_saving = False
        self.is_dirty = False
        self.after_save: list[Callable[[], None]] = []


class Process:
    """One run of a gateway: the host of a holder and of shards."""

    def __init__(self, world: World, slot: int, me: Run, since: int) -> None:
        self.world = world
        self.slot = slot
        self.me = me
        self.random = Random(world.schedule.seed * 101 + len(world.processes))
        self.is_alive = True
        self.is_over = False
        self.paused_until = 0
        self.deaf_until = 0
        self.mute_until = 0
        self.unheard_until = 0
        self.slow_until = 0
        self.late_until = 0
        self.lands_before: dict[object, int] = {}
        self.lost_after = 1 << 60
        shards = world.schedule.shards
        self.shards = [Shard(n, MemoryShardStore(), me, self.start) for n in range(shards)]
        self.ends = [log.next_offset for log in world.logs]
        self.holder: Holder[Connection] = Holder(me, shards, self)
        self.serving: dict[Key, Serving] = {}
        self.inbound = len(world.inbound)
        self.is_reading: set[object] = set()
        self.marked = 0
        self.works: set[Work] = set()
        self.waits: list[list[tuple[int, Callable[[], None]]]] = [[] for _ in range(shards)]
        # The gateways' heartbeats.
        self.beats = len(world.beats)
        self.leased_from = -LEASE_MS
        self.is_isolated = True
        """The lease was over, and what is held is not confirmed yet."""
        self.is_confirming = False
        self.deferred: list[tuple[Serving, Callable[[], None]]] = []
        self.heard: dict[Run, int] = {}
        self.latest: dict[str, Run] = {}
        self.started = world.now
        self.owning: set[int] = set()
        world.at(since, self.tick, process=self)
        for number in range(shards):
            self.wake(number)
        self.wake("inbound")

    def __str__(self) -> str:
        return "/".join(self.me)

    # Time and heartbeats

    @property
    def is_leased(self) -> bool:
        """Whether others cannot take this process for dead yet."""
        return (
            self.is_alive and not self.is_isolated and self.world.now - self.leased_from < LEASE_MS
        )

    def may_act(self) -> bool:
        """Tell whether the lease goes on; note when it is over."""
        is_over = self.world.now - self.leased_from >= LEASE_MS
        if is_over and (self.is_confirming or not self.is_isolated):
            self.world.note(self, "is isolated")
            self.is_isolated = True
            self.is_confirming = False
        return not self.is_isolated

    def has_lease(self) -> bool:
        """Tell whether our own word has come back: what an owner needs, while a holder asks."""
        return self.world.now - self.leased_from < LEASE_MS and (
            self.may_act() or self.is_confirming
        )

    def tick(self) -> None:
        world, now = self.world, self.world.now
        world.at(TICK_MS, self.tick, process=self)
        if now >= self.mute_until:
            world.beats.append(Beat(now + 5, self.me, now))
        if now >= max(self.deaf_until, self.unheard_until):
            self.hear()
        self.may_act()
        if self.is_isolated and not self.is_confirming and now - self.leased_from < LEASE_MS:
            self.renew()
        if self.has_lease():
            self.place()
        for shard in self.shards:
            shard.tick(START_MS + now, self.is_dead, self.is_silent, self.is_spent)
        self.holder.tick(now / 1000, OPEN_SECONDS)
        self.write_marks()

    def hear(self) -> None:
        beats, now = self.world.beats, self.world.now
        while self.beats < len(beats) and beats[self.beats].lands <= now:
            beat = beats[self.beats]
            self.beats += 1
            latest = self.latest.get(beat.run.gateway)
            if beat.run == self.me:
                self.leased_from = max(self.leased_from, beat.sent)
            if latest is None or beat.run == latest or beat.run not in self.heard:
                self.latest[beat.run.gateway] = beat.run
                self.heard[beat.run] = now

    def is_silent_for(self, run: Run, ms: int) -> bool:
        now = self.world.now
        if now - self.leased_from > SILENCE_MS:
            return False
        return now - self.heard.get(run, self.started) >= ms

    def is_silent(self, run: Run) -> bool:
        return run != self.me and (self.is_dead(run) or self.is_silent_for(run, SILENCE_MS))

    def is_certain(self) -> bool:
        """Tell whether nobody takes us for silent before what we append now has landed."""
        return self.world.now - self.leased_from < SILENCE_MS - MARGIN_MS

    def is_dead(self, run: Run) -> bool:
        if run == self.me:
            return False
        latest = self.latest.get(run.gateway)
        if run.gateway == self.me.gateway or (
            latest is not None and latest != run and run in self.heard
        ):
            return True
        if latest is not None and latest != run and self.heard[latest] > self.started:
            return True  # an earlier one, over before the one that speaks now has begun
        return self.is_silent_for(run, LEASE_MS + MARGIN_MS)

    def is_spent(self, run: Run) -> bool:
        if not self.is_dead(run):
            return False
        if self.latest.get(run.gateway) != run:
            return True
        return self.is_silent_for(run, LEASE_MS + MARGIN_MS + DELIVERY_MS)

    def place(self) -> None:
        heard = {self.me.gateway}
        for run in self.latest.values():
            if not self.is_silent_for(run, SILENCE_MS):
                heard.add(run.gateway)
        for number, where in enumerate(_placed(len(self.shards), tuple(sorted(heard)))):
            shard = self.shards[number]
            is_read = shard.next_offset >= self.ends[number]
            if where.owner == self.me.gateway and shard.owner != self.me and is_read:
                self.own(number)

    def own(self, number: int) -> None:
        if number not in self.owning:
            self.owning.add(number)
            self.world.note(self, f"wants to own shard {number}")
            record = ShardRecord(OWNER_KEY, encode_run(self.me), stamp_headers(self.me.incarnation))
            self.append_record(number, record, lambda _: self.owning.discard(number))

    def renew(self) -> None:
        self.is_confirming = True
        self.world.note(self, "has a lease again")
        for shard in self.shards:
            if shard.owner == self.me:
                shard.is_active = False
                self.own(shard.number)
        self.holder.confirm(self.world.now / 1000)

    def confirmed(self) -> None:
        self.world.note(self, "goes on")
        self.is_isolated = self.is_confirming = False
        deferred, self.deferred = self.deferred, []
        for serving, call in deferred:
            self.when_leased(serving, call)

    def when_leased(self, serving: Serving, call: Callable[[], None]) -> None:
        """Do something for a client, unless others may have its session already."""
        if not self.may_act():
            self.deferred.append((serving, call))
        elif serving.is_open:
            call()

    # What is read

    def wake(self, what: int | str) -> None:
        if what not in self.is_reading:
            self.is_reading.add(what)
            self.world.at(self.random.choice((1, 1, 2, 4)), self.read, what, process=self)

    def read(self, what: int | str) -> None:
        until = self.deaf_until if isinstance(what, str) else max(self.deaf_until, self.slow_until)
        if until > self.world.now:
            delay = min(until - self.world.now, _LOOK_AGAIN_MS)
            self.world.at(delay, self.read, what, process=self)
            return
        self.is_reading.discard(what)
        if isinstance(what, str):
            self.inbound = len(self.world.inbound)
            for serving in list(self.serving.values()):
                self.pump(serving)
            return
        shard = self.shards[what]
        for record in self.world.logs[what].since(shard.next_offset):
            shard.apply(record)
        self.check_waits(what)

    def check_waits(self, number: int) -> None:
        waits, self.waits[number] = self.waits[number], []
        for offset, call in waits:
            if offset < self.shards[number].next_offset:
                self.world.at(0, call, process=self)
            else:
                self.waits[number].append((offset, call))

    def take_control(self, action: str, value: bytes) -> None:
        until = max(self.deaf_until, self.unheard_until)
        if until > self.world.now:
            delay = min(until - self.world.now, _LOOK_AGAIN_MS)
            self.world.at(delay, self.take_control, action, value, process=self)
            return
        self.world.note(self, f"is told {action} {value.decode()}")
        members = json.loads(value)
        self.be_told(action, members)

    def be_told(self, action: str, members: dict[str, Any]) -> None:
        take = {
            "grant": self.holder.granted,
            "refuse": self.holder.refused,
            "confirm": self.holder.answered,
            "release": self.holder.asked_to_let_go,
            "rewrite": self.holder.asked_to_rewrite,
        }[action]
        take(members)

    # Acts of owners

    def start(self, shard: Shard, work: Work) -> None:
        if self.is_over:
            _discard(work)
            return
        self.works.add(work)
        self.world.at(0, self.go_on, shard, work, shard.owner_epoch, None, process=self)

    def go_on(self, shard: Shard, work: Work, epoch: int, result: Any) -> None:
        """Give a coroutine the result of its effect, or `Fenced`, and perform the next one."""
        is_new = inspect.getcoroutinestate(work) == inspect.CORO_CREATED
        try:
            if is_new or self.may_own(shard, epoch):
                effect = work.send(result)
            else:
                effect = work.throw(Fenced("not the owner"))
        except (StopIteration, Fenced):
            self.works.discard(work)
            return
        self.begin_effect(shard, work, epoch, effect)

    def begin_effect(self, shard: Shard, work: Work, epoch: int, effect: Effect[Any]) -> None:
        if not self.may_own(shard, epoch):
            self.go_on(shard, work, epoch, None)
        elif isinstance(effect, PublishWills) and not self.is_certain():
            again = (shard, work, epoch, effect)
            self.world.at(_LOOK_AGAIN_MS, self.begin_effect, *again, process=self)
        else:
            self.perform(shard, effect, lambda result=None: self.go_on(shard, work, epoch, result))

    def may_own(self, shard: Shard, epoch: int) -> bool:
        return self.has_lease() and shard.owner_epoch == epoch

    def perform(self, shard: Shard, effect: Effect[Any], done: Callable[..., None]) -> None:
        world = self.world
        if isinstance(effect, Append) and effect.records:
            number = shard.number

            def appended(offset: int) -> None:
                self.waits[number].append((offset, done))
                self.check_waits(number)

            for record in effect.records[:-1]:
                self.append_record(number, record, lambda _: None)
            self.append_record(number, effect.records[-1], appended)
        elif isinstance(effect, Tell):
            told = (effect.gateway, effect.action, effect.value)
            self.send("control", world.told, *told, report=lambda _: done())
        elif isinstance(effect, NextOffsets):
            world.at(2, lambda: done([len(world.inbound)]), process=self)
        elif isinstance(effect, Find):
            world.at(3, lambda: done(world.find(effect)), process=self)
        elif isinstance(effect, PublishWills):
            self.publish_wills(effect, done)
        else:
            world.at(0, done, process=self)

    def publish_wills(self, effect: PublishWills, done: Callable[..., None]) -> None:
        left = len(effect.wills)
        if not left:
            self.world.at(0, done, process=self)

        def published(_: int) -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for session, exchange in effect.wills:
            will = Message("will", session.session_id, 0, exchange)
            self.send("inbound", self.world.publish, will, report=published)

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
        or is given up.
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
                self.world.at(self.paused_until - now, landed)
            elif lands <= self.lost_after and now - sent <= LEASE_MS + DELIVERY_MS:
                offset = land(*args)
                self.world.at(self.random.choice((1, 2)), report, offset, process=self)

        self.world.at(lands - self.world.now, landed)

    def append_record(self, shard: int, record: ShardRecord, report: Callable[[int], None]) -> None:
        self.send(shard, self.world.append, self, shard, record, report=report)

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

    def write(self, serving: Serving, epoch: int, report: Callable[[int], None]) -> None:
        key, stamp = serving.connection.client.key, stamp_headers(self.me.incarnation, epoch)
        shard = self.shard_number(key)
        progress = ShardRecord(progress_key(*key), encode_progress(serving.progress), stamp)
        session = ShardRecord(session_key(*key), encode_session(serving.session), stamp)
        self.append_record(shard, progress, lambda _: None)
        self.append_record(shard, session, report)

    def shard_number(self, key: Key) -> int:
        return shard_of(*key, len(self.shards))

    def write_marks(self) -> None:
        """Say how far all settled sessions are, behind what was written of the others."""
        if self.is_isolated or any(
            one.is_saving or one.is_dirty or one.progress.cursor[0] < self.inbound
            for one in self.serving.values()
        ):
            return
        if self.marked == self.inbound:
            return
        self.marked = self.inbound
        marks = encode_marks(MarksRecord(self.me.incarnation, [self.inbound - 1]))
        for number in {
            self.shard_number(key) for key, one in self.serving.items() if one.is_stored
        }:
            record = ShardRecord(
                marks_key(self.me.gateway), marks, stamp_headers(self.me.incarnation)
            )
            self.append_record(number, record, lambda _: None)

    # Clients come and go

    def accept(self, connection: Connection) -> None:
        if not self.may_act():
            self.close(connection)
            return
        key, options = connection.client.key, connection.options
        shard = self.shards[self.shard_number(key)]
        is_plain = options.clean and options.will_delay is None and not options.expiry
        if is_plain and self.is_certain() and shard.take(key, self.holder.next_number):
            self.holder.open_free(key, connection)
        else:
            self.holder.open(key, connection, self.world.now / 1000, clean_start=options.clean)

    def begin(self, key: Key, opening: Connection, grant: Grant | None) -> None:
        options, now = opening.options, START_MS + self.world.now
        stored = None
        if grant is not None and grant.session is not None:
            stored = decode_session(json.dumps(grant.session).encode())
        is_present = stored is not None
        self.world.sessions += 1
        session = stored or SessionRecord(
            session_id=f"s{self.world.sessions}",
            tenant=key[0],
            client_id=key[1],
            protocol_level=5,
            username=None,
            keep_alive=0,
            clean_start=options.clean,
            session_expiry_interval=0,
            gateway="",
            incarnation="",
            connected=True,
            connected_at_ms=now,
        )
        session = replace(
            session,
            session_expiry_interval=options.expiry,
            gateway=self.me.gateway,
            incarnation=self.me.incarnation,
            connected=True,
            connected_at_ms=now,
            disconnected_at_ms=None,
            will=None,
            will_at_ms=None,
            will_from=None,
        )
        if options.will_delay is not None:
            session.will = StoredWill("w", b"", 0, False, {}, options.will_delay)
        progress = ProgressRecord(session.session_id, [self.inbound], False)
        if is_present and grant is not None and grant.progress is not None:
            found = decode_progress(json.dumps(grant.progress).encode())
            if found.session_id == session.session_id:
                progress = found
        progress.settled = False
        is_stored = options.expiry > 0 or session.will is not None
        serving = Serving(opening, session, progress, stored=is_stored)
        self.serving[key] = serving
        opening.session_id = session.session_id
        opening.exchange = will_exchange(session)
        if not is_present:
            self.world.judge.created[session.session_id] = opening
        self.world.judge.by_exchange[opening.exchange] = opening
        epoch = self.holder.epoch(key)
        if not is_stored and not is_present:
            self.when_leased(serving, lambda: self.connack(serving, is_present=False))
            return
        serving.is_stored = True
        assert epoch is not None

        def durable(_: int) -> None:
            if serving.is_open:
                self.holder.saved(key)
            self.when_leased(serving, lambda: self.connack(serving, is_present=is_present))

        self.write(serving, epoch, durable)

    def connack(self, serving: Serving, *, is_present: bool) -> None:
        connection = serving.connection
        if connection.is_closed:
            return
        self.world.note(self, f"CONNACK {serving.session.session_id} present={is_present}")
        self.world.judge.connack(connection, is_present=is_present)
        connection.is_acked = connection.is_concluded = True
        self.world.at(1, self.world.connected, connection, is_present)
        for one in serving.progress.outgoing:
            if one.released:
                self.world.at(1, self.world.released, connection, one.packet_id)
            else:
                self.deliver(serving, one)
        self.pump(serving)

    def refuse(self, key: Key, opening: Connection, reason: str, *, is_superseded: bool) -> None:
        self.close(opening)

    def close(self, connection: Connection) -> None:
        """Close a connection; its client hears of it."""
        if not connection.is_closed:
            connection.is_closed = connection.is_concluded = True
            connection.closed_at = self.world.now
            self.world.at(1, self.world.lost, connection)

    def let_go(self, key: Key) -> None:
        serving = self.serving.get(key)
        if serving is not None and serving.is_open:
            self.end_connection(serving, is_asked=False)

    def abandon(self, key: Key) -> None:
        serving = self.serving.pop(key, None)
        if serving is not None:
            serving.is_open = False
            self.close(serving.connection)

    def rewrite(self, key: Key) -> None:
        serving, epoch = self.serving.get(key), self.holder.epoch(key)
        if serving is not None and serving.is_open and serving.is_stored and epoch is not None:
            self.write(serving, epoch, lambda _: None)

    def hang_up(self, connection: Connection, *, is_asked: bool) -> None:
        """Take DISCONNECT, or that the client's socket is gone."""
        key = connection.client.key
        if self.holder.waits(key) is connection:
            self.holder.give_up(key)
            connection.is_closed = True
            return
        serving = self.serving.get(key)
        if serving is not None and serving.connection is connection and serving.is_open:
            self.end_connection(serving, is_asked=is_asked)

    def end_connection(self, serving: Serving, *, is_asked: bool) -> None:
        """Close a connection, and write where its session stands once nothing is on its way."""
        serving.is_open = False
        self.close(serving.connection)
        if serving.appending:
            serving.after_appending = lambda: self.let_session_go(serving, is_asked=is_asked)
        else:
            self.let_session_go(serving, is_asked=is_asked)

    def let_session_go(self, serving: Serving, *, is_asked: bool) -> None:
        key, session, now = (
            serving.connection.client.key,
            serving.session,
            START_MS + self.world.now,
        )
        if self.serving.get(key) is not serving:
            return  # abandoned meanwhile
        del self.serving[key]
        session.connected = False
        session.disconnected_at_ms = now
        if is_asked:
            session.will = None
        elif session.will is not None:
            session.will_at_ms = now + session.will.will_delay_interval * 1000

        def durable(_: int) -> None:
            serving.connection.has_disconnected = is_asked and self.is_leased

        def write(epoch: int) -> None:
            stamp = stamp_headers(self.me.incarnation, epoch)
            if not serving.is_stored:
                self.holder.end_claim_of(key, epoch)
            elif session.session_expiry_interval or session.will is not None:
                self.write(serving, epoch, durable)
            else:
                number = self.shard_number(key)
                self.append_record(
                    number, ShardRecord(progress_key(*key), None, stamp), lambda _: None
                )
                self.append_record(number, ShardRecord(session_key(*key), None, stamp), durable)

        self.holder.release(key, write)

    # Messages of the client

    def take_packet(self, connection: Connection, what: str, packet_id: int, name: str) -> None:
        serving = self.serving.get(connection.client.key)
        if serving is None or serving.connection is not connection:
            return
        self.world.note(self, f"gets {what} {packet_id} {name}")
        take = getattr(self, f"take_{what}")
        self.when_leased(serving, lambda: take(serving, packet_id, name))

    def take_subscribe(self, serving: Serving, _packet_id: int, _name: str) -> None:
        key, epoch = serving.connection.client.key, self.holder.epoch(serving.connection.client.key)
        serving.session.subscriptions = [StoredSubscription("m", 2, starts=[self.inbound])]
        serving.progress.cursor = [self.inbound]
        connection = serving.connection

        def suback() -> None:
            self.world.at(1, self.world.subscribed, connection)

        if serving.is_stored:
            assert epoch is not None, key
            self.write(serving, epoch, lambda _: self.when_leased(serving, suback))
        else:
            suback()

    def take_publish(self, serving: Serving, packet_id: int, name: str) -> None:
        progress = serving.progress
        if packet_id in progress.incoming:
            self.pubrec(serving, packet_id)
            return
        if packet_id in progress.storing:
            return
        if not progress.storing:
            progress.storing_from = [self.inbound]
        progress.storing.append(packet_id)
        exchange = exchange_name(progress.session_id, packet_id, self.me.incarnation)

        def announced() -> None:
            serving.appending += 1
            message = Message("published", name, 2, exchange)
            self.send("inbound", self.world.publish, message, report=stored, waits=True)

        def stored(_: int) -> None:
            serving.appending -= 1
            progress.storing.remove(packet_id)
            progress.incoming.append(packet_id)
            if not progress.storing:
                progress.storing_from = []
            if serving.is_open:
                self.save(serving, lambda: self.pubrec(serving, packet_id))
            elif serving.after_appending is not None and not serving.appending:
                serving.after_appending()

        self.save(serving, announced)

    def pubrec(self, serving: Serving, packet_id: int) -> None:
        self.world.at(1, self.world.pubrec, serving.connection, packet_id)

    def take_pubrel(self, serving: Serving, packet_id: int, _name: str) -> None:
        if packet_id in serving.progress.incoming:
            serving.progress.incoming.remove(packet_id)
        self.save(
            serving, lambda: self.world.at(1, self.world.pubcomp, serving.connection, packet_id)
        )

    def save(self, serving: Serving, then: Callable[[], None]) -> None:
        """Write progress; then do what depends on it."""
        if not serving.is_stored:
            then()
            return
        serving.after_save.append(then)
        serving.is_dirty = True
        if not serving.is_saving:
            self.flush(serving)

    def flush(self, serving: Serving) -> None:
        if not serving.is_open:
            return
        key = serving.connection.client.key
        epoch = self.holder.epoch(key)
        assert epoch is not None
        serving.is_saving, serving.is_dirty = True, False
        progress = serving.progress
        progress.settled = not progress.outgoing and not progress.storing
        after, serving.after_save = serving.after_save, []

        def saved(_: int) -> None:
            serving.is_saving = False
            for call in after:
                self.when_leased(serving, call)
            if serving.is_dirty:
                self.flush(serving)

        stamp = stamp_headers(self.me.incarnation, epoch)
        record = ShardRecord(progress_key(*key), encode_progress(progress), stamp)
        self.append_record(self.shard_number(key), record, saved)

    # Messages to the client

    def pump(self, serving: Serving) -> None:
        """Give a client what has come for it."""
        if not serving.is_open or not serving.connection.is_acked or not self.may_act():
            return
        progress = serving.progress
        while progress.cursor[0] < self.inbound:
            offset = progress.cursor[0]
            progress.cursor[0] += 1
            message = self.world.inbound[offset]
            if message.kind != "message" or not serving.session.subscriptions:
                continue
            used = {one.packet_id for one in progress.outgoing}
            packet_id = next(n for n in range(1, 1000) if n not in used)
            one = Outgoing(packet_id, message.qos, 0, offset, released=False)
            progress.outgoing.append(one)
            progress.settled = False
            self.give(serving, one)

    def give(self, serving: Serving, one: Outgoing) -> None:
        def leave() -> None:
            self.deliver(serving, one)

        if one.qos == 1:
            leave()
            self.save(serving, _nothing)
        else:
            self.save(serving, leave)

    def deliver(self, serving: Serving, one: Outgoing) -> None:
        message = self.world.inbound[one.offset]
        self.world.at(1, self.world.delivered, serving.connection, one.packet_id, message)

    def take_puback(self, serving: Serving, packet_id: int, _name: str) -> None:
        self.forget(serving, packet_id)

    def take_pubrec(self, serving: Serving, packet_id: int, _name: str) -> None:
        outgoing = serving.progress.outgoing
        for at, one in enumerate(outgoing):
            if one.packet_id == packet_id:
                outgoing[at] = one._replace(released=True)
        self.save(
            serving, lambda: self.world.at(1, self.world.released, serving.connection, packet_id)
        )

    def take_pubcomp(self, serving: Serving, packet_id: int, _name: str) -> None:
        self.forget(serving, packet_id)

    def forget(self, serving: Serving, packet_id: int) -> None:
        progress = serving.progress
        progress.outgoing = [one for one in progress.outgoing if one.packet_id != packet_id]
        self.save(serving, _nothing)


def _nothing() -> None:
    pass


@cache
def _placed(shards: int, gateways: tuple[str, ...]) -> list[Place]:
    return place(shards, gateways)


# The world


class World:
    """Runs one schedule.

    Args:
        schedule: What happens.
        transcript: Takes a line for each thing that happens; None to be fast.
    """

    process_type: type[Process] = Process

    def __init__(self, schedule: Schedule, transcript: list[str] | None = None) -> None:
        self.schedule = schedule
        self.transcript = transcript
        self.random = Random(schedule.seed)
        self.now = 0
        self.events = 0
        self.sessions = 0
        self.messages = 0
        self._queue: list[tuple[int, int, Process | None, Callable[..., object], Any]] = []
        self._pushed = 0
        self._faults = list(reversed(schedule.faults))
        self.logs = [Log() for _ in range(schedule.shards)]
        self.inbound: list[Message] = []
        self.beats: list[Beat] = []
        self.processes: list[Process] = []
        self.judge = Judge(self)
        self.clients = [Client(n, f"c{n}") for n in range(CLIENTS)]
        self.names = 0

    def note(self, who: object, what: str) -> None:
        if self.transcript is not None:
            self.transcript.append(f"{self.now:>7} ms {self.events:>4}  {who!s:<8} {what}")

    def at(
        self, delay: int, call: Callable[..., object], *args: Any, process: Process | None = None
    ) -> None:
        self._pushed += 1
        heappush(self._queue, (self.now + delay, self._pushed, process, call, args))

    def run(self) -> None:
        """Run the schedule and a quiet time behind it.

        Raises:
            Violation: A promise is broken.
        """
        try:
            self._run()
        finally:
            for process in self.processes:
                self._discard_works(process)

    def _run(self) -> None:
        schedule = self.schedule
        for slot in range(schedule.gateways):
            self.start_process(slot, f"g{slot}", self.random.randrange(TICK_MS))
        for step in schedule.steps:
            self.at(step.at_ms, self.do, step)
        last = max((step.at_ms for step in schedule.steps), default=0)
        self._run_until(last + 100)
        self.end_faults()
        self._run_until(self.now + QUIET_MS)
        alive = [process.slot for process in self.processes if process.is_alive] or [0]
        for client in self.clients:
            if client.connections:
                slot = self.random.choice(alive)
                options = Step(self.now, "final", client.number, slot, expiry=NEVER_EXPIRES)
                self.connect(client, options)
        self._run_until(self.now + 5_000)
        self.judge.at_the_end()

    def end_faults(self) -> None:
        """Let all that still goes wrong be over, and one gateway at least be there."""
        self._faults.clear()
        for process in self.processes:
            process.deaf_until = process.mute_until = process.slow_until = 0
            process.unheard_until = 0
            process.paused_until = min(process.paused_until, self.now + 500)
        if not any(process.is_alive for process in self.processes):
            self.restart(0)

    def _run_until(self, end: int) -> None:
        queue = self._queue
        while queue and queue[0][0] <= end:
            at, number, process, call, args = heappop(queue)
            self.now = at
            if process is not None:
                if not process.is_alive:
                    continue
                if process.paused_until > at:
                    later = min(process.paused_until, at + _LOOK_AGAIN_MS)
                    heappush(queue, (later, number, process, call, args))
                    continue
                if call.__name__ != "tick":
                    self.events += 1
                    if self._faults and self.events >= self._faults[-1].event:
                        heappush(queue, (at, number, process, call, args))
                        self.strike(self._faults.pop(), process)
                        continue
            call(*args)
        self.now = end

    # Faults

    def strike(self, fault: Fault, process: Process) -> None:
        if fault.gateway is not None:
            of_slot = [p for p in self.processes if p.slot == fault.gateway and p.is_alive]
            if not of_slot:
                return
            process = of_slot[-1]
        self.note(process, f"FAULT {fault.what} {fault.ms}")
        until = self.now + fault.ms
        if fault.what == "crash":
            self.crash(process)
        elif fault.what == "late":
            process.late_until = until
        else:
            setattr(process, _UNTIL[fault.what], until)

    def crash(self, process: Process) -> None:
        self.note(process, "is gone")
        process.is_alive = False
        process.lost_after = self.now + self.random.choice((0, 2, LATE_MS))
        for client in self.clients:
            for connection in client.connections:
                if connection.process is process and not connection.is_closed:
                    connection.is_closed = True
                    connection.closed_at = self.now
                    self.at(1, self.lost, connection)
        self._discard_works(process)

    def _discard_works(self, process: Process) -> None:
        process.is_over = True
        for work in list(process.works):
            _discard(work)
        process.works.clear()

    def start_process(self, slot: int, name: str, delay: int) -> None:
        if any(process.slot == slot and process.is_alive for process in self.processes):
            return
        run = Run(name, f"i{len(self.processes)}")
        process = self.process_type(self, slot, run, delay)
        self.processes.append(process)
        self.note(process, f"starts in slot {slot}")

    def restart(self, slot: int) -> None:
        """Start a gateway where one has died: at once, for that is certain, or under a new name."""
        before = [process for process in self.processes if process.slot == slot][-1]
        if before.is_alive:
            return
        name = before.me.gateway
        if self.random.random() < 0.3:
            self.names += 1
            name = f"n{self.names}"
        self.at(LATE_MS + 300, self.start_process, slot, name, 10)

    # What the log does

    def append(self, process: Process, shard: int, record: ShardRecord) -> int:
        offset = self.logs[shard].append(self.now, shard, record)
        if self.transcript is not None:
            value = "tombstone" if record.value is None else record.value.decode()
            stamp = ",".join(f"{k}={v.decode()}" for k, v in record.headers[2:])
            self.note(process, f"#{offset} {record.key.decode()} [{stamp}] {value}")
        for one in self.processes:
            if one.is_alive:
                one.wake(shard)
        return offset

    def publish(self, message: Message) -> int:
        self.note("inbound", f"#{len(self.inbound)} {message}")
        self.inbound.append(message)
        self.judge.published(message)
        for process in self.processes:
            if process.is_alive:
                process.wake("inbound")
        if message.kind == "message":
            for client in self.clients:
                if client.session_id is not None and client.subscribed == client.session_id:
                    client.expected.append(message)
        return len(self.inbound) - 1

    def told(self, gateway: str, action: str, value: bytes) -> int:
        for process in self.processes:
            if process.is_alive and process.me.gateway == gateway:
                delay = self.random.choice((1, 1, 2, 3))
                self.at(delay, process.take_control, action, value, process=process)
        return 0

    def find(self, effect: Find) -> set[bytes]:
        return {
            one.exchange
            for one in effect.searches
            if any(message.exchange == one.exchange for message in self.inbound[one.starts[0] :])
        }

    # What clients do

    def do(self, step: Step) -> None:
        self.note("step", str(step))
        client = self.clients[step.who] if step.who < CLIENTS else self.clients[0]
        connection = client.connection
        if step.what == "connect":
            self.connect(client, step)
        elif step.what == "message":
            self.messages += 1
            self.publish(Message("message", f"m{self.messages}", step.qos))
        elif step.what == "restart":
            self.restart(step.who)
        elif step.what == "compact":
            for log in self.logs:
                log.records = log.compacted(START_MS + self.now - COMPACTION_LAG_MS)
        elif connection is None or not client.is_connected or step.what == "wait":
            return
        elif step.what == "publish":
            used = {n for sid, n in client.publishing if sid == connection.session_id}
            packet_id = next(n for n in range(1, 100) if n not in used)
            self.messages += 1
            name = f"p{self.messages}"
            client.publishing[connection.session_id, packet_id] = (name, False)
            self.packet(connection, "publish", packet_id, name)
        else:
            is_asked = step.what == "disconnect"
            connection.asked_to_disconnect = is_asked
            self.hang_up(client, is_asked=is_asked)

    def hang_up(self, client: Client, *, is_asked: bool) -> None:
        connection = client.connection
        client.connection = None
        client.is_connected = False
        if connection is not None:
            process = connection.process

            def hang_up() -> None:
                process.hang_up(connection, is_asked=is_asked)

            self.at(1, hang_up, process=process)

    def connect(self, client: Client, step: Step) -> None:
        running = [p for p in self.processes if p.slot == step.gateway and p.is_alive]
        if not running:
            return
        if not step.is_half_open:
            self.hang_up(client, is_asked=False)
        client.is_connected = False
        number = len(client.connections)
        connection = Connection(number, client, running[-1], step)
        client.connections.append(connection)
        client.connection = connection
        if _may_end(step):
            client.session_id = None
            client.expected.clear()
        self.at(1, connection.process.accept, connection, process=connection.process)

    def packet(self, connection: Connection, what: str, packet_id: int, name: str = "") -> None:
        take = connection.process.take_packet
        self.at(1, take, connection, what, packet_id, name, process=connection.process)

    def connected(self, connection: Connection, is_present: bool) -> None:
        client = connection.client
        if client.connection is not connection:
            return
        client.is_connected = True
        if not is_present:
            client.expected.clear()
        # An earlier CONNECT that ends the session may still be on its way.
        is_certain = all(
            one.is_acked
            or (one.is_closed and not one.process.is_alive)
            or not _may_end(one.options)
            for one in client.connections
        )
        is_certain = is_certain and not _may_end(replace(connection.options, clean=False))
        client.session_id = connection.session_id if is_certain else None
        if client.subscribed != connection.session_id:
            self.packet(connection, "subscribe", 0)
        for (sid, packet_id), (name, is_received) in client.publishing.items():
            if sid != connection.session_id:
                continue
            if is_received:
                self.packet(connection, "pubrel", packet_id)
            else:
                self.packet(connection, "publish", packet_id, name)

    def lost(self, connection: Connection) -> None:
        client = connection.client
        if client.connection is connection:
            client.connection = None
            client.is_connected = False

    def subscribed(self, connection: Connection) -> None:
        if connection.client.connection is connection:
            connection.client.subscribed = connection.session_id

    def delivered(self, connection: Connection, packet_id: int, message: Message) -> None:
        client = connection.client
        if client.connection is not connection:
            return
        self.note(client.client_id, f"receives {packet_id} {message}")
        exchange = (connection.session_id, packet_id)
        if message.qos == 1 or exchange not in client.packet_ids:
            self.judge.received(client, connection.session_id, message)
        if message.qos == 1:
            self.packet(connection, "puback", packet_id)
        else:
            client.packet_ids.add(exchange)
            self.packet(connection, "pubrec", packet_id)

    def released(self, connection: Connection, packet_id: int) -> None:
        client = connection.client
        if client.connection is connection:
            client.packet_ids.discard((connection.session_id, packet_id))
            self.packet(connection, "pubcomp", packet_id)

    def pubrec(self, connection: Connection, packet_id: int) -> None:
        client = connection.client
        exchange = (connection.session_id, packet_id)
        if client.connection is connection and exchange in client.publishing:
            name, is_received = client.publishing[exchange]
            if not is_received:
                client.published.append(name)
            client.publishing[exchange] = (name, True)
            self.packet(connection, "pubrel", packet_id)

    def pubcomp(self, connection: Connection, packet_id: int) -> None:
        client = connection.client
        if client.connection is connection:
            client.publishing.pop((connection.session_id, packet_id), None)


_UNTIL: Final = {
    "pause": "paused_until",
    "deaf": "deaf_until",
    "mute": "mute_until",
    "unheard": "unheard_until",
    "slow": "slow_until",
}


def _discard(work: Work) -> None:
    if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        with suppress(StopIteration):
            work.send(None)  # or what it was to await would never be
    work.close()


def _may_end(options: Step) -> bool:
    """Tell whether a CONNECT may end the session that it finds, or that it makes."""
    return options.clean or options.expiry != NEVER_EXPIRES


# Finding, and telling what was found


def run(schedule: Schedule, world: type[World] = World) -> Violation | None:
    """Run a schedule; return what it breaks."""
    try:
        world(schedule).run()
    except Violation as exc:
        return exc
    except Exception as exc:  # noqa: BLE001 - a fault of the code under test, as any other
        return Violation("no errors", repr(exc))
    return None


def shrink(schedule: Schedule, name: str, world: type[World] = World) -> Schedule:
    """Leave out faults and steps while the same promise is broken."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for part in ("faults", "steps"):
            at = 0
            while at < len(getattr(schedule, part)):
                parts = getattr(schedule, part)
                fewer: Schedule = replace(schedule, **{part: parts[:at] + parts[at + 1 :]})
                found = run(fewer, world)
                if found is not None and found.name == name:
                    schedule, is_smaller = fewer, True
                else:
                    at += 1
    return schedule


def explain(schedule: Schedule, world: type[World] = World) -> str:
    """Return what a schedule breaks and how: the seed, the shrunk schedule, and each event."""
    found = run(schedule, world)
    if found is None:
        return f"seed {schedule.seed} breaks nothing"
    small = shrink(schedule, found.name, world)
    transcript: list[str] = []
    error = ""
    try:
        world(small, transcript).run()
    except Exception as exc:  # noqa: BLE001
        error = f"{type(exc).__name__} {exc}"
    parts = [f"seed {schedule.seed}: {error}", f"{small.gateways} gateways, {small.shards} shards"]
    parts += [str(fault) for fault in small.faults]
    return "\n".join([*parts, *transcript, error])


def search(seeds: range) -> tuple[int, Violation] | None:
    """Return the first seed whose schedule breaks a promise, and which."""
    for seed in seeds:
        found = run(make_schedule(seed))
        if found is not None:
            return seed, found
    return None


def schedules_wanted(default: int) -> int:
    """Return how many schedules to run: MQLAKE_SIMULATIONS, or what fits into a test."""
    return int(os.environ.get("MQLAKE_SIMULATIONS", str(default)))
