"""Bounds on time in units of this machine, which may be slow or busy.

A bound finds what hangs; how fast something is, `bin/mqlake bench` says. Better than a bound is
what needs none: an event, a counter, an order, a clock that the test advances.
"""

import os
import time
from functools import cache
from typing import Final

_ADDITIONS: Final = 1_000_000
_REFERENCE_SECONDS: Final = 0.034
"""That they take on the machine for which bounds are written: two idle cores of a Xeon, at best."""
_WAITING_PER_LOAD: Final = 0.25
"""What each process that waits for a core adds: few of them compute all the time."""


def within(seconds: float) -> float:
    """Return how long may take here and now what takes so long where nothing else runs."""
    return bound(seconds, first_pace(), load(), os.cpu_count() or 1)


def bound(seconds: float, pace: float, load: float, cores: int) -> float:
    """Return the bound for a machine of that pace, load and number of cores."""
    return seconds * max(1.0, pace) * (1 + _WAITING_PER_LOAD * load / cores)


def load() -> float:
    """Return how many processes have wanted to run in the last minute."""
    return os.getloadavg()[0]


@cache
def first_pace() -> float:
    """Return the processor's pace as it was when a process first asked for it."""
    return processor_pace()


def processor_pace() -> float:
    """Return how much slower than the reference the processor is now, whoever waits for it."""
    begun = time.thread_time()
    total = 0
    for number in range(_ADDITIONS):
        total += number
    return (time.thread_time() - begun) / _REFERENCE_SECONDS
