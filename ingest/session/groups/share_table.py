"""All share groups of one shard by its records, in their order: which count, and their effects.

The router always has a gateway for a group that is live. One that leaves withdraws its route only
when another membership is live, and one that joins such a group begins beside it. One that joins a
group that has no live membership is its first: those that have left say up to where the router gave
them something, and from there to the first barrier of the first membership the log holds messages
that were given to no membership, its gap.

A membership is written by its gateway until it has left. Once the owner of the shard has settled it
for dead, or another membership has taken it over, no record of its gateway counts: one that was
paused cannot bring back messages that others have got. Records of an owner say its epoch, and do
not count behind a later one's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from ingest.session.groups.open_work import OpenWork
from ingest.session.groups.share_records import (
    GroupKey,
    MemberRecord,
    MembershipRecord,
    MembershipState,
    decode_member,
    decode_membership,
)
from mqlake.records.offsets import latest

if TYPE_CHECKING:
    from ingest.session.groups.open_work import Position
    from mqlake.records.shards import Run, Stamp

FENCE_MS: Final = 60 * 60 * 1000
"""How long a past membership or member is remembered: longer than a gateway is paused."""


_GOING: Final = frozenset({MembershipState.LEAVING, MembershipState.SETTLING})
_OVER: Final = frozenset({MembershipState.SETTLING, MembershipState.LEFT})
"""States in which the gateway writes nothing more."""


class Outlook(NamedTuple):
    """How a membership that joins can begin."""

    starts: list[int] | None
    """Offsets at which the group became live: it begins beside the others. None: it is the
    first."""


@dataclass(slots=True)
class KnownMember:
    epoch: int
    """Epoch of the session."""
    record: MemberRecord | None
    """None: it is a member no more."""
    incarnation: str = ""
    """Run of the gateway that has written it."""
    before: frozenset[tuple[Position, str]] = frozenset()
    """Its messages in flight under earlier epochs, not long ago. A membership of the gateway that
    held it then may still have them in its record, though the session is done with them elsewhere:
    they were the client's. [MQTT5-4.8.2-5] Those that were never sent have gone to others: then
    with the run of the gateway whose memberships do not have them any more, else with none."""
    moved_at_ms: int = 0

    def in_flight(self, incarnation: str) -> set[Position]:
        """Return messages that no membership of a run may give to anybody else."""
        if self.record is None:
            return set()
        before = {position for position, run in self.before if run in {"", incarnation}}
        return before.union(self.record.in_flight)


@dataclass(slots=True)
class _Group:
    memberships: dict[str, MembershipRecord] = field(default_factory=dict)
    """In the order in which they joined."""
    outlooks: dict[str, Outlook] = field(default_factory=dict)
    """Outlook of memberships that join, as soon as it is clear; once sent it does not change."""
    awaited: dict[str, list[str]] = field(default_factory=dict)
    """By membership whose route is to go: those that began, or begin, beside it."""
    members: dict[str, KnownMember] = field(default_factory=dict)
    """Sessions that outlive their connections, by client."""
    settled: dict[str, MembershipRecord] = field(default_factory=dict)
    """Memberships as owners had them leave, for a time also when others have taken them over."""
    unsent: dict[str, MembershipRecord] = field(default_factory=dict)
    """Memberships to be written, by name: of messages that sessions that moved did not know."""


class GroupTable:
    """The groups of a shard.

    Attributes:
        over: Memberships that others have taken over, and whose records are still there.
    """

    def __init__(self) -> None:
        self._groups: dict[GroupKey, _Group] = {}
        # Memberships and groups to look at as time passes: nothing is done for others.
        self._unsettled: dict[Run, dict[str, GroupKey]] = {}
        self._with_left: dict[GroupKey, int] = {}
        self._settling: dict[str, Run] = {}
        # Of those that owners had leave, the group, which keeps how.
        self._gone: dict[str, GroupKey | None] = {}
        self._fences: deque[tuple[int, str | tuple[GroupKey, str]]] = deque()
        self.over: dict[str, GroupKey] = {}

    # Records read

    def apply_membership(
        self,
        membership_id: str,
        group_key: GroupKey,
        value: bytes | None,
        stamp: Stamp,
        owner_epoch: int,
        at_ms: int,
    ) -> bool:
        """Take a record of a membership; return whether it counts.

        Raises:
            InvalidRecord: It cannot be read.
        """
        group = self._groups.get(group_key)
        known = None if group is None else group.memberships.get(membership_id)
        if value is None:
            if stamp.owner is None or stamp.owner < owner_epoch:
                return False
            self.over.pop(membership_id, None)
            self._written(group_key, membership_id)
            self._remove(group_key, membership_id, at_ms)
            return True
        record = decode_membership(membership_id, group_key, value)
        if membership_id in self._gone:
            self._written(group_key, membership_id)
            return False
        if known is not None and record.number < known.number:
            return False  # an owner has written an older record again
        if stamp.owner is None:
            if known is not None and known.state in _OVER:
                return False
        elif stamp.owner < owner_epoch:
            return False
        if group is None:
            group = self._groups[group_key] = _Group()
        group.unsent.pop(membership_id, None)
        self._put(group, known, record)
        if stamp.owner is not None and record.state is MembershipState.LEFT:
            group.settled[membership_id] = record
        for one in record.taken_over:
            left = group.memberships.get(one)
            if left is not None and left.state is MembershipState.LEFT:
                _note_given_back(group, left, record.incarnation)
                self.over[one] = group_key
                self._remove(group_key, one, at_ms)
        self._look(group)
        return True

    def apply_member(
        self,
        group_key: GroupKey,
        client_id: str,
        value: bytes | None,
        stamp: Stamp,
        owner_epoch: int,
        at_ms: int,
    ) -> bool:
        """Take a record of a member; return whether it counts.

        Raises:
            InvalidRecord: It cannot be read.
        """
        record = None if value is None else decode_member(value)
        group = self._groups.get(group_key)
        known = None if group is None else group.members.get(client_id)
        is_old = stamp.owner is not None and stamp.owner < owner_epoch
        if is_old or (known is not None and stamp.epoch < known.epoch):
            return False
        if group is None:
            group = self._groups[group_key] = _Group()
        group.members[client_id] = _member(group, known, stamp, record, at_ms)
        if known is not None and stamp.epoch > known.epoch:
            self._note_unsent(group_key, client_id, known, record, at_ms)
        if record is None:
            self._fences.append((at_ms, (group_key, client_id)))
        return True

    def prune(self, now_ms: int) -> None:
        """Forget fences that no record can run into any more."""
        while self._fences and self._fences[0][0] + FENCE_MS < now_ms:
            _, what = self._fences.popleft()
            if isinstance(what, str):
                self._forget_settled(what)
                continue
            group_key, client_id = what
            group = self._groups.get(group_key)
            if group is not None:
                known = group.members.get(client_id)
                if known is not None and known.record is None:
                    del group.members[client_id]
                self._tidy(group_key, group)

    # Effects of the records

    def get(self, group: GroupKey, membership_id: str) -> MembershipRecord | None:
        found = self._groups.get(group)
        return None if found is None else found.memberships.get(membership_id)

    def settled(self, group: GroupKey, membership_id: str) -> MembershipRecord | None:
        """Return how an owner had a membership leave; None: it did not, or that is long ago."""
        found = self._groups.get(group)
        return None if found is None else found.settled.get(membership_id)

    def memberships(self, group: GroupKey) -> list[MembershipRecord]:
        found = self._groups.get(group)
        return [] if found is None else list(found.memberships.values())

    def left(self, group: GroupKey) -> list[MembershipRecord]:
        """Return the memberships that have left and were not taken over."""
        return [one for one in self.memberships(group) if one.state is MembershipState.LEFT]

    def member(self, group: GroupKey, client_id: str) -> tuple[int, MemberRecord | None] | None:
        """Return the epoch of a member and its record."""
        found = self._groups.get(group)
        known = None if found is None else found.members.get(client_id)
        return None if known is None else (known.epoch, known.record)

    def in_flight(self, group: GroupKey, incarnation: str) -> set[Position]:
        """Return where the messages of a group are that sessions have, or had, in flight.

        Args:
            group: Share group.
            incarnation: Run of the gateway whose memberships leave them to the sessions.
        """
        found = self._groups.get(group)
        if found is None:
            return set()
        return set().union(*(one.in_flight(incarnation) for one in found.members.values()))

    def is_kept(self, group: GroupKey) -> bool:
        """Tell whether a group has, or will have again, a member."""
        found = self._groups.get(group)
        return found is not None and (
            any(one.state is not MembershipState.LEFT for one in found.memberships.values())
            or any(one.record is not None for one in found.members.values())
        )

    def groups(self) -> list[GroupKey]:
        return list(self._groups)

    def groups_with_left(self) -> list[GroupKey]:
        return list(self._with_left)

    def runs(self) -> list[Run]:
        """Return which runs of gateways have memberships that have not left."""
        return list(self._unsettled)

    def of_run(self, run: Run) -> list[MembershipRecord]:
        return [
            self._groups[group].memberships[membership_id]
            for membership_id, group in self._unsettled.get(run, {}).items()
        ]

    def is_settling(self, run: Run) -> bool:
        """Tell whether memberships of a run are being settled: it is finished, though it lives."""
        return run in self._settling.values()

    def unsent(self, group: GroupKey) -> list[MembershipRecord]:
        """Return memberships to be written: of messages that sessions that moved did not know."""
        found = self._groups.get(group)
        return [] if found is None else list(found.unsent.values())

    def groups_with_unsent(self) -> list[GroupKey]:
        return [key for key, group in self._groups.items() if group.unsent]

    def outlook(self, membership: MembershipRecord) -> Outlook | None:
        """Return how a membership joins; None while that depends on others."""
        return self._groups[membership.group].outlooks.get(membership.membership_id)

    def can_go(self, membership: MembershipRecord) -> bool:
        """Tell whether the route of a membership that leaves, or is settled, may be withdrawn.

        The router has another gateway for the group then, or no other one is to come: one that
        begins beside a membership has no route yet, and until then the membership's counts for it.
        """
        group = self._groups[membership.group]
        awaited = [
            other
            for membership_id in group.awaited.get(membership.membership_id, ())
            if (other := group.memberships.get(membership_id)) is not None
            and other.state in {MembershipState.JOINING, MembershipState.LIVE}
        ]
        return not awaited or any(one.state is MembershipState.LIVE for one in awaited)

    def assignee(self, left: MembershipRecord) -> MembershipRecord | None:
        """Return the membership that is to take over one that has left, if it still may."""
        assignee = self.get(left.group, left.assignee)
        return assignee if assignee is not None and assignee.state is MembershipState.LIVE else None

    # Inside

    def _note_unsent(
        self,
        group_key: GroupKey,
        client_id: str,
        before: KnownMember,
        record: MemberRecord | None,
        at_ms: int,
    ) -> None:
        """Note messages that a moved session was given and never sent, as a membership that left.

        The membership has one name for every writer: it counts once.
        """
        if before.record is None or record is None:
            return
        group = self._groups[group_key]
        late = _late(group, before)
        unknown = [one for one in before.record.unknown_to(record) if one not in late]
        name = f"{client_id}/{before.epoch}/{group_key.topic_filter}"
        membership_id = blake2b(name.encode(), digest_size=8).hexdigest()
        if unknown and membership_id not in self._gone:
            work = OpenWork(unknown)
            group.unsent[membership_id] = MembershipRecord(
                membership_id, group_key, "", "", MembershipState.LEFT, open=work, at_ms=at_ms
            )

    def _forget_settled(self, membership_id: str) -> None:
        group_key = self._gone.pop(membership_id)
        group = None if group_key is None else self._groups.get(group_key)
        if group is not None:
            group.settled.pop(membership_id, None)

    def _written(self, group_key: GroupKey, membership_id: str) -> None:
        group = self._groups.get(group_key)
        if group is not None:
            group.unsent.pop(membership_id, None)

    def _put(self, group: _Group, known: MembershipRecord | None, record: MembershipRecord) -> None:
        if known is None or known.state is not record.state:
            self._forget(known)
            if record.state is MembershipState.LEFT:
                self._with_left[record.group] = self._with_left.get(record.group, 0) + 1
            else:
                self._unsettled.setdefault(record.run, {})[record.membership_id] = record.group
            if record.state is MembershipState.SETTLING:
                self._settling[record.membership_id] = record.run
            if record.state in _GOING:
                group.awaited[record.membership_id] = [
                    one.membership_id
                    for one in group.memberships.values()
                    if one.membership_id != record.membership_id and _begins_beside(group, one)
                ]
        group.memberships[record.membership_id] = record

    def _forget(self, membership: MembershipRecord | None) -> None:
        if membership is None:
            return
        self._settling.pop(membership.membership_id, None)
        if membership.state is not MembershipState.LEFT:
            of_run = self._unsettled[membership.run]
            del of_run[membership.membership_id]
            if not of_run:
                del self._unsettled[membership.run]
            return
        self._with_left[membership.group] -= 1
        if not self._with_left[membership.group]:
            del self._with_left[membership.group]

    def _remove(self, group_key: GroupKey, membership_id: str, at_ms: int) -> None:
        group = self._groups.get(group_key)
        if membership_id not in self._gone:
            is_settled = group is not None and membership_id in group.settled
            self._gone[membership_id] = group_key if is_settled else None
            self._fences.append((at_ms, membership_id))
        if group is not None and membership_id in group.memberships:
            self._forget(group.memberships.pop(membership_id))
            group.outlooks.pop(membership_id, None)
            group.awaited.pop(membership_id, None)
            self._look(group)
            self._tidy(group_key, group)

    def _tidy(self, group_key: GroupKey, group: _Group) -> None:
        if not group.memberships and not group.members and not group.unsent:
            self._groups.pop(group_key, None)

    def _look(self, group: _Group) -> None:
        """Find out how memberships can join that have not begun."""
        for membership in group.memberships.values():
            if (
                membership.state is MembershipState.JOINING
                and membership.starts is None
                and membership.membership_id not in group.outlooks
            ):
                outlook = _outlook(group, membership)
                if outlook is not None:
                    group.outlooks[membership.membership_id] = outlook


def _late(group: _Group, member: KnownMember) -> set[Position]:
    """Return messages that a session has in flight, and others had got before it said so.

    Its gateway had been taken for dead when its record came to the log.
    """
    settled = [one for one in group.settled.values() if one.incarnation == member.incarnation]
    in_flight = [] if member.record is None else member.record.in_flight
    return {position for position in in_flight if any(one.has(*position) for one in settled)}


def _member(
    group: _Group, known: KnownMember | None, stamp: Stamp, record: MemberRecord | None, at_ms: int
) -> KnownMember:
    epoch = stamp.epoch
    if known is None or known.record is None or record is None:
        return KnownMember(epoch, record, stamp.by)
    if epoch == known.epoch:
        # An owner writes it again in its own name.
        return KnownMember(epoch, record, known.incarnation, known.before, known.moved_at_ms)
    unsent, late = set(known.record.unknown_to(record)), _late(group, known)
    before = {
        (one, known.incarnation if one in unsent else "")
        for one in known.record.in_flight
        if one not in late
    }
    if at_ms - known.moved_at_ms < FENCE_MS:
        before |= known.before
    return KnownMember(epoch, record, stamp.by, frozenset(before), at_ms)


def _note_given_back(group: _Group, left: MembershipRecord, incarnation: str) -> None:
    """Note that a membership of a run has messages again that no session was sent."""
    if left.incarnation == incarnation:
        group.settled.pop(left.membership_id, None)
    for one in group.members.values():
        if one.before:
            one.before -= {(position, incarnation) for position in left.open}


def _begins_beside(group: _Group, membership: MembershipRecord) -> bool:
    outlook = group.outlooks.get(membership.membership_id)
    return membership.state is MembershipState.LIVE or (
        membership.state is MembershipState.JOINING
        and (membership.starts is not None or (outlook is not None and outlook.starts is not None))
    )


def _outlook(group: _Group, membership: MembershipRecord) -> Outlook | None:
    """Return how a membership joins; None while that depends on others.

    Those that joined before it and have not begun come first; those that leave must have left, for
    only then is it known up to where they were given something; and an earlier membership of its
    own gateway must have left, or be settled, for both would have the same route.
    """
    starts: list[int] | None = None
    waits = False
    is_earlier = True
    for one in group.memberships.values():
        if one.membership_id == membership.membership_id:
            is_earlier = False
        elif one.state is MembershipState.LEFT:
            continue
        elif one.gateway == membership.gateway:
            return None
        elif one.state in _GOING:
            waits = True
        elif one.starts is not None:
            starts = latest(one.starts, starts)
        elif is_earlier:
            waits = True
    if starts is not None:
        return Outlook(starts)
    return None if waits else Outlook(None)
