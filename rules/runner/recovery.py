"""Outputs that a killed run may have done already, beyond its last checkpoint."""

from collections.abc import Mapping

from mqlake.records.messages import LogRecord
from rules.runner.progress import RunnerProgress


class Recovery:
    """The outputs between that checkpoint and the end that the log had at the start of this run.

    Args:
        ends: By partition, up to where.
        progress: Progress of this run.
        published: Action identifiers of messages published for them; emptied at the end.
    """

    def __init__(
        self, ends: Mapping[int, int], progress: RunnerProgress, published: set[bytes]
    ) -> None:
        self._ends = ends
        self._progress = progress
        self._published = published
        self._is_over = False

    def concerns(self, record: LogRecord) -> bool:
        """Tell whether an output may have been done."""
        return not self._is_over and record.offset < self._ends.get(record.partition, 0)

    def look(self) -> bool:
        """End it when everything is done with; tell whether it is over.

        An output that is only handed over may wait in a lane, and asks when its turn comes.
        """
        done = self._progress.done()
        if not self._is_over and all(done[p].offset >= end for p, end in self._ends.items()):
            self._is_over = True
            self._published.clear()
        return self._is_over
