"""One stream to one reader: bounded, capped, and honest about events that it left out.

The feed never waits: events that come faster than the reader wants, or takes, are counted.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

MAX_QUEUED: Final = 2_000
MAX_QUEUED_BYTES: Final = 4 * 1024 * 1024
MAX_CONNECTION_BYTES: Final = 8 * 1024 * 1024
"""That wait in all streams of one connection."""
LEFT_OUT_SECONDS: Final = 1.0
"""Pause between reports to a reader of how much was left out."""

Event = tuple[str, dict[str, Any]]
"""Its name, and its data."""


@dataclass(slots=True)
class LeftOut:
    """Items that a reader did not get."""

    rate: int = 0
    """Because of its cap."""
    slow: int = 0
    """Because it did not take them in time."""


class Room:
    """Bytes that may wait in all streams of one connection; safe to use from any thread."""

    def __init__(self, most: int = MAX_CONNECTION_BYTES) -> None:
        self._lock = threading.Lock()
        self._left = most

    def take(self, size: int) -> bool:
        """Take some; False when there are too few."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give_back(self, size: int) -> None:
        with self._lock:
            self._left += size


class LiveStream:
    """A queue from the thread that feeds to the event loop that sends.

    Args:
        wake: Called when there is something new; from any thread.
        room: Room of its connection.
        show: Makes an event of an item, when it is sent.
        max_rate: Items a second; a second's worth may come at once. None: as they come.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        room: Room,
        show: Callable[[Any], Event],
        *,
        max_rate: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wake = wake
        self._room = room
        self._is_closed = False
        self._show = show
        self._max_rate = max_rate
        self._clock = clock
        self._allowed = max_rate or 0.0
        self._counted_at = clock()
        self._lock = threading.Lock()
        self._items: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._left_out = LeftOut()
        self._total = 0
        self._told_at = clock() - LEFT_OUT_SECONDS

    def offer(self, item: Any, size: int) -> bool:
        """Queue an item, or leave it out; tell whether it was queued. The caller then wakes."""
        with self._lock:
            if self._is_closed:
                return False
            if not self._is_allowed():
                self._left_out.rate += 1
                return False
            is_full = len(self._items) >= MAX_QUEUED or self._bytes + size > MAX_QUEUED_BYTES
            if is_full or not self._room.take(size):
                self._left_out.slow += 1
                return False
            self._items.append((item, size))
            self._bytes += size
            return True

    def offer_newest(self, item: Any) -> None:
        """Queue an item in place of all that wait: only the newest counts."""
        with self._lock:
            self._empty()
            self._items.append((item, 0))

    def close(self) -> None:
        """Forget the waiting events, and take no more."""
        with self._lock:
            self._is_closed = True
            self._empty()

    def _empty(self) -> None:
        self._items.clear()
        self._room.give_back(self._bytes)
        self._bytes = 0

    def take(self, limit: int) -> list[Event]:
        """Return events to send now: the number left out, reported now and then, and items."""
        with self._lock:
            count = min(limit, len(self._items))
            taken = [self._items.popleft() for _ in range(count)]
            size = sum(size for _, size in taken)
            self._bytes -= size
            self._room.give_back(size)
            told = self._tell()
        events = [self._show(item) for item, _ in taken]
        return events if told is None else [told, *events]

    def _is_allowed(self) -> bool:
        if self._max_rate is None:
            return True
        now = self._clock()
        more = (now - self._counted_at) * self._max_rate
        self._allowed = min(self._max_rate, self._allowed + more)
        self._counted_at = now
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True

    def _tell(self) -> Event | None:
        left_out = self._left_out
        count = left_out.rate + left_out.slow
        now = self._clock()
        if not count or now - self._told_at < LEFT_OUT_SECONDS:
            return None
        self._told_at = now
        self._total += count
        self._left_out = LeftOut()
        said = {"rate": left_out.rate, "slow": left_out.slow, "total": self._total}
        return "left_out", said
