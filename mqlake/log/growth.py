"""The log gets more partitions while the system runs, and every topic keeps its order.

A key is in the partition that its hash gives, modulo the number of partitions. That number only
grows to a multiple: so a topic stays where it is, or moves to a partition that was not there
before, and each new partition has topics of one old one. Numbers of partitions are never used
again, so cursors, high-water marks and positions stay as they are.

    announced ──► partitions added ──► moved ──► cut ──► done

announced: gateways choose partitions themselves: the client library would use a new one at once.
moved: messages go into all partitions. A gateway says so when all that it has written before is in
    the log. Readers that need the order of a topic read no new partition.
cut: nothing more comes into an old partition of a topic that has moved: where the old partitions
    ended then is the cut. A reader that is past it reads the new ones, too.
done: everybody does. The log can grow again.

Each step is a record under `GROWTH_KEY` in `mqlake.gateways`, in one order with the heartbeats
of the gateways: one whose first heartbeat comes after a step has read that step before it takes a
message.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from mqlake.errors import InvalidRecord, OperationalError
from mqlake.records.members import integer, integers, load, refusal, text
from mqlake.records.versions import RECORD_VERSION

MOST_PARTITIONS: Final = 1024
"""Bound for `mqlake.inbound`; no query takes a partition beyond."""

OTHERS_SECONDS: Final = 2.0
"""How long the cut waits for those who write messages and send no heartbeat: the API, the runner
of actions and the federator. They look for growth many times in that time."""


class GrowthStep(StrEnum):
    ANNOUNCED = "announced"
    MOVED = "moved"
    CUT = "cut"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Growth:
    """How far it is.

    Attributes:
        before: Number of partitions that messages were in.
        after: Number that they are in afterwards, a multiple.
        step: The last one that is done.
        cut: Per old partition the offset before which everything of topics is that have moved;
            known from `GrowthStep.CUT` on.
    """

    before: int
    after: int
    step: GrowthStep = GrowthStep.ANNOUNCED
    cut: tuple[int, ...] = ()

    @property
    def used(self) -> int:
        """How many partitions messages go into."""
        return self.before if self.step is GrowthStep.ANNOUNCED else self.after

    @property
    def is_moving(self) -> bool:
        """Tell whether some writers go by the number before, and others by that after."""
        return not self.cut

    @property
    def is_done(self) -> bool:
        return self.step is GrowthStep.DONE

    def moved(self) -> "Growth":
        return replace(self, step=GrowthStep.MOVED)

    def cut_at(self, ends: Mapping[int, int]) -> "Growth":
        """Return it with the ends of partitions as the cut."""
        cut = tuple(ends[partition] for partition in range(self.before))
        return replace(self, step=GrowthStep.CUT, cut=cut)

    def finished(self) -> "Growth":
        return replace(self, step=GrowthStep.DONE)

    def readable(self, positions: Mapping[int, int]) -> int:
        """Return how many partitions a reader may read that needs the order of each topic.

        Args:
            positions: Per partition the first offset that he has not read.
        """
        if not self.cut:
            return self.before
        is_past = all(positions.get(one, 0) >= offset for one, offset in enumerate(self.cut))
        return self.after if is_past else self.before


def generations(made_with: int, partitions: int) -> Iterator[range]:
    """Yield partitions in the order in which they have messages of a topic; none twice.

    Those of one range have no topic in common. A topic that has moved to a partition was in
    `partition % before` until then, and before is no greater than the partition: so that is less
    than half of it, in an earlier range, however the log has grown.

    Args:
        made_with: Partitions that the log was made with.
        partitions: That there are.
    """
    start, end = 0, made_with
    while start < partitions:
        yield range(start, min(end, partitions))
        start, end = end, 2 * end


def check_growth(now: int, wanted: int) -> None:
    """Refuse a number of partitions that the log cannot grow to from `now`.

    Raises:
        OperationalError: The reason is for people.
    """
    if wanted > MOST_PARTITIONS:
        raise OperationalError(f"{wanted} partitions, at most {MOST_PARTITIONS} are possible")
    if wanted <= now:
        raise OperationalError(
            f"messages are in {now} partitions: expected more than that, and Kafka takes none away"
        )
    if wanted % now:
        raise OperationalError(
            f"messages are in {now} partitions: expected a multiple, {now * (wanted // now + 1)} "
            "say, so that each topic moves once and at a known offset"
        )


@dataclass(frozen=True, slots=True)
class Heard:
    """Partitions of a gateway, from its last heartbeat.

    Attributes:
        partitions: Number that its messages go into, and none of them by a smaller number any more;
            None: its release does not say it.
        is_fixed: It chooses them itself.
        lease_seconds: It is gone after so long without a heartbeat.
        heard_at: By the clock of the process that has heard it.
    """

    partitions: int | None
    is_fixed: bool
    lease_seconds: float
    heard_at: float


def waits_for(growth: Growth, heard: Mapping[str, Heard], now: float) -> list[str]:
    """Return the gateways that have not done their part of the step yet."""
    return sorted(
        name
        for name, one in heard.items()
        if now - one.heard_at < one.lease_seconds and not _has_followed(growth, one)
    )


def _has_followed(growth: Growth, one: Heard) -> bool:
    match growth.step:
        case GrowthStep.ANNOUNCED:
            return one.is_fixed or one.partitions == growth.after
        case GrowthStep.MOVED:
            return one.partitions == growth.after
        case _:
            return True


def encode_growth(growth: Growth) -> bytes:
    """Write the value of the record."""
    members = {
        "v": RECORD_VERSION,
        "before": growth.before,
        "after": growth.after,
        "step": growth.step,
        "cut": growth.cut,
    }
    return json.dumps(members).encode()


def decode_growth(value: bytes | None) -> Growth:
    """Undo `encode_growth`.

    Raises:
        InvalidRecord: Not JSON, another version, or a member is not as it must be.
    """
    found = load(value or b"null", "record of the log's growth")
    step = text(found, "step")
    if step not in set(GrowthStep):
        raise refusal("step", step, f"one of {', '.join(GrowthStep)}")
    cut = tuple(integers(found, "cut"))
    growth = Growth(integer(found, "before"), integer(found, "after"), GrowthStep(step), cut)
    has_cut = growth.step in {GrowthStep.CUT, GrowthStep.DONE}
    if not 0 < growth.before < growth.after or growth.after % growth.before:
        raise InvalidRecord(f"a log does not grow from {growth.before} to {growth.after}")
    if len(growth.cut) != (growth.before if has_cut else 0):
        raise InvalidRecord(f"cut {growth.cut} of {growth.before} partitions at {growth.step}")
    return growth
