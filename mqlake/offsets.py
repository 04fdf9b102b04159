"""Places in a log topic: lists with one offset for each partition."""

from collections.abc import Sequence


def latest(offsets: Sequence[int], others: Sequence[int] | None) -> list[int]:
    """Return the greater offset of each partition; None stands before everything."""
    if others is None:
        return list(offsets)
    return [max(pair) for pair in zip(offsets, others, strict=True)]


def have_reached(offsets: Sequence[int], goals: Sequence[int]) -> bool:
    """Tell whether no partition is behind its goal."""
    return all(offset >= goal for offset, goal in zip(offsets, goals, strict=True))
