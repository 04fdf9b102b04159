"""When the queries that keep tables rest: messages come before tables, but tables keep up.

A batch keeps a processor busy for a second, however few rows it has. So it is followed by a rest of
some times its own time, if it has taken all that was there when it began. One that could not leaves
the next no time: records wait in the log until they are read.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from mqlake.clock import Clock
from streaming.log.checkpoints import ends_of

_FULL: Final = 0.9
"""Part of the most records of a batch: the partitions' shares of it are rounded."""


LONGER_SECONDS: Final = 30.0
"""By so much at most the others of the lake rest longer while `messages` is late."""
_LOOK_SECONDS: Final = 1.0


def rest(
    seconds: float,
    clock: Clock,
    wait: Callable[[float], bool],
    *,
    is_late: Callable[[], bool],
    is_over: Callable[[], bool],
) -> None:
    """Rest, longer while another query needs the processors more.

    Args:
        seconds: Length of the rest, in seconds, when no other query needs the processors more.
        clock: Clock that measures how long the rest has lasted.
        wait: Waits for the given number of seconds; returns whether the application stops.
        is_late: Tells whether another query needs the processors more.
        is_over: Tells whether the rest has to end at once.
    """
    begin = clock.monotonic()
    while not is_over():
        left = seconds + is_late() * LONGER_SECONDS - (clock.monotonic() - begin)
        if left <= 0 or wait(min(left, _LOOK_SECONDS)):
            break


class Rest:
    """Rests after batches of one query.

    Args:
        checkpoint: Folder of its checkpoint.
        most_records: Bound of one batch (`maxOffsetsPerTrigger`).
        factor: Length of a rest, in times of the batch's own time.
        most_seconds: Longest rest.
        wait: Waits a number of seconds, less when the application stops.
    """

    def __init__(
        self,
        checkpoint: Path,
        most_records: int,
        factor: float,
        most_seconds: float,
        wait: Callable[[float], object],
    ) -> None:
        self._checkpoint = checkpoint
        self._most_records = most_records
        self._factor = factor
        self._most_seconds = most_seconds
        self._wait = wait

    def after(self, batch_id: int, took_seconds: float) -> None:
        """Rest after a batch, unless it has left records in the log."""
        if self._taken(batch_id) < self._most_records * _FULL:
            self._wait(min(took_seconds * self._factor, self._most_seconds))

    def _taken(self, batch_id: int) -> int:
        """Return how many offsets a batch has taken, as far as is known where it began."""
        begins = ends_of(self._checkpoint, batch_id - 1) or {}
        ends = ends_of(self._checkpoint, batch_id) or {}
        return sum(
            end - begins[log_topic][partition]
            for log_topic, partitions in ends.items()
            for partition, end in partitions.items()
            if partition in begins.get(log_topic, {})
        )
