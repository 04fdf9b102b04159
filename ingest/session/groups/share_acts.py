"""Acts of the owner of a shard for its share groups, each a coroutine.

`share_groups.py` says when. A membership hears of a step after the record in the shard: the next
owner of the shard finds it there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ingest.session.groups.share_records import (
    GroupKey,
    MembershipRecord,
    MembershipState,
    ShareGap,
    encode_member,
    encode_membership,
    member_key,
)
from ingest.session.shard.effects import AppendRecords, Effect, ShardRecord, Tell
from mqlake.records.offsets import advance, at, earliest, latest
from mqlake.records.versions import RECORD_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.session.groups.share_routes import RoutesThen
    from ingest.session.groups.share_table import GroupTable
    from mqlake.records.progress import MarksRecord
    from mqlake.records.shards import Run

SHARE: Final = "share"
"""Action of the control records that tell memberships something."""

BEGIN: Final = "begin"
GO: Final = "go"
TAKE_OVER: Final = "take"
TAKEN_OVER: Final = "taken"
KEPT: Final = "kept"
LOST: Final = "lost"


class Given(NamedTuple):
    """A message that the router gave to a gateway for a group."""

    partition: int
    offset: int
    qos: int
    at: int
    """Offset in the delivery topic."""


class GoneDeliveries(NamedTuple):
    """Facts by which deliveries that the log has removed are computed again."""

    before: list[int]
    """Per partition of `mqlake.inbound`: all deliveries of messages from there on are known."""
    routes: RoutesThen
    """As they were when the router made the others."""


class Deliveries(NamedTuple):
    """Messages that the router gave to a gateway until its routes were withdrawn."""

    given: dict[GroupKey, list[Given]]
    gone: GoneDeliveries | None = None
    """None: that is all there was."""


@dataclass(frozen=True, slots=True)
class Withdraw(Effect["Deliveries"]):
    """Withdraw routes of a dead gateway, and return its deliveries up to there."""

    gateway: str
    groups: Sequence[GroupKey]
    first: int
    """The first offset of its delivery topic that counts."""
    behind: Sequence[int]
    """Per partition of `mqlake.inbound`: what came to it from there on counts."""


@dataclass(frozen=True, slots=True)
class GroupEnded(Effect[None]):
    """Note that a group without members has ended, and how many messages no member gets."""

    group: GroupKey
    dropped: int


class OwnedGroups(Protocol):
    """Implemented by `ingest.session.groups.share_groups.GroupsOfShard`, which begins the acts."""

    table: GroupTable

    def stamp(self, epoch: int | None = None) -> list[tuple[str, bytes]]: ...
    def record(self, membership: MembershipRecord) -> ShardRecord: ...
    def tombstone(self, membership_id: str, group: GroupKey) -> ShardRecord: ...
    def marks_of(self, run: Run) -> MarksRecord | None: ...


async def tell(run: Run, group: GroupKey, membership_id: str, do: str, **members: Any) -> None:
    value = {
        "v": RECORD_VERSION,
        "do": do,
        "incarnation": run.incarnation,
        "tenant": group.tenant,
        "filter": group.topic_filter,
        "part": membership_id,
        **members,
    }
    await Tell(run.gateway, SHARE, json.dumps(value, separators=(",", ":")).encode())


async def tell_to_take_over(assignee: MembershipRecord, left: MembershipRecord) -> None:
    record = json.loads(encode_membership(left))
    await tell(
        assignee.run,
        left.group,
        assignee.membership_id,
        TAKE_OVER,
        left=left.membership_id,
        record=record,
    )


async def assign(groups: OwnedGroups, left: MembershipRecord, assignee_id: str) -> None:
    """Say in the shard which membership takes over one that has left, then tell it."""
    now = groups.table.get(left.group, left.membership_id)
    if now is None or groups.table.assignee(now) is not None:
        return
    await AppendRecords([groups.record(replace(now, assignee=assignee_id, number=now.number + 1))])
    now = groups.table.get(left.group, left.membership_id)
    assignee = None if now is None else groups.table.assignee(now)
    if now is not None and assignee is not None:
        await tell_to_take_over(assignee, now)


async def bury(
    groups: OwnedGroups,
    group: GroupKey,
    assignee: MembershipRecord | None,
    membership_ids: Sequence[str],
) -> None:
    """Void the records of memberships that another has taken over, then tell it to forget them."""
    over = [groups.tombstone(one, group) for one in membership_ids if one in groups.table.over]
    if over:
        await AppendRecords(over)
    if assignee is not None:
        await tell(
            assignee.run, group, assignee.membership_id, TAKEN_OVER, parts=list(membership_ids)
        )


async def end(groups: OwnedGroups, group: GroupKey) -> None:
    """Forget messages left of a group that has no member any more, absent ones included."""
    left = groups.table.left(group)
    if groups.table.is_kept(group) or not left:
        return
    dropped = sum(len(one.open) for one in left)
    await AppendRecords([groups.tombstone(one.membership_id, group) for one in left])
    await GroupEnded(group, dropped)


async def rewrite_membership(groups: OwnedGroups, group: GroupKey, membership_id: str) -> None:
    """Write the valid state again: the last record under its key does not count."""
    unsent = {one.membership_id: one for one in groups.table.unsent(group)}
    now = groups.table.get(group, membership_id) or unsent.get(membership_id)
    await AppendRecords(
        [groups.tombstone(membership_id, group) if now is None else groups.record(now)]
    )


async def rewrite_member(groups: OwnedGroups, group: GroupKey, client_id: str) -> None:
    known = groups.table.member(group, client_id)
    if known is not None:
        epoch, record = known
        value = None if record is None else encode_member(record)
        stamp = groups.stamp(epoch)
        await AppendRecords([ShardRecord(member_key(group, client_id), value, stamp)])


async def leave_unsent(groups: OwnedGroups, memberships: Sequence[MembershipRecord]) -> None:
    """Give others messages that sessions that moved were given and never sent."""
    await AppendRecords([groups.record(one) for one in memberships])


async def settle(groups: OwnedGroups, run: Run, now_ms: int, *, is_dead: bool) -> None:
    """Have memberships of a dead gateway leave, as far as others can do without them.

    A begun settlement is finished although its gateway is there again.
    """
    table, marks = groups.table, groups.marks_of(run)
    settling = []
    for one in table.of_run(run) if is_dead else ():
        if one.state is not MembershipState.SETTLING:
            given = one.given
            if marks is not None and one.state is MembershipState.LIVE:
                given = latest([mark + 1 for mark in marks.marks], given)
            settled = replace(one, state=MembershipState.SETTLING, number=one.number + 1, asks=0)
            settling.append(replace(settled, given=given))
    if settling:
        await AppendRecords([groups.record(one) for one in settling])
    memberships = [
        one
        for one in table.of_run(run)
        if one.state is MembershipState.SETTLING and table.can_go(one)
    ]
    if not memberships:
        return
    first = min(membership.next for membership in memberships)
    if marks is not None:
        # Each membership that is older than the marks holds all that was given to it before them.
        first = max(first, marks.next)
    deliveries = await Withdraw(
        run.gateway,
        [membership.group for membership in memberships],
        first,
        earliest(*(_known_up_to(one, marks) for one in memberships if one.starts is not None)),
    )
    records = []
    for membership in memberships:
        if membership.starts is None:
            # It was to be the first and has not begun: nothing is its own yet.
            records.append(groups.tombstone(membership.membership_id, membership.group))
            continue
        left = replace(
            membership, state=MembershipState.LEFT, number=membership.number + 1, taken_over=[]
        )
        _add_given(table, left, deliveries, marks)
        left.at_ms = now_ms
        records.append(groups.record(left))
    await AppendRecords(records)


def _add_given(
    table: GroupTable, left: MembershipRecord, deliveries: Deliveries, marks: MarksRecord | None
) -> None:
    """Add messages that the router gave to a membership since its record, but those of sessions.

    The router brings messages of one partition in its order; one that is not behind the last is a
    repetition.
    """
    given = deliveries.given.get(left.group, [])
    if deliveries.gone is not None:
        _add_gap(table, left, deliveries.gone, marks)
    left.open = left.open.copy()
    left.given = None if left.given is None else list(left.given)
    delivered = list(left.delivered or ())
    if delivered and marks is not None:
        delivered = latest([mark + 1 for mark in marks.marks], delivered)
    for one in given:
        if one.at < left.next or (left.starts and one.offset < at(left.starts, one.partition)):
            continue
        if delivered:
            if one.offset < at(delivered, one.partition):
                continue
            advance(delivered, one.partition, one.offset + 1)
        if one.qos:
            left.open.add(one.partition, one.offset)
        if left.given is not None:
            advance(left.given, one.partition, one.offset + 1)
    for position in table.in_flight(left.group, left.incarnation):
        left.open.discard(*position)


def _known_up_to(membership: MembershipRecord, marks: MarksRecord | None) -> list[int]:
    """Return per partition up to where a membership's record knows what came to its gateway."""
    known = membership.given if membership.delivered is None else membership.delivered
    known = latest(membership.starts or [], known)
    return known if marks is None else latest([mark + 1 for mark in marks.marks], known)


def _add_gap(
    table: GroupTable, left: MembershipRecord, gone: GoneDeliveries, marks: MarksRecord | None
) -> None:
    """Have messages whose deliveries are gone read from `mqlake.inbound`, those that were its."""
    known = _known_up_to(left, marks)
    chosen = gone.routes.chosen(left.group, left.gateway, known, gone.before, left.at_ms)
    start, end = chosen.narrowed(gone.before)
    gap = ShareGap(start, end, left.at_ms, chosen)
    if gap.is_empty:
        return
    for partition, offset in table.in_flight(left.group, left.incarnation):
        if at(start, partition) <= offset < at(end, partition):
            chosen.in_flight.add(partition, offset)
    left.gaps = [*left.gaps, gap]
    left.given = latest(end, left.given)
