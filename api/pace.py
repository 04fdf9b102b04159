"""A rate that a job keeps to."""

import time
from collections.abc import Callable
from typing import Any, Final

DEFAULT_RATE: Final = 1_000
"""Things a second, unless another number is asked for."""
MAX_RATE: Final = 50_000


class JobPace:
    """Keeps to so many things a second."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._next = time.monotonic()

    def wait(self, count: int, sleep: Callable[[float], Any]) -> None:
        now = time.monotonic()
        if self._next > now:
            sleep(self._next - now)
        self._next = max(self._next, now) + count / self._rate
