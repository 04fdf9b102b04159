"""Classes of durability that an acknowledgement promises, as they are set and shown.

PUBACK and PUBREC go out when the log has a record on all in-sync replicas. Whether that is one copy
in the memory of a machine or several on disks is the configuration of its topics.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

COPIES: Final = 3
"""Copies of each partition in a log of several brokers; two have each acknowledged record."""


class Durability(StrEnum):
    """Failures that an acknowledged message outlives."""

    D1 = "D1"
    """Every process: one broker has it, in the page cache of its machine."""
    D2 = "D2"
    """Survives the loss of a machine: two brokers have it at least."""
    D3 = "D3"
    """Survives a power cut of all machines: every in-sync broker has it on its disk."""


MEANING: Final[Mapping[Durability, str]] = {
    Durability.D1: "acknowledged messages outlive every process; when the power fails, those of the"
    " last half minute may be lost",
    Durability.D2: "acknowledged messages are on two machines at least",
    Durability.D3: "acknowledged messages are on the disk",
}


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a log topic keeps its records.

    Attributes:
        copies: Fewest copies that a partition has.
        acknowledged: Copies among them that must be in sync: `min.insync.replicas`.
        is_flushed: Whether a record is on the disk when it is acknowledged.
        may_lose_leader: Whether a copy that lacks acknowledged records may become the leader, when
            those that have them are away: `unclean.leader.election.enable`.
    """

    copies: int
    acknowledged: int
    is_flushed: bool
    may_lose_leader: bool = False

    @property
    def is_replicated(self) -> bool:
        return min(self.copies, self.acknowledged) > 1

    @property
    def is_unclean(self) -> bool:
        """Tell whether acknowledged records may be lost while copies of them are there."""
        return self.may_lose_leader and self.copies > 1

    @property
    def durability(self) -> Durability:
        """The highest class that it gives."""
        if self.is_unclean:
            return Durability.D1
        if self.is_flushed:
            return Durability.D3
        return Durability.D2 if self.is_replicated else Durability.D1

    def describe(self) -> str:
        """Return one line for people."""
        flushed = "flushed before" if self.is_flushed else "in the page cache when"
        held = f"{self.acknowledged} of them acknowledge"
        text = f"copies: {self.copies}, {held}, {flushed} a record is acknowledged"
        if self.is_unclean:
            text += (
                "; one that lacks acknowledged records may become the leader and delete them "
                "elsewhere: set unclean.leader.election.enable=false"
            )
        return text

    def gives(self, wanted: Durability) -> bool:
        """Tell whether it promises as much; on one disk is no second machine."""
        return {
            Durability.D1: True,
            Durability.D2: self.is_replicated and not self.is_unclean,
            Durability.D3: self.is_flushed and not self.is_unclean,
        }[wanted]


CLEAN: Final[Mapping[str, str]] = {"unclean.leader.election.enable": "false"}
"""Configuration of all our log topics, whatever the brokers have: positions, sessions and tables go
by offsets, and a leader that lacks records gives their offsets to others."""


def topic_settings(wanted: Durability) -> dict[str, str | None]:
    """Return how a log topic is configured for a class; None: as its broker has it.

    Kafka flushes a record before it answers, and before readers and replicas see it.
    """
    return {"flush.messages": "1" if wanted is Durability.D3 else None}
