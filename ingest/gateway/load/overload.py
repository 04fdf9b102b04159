"""How much work a gateway has beyond what it can do: a level from 0 to 10, as balancers read it.

The highest of five: how late its event loop is, how much of a core that loop takes, how full its
queue to the log is, how much memory and how many of its connections are taken. Lateness and work
are means of some seconds, so that a burst is none.

`pressure` is a second level, quick and not rounded, of load that the gateway can reduce: by it
`ingest.gateway.limits.protection` acts. A loop that is late because others have the processor is
late, but taking fewer messages would not change that: there it counts only as far as the loop
itself worked.
"""

from __future__ import annotations

from math import exp, floor, log2
from typing import TYPE_CHECKING, Final

from mqlake.log.contract import MOST_QUEUED_RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable

MOST: Final = 10
WINDOW_SECONDS: Final = 5.0
"""Window of the means; earlier values hardly count."""
LATE_SECONDS: Final = 0.1
"""Mean lateness of level 5; each doubling is one level more."""
BUSY: Final = 0.5
"""Part of a core from which the loop's work counts; all of it is level 5. Whether it is too much
says the lateness: a loop that is always busy may still be in time."""
ALMOST: Final = 0.9
"""Part of the memory or of the connections that a gateway may have, from which it is level 3."""

QUICK_SECONDS: Final = 0.5
"""Window of the mean by which it acts."""
QUICK_LATE_SECONDS: Final = 0.16
"""Mean lateness by own work of pressure 5; each doubling is one more."""
MOST_BY_LATENESS: Final = 7.9
"""Pressure: a loop that is late is helped by fewer messages, and by nothing harder."""
LEAST_RECORDS: Final = 500
"""In the queue to the log at pressure 3, of a log that answers at once."""
LEAST_RECORDS_OF_MANY: Final = 2_500
"""The same while all publishers publish as fast as they can: none of them waits for another's
messages, and the log takes least for each message in requests of this size."""
MOST_RECORDS: Final = 10_000
"""The same of a log that takes long: records behind them wait longer than they have to."""
ROUND_TRIPS: Final = 4.0
"""Round trips to the log whose messages are in the queue at pressure 3, within these bounds:
one is under way, the next one is collected, and either may take twice as long as usual."""
QUEUE_DOUBLED: Final = 5.0
"""With twice as much it is 8, and nothing more is taken: a message waits for those before it."""
FULL_RECORDS: Final = 60_000
"""From here on the queue is full: pressure 9, and no more than `MOST_UNFILLED` before."""
MOST_UNFILLED: Final = 8.9


class OverloadMeter:
    """Measures one gateway.

    Args:
        queued: Returns how many records wait for the log.
        paused_by_log: Returns how many clients are read no further, for the log takes no more.
        memory: Returns the part of its memory that is taken, 0 to 1 and above.
        connections: Returns the part of its connections that is taken.
        round_trip: Returns how many seconds the log takes to answer, about.

    Attributes:
        per_second: Messages that clients publish at the moment.
        has_modest: Whether some of them publish little, so that their messages wait behind those
            of others.
    """

    def __init__(
        self,
        queued: Callable[[], int],
        paused_by_log: Callable[[], int],
        memory: Callable[[], float],
        connections: Callable[[], float],
        round_trip: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._queued = queued
        self._paused_by_log = paused_by_log
        self._memory = memory
        self._connections = connections
        self._round_trip = round_trip
        self.per_second = 0.0
        self.has_modest = True
        self._late = 0.0
        self._busy = 0.0
        self._own_late = 0.0

    def note(self, seconds: float, late: float, worked: float) -> None:
        """Take the measurements since the last call.

        Args:
            seconds: How long that is, above 0.
            late: By how many seconds a timer came too late just now.
            worked: Seconds of processor time of the loop's thread.
        """
        part = 1 - exp(-seconds / WINDOW_SECONDS)
        self._late += (max(0.0, late) - self._late) * part
        busy = min(1.0, worked / seconds)
        self._busy += (busy - self._busy) * part
        quick = 1 - exp(-seconds / QUICK_SECONDS)
        self._own_late += (max(0.0, late) * busy - self._own_late) * quick

    def levels(self) -> dict[str, int]:
        """Return the level of each kind of work."""
        queue = MOST if self._paused_by_log() else MOST * self._queued() / MOST_QUEUED_RECORDS
        return {
            "loop_lag": _bounded(5 + log2(self._late / LATE_SECONDS) if self._late else 0),
            "inbound_work": _bounded(10 * (self._busy - BUSY) + 1e-9),
            "log_queue": _bounded(queue),
            "memory": _bounded(_almost(self._memory())),
            "connections": _bounded(_almost(self._connections())),
        }

    @property
    def level(self) -> int:
        return max(self.levels().values())

    def pressure(self) -> float:
        """Return the level by which it acts, 0 to 10."""
        late = min(MOST_BY_LATENESS, _doublings(self._own_late / QUICK_LATE_SECONDS, 5.0))
        return max(late, self.log_pressure(), self.memory_pressure())

    def log_pressure(self) -> float:
        """Return that of the queue to the log alone."""
        if self._paused_by_log():
            return MOST
        queued = self._queued()
        if queued >= FULL_RECORDS:
            return 9.0
        needed = ROUND_TRIPS * self.per_second * self._round_trip()
        least = LEAST_RECORDS if self.has_modest else LEAST_RECORDS_OF_MANY
        needed = min(max(needed, least), MOST_RECORDS)
        return min(MOST_UNFILLED, _doublings(queued / needed, 3.0, QUEUE_DOUBLED))

    def memory_pressure(self) -> float:
        """Return that of the memory alone."""
        return min(float(MOST), max(0.0, _almost(self._memory())))


def _almost(part: float) -> float:
    """Return the level of a limited resource: 3 at `ALMOST`, 10 when it is full."""
    return 3 + 7 * (part - ALMOST) / (1 - ALMOST) + 1e-9


def _doublings(times: float, level: float, each: float = 1.0) -> float:
    """Return a level that is more by `each` with each doubling, and no less than 0."""
    return min(float(MOST), max(0.0, level + each * log2(times))) if times > 0 else 0.0


def _bounded(level: float) -> int:
    return min(MOST, max(0, floor(level)))
