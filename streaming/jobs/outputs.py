"""The query that keeps the tables of rules: `rule_<name>`, one for each action, `dead_letters`."""

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from mqlake.clock import Clock
from mqlake.durable import write_durably
from mqlake.records.messages import DEAD_LETTERS, OUTPUTS
from mqlake.records.rule_tables import rule_table
from mqlake.tables.catalogue import DEAD_LETTERS as DEAD_LETTERS_TABLE
from mqlake.tables.catalogue import LATE, RULE_TABLE_COLUMNS, RULE_TABLE_PATTERN, RULE_TABLE_PREFIX
from rules.metrics import LATENCY_BOUNDS_MS
from streaming import queries
from streaming.engine.spark import small_session
from streaming.log.checkpoints import checkpoint, query_id
from streaming.log.sources import read_log
from streaming.rules.program import TABLE_FUNCTION, TableAction
from streaming.rules.table_metrics import TableMetrics
from streaming.rules.tables import (
    NO_COLUMNS,
    Marks,
    Version,
    dead_letter_rows,
    fallback_table,
    is_evaluation,
    is_fallback,
    is_late,
    is_of,
    last_marks,
    late_rows,
    latencies,
    later,
    new_outputs,
    parsed,
    refused,
    table_rows,
    without_ended,
)
from streaming.settings.lake import LakeSettings
from streaming.tables.appends import BatchAppends
from streaming.tables.resting import Rest
from streaming.tables.tables import TableFull, grow_rule_table, rule_table_path, table_path

logger = logging.getLogger(__name__)

MOST_RECORDS: Final = 50_000
KEPT_MARKS: Final = 20
REST: Final = 6.0
"""Rest after a batch, in times of the batch's own time (`streaming.tables.resting`)."""
MOST_REST_SECONDS: Final = 10.0
MAX_ERROR_CHARACTERS: Final = 500
"""Length of the shown part of an error of Spark, which may go on with a plan."""


TenantTable = tuple[str, str]
"""Tenant, and name of a table as its rules write it."""


def start(
    spark: SparkSession, settings: LakeSettings, outputs: "Outputs", skipped: int = 0
) -> StreamingQuery:
    """Start the query from its checkpoint; a batch that was not noted there comes again.

    `skipped` offsets before it are of no record.
    """
    options = {
        "maxOffsetsPerTrigger": str(MOST_RECORDS + skipped),
        "kafka.fetch.max.wait.ms": "10",  # as in the history
    }
    return (
        read_log(small_session(spark), settings, [OUTPUTS, DEAD_LETTERS], **options)
        .writeStream.queryName(queries.OUTPUTS)
        .foreachBatch(outputs)
        .option("checkpointLocation", str(checkpoint(settings.data_dir, queries.OUTPUTS)))
        .trigger(processingTime=f"{round(settings.outputs_interval_seconds * 1000)} milliseconds")
        .start()
    )


