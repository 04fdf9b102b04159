"""Latencies as counts in classes: cheap to add to, to take one from another and to add up."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

# fmt: off
BOUNDS_MS: Final = (
    0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0,
    25.0, 30.0, 40.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1_000.0, 2_000.0, 5_000.0,
    10_000.0, 30_000.0,
)
# fmt: on
"""Upper bounds of the classes; one more takes times above."""

CLASSES: Final = len(BOUNDS_MS) + 1

ACCEPT: Final = "accept"
"""From a client's PUBLISH to its PUBACK or PUBREC: the log has the message."""
ROUTE: Final = "route"
"""From the log to the delivery topic of a gateway: the router has chosen it."""
DELIVER: Final = "deliver"
"""From the PUBLISH, at any gateway, to the PUBLISH to subscribers."""
STAGES: Final = (ACCEPT, ROUTE, DELIVER)


class Latencies:
    """Counts by class, and their sum.

    Attributes:
        counts: Number in each class, never less than before.
        sum_ms: Sum of all that was counted.
    """

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * CLASSES
        self.sum_ms = 0.0

    def add(self, ms: float, count: int = 1) -> None:
        """Count messages that took so long; a time that seems negative is none."""
        self.counts[bisect_left(BOUNDS_MS, ms)] += count
        self.sum_ms += max(0.0, ms) * count


def percentile(counts: Sequence[int], share: float) -> float | None:
    """Return the time below which a share of all lies; None without any.

    As if each class were filled evenly; times above all bounds count as the last bound.
    """
    rank = share * sum(counts)
    if not rank:
        return None
    below = 0.0
    for count, bound in zip(counts, BOUNDS_MS, strict=False):
        if count and rank <= count:
            return round(below + (bound - below) * rank / count, 3)
        rank -= count
        below = bound
    return BOUNDS_MS[-1]


def added_up(all_counts: Iterable[Sequence[int]]) -> list[int]:
    """Return counts class by class; those in other classes than ours do not count."""
    ours = [counts for counts in all_counts if len(counts) == CLASSES]
    return [sum(column) for column in zip(*ours, strict=True)] or [0] * CLASSES


def since(now: Sequence[int], before: Sequence[int]) -> list[int]:
    """Return the counts from meanwhile."""
    return [max(0, new - old) for new, old in zip(now, before, strict=False)]
