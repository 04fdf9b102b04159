"""Overload of a node: a level from 0 to 10, and hysteresis so that it does not flap."""

from __future__ import annotations

from typing import Final

MOST: Final = 10


class Overload:
    """Decides whether a node takes no new clients, by the load that it reports.

    Args:
        threshold: Overloaded above this level.
        release: Not any more at this level or below; not above `threshold`.
        memory_seconds: A level counts for so long when no further one comes: a node that cannot
            answer for load does not count as idle at once, nor as busy for ever.
    """

    def __init__(self, threshold: int, release: int, memory_seconds: float) -> None:
        if release > threshold:
            raise ValueError(f"release level {release} is above the threshold {threshold}")
        self._threshold = threshold
        self._release = release
        self._memory_seconds = memory_seconds
        self._heard_at: float | None = None
        self._is_over = False
        self.level: int | None = None

    def note(self, at: float, level: float) -> None:
        """Take a level that the node has published; others than 0 to 10 are ignored."""
        if not 0 <= level <= MOST:
            return
        self.level = int(level)
        self._heard_at = at
        if self.level > self._threshold:
            self._is_over = True
        elif self.level <= self._release:
            self._is_over = False

    def at(self, now: float) -> int:
        """Return the level that counts, 0 when none is known."""
        self.is_over(now)
        return self.level or 0

    def is_over(self, now: float) -> bool:
        if self._heard_at is None or now - self._heard_at > self._memory_seconds:
            self._is_over = False
            self.level = None
        return self._is_over
