"""Weights of nodes: from the processor time that a node had free, as mean over a window."""

from __future__ import annotations

from collections import deque
from math import isfinite
from typing import Final

LEAST: Final = 1
MOST: Final = 100
"""HAProxy takes 0 to 256."""


def weight_of(cpu_percent: float | None) -> int:
    """Return the weight of a node: max(1, round(100 - mean CPU)); 1 when the mean is not known.

    Args:
        cpu_percent: Mean of the window, 0 to 100. None and NaN: not known.
    """
    if cpu_percent is None or not isfinite(cpu_percent):
        return LEAST
    return min(MOST, max(LEAST, round(MOST - cpu_percent)))


def damped(before: int | None, now: int, tolerance: int) -> int:
    """Return the weight that stays in force until it is wrong by `tolerance` points.

    A placement that follows every point would move clients for nothing.
    """
    return now if before is None or abs(now - before) >= tolerance else before


class CpuWindow:
    """Mean CPU of one node over the last seconds.

    Args:
        seconds: Length of the window.
        is_counter: Samples are seconds of processor time since the node's start, as in
            `process_cpu_seconds_total`; else each is a percentage.
        cores: How many cores are 100 %.
    """

    def __init__(self, seconds: float, *, is_counter: bool, cores: float = 1.0) -> None:
        self._seconds = seconds
        self._is_counter = is_counter
        self._cores = cores
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, at: float, value: float) -> None:
        """Take a sample at a monotonic time; one that is no number says nothing."""
        if not isfinite(value):
            return
        if self._is_counter and self._samples and value < self._samples[-1][1]:
            self._samples.clear()  # the node has started again
        self._samples.append((at, value))

    def mean(self, now: float) -> float | None:
        """Return the percentage, or None when the window does not say."""
        self._forget(now)
        if not self._samples:
            return None
        if not self._is_counter:
            return sum(value for _, value in self._samples) / len(self._samples) / self._cores
        (begin, first), (end, last) = self._samples[0], self._samples[-1]
        if end <= begin:
            return None
        return (last - first) / (end - begin) * 100 / self._cores

    def _forget(self, now: float) -> None:
        while self._samples and self._samples[0][0] < now - self._seconds:
            self._samples.popleft()
