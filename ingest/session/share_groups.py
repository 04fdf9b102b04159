"""What the owner of a shard does for its share groups: who joins, who may go, who takes over.

A gateway with members of a group has a *part* in it. The part asks by its records, and its gateway
is told by control records `share`; a part that is not answered writes its record again, and what it
is told twice it does once. So nothing depends on a single answer, and a new owner goes on from
what the shard says:

    the part writes     the owner tells
    joining             `begin`: beside the others, or as the first from where the group stood
    leaving             `go`: withdraw the route
    left                its work goes to a live part: first the shard says which, then it is told
                        `take`; when the record of that part has it, the one that left is void
    any, with `asks`    `kept`, or `lost`: another has what it held

A part of a dead gateway is made one that has left. First the shard says that it is settled: then
nobody begins beside it, and those that do must have their routes. Its route is withdrawn, and what
the router has given it until then is read from its deliveries; without what sessions have in
flight, for that is theirs. All is in the order of the shard and under the epoch of its owner
(`share_table.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ingest.session.effects import Append, Effect, ShardRecord, Tell
from ingest.session.share_parts import (
    Gap,
    GroupKey,
    PartRecord,
    PartState,
    decode_member_key,
    decode_part_key,
    encode_member,
    encode_part,
    key_of_part,
    member_key,
    part_key,
)
from ingest.session.share_table import GroupTable
from mqlake.offsets import latest
from mqlake.record_versions import RECORD_VERSION
from mqlake.shard_records import PART, Run, stamp_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingest.session.effects import Work
    from mqlake.records import LogRecord
    from mqlake.session_records import MarksRecord
    from mqlake.shard_records import Stamp

SHARE: Final = "share"
"""Action of the control records that tell parts something."""

BEGIN: Final = "begin"
GO: Final = "go"
TAKE: Final = "take"
TAKEN: Final = "taken"
KEPT: Final = "kept"
LOST: Final = "lost"

TELL_AGAIN_MS: Final = 2_000
"""How often a part is told again to take over what another has left."""

CONFIRMED_MS: Final = 10_000
"""How long a gateway that has asked what it holds is not settled: its beats may be read later."""


class Given(NamedTuple):
    """A message that the router gave to a gateway for a group."""

    partition: int
    offset: int
    qos: int
    at: int
    """Offset in the delivery topic."""


class Deliveries(NamedTuple):
    """What the router gave to a gateway until its routes were withdrawn."""

    given: dict[GroupKey, list[Given]]
    ends: list[int] | None
    """Per partition where the barriers behind the withdrawal are, if that is not all there was."""


@dataclass(frozen=True, slots=True)
class Withdraw(Effect["Deliveries"]):
    """Withdraw routes of a dead gateway, and return what it was given up to there."""

    gateway: str
    groups: Sequence[GroupKey]
    first: int
    """The first offset of its delivery topic that counts."""


@dataclass(frozen=True, slots=True)
class GroupEnded(Effect[None]):
    """Note that a group without members has ended, and how many messages nobody gets."""

    group: GroupKey
    dropped: int


class OwnedShard(Protocol):
    """The shard whose groups these are."""

    me: Run
    number: int
    owner_epoch: int
    is_active: bool

    def act(self, work: Work) -> None:
        """Run a coroutine of the owner."""
        ...

    def marks_of(self, run: Run) -> MarksRecord | None: ...


class GroupsOfShard:
    """The share groups of a shard.

    Args:
        shard: Read by this gateway.
    """

    def __init__(self, shard: OwnedShard) -> None:
        self._shard = shard
        self.table = GroupTable()
        # What this owner has done and need not do again.
        self._told: set[str] = set()
        self._acting: set[object] = set()
        self._told_at_ms: dict[str, int] = {}
        self._asked_at_ms: dict[Run, int] = {}
        self._is_dead: Callable[[Run], bool] = _nobody

    # What is read

    def apply(self, kind: str, rest: str, stamp: Stamp, record: LogRecord) -> None:
        """Take a record of a part or of a member.

        Raises:
            InvalidRecord: It cannot be read.
        """
        if kind == PART:
            self._apply_part(rest, stamp, record)
        else:
            group, client_id = decode_member_key(rest)
            if self.table.apply_member(
                group, client_id, record.value, stamp, self._shard.owner_epoch, record.timestamp_ms
            ):
                self._serve(group)
            elif self._shard.is_active:
                self._shard.act(_rewrite_member(self, group, client_id))

    def _apply_part(self, rest: str, stamp: Stamp, record: LogRecord) -> None:
        part_id, group = decode_part_key(rest)
        counts = self.table.apply_part(
            part_id, group, record.value, stamp, self._shard.owner_epoch, record.timestamp_ms
        )
        if not self._shard.is_active:
            return
        part = self.table.get(group, part_id)
        if not counts:
            self._shard.act(_rewrite_part(self, group, part_id))
            self._tell_lost(part_id, group, stamp, record.value)
            return
        if part is not None and stamp.owner is None:
            self._told.discard(part_id)
            if part.asks:
                self._asked_at_ms[part.run] = record.timestamp_ms
                self._tell(part.run, group, part_id, KEPT, asks=part.asks)
            over = [one for one in part.took if one not in self._acting]
            if over:
                self._start(over, _bury(self, group, part, over))
        self._serve(group)

    def _tell_lost(self, part_id: str, group: GroupKey, stamp: Stamp, value: bytes | None) -> None:
        if value is not None and stamp.owner is None:
            found = json.loads(value)
            run = Run(found["gateway"], found["incarnation"])
            self._tell(run, group, part_id, LOST)

    # What the owner does

    def begin(self) -> None:
        """Act from here on: what an owner before has told may be lost."""
        self._told.clear()
        self._acting.clear()
        self._told_at_ms.clear()
        for part_id, group in list(self.table.over.items()):
            self._start([part_id], _bury(self, group, None, [part_id]))
        for run in self.table.runs():
            for part in self.table.of_run(run):
                self._serve(part.group)
                if part.took:
                    self._start(part.took, _bury(self, part.group, part, part.took))
        for group in self.table.groups_with_left():
            self._serve(group)

    def tick(self, now_ms: int, is_dead: Callable[[Run], bool]) -> None:
        """Do what time brings: settle parts of dead gateways, tell again who takes over."""
        self._is_dead = is_dead
        self.table.prune(now_ms)
        for run in self.table.runs():
            has_asked = now_ms - self._asked_at_ms.get(run, 0) < CONFIRMED_MS
            dead = is_dead(run) and not has_asked
            if run not in self._acting and (dead or self.table.is_settling(run)):
                self._start([run], _settle(self, run, now_ms, is_dead=dead))
        for group in self.table.groups_with_left():
            for left in self.table.left(group):
                taker = self.table.taker(left)
                told_at_ms = self._told_at_ms.setdefault(left.part_id, now_ms)
                if taker is not None and now_ms - told_at_ms >= TELL_AGAIN_MS:
                    self._told_at_ms[left.part_id] = now_ms
                    self._shard.act(_tell_to_take(taker, left))
            self._serve(group)

    def _serve(self, group: GroupKey) -> None:
        if not self._shard.is_active:
            return
        table = self.table
        parts = table.parts(group)
        for part in parts:
            if part.part_id in self._told:
                continue
            if part.state is PartState.JOINING and part.starts is None:
                outlook = table.outlook(part)
                if outlook is not None:
                    self._told.add(part.part_id)
                    self._tell_to_begin(part, outlook.starts)
            elif part.state is PartState.LEAVING and table.can_go(part):
                self._told.add(part.part_id)
                self._tell(part.run, group, part.part_id, GO)
        left = [one for one in parts if one.state is PartState.LEFT]
        if not left:
            return
        if not table.is_kept(group):
            if group not in self._acting:
                self._start([group], _end(self, group))
            return
        live = [one for one in parts if one.state is PartState.LIVE and not self._is_dead(one.run)]
        for one in left:
            if live and table.taker(one) is None and one.part_id not in self._acting:
                self._start([one.part_id], _assign(self, one, live[0].part_id))

    def _tell_to_begin(self, part: PartRecord, starts: list[int] | None) -> None:
        given: list[int] | None = None
        since_ms: int | None = None
        if starts is None:
            for left in self.table.left(part.group):
                if left.given is not None:
                    given = latest(left.given, given)
                since_ms = left.at_ms if since_ms is None else min(since_ms, left.at_ms)
        self._tell(
            part.run,
            part.group,
            part.part_id,
            BEGIN,
            starts=starts,
            given=given,
            since=since_ms,
        )

    def _tell(self, run: Run, group: GroupKey, part_id: str, do: str, **members: Any) -> None:
        self._shard.act(_tell(run, group, part_id, do, **members))

    def _start(self, things: Sequence[object], work: Work) -> None:
        """Act for things; nothing else is done for them meanwhile."""
        self._acting.update(things)
        self._shard.act(self._alone(things, work, self._shard.owner_epoch))

    async def _alone(self, things: Sequence[object], work: Work, owner_epoch: int) -> None:
        try:
            await work
        finally:
            if self._shard.owner_epoch == owner_epoch:
                self._acting.difference_update(things)

    def stamp(self, epoch: int | None = None) -> list[tuple[str, bytes]]:
        return stamp_headers(self._shard.me.incarnation, epoch, self._shard.owner_epoch)

    def record(self, part: PartRecord) -> ShardRecord:
        return ShardRecord(part_key(part), encode_part(part), self.stamp())

    def tombstone(self, part_id: str, group: GroupKey) -> ShardRecord:
        return ShardRecord(key_of_part(part_id, group), None, self.stamp())

    def marks_of(self, run: Run) -> MarksRecord | None:
        return self._shard.marks_of(run)


async def _tell(run: Run, group: GroupKey, part_id: str, do: str, **members: Any) -> None:
    value = {
        "v": RECORD_VERSION,
        "do": do,
        "incarnation": run.incarnation,
        "tenant": group.tenant,
        "filter": group.topic_filter,
        "part": part_id,
        **members,
    }
    await Tell(run.gateway, SHARE, json.dumps(value, separators=(",", ":")).encode())


async def _tell_to_take(taker: PartRecord, left: PartRecord) -> None:
    record = json.loads(encode_part(left))
    await _tell(taker.run, left.group, taker.part_id, TAKE, left=left.part_id, record=record)


async def _assign(groups: GroupsOfShard, left: PartRecord, taker_id: str) -> None:
    """Say in the shard who takes over a part that has left, then tell it."""
    now = groups.table.get(left.group, left.part_id)
    if now is None or groups.table.taker(now) is not None:
        return
    await Append([groups.record(replace(now, taker=taker_id, number=now.number + 1))])
    now = groups.table.get(left.group, left.part_id)
    taker = None if now is None else groups.table.taker(now)
    if now is not None and taker is not None:
        await _tell_to_take(taker, now)


async def _bury(
    groups: GroupsOfShard, group: GroupKey, taker: PartRecord | None, part_ids: Sequence[str]
) -> None:
    """Void the records of parts that another has taken, then let that forget them too."""
    over = [groups.tombstone(one, group) for one in part_ids if one in groups.table.over]
    if over:
        await Append(over)
    if taker is not None:
        await _tell(taker.run, group, taker.part_id, TAKEN, parts=list(part_ids))


async def _end(groups: GroupsOfShard, group: GroupKey) -> None:
    """Forget what was left of a group that has no member any more, absent ones included."""
    left = groups.table.left(group)
    if groups.table.is_kept(group) or not left:
        return
    dropped = sum(len(one.open) for one in left)
    await Append([groups.tombstone(one.part_id, group) for one in left])
    await GroupEnded(group, dropped)


async def _rewrite_part(groups: GroupsOfShard, group: GroupKey, part_id: str) -> None:
    """Write again what counts: the last record under its key does not."""
    now = groups.table.get(group, part_id)
    await Append([groups.tombstone(part_id, group) if now is None else groups.record(now)])


async def _rewrite_member(groups: GroupsOfShard, group: GroupKey, client_id: str) -> None:
    known = groups.table.member(group, client_id)
    if known is not None:
        epoch, in_flight = known
        value = None if in_flight is None else encode_member(in_flight)
        stamp = groups.stamp(epoch)
        await Append([ShardRecord(member_key(group, client_id), value, stamp)])


async def _settle(groups: GroupsOfShard, run: Run, now_ms: int, *, is_dead: bool) -> None:
    """Make parts of a dead gateway parts that have left, as far as others can do without.

    What was begun is finished although its gateway is there again.
    """
    table, marks = groups.table, groups.marks_of(run)
    settling = []
    for one in table.of_run(run) if is_dead else ():
        if one.starts is not None and one.state is not PartState.SETTLING:
            given = one.given
            if marks is not None and one.state is PartState.LIVE:
                given = latest([mark + 1 for mark in marks.marks], given)
            settled = replace(one, state=PartState.SETTLING, number=one.number + 1, asks=0)
            settling.append(replace(settled, given=given))
    if settling:
        await Append([groups.record(one) for one in settling])
    parts = [
        one
        for one in table.of_run(run)
        if (one.starts is None and is_dead)
        or (one.state is PartState.SETTLING and table.can_go(one))
    ]
    if not parts:
        return
    first = min(part.next for part in parts)
    if marks is not None:
        # Each part that is older than the marks holds all that was given to it before them.
        first = max(first, marks.next)
    deliveries = await Withdraw(run.gateway, [part.group for part in parts], first)
    records = []
    for part in parts:
        if part.starts is None:
            # It was to be the first and has not begun: nothing is its own yet.
            records.append(groups.tombstone(part.part_id, part.group))
            continue
        left = replace(part, state=PartState.LEFT, number=part.number + 1, took=[])
        _add_given(table, left, deliveries)
        left.at_ms = now_ms
        records.append(groups.record(left))
    await Append(records)


def _add_given(table: GroupTable, left: PartRecord, deliveries: Deliveries) -> None:
    """Add what the router gave to a part since its record; without what sessions hold."""
    given = deliveries.given.get(left.group, [])
    if deliveries.ends is not None:
        _add_gap(table, left, given, deliveries.ends)
    left.open = left.open.copy()
    left.given = None if left.given is None else list(left.given)
    for one in given:
        if one.at < left.next or (left.starts and one.offset < left.starts[one.partition]):
            continue
        if one.qos:
            left.open.add(one.partition, one.offset)
        if left.given is not None:
            left.given[one.partition] = max(left.given[one.partition], one.offset + 1)
    for position in table.in_flight(left.group):
        left.open.discard(*position)


def _add_gap(table: GroupTable, left: PartRecord, given: list[Given], ends: list[int]) -> None:
    """Have what was given to a part read where it was published: deliveries are not kept long.

    Only if nobody else can have been given some of it.
    """
    others = [one for one in table.parts(left.group) if one.part_id != left.part_id]
    if left.given is None or any(
        one.state is not PartState.LEFT and one.starts is not None for one in others
    ):
        return
    end = list(ends)
    for one in given:
        end[one.partition] = min(end[one.partition], one.offset)
    gap = Gap(list(left.given), end, left.at_ms)
    if not gap.is_empty:
        left.gaps = [*left.gaps, gap]
        left.given = latest(end, left.given)


def _nobody(_run: Run) -> bool:
    return False
