"""How much of the processors the lake is to have: the more, the longer `messages` stands still.

It gives way to the rest of the system while it is up to date. On a machine that has more to do
than processors, niceness alone would leave it next to nothing, for as long as that lasts.
"""

import logging
import threading
from typing import Final, Protocol

from mqlake.clock import Clock

_logger = logging.getLogger(__name__)

STEPS: Final = ((5.0, 0), (8.0, -5), (12.0, -10))
"""Seconds behind, which are known to three, and the niceness from then on. With -5 a process has
three times the share of one with 0, with -10 nine times."""
CALM_SECONDS: Final = 30.0
"""So long not as late, and it takes a step back."""
_USUAL_INTERVAL_SECONDS: Final = 2.0
START_SECONDS: Final = (10.0, 45.0)
"""While it starts the table stands still, too: after so long it takes one step, and the next."""


class Priority(Protocol):
    """Interface of `streaming.engine.priority.SessionPriority`."""

    def set(self, niceness: int) -> None: ...


class Urgency:
    """Sets the priority by how far behind the history is; from any thread.

    Args:
        clock: Measures how long it was in time.
        priority: Priority of the process.
        niceness: Niceness with which it gives way.
        interval_seconds: Pause between two appends.
        most_records: Bound of one append. With more to read the table is behind because of their
            number; then the lake does not come before those who deliver them.
    """

    def __init__(
        self,
        clock: Clock,
        priority: Priority,
        niceness: int,
        interval_seconds: float,
        most_records: int,
    ) -> None:
        self._clock = clock
        self._priority = priority
        self._giving_way = niceness
        self._interval_seconds = interval_seconds
        self._most_records = most_records
        self._lock = threading.Lock()
        self._niceness = 0
        self._step = 0
        """How many of STEPS are taken."""
        self._needed_at = 0.0
        self._has_begun = False

    def begin(self) -> None:
        """Give way while the lake starts, until it is known how far it is; less and less."""
        with self._lock:
            self._set(self._giving_way)
        for seconds in START_SECONDS:
            timer = threading.Timer(seconds, self._start_lasts)
            timer.daemon = True
            timer.start()

    def is_late(self) -> bool:
        """Tell whether the history needs more than it has while it gives way."""
        return self._step > 0

    def take(self, behind_ms: int | None, lag_records: int | None) -> None:
        """Set the priority.

        Args:
            behind_ms: For how long records have been in the log that the table has not; None when
                that is not known: it stays as it is.
            lag_records: How many offsets these are at most; None: unknown.
        """
        if behind_ms is None or lag_records is None:
            return
        now = self._clock.monotonic()
        late = behind_ms / 1000 - max(0.0, self._interval_seconds - _USUAL_INTERVAL_SECONDS)
        needed = sum(late >= seconds for seconds, _ in STEPS)
        most = 1 if lag_records > self._most_records else len(STEPS)
        with self._lock:
            self._has_begun = True
            if needed >= self._step:
                self._step, self._needed_at = needed, now
            elif now - self._needed_at >= CALM_SECONDS:
                self._step, self._needed_at = self._step - 1, now
            self._step = min(self._step, most)
            self._set(self._of_step)

    def _start_lasts(self) -> None:
        with self._lock:
            if not self._has_begun:
                self._step, self._needed_at = self._step + 1, self._clock.monotonic()
                self._set(self._of_step)

    @property
    def _of_step(self) -> int:
        return STEPS[self._step - 1][1] if self._step else self._giving_way

    def _set(self, niceness: int) -> None:
        if self._giving_way and niceness != self._niceness:
            _logger.info("priority", extra={"fields": {"niceness": niceness}})
            self._niceness = niceness
            self._priority.set(niceness)
