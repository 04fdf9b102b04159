"""When an ended process is started again: soon at first, then ever later. Pure; time comes in."""

from dataclasses import dataclass
from typing import Final

FIRST_DELAY_SECONDS: Final = 0.1
LONGEST_DELAY_SECONDS: Final = 30.0
GOOD_RUN_SECONDS: Final = 5.0
"""A process that was healthy for so long has recovered: its next end counts as the first."""


@dataclass(slots=True)
class Restarts:
    """The restarts of one process.

    Invariant: `due_at` is set exactly while the process is down and to be started.
    """

    count: int = 0
    due_at: float | None = None
    _in_a_row: int = 0

    def ended(self, *, now: float, healthy_since: float | None) -> float:
        """Note an end and return how many seconds to wait before the next start.

        `healthy_since` is when it first did its work, None if it never did: a start may take long,
        and one that fails each time is not to be tried ever again without a pause.
        """
        if healthy_since is not None and now - healthy_since >= GOOD_RUN_SECONDS:
            self._in_a_row = 0
        delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0**self._in_a_row)
        # More would only overflow the power of two.
        self._in_a_row = min(self._in_a_row + 1, 16)
        self.due_at = now + delay
        return delay

    def is_due(self, *, now: float) -> bool:
        return self.due_at is not None and now >= self.due_at

    def restarted(self) -> None:
        self.count += 1
        self.due_at = None
