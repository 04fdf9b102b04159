"""Maintenance of tables.

Expired retained messages go each minute, if there are any, and the table that has them says how far
the log is read. Small files are joined when a table has gathered many, for its queries would grow
slow; that also clusters them. Four times a day rows go that are older than the policies of
retention keep them. Twice a day files go that no snapshot of the last day holds.

One thing at a time, in one task, in a scheduler pool of its own that comes after all others.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mqlake.clock import Clock
from mqlake.errors import SettingsError
from mqlake.processes.log_disk import LogDisk
from mqlake.records.rule_tables import rule_tables
from mqlake.tables.catalogue import DEAD_LETTERS, LATE, MESSAGES, RETAINED, TABLES, Table
from mqlake.tables.retention import TABLES_WITH_TOPIC, read_policies
from streaming.engine.spark import MAINTENANCE_POOL, small_session, use_pool
from streaming.jvm.bridge import JvmError
from streaming.settings.lake import LakeSettings
from streaming.tables.retained import commits_saying, delete_expired, first_expiry
from streaming.tables.retention import expired
from streaming.tables.state import NOTE_SECONDS, StateWriter
from streaming.tables.tables import rule_table_path, table_path

_logger = logging.getLogger(__name__)

EXPIRE_SECONDS: Final = 60.0
OPTIMIZE_SECONDS: Final = 600.0
RETENTION_SECONDS: Final = 6 * 3600.0
VACUUM_SECONDS: Final = 12 * 3600.0
CHECK_SECONDS: Final = 5.0

FILE_BYTES: Final = 64 * 1024 * 1024
"""Files of that size stay as they are; so joining costs as much as new rows, not as the table."""
MOST_SMALL_FILES: Final = 200
"""So a table never has more files than these, those that come until the next look, and one for each
`FILE_BYTES` of its data."""

# OPTIMIZE would put everything below a gigabyte, and clusters below a hundred, together again and
# again.
_CONF: Final = {
    "spark.databricks.delta.optimize.minFileSize": str(FILE_BYTES),
    "spark.databricks.delta.optimize.maxFileSize": str(2 * FILE_BYTES),
    "spark.databricks.delta.optimize.maxThreads": "1",
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(
        FILE_BYTES
    ),
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.targetCubeSize": str(
        2 * FILE_BYTES
    ),
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # A rewrite of a table reads it in one task, however many files it has.
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.maxPartitionBytes": "4g",
}


@dataclass(slots=True)
class _Duty:
    do: Callable[[], None]
    every_seconds: float
    due_at: float


class Maintenance:
    """Does due work when `check` is called.

    Args:
        spark: A session of its own is made of it.
        settings: Settings of the lake.
        state: The other writer of some tables.
        clock: For what is due, and for what is old.
        trouble: Says why the machine's calendar is not to be believed; "": it is.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: LakeSettings,
        state: StateWriter,
        clock: Clock,
        trouble: Callable[[], str] = lambda: "",
    ) -> None:
        self._spark = small_session(spark)
        for key, value in _CONF.items():
            self._spark.conf.set(key, value)
        self._settings = settings
        self._disk = LogDisk(settings.log_disk)
        self._state = state
        self._clock = clock
        self._trouble = trouble
        self._first_expiry: datetime | None = None
        now = clock.monotonic()
        self._duties = {
            "expire": _Duty(self.expire, EXPIRE_SECONDS, now),
            "note": _Duty(self.note, NOTE_SECONDS, now + NOTE_SECONDS),
            "optimize": _Duty(self.optimize, OPTIMIZE_SECONDS, now + OPTIMIZE_SECONDS),
            "retention": _Duty(self.delete_old, RETENTION_SECONDS, now + 1200.0),
            "vacuum": _Duty(self.vacuum, VACUUM_SECONDS, now + 3600.0),
        }

    def run(self, stopping: threading.Event) -> None:
        """Do due work until `stopping` is set; for a thread of its own."""
        use_pool(self._spark, MAINTENANCE_POOL)
        while not stopping.wait(CHECK_SECONDS):
            self.check(stopping.is_set)

    def check(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Do due work; a failed step is logged and due again at its time."""
        for name, duty in self._duties.items():
            if self._clock.monotonic() < duty.due_at or is_stopping():
                continue
            try:
                duty.do()
            except (PySparkException, JvmError, OSError, SettingsError) as error:
                if not is_stopping():
                    _logger.warning(
                        "maintenance failed", extra={"fields": {"duty": name, "reason": str(error)}}
                    )
            duty.due_at = self._clock.monotonic() + duty.every_seconds

    def expire(self) -> None:
        """Delete retained messages whose message expiry interval has ended."""
        with self._state.lock:
            if self._state.retained_changed:
                self._first_expiry = first_expiry(self._spark)
                self._state.retained_changed = False
            now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
            if self._first_expiry is not None and self._first_expiry <= now:
                delete_expired(self._spark, now, self._state.next_offsets)
                self._first_expiry = first_expiry(self._spark)

    def note(self) -> None:
        """Have `retained` say how far the log is read, also where nothing comes any more."""
        self._state.note(self._spark)

    def optimize(self) -> None:
        """Join the small files of the tables that have many, unless the log is full.

        That writes once more what a table has, and frees the disk a day later.
        """
        if problem := self._disk.why_full():
            _logger.warning("no small files are joined", extra={"fields": {"reason": problem}})
            return
        for table in TABLES:
            if small_files(table_path(self._settings, table)) >= MOST_SMALL_FILES:
                with self._writing(table):
                    self._spark.sql(f"OPTIMIZE {table.name}")
        for name in rule_tables(self._settings.data_dir.absolute() / "tables"):
            if small_files(rule_table_path(self._settings, name)) >= MOST_SMALL_FILES:
                self._spark.sql(f"OPTIMIZE {name}")

    def delete_old(self) -> None:
        """Delete the rows that have been kept as long as they are to be."""
        policies = read_policies(self._settings.data_dir)
        for table in TABLES:
            if table.name not in TABLES_WITH_TOPIC:
                continue
            condition = expired(policies, table.name, self._clock.now_ms())
            if condition is not None:
                with self._writing(table):
                    self._spark.sql(f"DELETE FROM {table.name} WHERE {condition}")  # noqa: S608

    def vacuum(self) -> None:
        """Delete the files that no snapshot of the last day holds.

        Delta goes by the machine's calendar: while that is ahead, files go nowhere.
        """
        if trouble := self._trouble():
            _logger.warning("no files are deleted", extra={"fields": {"reason": trouble}})
            return
        for table in TABLES:
            with self._writing(table):
                self._spark.sql(f"VACUUM {table.name}")
        for name in rule_tables(self._settings.data_dir.absolute() / "tables"):
            self._spark.sql(f"VACUUM {name}")

    @contextmanager
    def _writing(self, table: Table) -> Iterator[None]:
        """Keep off the other writer of a table; nothing done here conflicts with appends."""
        with nullcontext() if table in (MESSAGES, DEAD_LETTERS, LATE) else self._state.lock:
            says = table is RETAINED
            with commits_saying(self._spark, self._state.next_offsets) if says else nullcontext():
                yield


def small_files(path: Path) -> int:
    """Return about how many files a table has more than its size needs.

    From the file that Delta writes beside its newest commit; a query would cost a second.
    """
    checksums = sorted((path / "_delta_log").glob("*.crc"), reverse=True)
    if not checksums:
        return 0
    checksum = json.loads(checksums[0].read_text(encoding="utf-8"))
    return int(checksum["numFiles"] - checksum["tableSizeBytes"] // FILE_BYTES)
