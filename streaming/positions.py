"""Keeps `positions.json` of the router's checkpoint (`streaming.checkpoints`) about a second old.

The router keeps nothing but positions, so it may begin at any before which all is done: after a
crash comes again what came since the last note, not since the last batch.
"""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from streaming.checkpoints import (
    POSITIONS,
    Offsets,
    add_batch,
    committed,
    last_batch,
    write_positions,
)

_logger = logging.getLogger(__name__)

Asked = Callable[[str], dict[int, int]]


class Positions:
    """Where the router begins, and how far it has come; of one thread.

    Args:
        checkpoint: Folder of its checkpoint.
        log_topic: That it reads.
        begins: Returns the oldest offset per partition of a log topic.
        ends: Returns the offset that the next record of each gets.
    """

    def __init__(self, checkpoint: Path, log_topic: str, begins: Asked, ends: Asked) -> None:
        self._checkpoint = checkpoint
        self._log_topic = log_topic
        self._begins = begins
        self._ends = ends
        self._noted: dict[int, int] = {}

    def look(self) -> Offsets | None:
        """Return where to begin; None without anything done.

        Raises:
            LogError: The log does not answer.
        """
        self._noted = self._begins(self._log_topic)
        found = committed(self._checkpoint)
        done = (found or {}).get(self._log_topic, {})
        ends = self._ends(self._log_topic)
        if any(offset > ends.get(partition, 0) for partition, offset in done.items()):
            return last_batch(self._checkpoint)  # notes of another log
        self._noted |= done
        return None if found is None else {self._log_topic: self._noted}

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
        self._noted = first[self._log_topic]
        return first if last is None else None

    def _empty(self) -> None:
        for part in self._checkpoint.glob("*"):
            if part.is_dir():
                shutil.rmtree(part)
            elif part.name != POSITIONS:
                part.unlink()

    def note(self, done: Offsets) -> None:
        """Write down how far it has come."""
        found = done.get(self._log_topic, {})
        noted = self._noted | {p: max(at, self._noted.get(p, 0)) for p, at in found.items()}
        if noted != self._noted:
            try:
                write_positions(self._checkpoint, {self._log_topic: noted})
            except OSError as error:
                self._tell(error)
            else:
                self._noted = noted

    def _tell(self, error: Exception) -> None:
        _logger.warning(
            "the router's position is not noted", extra={"fields": {"reason": str(error)}}
        )
