"""A shard owner's decisions on its share groups: memberships that join, go or take over.

A gateway with members of a group has a *membership* in it. The membership asks by its records, and
its gateway is answered by control records `share`; a membership that is not answered writes its
record again, and a step that it gets twice it does once. So nothing depends on a single answer, and
a new owner goes on from the state in the shard:

    the membership writes   the owner tells
    joining                 `begin`: beside the others, or as the first from where the group stood
    leaving                 `go`: withdraw the route
    left                    its work goes to a live membership: first the shard says which, then
that one gets `take`; when its record has it, the one that left is void
    any, with `asks`        `kept`, or `lost`: another has its messages

A membership of a dead gateway is made one that has left. First the shard says that it is settled:
then none begins beside it, and those that do must have their routes. Its route is withdrawn, and
the messages that the router has given it until then are read from its deliveries; without those in
flight of sessions, which are theirs. All is in the order of the shard and under the epoch of its
owner (`share_table.py`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Protocol

from ingest.session.groups import share_acts
from ingest.session.groups.share_acts import BEGIN, GO, KEPT, LOST
from ingest.session.groups.share_records import (
    MembershipState,
    decode_member_key,
    decode_membership_key,
    encode_membership,
    key_of_membership,
    membership_key,
)
from ingest.session.groups.share_table import GroupTable
from ingest.session.shard.dead_holders import CONFIRMED_MS
from ingest.session.shard.effects import ShardRecord
from mqlake.records.offsets import latest
from mqlake.records.shards import MEMBERSHIP, Run, stamp_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingest.session.groups.share_records import GroupKey, MembershipRecord
    from ingest.session.shard.effects import Work
    from mqlake.records.messages import LogRecord
    from mqlake.records.progress import MarksRecord
    from mqlake.records.shards import Stamp

TELL_AGAIN_MS: Final = 2_000
"""Pause until a membership is asked again to take over another's messages."""


