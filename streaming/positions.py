"""Keeps beside a checkpoint how far its query has come (`streaming.checkpoints`).

Router and rules keep nothing but positions, so they may begin at any before which all is done:
after a crash comes again what came since the last note, a second ago, however long a batch is.
"""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mqlake.clock import Clock
from streaming.checkpoints import (
    POSITIONS,
    SETTLED,
    Offsets,
    add_batch,
    committed,
    furthest,
    last_batch,
    settled,
    write_positions,
    write_settled,
)

_logger = logging.getLogger(__name__)

SETTLE_SECONDS: Final = 60.0
"""A note is settled after so long: the kernel writes to the disk within half of it, and with it
what the query has made."""

Asked = Callable[[str], dict[int, int]]


class Positions:
    """Where a query begins, and how far it has come; of one thread.

    Args:
        checkpoint: Folder of its checkpoint.
        log_topics: That it reads.
        begins: Returns the oldest offset per partition of a log topic.
        ends: Returns the offset that the next record of each gets.
        clock: For the age of notes.
    """

    def __init__(
        self,
        checkpoint: Path,
        log_topics: tuple[str, ...],
        begins: Asked,
        ends: Asked,
        clock: Clock,
    ) -> None:
        self._checkpoint = checkpoint
        self._log_topics = log_topics
        self._begins = begins
        self._ends = ends
        self._clock = clock
        self._noted: Offsets = {}
        self._settling: Offsets = {}
        self._settling_at = clock.monotonic()

    def look(self) -> Offsets | None:
        """Return where to begin; None without anything done.

        Raises:
            LogError: The log does not answer.
        """
        self._noted = {log_topic: self._begins(log_topic) for log_topic in self._log_topics}
        ends = {log_topic: self._ends(log_topic) for log_topic in self._log_topics}
        for find, note in ((committed, POSITIONS), (settled, SETTLED)):
            found = find(self._checkpoint)
            if found is None:
                return None
            if not _is_beyond(found, ends):
                self._noted = {
                    log_topic: begins | found.get(log_topic, {})
                    for log_topic, begins in self._noted.items()
                }
                return self._noted
            (self._checkpoint / note).unlink(missing_ok=True)  # of another log
        return last_batch(self._checkpoint)

    def begin(self, first: Offsets | None) -> Offsets | None:
        """Make the checkpoint one that the query can begin with.

        Args:
            first: Where it is to begin; None: at the beginning of the log.

        Returns:
            The same, when the checkpoint cannot say it, for no batch is done; it is empty then.
        """
        last = last_batch(self._checkpoint)
        if first is None or first == last:
            return None
        try:
            if last is not None:
                add_batch(self._checkpoint, first)
            else:
                write_positions(self._checkpoint, first)
                self._empty()
        except (OSError, ValueError) as error:  # a full disk, say: from the last batch on, then
            self._tell(error)
            return None
        self._noted = first
        return first if last is None else None

    def _empty(self) -> None:
        for part in self._checkpoint.glob("*"):
            if part.is_dir():
                shutil.rmtree(part)
            elif part.name not in (POSITIONS, SETTLED):
                part.unlink()

    def note(self, done: Offsets) -> None:
        """Write down how far it has come, once it has begun."""
        noted = furthest(self._noted, done) if self._noted else {}
        try:
            if noted != self._noted:
                write_positions(self._checkpoint, noted)
                self._noted = noted
            self._settle()
        except OSError as error:
            self._tell(error)

    def _settle(self) -> None:
        now = self._clock.monotonic()
        if now - self._settling_at < SETTLE_SECONDS:
            return
        if self._settling and self._settling != settled(self._checkpoint):
            write_settled(self._checkpoint, self._settling)
        self._settling, self._settling_at = self._noted, now

    def _tell(self, error: Exception) -> None:
        fields = {"query": self._checkpoint.name, "reason": str(error)}
        _logger.warning("a query's position is not noted", extra={"fields": fields})


def _is_beyond(places: Offsets, ends: Offsets) -> bool:
    return any(
        offset > ends.get(log_topic, {}).get(partition, 0)
        for log_topic, partitions in places.items()
        for partition, offset in partitions.items()
    )
