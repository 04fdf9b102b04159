"""Progress of the runner in `mqlake.outputs`: outputs handed over, and outputs done with.

Outputs are handed over in batches of one partition. A batch is done when every action that counts
is done with all its outputs; a position moves over the batches that are done, in order. An action
that takes too long is detached: it then keeps positions of its own, and no longer counts.
"""

from collections import deque
from typing import Final

from mqlake.records.outputs import RUN_PREFIX
from rules.runner.checkpoint import Mark, Marks, ReadPosition, ReadPositions

MAX_SOURCES: Final = 500
"""Marks of one partition."""
_ENDING: Final = ("b", RUN_PREFIX)
"""Sources that begin so are jobs, and runs of stateful rules: they end."""


class Origin:
    """Origin of some outputs of a partition.

    Attributes:
        marks: Marks of all that is before the first of them; not changed.
    """

    __slots__ = ("marks",)

    def __init__(self, marks: Marks) -> None:
        self.marks = marks


class Batch(Origin):
    """Outputs of one partition that were handed over together."""

    __slots__ = ("_progress", "end", "left")

    def __init__(self, progress: "PartitionProgress", marks: Marks) -> None:
        super().__init__(marks)
        self._progress = progress
        self.left = 1
        """Outputs that an action is not done with, and one more until `close`."""
        self.end: ReadPosition | None = None

    def close(self, end: ReadPosition) -> None:
        """Say that no more outputs come, and give the position behind them."""
        self.end = end
        self.release()

    def release(self) -> None:
        """Count one output less."""
        self.left -= 1
        if not self.left:
            self._progress.advance()


class PartitionProgress:
    """Progress in one partition.

    Attributes:
        position: Everything before it is done with.
        next_offset: First offset that is not handed over.
        marks: Marks of all that is handed over.
    """

    __slots__ = ("_batches", "marks", "next_offset", "position")

    def __init__(self, position: ReadPosition) -> None:
        self.position = position
        self.next_offset = position.offset
        self.marks = dict(position.marks)
        self._batches: deque[Batch] = deque()

    def begin(self) -> Batch:
        batch = Batch(self, dict(self.marks))
        self._batches.append(batch)
        return batch

    def mark(self, source: str, mark: Mark) -> None:
        """Note the last output of a source."""
        if source.startswith(_ENDING):
            self.marks.pop(source, None)
            if len(self.marks) >= MAX_SOURCES:
                # The first is the one that has been quiet longest.
                ended = next((name for name in self.marks if name.startswith(_ENDING)), None)
                if ended is not None:
                    del self.marks[ended]
        self.marks[source] = mark

    def advance(self) -> None:
        batches = self._batches
        while batches and not batches[0].left:
            end = batches.popleft().end
            assert end is not None
            self.position = end

    def snapshot(self) -> ReadPosition:
        """Return the position of the next output to hand over."""
        return ReadPosition(self.next_offset, dict(self.marks))


class RunnerProgress:
    """Progress in all partitions."""

    def __init__(self, positions: ReadPositions) -> None:
        self.partitions = {p: PartitionProgress(position) for p, position in positions.items()}

    def done(self) -> ReadPositions:
        """Return the positions before which everything is done with."""
        return {p: progress.position for p, progress in self.partitions.items()}

    def frontier(self) -> dict[int, int]:
        """Return the next offset to be handed over, per partition."""
        return {p: progress.next_offset for p, progress in self.partitions.items()}

    def snapshot(self) -> ReadPositions:
        return {p: progress.snapshot() for p, progress in self.partitions.items()}

    @property
    def is_done(self) -> bool:
        """Tell whether everything handed over is done with."""
        return all(p.position.offset == p.next_offset for p in self.partitions.values())