class Outputs:
    """Function for foreachBatch: a batch into the tables, each row once.

    Args:
        settings: Folders of tables and checkpoints.
        clock: For the rest after a batch.
        find: Returns the table that the rows of a version go to.
        wait: Waits a number of seconds, less when the application stops.
        metrics: Counters of the actions.
        runs: Returns the names of the runs of stateful rules; None while they are not known.
    """

    def __init__(
        self,
        settings: LakeSettings,
        clock: Clock,
        find: Callable[[Version], tuple[TableAction, ...]],
        wait: Callable[[float], object],
        metrics: TableMetrics,
        runs: Callable[[], frozenset[str] | None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._find = find
        self._metrics = metrics
        self._runs = runs
        self._checkpoint = checkpoint(settings.data_dir, queries.OUTPUTS)
        self._appends = BatchAppends(self._checkpoint)
        self._rest = Rest(self._checkpoint, MOST_RECORDS, REST, MOST_REST_SECONDS, wait)
        self._lock = threading.Lock()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write a batch, then rest."""
        begin = self._clock.monotonic()
        with self._lock:
            self.apply(batch, batch_id)
            self._metrics.write()
        self._rest.after(batch_id, self._clock.monotonic() - begin)

    def apply(self, batch: DataFrame, batch_id: int) -> None:
        """Write a batch; one that comes again leaves the tables as if it had come once."""
        marks = self._read_marks(batch_id)
        records = parsed(batch).coalesce(1).persist()
        try:
            outputs = records.where(F.col("topic") == OUTPUTS)
            letters = records.where(F.col("topic") == DEAD_LETTERS)
            fallbacks, letters = letters.where(is_fallback()), letters.where(~is_fallback())
            refused = self._append_outputs(outputs, marks.get(OUTPUTS, {}), batch_id)
            for rows in (*refused, *self._add_fallbacks(fallbacks)):
                letters = letters.unionByName(rows)
            self._append_letters(letters, marks.get(DEAD_LETTERS, {}), batch_id)
            # Known before it is asked which are new: an ended run's last rows keep their mark.
            runs = self._runs()
            last = {
                OUTPUTS: last_marks(outputs),
                DEAD_LETTERS: last_marks(letters.where(is_evaluation())),
            }
            kept = {
                log_topic: of_topic if runs is None else without_ended(of_topic, runs)
                for log_topic, of_topic in marks.items()
            }
            self._write_marks(
                batch_id,
                {
                    log_topic: later(kept.get(log_topic, {}), found)
                    for log_topic, found in last.items()
                },
            )
        finally:
            records.unpersist()

    def _append_outputs(self, outputs: DataFrame, marks: Marks, batch_id: int) -> list[DataFrame]:
        """Append outputs to the tables of their rules.

        Returns:
            Those that a table cannot take, as dead letters.
        """
        versions = [
            tuple(row) for row in outputs.select("tenant", "rule", "version").distinct().collect()
        ]
        actions = {
            version: [action for action in self._find(version) if not action.is_fallback]
            for version in versions
        }
        by_schema: dict[tuple[TenantTable, str], list[Version]] = {}
        for version, its_actions in actions.items():
            for action in its_actions:
                table = version[0], action.table
                by_schema.setdefault((table, action.schema), []).append(version)
        if not by_schema:
            return []
        by_table: dict[TenantTable, dict[str, DataFrame]] = {}
        refusals: Refusals = {}
        new = new_outputs(outputs, marks).persist()
        try:
            spark = outputs.sparkSession
            for (table, ddl), its_versions in by_schema.items():
                with _refusing(table, (ddl,), refusals):
                    schema = columns(ddl)
                    types = grow_rule_table(spark, self._settings, *table, schema)
                    rows = table_rows(new, schema, its_versions, types)
                    by_table.setdefault(table, {})[ddl] = rows
            for table, parts in by_table.items():
                with _refusing(table, parts, refusals):
                    whole, *others = parts.values()
                    for part in others:
                        whole = whole.unionByName(part, allowMissingColumns=True)
                    path = rule_table_path(self._settings, rule_table(*table))
                    self._append(whole, path, batch_id)
            self._count(new, actions, refusals)
        finally:
            new.unpersist()
        return [
            refused(new.where(is_of([version])), reason, f"{action.action}/{TABLE_FUNCTION}")
            for version, its_actions in actions.items()
            for action in its_actions
            if (reason := refusals.get(((version[0], action.table), action.schema))) is not None
        ]

    def _count(
        self, new: DataFrame, actions: Mapping[Version, list[TableAction]], refusals: "Refusals"
    ) -> None:
        """Count rows for the actions that have written them, or could not."""
        now_ms = self._clock.now_ms()
        for version, index, count, latency_ms_sum in latencies(new, now_ms, LATENCY_BOUNDS_MS):
            tenant, rule, _ = version
            for action in actions[version]:
                counters = self._metrics.rules.counters(tenant, rule, action.action, TABLE_FUNCTION)
                if ((tenant, action.table), action.schema) in refusals:
                    counters.failed += count
                else:
                    counters.succeed_many(count, index, latency_ms_sum)

    def _add_fallbacks(self, fallbacks: DataFrame) -> list[DataFrame]:
        """Add outputs that the runner has handed over, those that are not there yet.

        Returns:
            Those that a table cannot take, as dead letters.
        """
        named = fallbacks.withColumn("table", fallback_table()).where(
            F.concat(F.lit(RULE_TABLE_PREFIX), "table").rlike(f"^{RULE_TABLE_PATTERN}$")
        )
        spark = fallbacks.sparkSession
        keys = ("tenant", "rule", "version", "table")
        letters: list[DataFrame] = []
        for *version, name in named.select(*keys).distinct().collect():
            of_version: Version = (version[0], version[1], version[2])
            table = of_version[0], RULE_TABLE_PREFIX + name
            rows = named.where((F.col("table") == name) & is_of([of_version]))
            refusals: Refusals = {}
            with _refusing(table, ("",), refusals):
                schema = self._fallback_columns(spark, of_version, table)
                if schema is None:
                    letters.append(refused(rows.drop("table"), NO_COLUMNS))
                    continue
                types = grow_rule_table(spark, self._settings, *table, schema)
                new = table_rows(rows, schema, [of_version], types)
                add_once(new, rule_table_path(self._settings, rule_table(*table)))
            letters += [refused(rows.drop("table"), reason) for reason in refusals.values()]
        return letters

    def _fallback_columns(
        self, spark: SparkSession, version: Version, table: TenantTable
    ) -> dict[str, str] | None:
        """Return the columns of a version's rows; those of the table when it is long gone."""
        for action in self._find(version):
            if action.table == table[1]:
                return columns(action.schema)
        name = rule_table(*table)
        if not spark.catalog.tableExists(name):
            return None
        ours = {column.name for column in RULE_TABLE_COLUMNS}
        fields = spark.table(name).schema.fields
        return {
            field.name: field.dataType.simpleString() for field in fields if field.name not in ours
        }

    def _append_letters(self, letters: DataFrame, marks: Marks, batch_id: int) -> None:
        if letters.isEmpty():
            return
        evaluated = new_outputs(letters.where(is_evaluation()), marks)
        others = letters.where(~is_evaluation())
        rows = dead_letter_rows(evaluated.where(~is_late()).unionByName(others))
        self._append(rows, table_path(self._settings, DEAD_LETTERS_TABLE), batch_id)
        late = letters.where(is_late())
        if not late.isEmpty():
            rows = late_rows(evaluated.where(is_late()))
            self._append(rows, table_path(self._settings, LATE), batch_id)

    def _append(self, rows: DataFrame, path: Path, batch_id: int) -> None:
        self._appends.append(rows.coalesce(1), path, batch_id)

    # Marks are files of their own, one for each batch: written before Spark notes the batch, so
    # that those of the batch before are always there when one comes, or comes again.

    def _marks_file(self, batch_id: int) -> Path:
        folder = self._checkpoint.with_name(f"{queries.OUTPUTS}-marks")
        return folder / f"{query_id(self._checkpoint)}-{batch_id}.json"

    def _read_marks(self, batch_id: int) -> dict[str, Marks]:
        path = self._marks_file(batch_id - 1)
        if not path.exists():
            return {}
        stored = json.loads(path.read_text(encoding="utf-8"))
        return {
            log_topic: {
                (source, partition): (offset, rule, index)
                for source, partition, offset, rule, index in marks
            }
            for log_topic, marks in stored.items()
        }

    def _write_marks(self, batch_id: int, marks: dict[str, Marks]) -> None:
        path = self._marks_file(batch_id)
        stored = {
            log_topic: [[*source, *mark] for source, mark in of_topic.items()]
            for log_topic, of_topic in marks.items()
        }
        write_durably(path, json.dumps(stored).encode())
        self._marks_file(batch_id - KEPT_MARKS).unlink(missing_ok=True)


def add_once(rows: DataFrame, path: Path) -> None:
    """Add rows to a table of rules that has none with their `output_id`."""
    rows = rows.dropDuplicates(["output_id"])
    micros = F.unix_micros("ts")
    first, last = rows.agg(F.min(micros), F.max(micros)).collect()[0]
    # Lets Delta leave out the files of other times.
    ends = F.timestamp_micros(F.lit(first)), F.timestamp_micros(F.lit(last))
    times = F.col("t.ts").between(*ends) | F.col("t.ts").isNull()
    (
        DeltaTable.forPath(rows.sparkSession, str(path))
        .alias("t")
        .merge(rows.alias("s"), (F.col("t.output_id") == F.col("s.output_id")) & times)
        .whenNotMatchedInsert(values={f"`{name}`": f"s.`{name}`" for name in rows.columns})
        .execute()
    )


Refusals = dict[tuple[TenantTable, str], str]
"""Why a table cannot take rows, by the table and their columns."""


@contextmanager
def _refusing(table: TenantTable, schemas: Iterable[str], refusals: Refusals) -> Iterator[None]:
    """Go on when a table cannot take rows of these columns, and note it: others wait for theirs."""
    try:
        yield
    except (AnalysisException, TableFull) as error:
        tenant, name = table
        told = " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]
        reason = f"{name} cannot take it: {told}"
        refusals |= {(table, schema): reason for schema in schemas}
        fields = {"tenant": tenant, "table": name, "reason": reason}
        logger.exception("rows of a rule left out of their table", extra={"fields": fields})


def columns(ddl: str) -> dict[str, str]:
    """Return column and type of a row's DDL; a column that is always null is text."""
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return {
        field.name: field.dataType.simpleString().replace("void", "string")
        for field in schema.fields
    }
