"""Deletion of one client's rows from the history, from the files too.

A DELETE of Delta writes files again without the rows; those before it stay for time travel. So the
deletion ends with a VACUUM that keeps nothing of earlier versions. It goes by the log of the table
(LITE): files that are being appended meanwhile are in no log yet and are left alone.
"""

import json
import time
from dataclasses import dataclass
from typing import Any, Final

from api.jobs.jobs import Job
from api.log.appending import LogAppender
from api.spark.connect import EvaluationError, Row, Spark, SparkConnect
from mqlake.clock import Clock
from mqlake.log.blocking import Append
from mqlake.records.messages import EVENTS
from mqlake.records.versions import RECORD_VERSION
from mqlake.tables.catalogue import DEAD_LETTERS, DROPS, MESSAGES
from mqlake.tables.catalogue import EVENTS as EVENTS_TABLE
from rules.sql.quoting import quoted

TABLES: Final = (MESSAGES, EVENTS_TABLE, DROPS, DEAD_LETTERS)
"""Those with a row for each act of a client; `retained` and `sessions` have ways of their own."""

REQUESTED: Final = "history.deletion_requested"
DELETED: Final = "history.deleted"
FAILED: Final = "history.deletion_failed"

TIMEOUT_SECONDS: Final = 3_600.0
_TRIES: Final = 6
_RETRY_SECONDS: Final = 5.0
_CONFLICTS: Final = ("DELTA_CONCURRENT", "ConcurrentDelete", "ConcurrentAppend", "ConcurrentWrite")
SETTINGS: Final = {
    # The files that are deleted are those that no version from now on needs.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
    # As for queries: few tasks.
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.maxPartitionBytes": "4g",
}


@dataclass(frozen=True, slots=True)
class Deletion:
    """A client whose history goes, and the caller who wants it."""

    tenant: str
    client_id: str
    requested_by: str


class Deleter:
    """Deletes and writes down that it did."""

    def __init__(self, connect: SparkConnect, log: LogAppender, clock: Clock) -> None:
        self._connect = connect
        self._log = log
        self._clock = clock

    def audit(self, event: str, deletion: Deletion, **fields: Any) -> None:
        """Append an event to `mqlake.events`; it is in the log when this returns.

        The event is of no client: else the next deletion would take it too.

        Raises:
            LogError: The log does not take it.
        """
        of = {"deleted_client_id": deletion.client_id, "by": deletion.requested_by}
        append_event(self._log, event, deletion.tenant, self._clock.now_ms(), **of, **fields)

    def delete(self, job: Job, deletion: Deletion) -> dict[str, Any]:
        """Do it; return how many rows went.

        Raises:
            EvaluationError: Spark fails.
            Cancelled: The job was ended by request; a table is done or it is not.
            SparkAway: Spark does not answer.
            LogError: The log does not take the event; the rows are gone.
        """
        rows: dict[str, int] = {}
        condition = (
            f"tenant = {quoted(deletion.tenant)} AND client_id = {quoted(deletion.client_id)}"
        )
        try:
            with self._connect.session(SETTINGS, job.cancelling.is_set) as spark:
                for number, table in enumerate(TABLES):
                    job.advance(number / len(TABLES), f"deleting from {table.name}")
                    rows[table.name] = delete_rows(job, spark, table.name, condition)
                    vacuum(job, spark, table.name)
        except Exception as exc:
            self.audit(FAILED, deletion, job=job.id, rows=rows, reason=str(exc))
            raise
        self.audit(DELETED, deletion, job=job.id, rows=rows)
        return {"rows": rows}


def append_event(
    log: LogAppender, event: str, tenant: str, at_ms: int | None, **fields: Any
) -> None:
    """Append to `mqlake.events` something that happened to no client and at no gateway.

    Raises:
        LogError: The log does not take it.
    """
    value = {
        "v": RECORD_VERSION,
        "event": event,
        "ts": at_ms,
        "tenant": tenant,
        "client_id": None,
        "gateway": None,
        **fields,
    }
    data = json.dumps(value, ensure_ascii=False).encode()
    log.append_all(EVENTS, [Append(0, f"{tenant}/".encode(), data, [])], what=f"event {event}")


def delete_rows(job: Job, spark: Spark, table: str, condition: str) -> int:
    """Delete rows of a table; return how many."""
    (row,) = run_statement(job, spark, f"DELETE FROM {table} WHERE {condition}")  # noqa: S608
    return int(row["num_affected_rows"])


def vacuum(job: Job, spark: Spark, table: str) -> None:
    """Delete the files of a table that only earlier versions need; a session with `SETTINGS`."""
    run_statement(job, spark, f"VACUUM {table} LITE RETAIN 0 HOURS")


def run_statement(job: Job, spark: Spark, statement: str) -> list[Row]:
    """Run a statement; again when the table's maintenance came between."""
    for left in reversed(range(_TRIES)):
        job.check()
        try:
            return spark.rows(statement, TIMEOUT_SECONDS, is_cancelled=job.cancelling.is_set)
        except EvaluationError as exc:
            if not left or not any(word in str(exc) for word in _CONFLICTS):
                raise
            time.sleep(_RETRY_SECONDS)
    raise AssertionError
