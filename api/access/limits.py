"""Rate limits: a token bucket for each name."""

import threading
from collections import OrderedDict
from typing import Final

from mqlake.clock import Clock

MAX_NAMES: Final = 10_000
"""Names that are remembered; those longest silent go, and begin with a full bucket again."""


class RateLimiter:
    """Buckets that fill by themselves; safe to use from any thread.

    Args:
        clock: Its monotonic time fills them.
        per_second: How much comes in each second.
        burst: How much is in a full one.
    """

    def __init__(self, clock: Clock, *, per_second: float, burst: float) -> None:
        self._clock = clock
        self._per_second = per_second
        self._burst = burst
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str, amount: float = 1.0) -> float:
        """Take from a bucket; return 0.0, or how many seconds to wait when there is too little.

        An amount larger than a bucket is let through when the bucket is full.
        """
        with self._lock:
            level, now = self._level(name)
            missing = min(amount, self._burst) - level
            if missing > 0:
                return missing / self._per_second
            self._buckets[name] = (level - amount, now)
            self._buckets.move_to_end(name)
            if len(self._buckets) > MAX_NAMES:
                self._buckets.popitem(last=False)
            return 0.0

    def give_back(self, name: str, amount: float = 1.0) -> None:
        """Put back an amount that was taken for something that does not count."""
        with self._lock:
            level, now = self._level(name)
            if name in self._buckets:  # else it is full
                self._buckets[name] = (min(self._burst, level + amount), now)

    def _level(self, name: str) -> tuple[float, float]:
        now = self._clock.monotonic()
        level, at = self._buckets.get(name, (self._burst, now))
        return min(self._burst, level + (now - at) * self._per_second), now
