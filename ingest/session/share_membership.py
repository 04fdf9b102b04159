"""A gateway's part of a share group from its first member to its last, without its messages.

    joining ──begin──► (begun) ──route──► live ──no member──► leaving ──go──► (withdrawn) ──► left

Each step is an effect, and their order is the order of what is durable before what:

- A part is in the log before the router hears of its route, and its members count from barriers
  behind that; so everything that the router has chosen this gateway for is with a member, waits in
  the part, or is in its record.
- The first part of a group reads what nobody was given; members get nothing before the log says so.
- Who leaves withdraws its route, and has left when the router gives it nothing more.

The answers come from the owner of the group's shard (`share_groups.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ingest.session.effects import Effect
from ingest.session.open_work import OpenWork
from ingest.session.share_parts import GroupKey, PartRecord, PartState, ShareGap
from mqlake.offsets import latest

if TYPE_CHECKING:
    from mqlake.shard_records import Run


class JoinStart(NamedTuple):
    """How a part joins."""

    starts: list[int] | None
    """Where the group became live; None: it is the first."""
    given: list[int] | None = None
    """Of the first: up to where somebody was given something; None: there was nobody."""
    since_ms: int | None = None
    """When the last one left."""


class GroupPart:
    """What a part says in its record; see there.

    Attributes:
        is_lost: Another has what it held.
        has_taken: Parts that it has taken over, ever: each comes once.
    """

    def __init__(self, group: GroupKey, run: Run, part_id: str) -> None:
        self.group = group
        self.run = run
        self.part_id = part_id
        self.state = PartState.JOINING
        self.starts: list[int] | None = None
        self.given: list[int] | None = None
        self.unread = OpenWork()
        self.gaps: list[ShareGap] = []
        self.took: list[str] = []
        self.has_taken: set[str] = set()
        self.asks = 0
        self.is_lost = False
        self._number = 0

    def begin(self, starts: list[int]) -> None:
        """Count from here on: what came before belongs to the gap."""
        self.starts = starts
        self.given = latest(starts, self.given)

    def take_over(self, left: PartRecord) -> bool:
        """Make what another part has left this part's own; False: it is, or must not be."""
        if self.state is not PartState.LIVE or self.is_lost or left.part_id in self.has_taken:
            return False
        self.has_taken.add(left.part_id)
        self.took.append(left.part_id)
        self.unread.update(left.open)
        self.gaps.extend(
            ShareGap(list(one.start), list(one.end), one.since_ms) for one in left.gaps
        )
        if left.given is not None:
            self.given = latest(left.given, self.given)
        return True

    def forget_taken(self, part_ids: list[str]) -> None:
        """Note that the records of parts that it has taken over are void."""
        self.took = [one for one in self.took if one not in part_ids]

    def record(
        self, work: OpenWork, next_delivery: int, delivered: list[int], now_ms: int
    ) -> PartRecord:
        """Return the part as it is now."""
        self._number += 1
        return PartRecord(
            self.part_id,
            self.group,
            self.run.gateway,
            self.run.incarnation,
            self.state,
            self._number,
            next_delivery,
            self.starts,
            self.given,
            work,
            [ShareGap(list(gap.start), list(gap.end), gap.since_ms) for gap in self.gaps],
            list(self.took),
            "",
            self.asks,
            now_ms,
            delivered,
        )


@dataclass(frozen=True, slots=True)
class AskToBegin(Effect[JoinStart]):
    """Write the part, again and again, until its owner says how it begins."""


@dataclass(frozen=True, slots=True)
class AskToGo(Effect[None]):
    """Write the part, again and again, until its owner says that its route may go."""


@dataclass(frozen=True, slots=True)
class SavePart(Effect[None]):
    """Write the part; done when its record stands in the log and counts."""


@dataclass(frozen=True, slots=True)
class Announce(Effect["list[int]"]):
    """Have the router give to this part; return offsets of barriers that follow its route.

    Even if all members have gone meanwhile: others may rely on its being there.
    """


@dataclass(frozen=True, slots=True)
class WithdrawOwn(Effect[None]):
    """Have the router give nothing more; done when barriers that follow are back."""


@dataclass(frozen=True, slots=True)
class Serve(Effect[None]):
    """Give members what comes and what has waited; done when there is none any more."""


async def belong(part: GroupPart, now_ms: Any) -> None:
    """Be a part of a group from the first member to the last.

    Args:
        part: It.
        now_ms: Returns the time.
    """
    begin = await AskToBegin()
    if begin.starts is not None:
        part.begin(begin.starts)
        await SavePart()  # nobody leaves before it is live
        await Announce()
    else:
        part.given = None if begin.given is None else list(begin.given)
        starts = await Announce()
        part.begin(starts)
        if begin.given is not None:
            since_ms = now_ms() if begin.since_ms is None else begin.since_ms
            gap = ShareGap(list(begin.given), list(starts), since_ms)
            if not gap.is_empty:
                part.gaps.append(gap)
    part.state = PartState.LIVE
    # Before members get anything: if this gateway dies it must be known of the gap.
    await SavePart()
    await Serve()
    part.state = PartState.LEAVING
    await AskToGo()
    await WithdrawOwn()
    part.state = PartState.LEFT
    await SavePart()
