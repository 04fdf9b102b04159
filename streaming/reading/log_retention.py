"""Deletes from the log records that are old enough, and none that a query has not read.

The log topics below keep everything by themselves (`mqlake.log.admin`). A record goes when it is
beyond the retention of its log topic and every query that reads the log topic has committed past
it; where the application is not running, nothing goes. The disk is guarded by the gateways, which
refuse publishers before it is full.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from mqlake.clock import Clock
from mqlake.log.admin import LogAdmin
from mqlake.log.files import first_kept, segments
from streaming.engine.looking import look_again
from streaming.log.checkpoints import Offsets
from streaming.reading.unread import Unread

_logger = logging.getLogger(__name__)

CHECK_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class RetainingReader:
    """Reader whose records must stay."""

    name: str
    positions: Mapping[str, dict[int, int] | None]
    """By log topic that it reads: per partition the first offset that it still needs; None while
    that is not known, and then it needs all."""
    misses: bool = True
    """It would miss records deleted before it, and no other part reports them."""

    @property
    def known(self) -> Offsets:
        """`positions` without the log topics of which nothing is known."""
        return {topic: known for topic, known in self.positions.items() if known is not None}


class Retention(NamedTuple):
    """When a record may go at the earliest."""

    age_ms: int
    size_bytes: int
    """Size of all partitions together; the oldest records go first."""


class LogRetention:
    """Deletes now and then records that no reader needs.

    Args:
        admin: Asks the log, and deletes.
        retention: By log topic.
        readers: Returns the readers of all log topics; None while they are not known, and nothing
            goes.
        unread: Gets the positions of readers, to find records that another tool has deleted.
        clock: For the age of records.
        log_dir: Holds the log's partitions; without it the size of a log topic does not count.

    Attributes:
        held_by: Readers that keep records that might go otherwise, by log topic; as of the last
            look.
    """

    def __init__(
        self,
        admin: LogAdmin,
        retention: Mapping[str, Retention],
        readers: Callable[[], Iterable[RetainingReader] | None],
        unread: Unread,
        clock: Clock,
        log_dir: Path | None,
    ) -> None:
        self._admin = admin
        self._retention = retention
        self._readers = readers
        self._unread = unread
        self._clock = clock
        self._log_dir = log_dir
        self.held_by: dict[str, list[str]] = {}

    def run(self, stopping: threading.Event) -> None:
        """Check until `stopping` is set; for a thread of its own."""
        look_again(self.check, CHECK_SECONDS, stopping, _logger, "nothing deleted")

    def check(self) -> None:
        """Delete records that may go.

        Raises:
            LogError: The log does not answer, or refuses.
        """
        found = self._readers()
        if found is None:
            return
        readers = list(found)
        for reader in readers:
            if not reader.misses:
                continue
            self._unread.look(reader.name, reader.known)
        for log_topic, retention in self._retention.items():
            retaining = [one for one in readers if log_topic in one.positions]
            self._delete(log_topic, retention, retaining)

    def _delete(self, log_topic: str, retention: Retention, readers: list[RetainingReader]) -> None:
        begins = self._admin.begins(log_topic)
        old = self._may_go(log_topic, retention, begins)
        held_by = set()
        positions = {}
        for partition, position in old.items():
            for reader in readers:
                needed = (reader.positions[log_topic] or {}).get(partition, 0)
                if needed < position:
                    held_by.add(reader.name)
                    position = needed
            if position > begins[partition]:
                positions[partition] = position
        self.held_by[log_topic] = sorted(held_by)
        if positions:
            self._admin.delete_before(log_topic, positions)
            _logger.info(
                "old records deleted",
                extra={"fields": {"log_topic": log_topic, "before": positions}},
            )

    def _may_go(
        self, log_topic: str, retention: Retention, begins: dict[int, int]
    ) -> dict[int, int]:
        """Return per partition the first offset that is too young, and of which too few follow."""
        before_ms = self._clock.now_ms() - retention.age_ms
        positions = self._admin.ends_before(log_topic, before_ms)
        if self._log_dir is None:
            return positions
        each = retention.size_bytes // max(1, len(begins))
        for partition, begin in begins.items():
            try:
                kept = first_kept(segments(self._log_dir, log_topic, partition), each)
            except OSError as error:
                fields = {"log_topic": log_topic, "partition": partition, "reason": str(error)}
                _logger.warning("segments not looked at", extra={"fields": fields})
                continue
            positions[partition] = max(positions.get(partition, begin), kept)
        return positions


def figures(retention: LogRetention | None) -> dict[str, Any]:
    """Return the reader that holds up each log topic, for the heartbeat."""
    held = {} if retention is None else {k: v for k, v in retention.held_by.items() if v}
    return {"log_held_by": held}
