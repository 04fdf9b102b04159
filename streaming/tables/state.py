"""One batch of the log into the state tables: the function for foreachBatch of the state query.

records(key, value, headers, topic, partition, offset, timestamp) of `mqlake.inbound`,
`mqlake.sessions`, `mqlake.events` and `mqlake.rules`

A batch that was applied in part or whole and comes again, because the application was killed before
Spark noted it, leaves the tables as if it had come once: merges look at offsets, appends carry the
number of the batch.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from mqlake.clock import Clock
from mqlake.records.audit import AUDIT_EVENT
from mqlake.records.messages import EVENTS, INBOUND, MESSAGE_DROPPED, RULES, SESSIONS
from mqlake.records.sessions import PROGRESS, SESSION, SUBSCRIPTION
from mqlake.tables.catalogue import AUDIT_LOG, DROPS, RETAINED, Table
from mqlake.tables.catalogue import EVENTS as EVENTS_TABLE
from streaming.log.checkpoints import committed, read_ends
from streaming.settings.lake import LakeSettings
from streaming.tables.appends import BatchAppends
from streaming.tables.events import OTHER_EVENT, audit_rows, drop_rows, event_kind, event_rows
from streaming.tables.resting import Rest
from streaming.tables.retained import (
    committed_offsets,
    is_retained,
    last_retained,
    merge_retained,
    note_offsets,
)
from streaming.tables.rule_definitions import merge_rules, rule_changes
from streaming.tables.sessions import (
    last_sessions,
    merge_counts,
    merge_own_records,
    merge_sessions,
    merge_subscriptions,
    own_record_rows,
    session_rows,
    subscription_rows,
)
from streaming.tables.tables import table_path

LOG_TOPICS: Final = (INBOUND, SESSIONS, EVENTS, RULES)

NOTE_SECONDS: Final = 60.0
"""Longest that the table `retained` says nothing of a log that grows."""
REST: Final = 12.0
"""Rest after a batch, in times of the batch's own time (`streaming.tables.resting`)."""
MOST_REST_SECONDS: Final = 15.0


class StateClosedError(Exception):
    """The application stops; the batch comes again when it has started again."""


class StateWriter:
    """The state tables' writer.

    Args:
        settings: Folders of tables and checkpoints.
        checkpoint: Folder of the query's checkpoint.
        wait: Waits a number of seconds, less when the application stops.
    """

    def __init__(
        self,
        settings: LakeSettings,
        checkpoint: Path,
        clock: Clock,
        wait: Callable[[float], object],
    ) -> None:
        self._settings = settings
        self._checkpoint = checkpoint
        self._clock = clock
        self._appends = BatchAppends(checkpoint)
        self._rest = Rest(checkpoint, settings.state_max_records, REST, MOST_REST_SECONDS, wait)
        self._noted_at = clock.monotonic()
        self._is_warm = False
        self._is_closed = False
        self.lock = threading.Lock()
        """Held while state tables are written; maintenance takes it, too: no commit meets one."""
        self.next_offsets = committed_offsets(table_path(settings, RETAINED))
        """From the last commit of `retained`."""
        self._ends = (committed(checkpoint) or {}).get(INBOUND, self.next_offsets)
        """Offsets at which the last batch ended in `mqlake.inbound`."""
        self.retained_changed = True
        """Rows came since maintenance last looked for when the first expires."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Apply a batch, then rest; not after the first, which is slow while Java is cold.

        Raises:
            StateClosedError: After `close`.
        """
        begin = self._clock.monotonic()
        with self.lock:
            if self._is_closed:
                raise StateClosedError
            self._apply(batch, batch_id)
        if self._is_warm:
            self._rest.after(batch_id, self._clock.monotonic() - begin)
        self._is_warm = True

    def note(self, spark: SparkSession) -> None:
        """Have `retained` say where the last batch ended, if none has followed that could.

        Records that have been read of the log are kept until then.
        """
        with self.lock:
            if not self._is_closed and self._is_note_due(self._ends):
                self._note(spark, self._ends)

    def close(self, timeout_seconds: float) -> None:
        """Take no more batches, and wait for the one that is being applied."""
        self._is_closed = True
        if self.lock.acquire(timeout=timeout_seconds):
            self.lock.release()

    def _apply(self, batch: DataFrame, batch_id: int) -> None:
        # One task reads and filters; most of the records are not for these tables.
        wanted = batch.where((F.col("topic") != INBOUND) | is_retained()).coalesce(1).persist()
        try:
            kinds = _kinds(wanted)
            next_offsets = read_ends(self._checkpoint, batch_id).get(INBOUND, {})
            if INBOUND in kinds:
                merge_retained(last_retained(_of(wanted, INBOUND)), next_offsets)
                self.retained_changed = True
                self._noted(next_offsets)
            elif self._is_note_due(next_offsets):
                self._note(batch.sparkSession, next_offsets)
            if SESSIONS in kinds:
                _apply_sessions(_of(wanted, SESSIONS), kinds[SESSIONS])
            if EVENTS in kinds:
                self._append_events(_of(wanted, EVENTS), kinds[EVENTS], batch_id)
            if RULES in kinds:
                merge_rules(rule_changes(_of(wanted, RULES)))
            self._ends = next_offsets
        finally:
            wanted.unpersist()

    def _append_events(self, events: DataFrame, kinds: set[str], batch_id: int) -> None:
        if OTHER_EVENT in kinds:
            self._append(event_rows(events), EVENTS_TABLE, batch_id)
        if MESSAGE_DROPPED in kinds:
            self._append(drop_rows(events), DROPS, batch_id)
        if AUDIT_EVENT in kinds:
            self._append(audit_rows(events), AUDIT_LOG, batch_id)

    def _append(self, rows: DataFrame, table: Table, batch_id: int) -> None:
        self._appends.append(rows, table_path(self._settings, table), batch_id)

    def _is_note_due(self, next_offsets: dict[int, int]) -> bool:
        return (
            next_offsets != self.next_offsets
            and self._clock.monotonic() - self._noted_at >= NOTE_SECONDS
        )

    def _note(self, spark: SparkSession, next_offsets: dict[int, int]) -> None:
        note_offsets(spark, table_path(self._settings, RETAINED), next_offsets)
        self._noted(next_offsets)

    def _noted(self, next_offsets: dict[int, int]) -> None:
        self.next_offsets = next_offsets
        self._noted_at = self._clock.monotonic()


def _of(records: DataFrame, log_topic: str) -> DataFrame:
    return records.where(F.col("topic") == log_topic)


def _kinds(records: DataFrame) -> dict[str, set[str]]:
    """Return by log topic which kinds of records there are: a table without any is left alone.

    One job says it of all: each costs as much as a small merge's own.
    """
    of_session = F.substring(F.col("key").cast("string"), 1, 1)
    kind = F.when(F.col("topic") == SESSIONS, of_session).when(
        F.col("topic") == EVENTS, event_kind()
    )
    kinds: dict[str, set[str]] = {}
    for log_topic, found in records.select("topic", kind).distinct().collect():
        kinds.setdefault(log_topic, set()).add(found)
    return kinds


def _apply_sessions(records: DataFrame, kinds: set[str]) -> None:
    own = own_record_rows(records) if SUBSCRIPTION in kinds else None
    last = last_sessions(records).persist()
    try:
        if kinds & {SESSION, PROGRESS}:
            merge_sessions(session_rows(last))
        if own is not None:
            merge_own_records(own)
        if SESSION in kinds:
            merge_subscriptions(subscription_rows(last))
        if own is not None:
            merge_counts(own)
    finally:
        last.unpersist()
