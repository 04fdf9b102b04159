"""Watches for a step of the machine's calendar while the application runs.

Spark and Kafka's Java client count their waits by the calendar. When it goes back by an hour, a
connection that was to be tried again in a second is tried in an hour; when it goes ahead, executors
and requests count as lost all at once. Neither is an error that anything tells of: delivery stands
still. A new process knows only the new time, and the router begins where it was.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from mqlake.clock import Clock

_logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0

STEP_SECONDS: Final = 10.0
"""A smaller step delays by less than a restart takes. The calendar also goes ahead by as much as a
machine was suspended."""


class CalendarWatch:
    """Tells how far the calendar has stepped since it was made.

    Args:
        clock: The machine's clocks.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._distance = self._read()

    def run(self, end: Callable[[], None], stopping: threading.Event) -> None:
        """Look until it has stepped, and end the engine then; or until `stopping` is set.

        In a thread of its own: a call of Spark may take an hour.
        """
        while not stopping.wait(LOOK_SECONDS):
            if stepped := self.stepped_seconds():
                _logger.error("the clock was set", extra={"fields": {"stepped_seconds": stepped}})
                end()
                return

    def stepped_seconds(self) -> float:
        """Return by how much the calendar was set, 0 while that is less than `STEP_SECONDS`."""
        if abs(self._read() - self._distance) < STEP_SECONDS:
            return 0.0
        # Again: the process may have stood still between its looks at the two clocks.
        step = self._read() - self._distance
        return step if abs(step) >= STEP_SECONDS else 0.0

    def _read(self) -> float:
        return self._clock.now_ms() / 1000 - self._clock.monotonic()
