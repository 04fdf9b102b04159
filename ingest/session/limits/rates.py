"""How often something may happen: pure, in seconds of the caller's clock."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


class SlidingWindowCounter:
    """A bound for any window, wherever it begins, by the counts of two fixed ones.

    The count of the fixed window before is taken as spread evenly: that part of it counts which the
    sliding window still covers. So two numbers replace all times; a burst at the end of one
    window and one at the start of the next count together as soon as they are read together.

    Args:
        most: In a window, at least 1.
        window_seconds: Its length.
    """

    __slots__ = ("_before", "_count", "_most", "_number", "_seconds")

    def __init__(self, most: int, window_seconds: float = 1.0) -> None:
        self._most = most
        self._seconds = window_seconds
        # Of the fixed window in which something happened last.
        self._number = 0
        self._count = 0
        self._before = 0
        """In the fixed window before that."""

    def wait(self, now: float) -> float:
        """Return in how many seconds one more has room; 0.0: now."""
        return self._wait(self._enter(now))

    def count(self, now: float) -> float:
        """Note that it happens, whether or not there is room; return as `wait`."""
        elapsed = self._enter(now)
        self._count += 1
        return self._wait(elapsed)

    def _wait(self, elapsed: float) -> float:
        room = self._most - 1
        if (
            self._before + self._count <= room
            or self._before * (1.0 - elapsed) + self._count <= room
        ):
            return 0.0
        if self._count <= room:  # the window before passes out of sight
            at = 1.0 - (room - self._count) / self._before
        else:  # so it does of this one, in the next
            at = 2.0 - room / self._count
        return max((at - elapsed) * self._seconds, 0.0)

    def _enter(self, now: float) -> float:
        """Go to the fixed window of a time; return how much of it has passed, 0 to 1."""
        number, rest = divmod(now, self._seconds)
        windows = int(number) - self._number
        if windows > 0:
            self._before = self._count if windows == 1 else 0
            self._count = 0
            self._number = int(number)
        return rest / self._seconds if windows >= 0 else 0.0


class TokenBucket:
    """So much a second on average, and so much at once; the excess of a larger amount is owed.

    Args:
        per_second: Amount that flows in.
        most: Amount that it holds; it is full to begin with.
    """

    __slots__ = ("_at", "_level", "_most", "_per_second")

    def __init__(self, per_second: float, most: float) -> None:
        self._per_second = per_second
        self._most = most
        self._level = most
        self._at = 0.0

    def take(self, amount: float, now: float) -> float:
        """Take an amount, there or not; return in how many seconds nothing is owed."""
        flowed = max(now - self._at, 0.0) * self._per_second
        self._level = min(self._level + flowed, self._most) - amount
        self._at = max(now, self._at)
        return 0.0 if self._level >= 0 else -self._level / self._per_second

    def set_rate(self, per_second: float, now: float) -> None:
        """Have so much flow in from now on, and hold the amount of a second."""
        TokenBucket.take(self, 0.0, now)
        self._per_second = self._most = per_second
        self._level = min(self._level, self._most)


class Strikes:
    """Finds names that do something too often.

    Args:
        most: Times in a window that are allowed.
        window_seconds: As of `SlidingWindowCounter`.
        names: Remembered at most; the one noted longest ago goes first.
    """

    def __init__(self, most: int, window_seconds: float, names: int = 10_000) -> None:
        self._most = most
        self._window_seconds = window_seconds
        self._names = names
        self._counters: dict[str, SlidingWindowCounter] = {}

    def note(self, name: str, now: float) -> bool:
        """Count one time; return whether that is too often, and begin again then."""
        counter = self._counters.pop(name, None)
        if counter is None:
            counter = SlidingWindowCounter(self._most, self._window_seconds)
        if counter.wait(now):
            return True
        counter.count(now)
        if len(self._counters) >= self._names:
            del self._counters[next(iter(self._counters))]
        self._counters[name] = counter
        return False
