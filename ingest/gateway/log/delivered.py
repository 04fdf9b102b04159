"""How far a gateway has come with its deliveries from the router."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqlake.records.messages import LogRecord


class Delivered:
    """Beginning of the next delivery of this run.

    Args:
        partitions: Number of partitions of `mqlake.inbound`.

    Attributes:
        marks: Per partition of `mqlake.inbound` the last offset that was delivered here, or that
            is not for this run: the one before its first barrier. Changed in place.
        last: Per partition the last delivery that this run was given. Changed in place.
        next: The first offset in the delivery topic that has not been looked at.
        gone_at_ms: Since when it is known that the log has removed some, until clients get their
            messages all the same; None: it has not. Milliseconds UTC.
    """

    __slots__ = ("gone_at_ms", "last", "marks", "next")

    def __init__(self, partitions: int) -> None:
        self.marks = [-1] * partitions
        self.last: list[LogRecord | None] = [None] * partitions
        self.next = 0
        self.gone_at_ms: int | None = None

    def grow(self, partitions: int) -> None:
        """Count for at least `partitions`."""
        self.marks.extend([-1] * (partitions - len(self.marks)))
        self.last.extend([None] * (partitions - len(self.last)))

    def next_offsets(self) -> list[int]:
        """Return per partition of `mqlake.inbound` the first offset not yet delivered here."""
        return [mark + 1 for mark in self.marks]
