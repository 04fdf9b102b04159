"""Time as a dependency: production reads the machine's clocks, tests advance a manual one."""

import time
from typing import Protocol


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
