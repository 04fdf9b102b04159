"""Time as a dependency: production reads the machine's clocks, tests advance a manual one."""

import time
from typing import Final, Protocol

RATE_ERROR: Final = 0.01
"""Two clocks differ in rate by less."""


class Clock(Protocol):
    """Two clocks: one for durations, one for the calendar."""

    def monotonic(self) -> float:
        """Return seconds that never go back; only differences mean something."""
        ...

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC; may step when the machine's clock is set."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class LogClock:
    """The log's clock, as its records tell: the same for all who read them.

    Between two records it goes on by durations, for the machine's calendar may be set meanwhile.

    Args:
        clock: The machine's; its calendar counts until the first record.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: tuple[int, float] | None = None

    def heard(self, timestamp_ms: int) -> None:
        """Take the time that the log has given to a record which was read just now."""
        self._heard = (timestamp_ms, self._clock.monotonic())

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC, never ahead of the log."""
        if self._heard is None:
            return self._clock.now_ms()
        timestamp_ms, at = self._heard
        return timestamp_ms + int((self._clock.monotonic() - at) * 1000)


class Standstill:
    """Tells by the log's time for how long our clock for durations stood still.

    It does when the machine is suspended, or its hypervisor stops it: nothing here notices. The
    log's clock goes on. A record of ours that was sent at one time and is known at another was
    appended between them; so the log's clock is ahead of ours by its timestamp less the first at
    most, and less the second at least. Once that is more than it can be, ours has stood still, or
    the log's was set: these look alike.

    Args:
        clock: Its monotonic time is judged.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._most: tuple[float, float] | None = None
        """Seconds that the log's clock is ahead of ours at most, and when that was known."""

    def beyond(self, timestamp_ms: int) -> float:
        """Return how many seconds later than it can be a record is that has just been read.

        That is for how long at least our clock has stood still since `heard` was called last.
        """
        if self._most is None:
            return 0.0
        most, at = self._most
        now = self._clock.monotonic()
        return max(0.0, timestamp_ms / 1000 - now - most - (now - at) * RATE_ERROR)

    def heard(self, timestamp_ms: int, said_at: float) -> float:
        """Take a record of ours that has come back; return `beyond`, which is 0 from then on.

        Args:
            timestamp_ms: By the log.
            said_at: When it was sent, by our clock.
        """
        beyond, now = self.beyond(timestamp_ms), self._clock.monotonic()
        ahead = timestamp_ms / 1000 - said_at
        if self._most is not None and not beyond:
            most, at = self._most
            ahead = min(ahead, most + (now - at) * RATE_ERROR)
        self._most = ahead, now
        return beyond


class ManualClock:
    """A clock that stands still until a test advances it."""

    def __init__(self, *, now_ms: int = 1_600_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def monotonic(self) -> float:
        return self._monotonic

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, seconds: float) -> None:
        self._monotonic += seconds
        self._now_ms += round(seconds * 1000)

    def step_calendar(self, milliseconds: int) -> None:
        """Set the calendar clock forward or back without time passing."""
        self._now_ms += milliseconds
