"""The queries of stateful rules, one for each run: `mqlake.inbound` to `mqlake.outputs`."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.records.rules import LeftUnread, Span
from streaming.engine.spark import STATEFUL_POOL, use_pool
from streaming.jvm.bridge import for_each_batch, java_class, java_context
from streaming.log.checkpoints import (
    RUNS,
    Offsets,
    age_seconds,
    checkpoint,
    committed,
    ends_of,
    finished,
    watermark_ms,
)
from streaming.log.sources import read_log, starting_offsets
from streaming.rules.plans import Detect, FindReference, Relations, StatefulRun, output_rows
from streaming.rules.run_marks import forget_tries, is_ended, note_end, note_failure, note_try
from streaming.rules.signatures import rules_client_config
from streaming.settings.lake import LakeSettings

QUIET_SECONDS: Final = 5.0
"""Without a new batch for so long, none is to come of records taken."""
_TASK_TIME_CLASS: Final = "mqlake.stateful.TaskTime"
_TICKS: Final = {"rowsPerSecond": "1", "numPartitions": "1"}
_CONF: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A batch saves its changes, not the whole state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # All states of the process share these.
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "64",
    "spark.sql.streaming.stateStore.rocksdb.writeBufferSizeMB": "4",
    # Guarded parts of a plan are not to be computed elsewhere (design: rules, 9).
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "3",
}


def checkpoints(settings: LakeSettings) -> Path:
    """Return the folder that holds a folder for each run."""
    return checkpoint(settings.data_dir, RUNS)


def start(
    spark: SparkSession,
    settings: LakeSettings,
    run: StatefulRun,
    partitions: Mapping[str, int],
    reference: FindReference,
    detect: Detect,
    interval_seconds: float,
) -> StreamingQuery:
    """Start the query of a run from its checkpoint; a batch that was not noted there comes again.

    A batch takes all there is: a record in it is late for no other partition's sake.

    Args:
        spark: Any session.
        settings: How to reach the log, where checkpoints are.
        run: Run of the rule.
        partitions: Number of partitions of each log topic that are read.
        reference: Finds reference tables.
        detect: Makes the relation of a detection.
        interval_seconds: From one batch to the next.
    """
    session = _session(spark, settings, run)
    folder = str(checkpoints(settings) / run.name)
    starts = {
        log_topic: dict(enumerate(range_.starts)) for log_topic, range_ in run.span.sources.items()
    }
    read = {log_topic: partitions[log_topic] for log_topic in run.span.sources}
    records = read_log(
        session,
        settings,
        read,
        startingOffsets=starting_offsets(starts, read),
        **{"kafka.fetch.max.wait.ms": "10"},  # as in the history
    )
    relations = Relations(
        run,
        records,
        session.readStream.format("rate").options(**_TICKS).load(),
        rules_client_config(settings),
        folder,
        settings.stateful_partitions,
    )
    rows = output_rows(session, run.plan, relations, reference, detect)
    writer = (
        rows.writeStream.queryName(run.name)
        .option("checkpointLocation", folder)
        .outputMode("append")
        .trigger(processingTime=f"{round(interval_seconds * 1000)} milliseconds")
    )
    for_each_batch(writer, relations.writer(session))
    use_pool(session, STATEFUL_POOL)
    with tasks_of(session, run):
        return writer.start()


def count_task_time(spark: SparkSession) -> None:
    """Count for each rule, from now on, the processor time that tasks of its queries take."""
    java_class(spark, _TASK_TIME_CLASS).watch(java_context(spark))


@contextmanager
def tasks_of(spark: SparkSession, run: StatefulRun) -> Iterator[None]:
    """Have the tasks of a query that this thread starts count for the rule of a run."""
    context: Any = spark.sparkContext
    name = java_class(spark, _TASK_TIME_CLASS).RULE
    context.setLocalProperty(name, f"{run.tenant}/{run.rule}")
    try:
        yield
    finally:
        context.setLocalProperty(name, None)


def _session(spark: SparkSession, settings: LakeSettings, run: StatefulRun) -> SparkSession:
    session = spark.newSession()
    for key, value in _CONF.items():
        session.conf.set(key, value)
    session.conf.set("spark.sql.shuffle.partitions", str(settings.stateful_partitions))
    # With ticks the next batch comes soon; without, outputs that the last message completes come
    # at once.
    more = "false" if run.has_receive_time else "true"
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", more)
    return session


class RunCheckpoints:
    """The folders of all runs."""

    def __init__(self, settings: LakeSettings) -> None:
        self._data_dir = settings.data_dir
        self._folder = checkpoints(settings)

    def has_done(self, run: StatefulRun) -> bool:
        """Tell whether a run whose version is out of force has made all that it is to make.

        Every record before its end is taken, and every window is closed that ended before the
        version did.
        """
        folder = self._folder / run.name
        if not run.span.is_ended:
            return False
        if run.span.is_empty:
            return True
        batches = finished(folder)
        passed = [batch for batch in batches if _has_passed(run.span, ends_of(folder, batch))]
        if not passed:
            return False
        if run.has_receive_time:
            return watermark_ms(folder) >= (run.span.ended_at_ms or 0)
        # Rows that the last messages complete come in the batch behind theirs, if there is one.
        return len(passed) > 1 or age_seconds(folder, passed[0]) > QUIET_SECONDS

    def reached(self, run: StatefulRun) -> object:
        """Return what changes as a run whose version is out of force goes on to its end."""
        folder = self._folder / run.name
        return self.unread(run), min(watermark_ms(folder), run.span.ended_at_ms or 0)

    def note_try(self, run: StatefulRun) -> int:
        """Note that a run whose version is out of force begins, and that the process may die of it.

        Returns:
            How many processes in a row have begun it where it is now, and were killed.
        """
        return note_try(self._folder / run.name, repr(self.reached(run)))

    def forget_tries(self, name: str) -> None:
        """Note that the process ends in order."""
        forget_tries(self._folder / name)

    def unread(self, run: StatefulRun) -> dict[str, dict[int, tuple[int, int]]]:
        """Return by log topic and partition the offsets that are left to a run: from, up to."""
        done = committed(self._folder / run.name) or {}
        left: dict[str, dict[int, tuple[int, int]]] = {}
        for log_topic, range_ in run.span.sources.items():
            known = done.get(log_topic, {})
            for partition, end in enumerate(range_.ends or ()):
                # One that came while the version was in force is its own from the beginning.
                start = range_.starts[partition] if partition < len(range_.starts) else 0
                first = max(start, known.get(partition, 0))
                if first < end:
                    left.setdefault(log_topic, {})[partition] = (first, end)
        return left

    def end(self, name: str, unread: LeftUnread | None) -> None:
        """Note that a run has nothing more to do, what it has left, and throw away its state."""
        folder = self._folder / name
        # First of all: without it, and without its checkpoint, the run would begin again.
        note_end(folder, unread)
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)

    def fail(self, name: str, reason: str) -> None:
        """Note that the rule of a run is to be paused: the router looks for that, and does it."""
        note_failure(self._folder / name, reason)

    def is_ended(self, name: str) -> bool:
        """Tell whether `end` was called for a run."""
        return is_ended(self._data_dir, name)

    def forget(self, known: set[str]) -> None:
        """Delete the remains of runs that are not in `known`."""
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path.name not in known:
                shutil.rmtree(path, ignore_errors=True)


def _has_passed(span: Span, done: Offsets | None) -> bool:
    """Tell whether every record that a version counts for is taken."""
    return all(
        (done or {}).get(log_topic, {}).get(partition, 0) >= end
        for log_topic, range_ in span.sources.items()
        for partition, end in enumerate(range_.ends or ())
    )
