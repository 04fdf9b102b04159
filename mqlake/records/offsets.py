"""Positions in a log topic: lists with one offset for each partition.

A list that was written down before the log topic was given more partitions is shorter than one of
today. Then there was nothing in those that it lacks, so it stands at their beginning: at 0.
"""

from collections.abc import Sequence
from itertools import zip_longest


def at(offsets: Sequence[int], partition: int) -> int:
    """Return the offset of a partition."""
    return offsets[partition] if partition < len(offsets) else 0


def latest(offsets: Sequence[int], others: Sequence[int] | None) -> list[int]:
    """Return the greater offset of each partition; None stands before everything."""
    if others is None:
        return list(offsets)
    return [max(pair) for pair in zip_longest(offsets, others, fillvalue=0)]


def earliest(*lists: Sequence[int]) -> list[int]:
    """Return the least offset of each partition that one of the lists has."""
    return [min(offsets) for offsets in zip_longest(*lists, fillvalue=0)]


def have_reached(offsets: Sequence[int], goals: Sequence[int]) -> bool:
    """Tell whether no partition is behind its goal."""
    return all(offset >= goal for offset, goal in zip_longest(offsets, goals, fillvalue=0))


def cut(offsets: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return the offsets that are not behind the ends, and these ends; others have no end."""
    ended = [min(offset, end) for offset, end in zip(offsets, ends, strict=False)]
    return [*ended, *offsets[len(ended) :]]


def advance(offsets: list[int], partition: int, offset: int) -> None:
    """Move a partition on to an offset, unless it is beyond it; changes the list."""
    if partition >= len(offsets):
        offsets.extend([0] * (partition + 1 - len(offsets)))
    offsets[partition] = max(offsets[partition], offset)


def widened(offsets: Sequence[int], partitions: int) -> list[int]:
    """Return offsets for at least `partitions`."""
    return [*offsets, *[0] * (partitions - len(offsets))]
