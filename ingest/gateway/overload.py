"""How much work a gateway has beyond what it can do: a level from 0 to 10, as balancers read it.

The highest of three: how late its event loop is, how much of a core that loop takes, and how full
its queue to the log is. Lateness and work are means of some seconds, so that a burst is none.
"""

from __future__ import annotations

from math import exp, floor, log2
from typing import TYPE_CHECKING, Final

from mqlake.log.contract import MOST_QUEUED_RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable

MOST: Final = 10
WINDOW_SECONDS: Final = 5.0
"""Of the means; what was longer ago hardly counts."""
LATE_SECONDS: Final = 0.1
"""Mean lateness of level 5; each doubling is one level more."""
BUSY: Final = 0.5
"""Part of a core from which the loop's work counts; all of it is level 5. Whether it is too much
says the lateness: a loop that is always busy may still be in time."""


class OverloadMeter:
    """Measures one gateway.

    Args:
        queued: Returns how many records wait for the log.
        held_by_log: Returns how many clients are read no further, for the log takes no more.
    """

    def __init__(self, queued: Callable[[], int], held_by_log: Callable[[], int]) -> None:
        self._queued = queued
        self._held_by_log = held_by_log
        self._late = 0.0
        self._busy = 0.0

    def note(self, seconds: float, late: float, worked: float) -> None:
        """Take what was since the last call.

        Args:
            seconds: How long that is, above 0.
            late: By how many seconds a timer came too late just now.
            worked: Seconds of processor time of the loop's thread.
        """
        part = 1 - exp(-seconds / WINDOW_SECONDS)
        self._late += (max(0.0, late) - self._late) * part
        self._busy += (min(1.0, worked / seconds) - self._busy) * part

    def levels(self) -> dict[str, int]:
        """Return the level of each kind of work."""
        queue = MOST if self._held_by_log() else MOST * self._queued() / MOST_QUEUED_RECORDS
        return {
            "loop_lag": _bounded(5 + log2(self._late / LATE_SECONDS) if self._late else 0),
            "inbound_work": _bounded(10 * (self._busy - BUSY) + 1e-9),
            "log_queue": _bounded(queue),
        }

    @property
    def level(self) -> int:
        return max(self.levels().values())


def _bounded(level: float) -> int:
    return min(MOST, max(0, floor(level)))
