"""Keeps how far router and rules have come (`streaming.log.checkpoints`).

They keep nothing else, so they may begin at any positions before which all is done, each time
without Spark's checkpoint: after a crash all outputs since the last note, a second ago, come again.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mqlake.clock import Clock
from streaming.log.checkpoints import (
    POSITIONS,
    SETTLED,
    Offsets,
    committed,
    forget_batches,
    furthest,
    last_batch,
    settled,
    write_positions,
    write_settled,
)

_logger = logging.getLogger(__name__)

SETTLE_SECONDS: Final = 60.0
"""A note is settled after so long: the kernel writes to the disk within half of it, and with it the
query's output."""

Asked = Callable[[str], dict[int, int]]


class Positions:
    """Beginning and progress of a query; for one thread.

    Args:
        folder: Folder of the query.
        log_topics: Log topics that it reads.
        begins: Returns the oldest offset per partition of a log topic.
        ends: Returns the offset that the next record of each gets.
        clock: For the age of notes.
    """

    def __init__(
        self,
        folder: Path,
        log_topics: tuple[str, ...],
        begins: Asked,
        ends: Asked,
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._log_topics = log_topics
        self._begins = begins
        self._ends = ends
        self._clock = clock
        self._noted: Offsets = {}
        self._batch: Offsets | None = None
        self._settling: Offsets = {}
        self._settling_at = clock.monotonic()

    @property
    def noted(self) -> Offsets:
        """How far the query has come, as last noted."""
        return self._noted

    def look(self) -> Offsets | None:
        """Return where to begin; None without anything done.

        Raises:
            LogError: The log does not answer.
        """
        # Before the log is asked for its ends: another process may still go on, and note it.
        notes = ((committed(self._folder), POSITIONS), (settled(self._folder), SETTLED))
        self._noted = {log_topic: self._begins(log_topic) for log_topic in self._log_topics}
        ends = {log_topic: self._ends(log_topic) for log_topic in self._log_topics}
        for found, note in notes:
            if found is None:
                return None
            if not _is_beyond(found, ends):
                self._noted = {
                    log_topic: begins | found.get(log_topic, {})
                    for log_topic, begins in self._noted.items()
                }
                return self._noted
            (self._folder / note).unlink(missing_ok=True)  # of another log
        return last_batch(self._folder)

    def begin(self, first: Offsets) -> None:
        """Count from where the query does begin, if that is not where it was."""
        self._noted = first

    def take_over(self) -> None:
        """Go on from the notes of another process, which has ended."""
        if self._noted:
            self._noted = furthest(self._noted, committed(self._folder) or {})

    def note(self, done: Offsets, batch: Offsets | None = None) -> None:
        """Write down how far it has come, once it has begun.

        Args:
            done: Before these offsets the log has all that comes of a record.
            batch: Up to where its last finished batch goes, in this run.
        """
        noted = furthest(self._noted, furthest(done, batch or {})) if self._noted else {}
        try:
            if noted != self._noted:
                write_positions(self._folder, noted)
                self._noted = noted
            if batch is not None and batch != self._batch:
                self._write_settled(batch)
                self._batch = batch
            self._settle()
        except OSError as error:
            self._tell(error)

    def _settle(self) -> None:
        now = self._clock.monotonic()
        if now - self._settling_at < SETTLE_SECONDS:
            return
        if self._settling:
            self._write_settled(self._settling)
        self._settling, self._settling_at = self._noted, now

    def _write_settled(self, positions: Offsets) -> None:
        known = settled(self._folder) or {}
        if (reached := furthest(known, positions)) != known:
            write_settled(self._folder, reached)
            forget_batches(self._folder)  # an earlier version went by them

    def _tell(self, error: Exception) -> None:
        fields = {"query": self._folder.name, "reason": str(error)}
        _logger.warning("a query's position is not noted", extra={"fields": fields})


def _is_beyond(positions: Offsets, ends: Offsets) -> bool:
    return any(
        offset > ends.get(log_topic, {}).get(partition, 0)
        for log_topic, partitions in positions.items()
        for partition, offset in partitions.items()
    )
