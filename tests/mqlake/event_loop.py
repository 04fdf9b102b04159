"""The part of an event loop that knows the time, advanced by a test."""

from collections.abc import Callable


class Timer:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SteppedLoop:
    """Calls what is due when the test lets time go by, earliest first."""

    def __init__(self) -> None:
        self.now = 1000.1
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[[], None]) -> Timer:
        return self.call_at(self.now, call)

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        return self.call_at(self.now + delay, call)

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(at, call))
        return self.timers[-1]

    @property
    def armed(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.is_cancelled]

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [timer for timer in self.armed if timer.at <= end]:
            timer = min(due, key=lambda one: one.at)
            self.timers.remove(timer)
            self.now = max(self.now, timer.at)
            timer.call()
        self.now = end

    def stand_still(self, seconds: float) -> None:
        """Let time go by without a turn of the loop."""
        self.now += seconds