class GroupShard(Protocol):
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

    def __init__(self, shard: GroupShard) -> None:
        self._shard = shard
        self.table = GroupTable()
        # Memberships that this owner has answered and need not answer again.
        self._told: set[str] = set()
        self._acting: set[object] = set()
        self._told_at_ms: dict[str, int] = {}
        self._asked_at_ms: dict[Run, int] = {}
        self._is_dead: Callable[[Run], bool] = _nobody

    # Records read

    def apply(self, kind: str, rest: str, stamp: Stamp, record: LogRecord) -> None:
        """Take a record of a membership or of a member.

        Raises:
            InvalidRecord: It cannot be read.
        """
        if kind == MEMBERSHIP:
            self._apply_membership(rest, stamp, record)
        else:
            group, client_id = decode_member_key(rest)
            if self.table.apply_member(
                group, client_id, record.value, stamp, self._shard.owner_epoch, record.timestamp_ms
            ):
                self._serve(group)
            elif self._shard.is_active:
                self._shard.act(share_acts.rewrite_member(self, group, client_id))

    def _apply_membership(self, rest: str, stamp: Stamp, record: LogRecord) -> None:
        membership_id, group = decode_membership_key(rest)
        counts = self.table.apply_membership(
            membership_id, group, record.value, stamp, self._shard.owner_epoch, record.timestamp_ms
        )
        if not self._shard.is_active:
            return
        membership = self.table.get(group, membership_id)
        if not counts:
            self._shard.act(share_acts.rewrite_membership(self, group, membership_id))
            self._tell_lost(membership_id, group, stamp, record.value)
            return
        if membership is not None and stamp.owner is None:
            self._told.discard(membership_id)
            if membership.asks:
                self._asked_at_ms[membership.run] = record.timestamp_ms
                self._tell(membership.run, group, membership_id, KEPT, asks=membership.asks)
            over = [one for one in membership.taken_over if one not in self._acting]
            if over:
                self._start(over, share_acts.bury(self, group, membership, over))
        self._serve(group)

    def _tell_lost(
        self, membership_id: str, group: GroupKey, stamp: Stamp, value: bytes | None
    ) -> None:
        """Tell a gateway what others have got of its membership, as soon as that is known.

        Until then it asks again, and gives nothing out.
        """
        known = self.table.get(group, membership_id)
        if known is not None and known.state is MembershipState.SETTLING:
            return
        if value is not None and stamp.owner is None:
            found = json.loads(value)
            run = Run(found["gateway"], found["incarnation"])
            left = self.table.settled(group, membership_id)
            record = None if left is None else json.loads(encode_membership(left))
            self._tell(run, group, membership_id, LOST, record=record)

    def count_earlier(self, run: Run) -> int:
        """Return how many memberships of earlier runs of a gateway have not left."""
        return sum(
            len(self.table.of_run(one))
            for one in self.table.runs()
            if one.gateway == run.gateway and one != run
        )

    # Acts of the owner

    def begin(self) -> None:
        """Act from here on: messages of an owner before may be lost."""
        self._told.clear()
        self._acting.clear()
        self._told_at_ms.clear()
        for membership_id, group in list(self.table.over.items()):
            self._start([membership_id], share_acts.bury(self, group, None, [membership_id]))
        for run in self.table.runs():
            for membership in self.table.of_run(run):
                self._serve(membership.group)
                if membership.taken_over:
                    self._start(
                        membership.taken_over,
                        share_acts.bury(self, membership.group, membership, membership.taken_over),
                    )
        for group in (*self.table.groups_with_left(), *self.table.groups_with_unsent()):
            self._serve(group)

    def tick(self, now_ms: int, is_dead: Callable[[Run], bool]) -> None:
        """Act on deadlines: settle memberships of dead gateways, repeat take-overs."""
        self._is_dead = is_dead
        self.table.prune(now_ms)
        for run in self.table.runs():
            has_asked = now_ms - self._asked_at_ms.get(run, 0) < CONFIRMED_MS
            dead = is_dead(run) and not has_asked
            if run not in self._acting and (dead or self.table.is_settling(run)):
                self._start([run], share_acts.settle(self, run, now_ms, is_dead=dead))
        for group in self.table.groups_with_left():
            for left in self.table.left(group):
                assignee = self.table.assignee(left)
                told_at_ms = self._told_at_ms.setdefault(left.membership_id, now_ms)
                if assignee is not None and now_ms - told_at_ms >= TELL_AGAIN_MS:
                    self._told_at_ms[left.membership_id] = now_ms
                    self._shard.act(share_acts.tell_to_take_over(assignee, left))
            self._serve(group)

    def _serve(self, group: GroupKey) -> None:
        if not self._shard.is_active:
            return
        table = self.table
        memberships = table.memberships(group)
        for membership in memberships:
            if membership.membership_id in self._told:
                continue
            if membership.state is MembershipState.JOINING and membership.starts is None:
                outlook = table.outlook(membership)
                if outlook is not None:
                    self._told.add(membership.membership_id)
                    self._tell_to_begin(membership, outlook.starts)
            elif membership.state is MembershipState.LEAVING and table.can_go(membership):
                self._told.add(membership.membership_id)
                self._tell(membership.run, group, membership.membership_id, GO)
        unsent = [one for one in table.unsent(group) if one.membership_id not in self._acting]
        if unsent:
            names = [one.membership_id for one in unsent]
            self._start(names, share_acts.leave_unsent(self, unsent))
        left = [one for one in memberships if one.state is MembershipState.LEFT]
        if not left:
            return
        if not table.is_kept(group):
            if group not in self._acting:
                self._start([group], share_acts.end(self, group))
            return
        live = [
            one
            for one in memberships
            if one.state is MembershipState.LIVE and not self._is_dead(one.run)
        ]
        for one in left:
            if live and table.assignee(one) is None and one.membership_id not in self._acting:
                self._start(
                    [one.membership_id], share_acts.assign(self, one, live[0].membership_id)
                )

    def _tell_to_begin(self, membership: MembershipRecord, starts: list[int] | None) -> None:
        given: list[int] | None = None
        since_ms: int | None = None
        if starts is None:
            for left in self.table.left(membership.group):
                if left.given is not None:
                    given = latest(left.given, given)
                since_ms = left.at_ms if since_ms is None else min(since_ms, left.at_ms)
        self._tell(
            membership.run,
            membership.group,
            membership.membership_id,
            BEGIN,
            starts=starts,
            given=given,
            since=since_ms,
        )

    def _tell(self, run: Run, group: GroupKey, membership_id: str, do: str, **members: Any) -> None:
        self._shard.act(share_acts.tell(run, group, membership_id, do, **members))

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

    def record(self, membership: MembershipRecord) -> ShardRecord:
        return ShardRecord(membership_key(membership), encode_membership(membership), self.stamp())

    def tombstone(self, membership_id: str, group: GroupKey) -> ShardRecord:
        return ShardRecord(key_of_membership(membership_id, group), None, self.stamp())

    def marks_of(self, run: Run) -> MarksRecord | None:
        return self._shard.marks_of(run)


def _nobody(_run: Run) -> bool:
    return False
