"""A gateway's membership in a share group from its first member to its last, without its messages.

    joining ──begin──► (begun) ──route──► live ──no member──► leaving ──go──► (withdrawn) ──► left

Each step is an effect, and their order is the order in which they are durable:

- A membership is in the log before the router hears of its route, and its members count from
  barriers behind that; so everything that the router has chosen this gateway for is with a member,
  waits in the membership, or is in its record.
- The first membership in a group reads messages that were given to no membership; members get
  nothing before the log says so.
- A membership that leaves withdraws its route, and has left when the router gives it nothing more.

The answers come from the owner of the group's shard (`share_groups.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ingest.session.groups.open_work import OpenWork
from ingest.session.groups.share_records import (
    GroupKey,
    MembershipRecord,
    MembershipState,
    ShareGap,
)
from ingest.session.shard.effects import Effect
from mqlake.records.offsets import latest

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqlake.records.shards import Run


class JoinStart(NamedTuple):
    """How a membership joins."""

    starts: list[int] | None
    """Offsets at which the group became live; None: it is the first."""
    given: list[int] | None = None
    """Set for the first: up to where earlier ones were given messages; None: there were none."""
    since_ms: int | None = None
    """When the last one left."""


class GroupMembership:
    """The state of a membership in its record; see there.

    Attributes:
        is_lost: Another membership has its messages.
        has_taken_over: Memberships that it has taken over, ever: each comes once.
        taking: Number of these that the log may not have in its record yet: its members get nothing
            of theirs.
        on_begin: Called with the offset of each partition from which on it counts.
    """

    def __init__(self, group: GroupKey, run: Run, membership_id: str) -> None:
        self.group = group
        self.run = run
        self.membership_id = membership_id
        self.state = MembershipState.JOINING
        self.starts: list[int] | None = None
        self.given: list[int] | None = None
        self.unread = OpenWork()
        self.gaps: list[ShareGap] = []
        self.taken_over: list[str] = []
        self.has_taken_over: set[str] = set()
        self.taking = 0
        self.asks = 0
        self.is_lost = False
        self.on_begin: Callable[[list[int]], None] = lambda _starts: None
        self._number = 0

    @property
    def is_recorded(self) -> bool:
        """Tell whether there is a record of it, which the log may have."""
        return self._number > 0

    def begin(self, starts: list[int]) -> None:
        """Count from here on: messages before belong to the gap."""
        self.starts = starts
        self.given = latest(starts, self.given)
        self.on_begin(starts)

    def take_over(self, left: MembershipRecord) -> bool:
        """Make the messages of one that has left its own; False: they are, or must not be."""
        if (
            self.state is not MembershipState.LIVE
            or self.is_lost
            or left.membership_id in self.has_taken_over
        ):
            return False
        self.has_taken_over.add(left.membership_id)
        self.taken_over.append(left.membership_id)
        self.taking += 1
        self.unread.update(left.open)
        self.gaps.extend(one.copy() for one in left.gaps)
        if left.given is not None:
            self.given = latest(left.given, self.given)
        return True

    def forget_taken_over(self, membership_ids: list[str]) -> None:
        """Note that the records of memberships that it has taken over are void."""
        self.taken_over = [one for one in self.taken_over if one not in membership_ids]

    def record(
        self, work: OpenWork, next_delivery: int, delivered: list[int], now_ms: int
    ) -> MembershipRecord:
        """Return the membership as it is now."""
        self._number += 1
        return MembershipRecord(
            self.membership_id,
            self.group,
            self.run.gateway,
            self.run.incarnation,
            self.state,
            self._number,
            next_delivery,
            self.starts,
            self.given,
            work,
            [gap.copy() for gap in self.gaps],
            list(self.taken_over),
            "",
            self.asks,
            now_ms,
            delivered,
        )


@dataclass(frozen=True, slots=True)
class AskToBegin(Effect[JoinStart]):
    """Write the membership, again and again, until its owner says how it begins."""


@dataclass(frozen=True, slots=True)
class AskToGo(Effect[None]):
    """Write the membership, again and again, until its owner says that its route may go."""


@dataclass(frozen=True, slots=True)
class SaveMembership(Effect[None]):
    """Write the membership; done when its record stands in the log and counts."""


@dataclass(frozen=True, slots=True)
class Announce(Effect["list[int]"]):
    """Have the router give to this membership; return offsets of barriers that follow its route.

    Even if all members have gone meanwhile: others may rely on its being there.
    """


@dataclass(frozen=True, slots=True)
class WithdrawOwn(Effect[None]):
    """Have the router give nothing more; done when barriers that follow are back."""


@dataclass(frozen=True, slots=True)
class Serve(Effect[None]):
    """Give members new and waiting messages; done when there is no member any more."""


async def belong(membership: GroupMembership, now_ms: Any) -> None:
    """Be a membership in a group from the first member to the last.

    Args:
        membership: It.
        now_ms: Returns the time.
    """
    begin = await AskToBegin()
    if begin.starts is not None:
        membership.begin(begin.starts)
        await SaveMembership()  # no member leaves before it is live
        await Announce()
    else:
        membership.given = None if begin.given is None else list(begin.given)
        starts = await Announce()
        membership.begin(starts)
        if begin.given is not None:
            since_ms = now_ms() if begin.since_ms is None else begin.since_ms
            gap = ShareGap(list(begin.given), list(starts), since_ms)
            if not gap.is_empty:
                membership.gaps.append(gap)
    membership.state = MembershipState.LIVE
    # Before members get anything: if this gateway dies it must be known of the gap.
    await SaveMembership()
    await Serve()
    membership.state = MembershipState.LEAVING
    await AskToGo()
    await WithdrawOwn()
    membership.state = MembershipState.LEFT
    await SaveMembership()
