"""Records that the log no longer had when a query came to them: reported once, as rows of `drops`.

Only `streaming.reading.log_retention` deletes, and never records that a query has not read. But a
user may delete with a tool of Kafka's, set a retention, or lose a disk.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mqlake.clock import Clock
from rules.actions.contract import NewRecord
from streaming.engine.looking import look_again
from streaming.log.checkpoints import Offsets
from streaming.tables.events import lost_offsets

_logger = logging.getLogger(__name__)

REASON: Final = "unread"
LOOK_SECONDS: Final = 10.0


class Unread:
    """Compares how far queries have come with where the log begins; from any thread.

    Args:
        begins: Returns the oldest offset per partition of a log topic.
        append: Appends records and waits until they are safe.
        clock: For the time of a record.
    """

    def __init__(
        self,
        begins: Callable[[str], dict[int, int]],
        append: Callable[[Sequence[NewRecord]], None],
        clock: Clock,
    ) -> None:
        self._begins = begins
        self._append = append
        self._clock = clock
        self._seen: dict[tuple[str, str, int], int] = {}
        self._lock = threading.Lock()

    def run(
        self, positions: Callable[[], Mapping[str, Offsets]], stopping: threading.Event
    ) -> None:
        """Look now and then until `stopping` is set; for a thread of its own.

        Args:
            positions: Returns by query where it is.
            stopping: Set when it is to end.
        """

        def look_at_all() -> None:
            for query, at in positions().items():
                self.look(query, at)

        look_again(look_at_all, LOOK_SECONDS, stopping, _logger, "not looked for gaps")

    def look(self, query: str, positions: Offsets | None) -> Offsets | None:
        """Tell of records that a query has not read and cannot read any more.

        Args:
            query: Its name.
            positions: By log topic and partition, the first offset that it has not read; None when
                it has read nothing and begins where the log does.

        Returns:
            Where it can go on, when that is not where it is.

        Raises:
            LogError: The log does not answer, or does not take the record: nothing is reported.
        """
        moved = False
        reachable: Offsets = {}
        for log_topic, offsets in (positions or {}).items():
            begins = self._begins(log_topic)
            self._tell(query, log_topic, offsets, begins)
            reachable[log_topic] = {p: max(at, begins.get(p, 0)) for p, at in offsets.items()}
            moved = moved or reachable[log_topic] != offsets
        return reachable if moved else None

    def _tell(
        self, query: str, log_topic: str, offsets: dict[int, int], begins: dict[int, int]
    ) -> None:
        with self._lock:
            records = []
            seen = {}
            for partition, at in offsets.items():
                position = (query, log_topic, partition)
                begin = begins.get(partition, 0)
                # A query passes over records that are gone: it may be behind the gap already. Those
                # that we delete ourselves were before all positions that were seen then.
                first = self._seen.get(position, at)
                if first < begin:
                    records.append(self._record(query, log_topic, partition, first, begin))
                seen[position] = max(first, at, begin)
            if records:
                self._append(records)
            self._seen |= seen

    def _record(
        self, query: str, log_topic: str, partition: int, first: int, end: int
    ) -> NewRecord:
        detail = (
            f"{query}: offsets {first} to {end - 1} of partition {partition} of {log_topic} were "
            "deleted before it is known to have read them"
        )
        now_ms = self._clock.now_ms()
        return lost_offsets(log_topic, first, end, reason=REASON, detail=detail, now_ms=now_ms)
