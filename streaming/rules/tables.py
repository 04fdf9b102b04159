"""Outputs of rules, as rows of tables.

outputs(key, value, headers, partition, offset, timestamp) -> rows of `rule_<name>`
dead_letters(the same) -> columns of `mqlake.tables.catalogue.DEAD_LETTERS` or `LATE`

The evaluation repeats after a crash its outputs since its last checkpoint. Those of one source and
partition are in order, so all not above the last mark (offset, rule, index) came before. Only those
of dead letters that are run again are in no order, and come once.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from mqlake.records.messages import (
    EVENTS,
    HEADER_ACTION,
    HEADER_CLIENT_ID,
    HEADER_ERROR,
    HEADER_EVENT_TIME,
    HEADER_OUTPUT,
    HEADER_RULE,
    HEADER_STAGE,
    HEADER_TABLE,
    HEADER_TOPIC,
    HEADER_TS,
    HEADER_WATERMARK,
    INBOUND,
)
from mqlake.records.outputs import (
    RERUN,
    RUN_PREFIX,
    SOURCE_EVENTS,
    SOURCE_INBOUND,
    STAGE_FALLBACK,
    Stage,
)
from mqlake.tables.catalogue import DEAD_LETTERS, LATE, Table
from rules.sql.quoting import quoted_name
from streaming.engine.spark import frame_of_texts
from streaming.log.sources import header

Mark = tuple[int, str, int]
"""Offset, rule, index."""

Version = tuple[str, str, int]
"""Tenant, rule and version."""

Marks = dict[tuple[str, int], Mark]
"""By source and partition."""

_RUN: Final = re.compile(rf"^(?:[ie]\.)?({RUN_PREFIX}\d+-[0-9a-f]+)")

_MARKS: Final = StructType(
    [
        StructField("source", StringType()),
        StructField("source_partition", IntegerType()),
        StructField("marked_offset", LongType()),
        StructField("marked_rule", StringType()),
        StructField("marked_index", IntegerType()),
    ]
)
NO_COLUMNS: Final = "the columns of the fallback's table are not known any more"
"""Error for a rule that was deleted long ago, and whose table was never written to."""
_MARK: Final = ("source_offset", "rule", "index")


def parsed(records: DataFrame) -> DataFrame:
    """Return the fields of key and headers; records of another form are left out.

    Returns:
        (value, headers, timestamp, partition, offset, tenant, rule, version, source,
        source_partition, source_offset, index)
    """
    position = F.split(_text(HEADER_OUTPUT), ":")
    name = F.split(F.col("key").cast("string"), "/")
    return records.select(
        "*",
        F.get(name, F.lit(0)).alias("tenant"),
        F.get(name, F.lit(1)).alias("rule"),
        _text(HEADER_RULE).try_cast("int").alias("version"),
        F.get(position, F.lit(0)).alias("source"),
        F.get(position, F.lit(1)).try_cast("int").alias("source_partition"),
        F.get(position, F.lit(2)).try_cast("bigint").alias("source_offset"),
        F.get(position, F.lit(3)).try_cast("int").alias("index"),
    ).where("rule IS NOT NULL AND version IS NOT NULL AND index IS NOT NULL")


def new_outputs(outputs: DataFrame, marks: Marks) -> DataFrame:
    """Return those that did not come before.

    Args:
        outputs: From `parsed`.
        marks: The last of each source and partition before this batch.
    """
    spark = outputs.sparkSession
    texts = [
        json.dumps(dict(zip(_MARKS.names, (*source, *mark), strict=True)))
        for source, mark in marks.items()
    ]
    of_marks = frame_of_texts(spark, texts, "text").select(F.from_json("text", _MARKS).alias("row"))
    known = F.broadcast(of_marks.select("row.*"))
    mark = F.struct(*_MARK)
    marked = F.struct("marked_offset", "marked_rule", "marked_index")
    before = (
        Window.partitionBy("source", "source_partition")
        .orderBy("partition", "offset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    compared = outputs.withColumn("highest", F.max(mark).over(before)).join(
        known, ["source", "source_partition"], "left"
    )
    is_new = (F.col("highest").isNull() | (mark > F.col("highest"))) & (
        F.col("marked_offset").isNull() | (mark > marked)
    )
    return compared.where(is_new | (F.col("source") == RERUN)).drop(
        "highest", "marked_offset", "marked_rule", "marked_index"
    )


def latencies(
    outputs: DataFrame, now_ms: int, bounds_ms: Sequence[int]
) -> list[tuple[Version, int, int, float]]:
    """Return how long ago the messages of outputs were received.

    Args:
        outputs: From `parsed`.
        now_ms: Milliseconds UTC.
        bounds_ms: Upper bounds of classes; one more takes times above.

    Returns:
        (version of a rule, index of a class, outputs in it, sum of their milliseconds)
    """
    age = F.greatest(F.lit(now_ms) - _text(HEADER_TS).try_cast("bigint"), F.lit(0))
    exceeded = [(age > bound).cast("int") for bound in bounds_ms]
    index = reduce(add, exceeded).alias("class")
    grouped = outputs.groupBy("tenant", "rule", "version", index).agg(F.count("*"), F.sum(age))
    return [
        ((tenant, rule, version), number, count, float(milliseconds or 0))
        for tenant, rule, version, number, count, milliseconds in grouped.collect()
    ]


def last_marks(outputs: DataFrame) -> Marks:
    """Return the highest mark of each source and partition."""
    highest = outputs.groupBy("source", "source_partition").agg(F.max(F.struct(*_MARK)).alias("m"))
    return {
        (row["source"], row["source_partition"]): (row["m"][0], row["m"][1], row["m"][2])
        for row in highest.collect()
    }


def later(marks: Marks, others: Marks) -> Marks:
    """Return the higher mark of each source and partition."""
    return {
        source: max(mark for mark in (marks.get(source), others.get(source)) if mark is not None)
        for source in marks.keys() | others.keys()
    }


def table_rows(
    outputs: DataFrame,
    schema: Mapping[str, str],
    versions: Iterable[Version],
    types: Mapping[str, str],
) -> DataFrame:
    """Return the rows that some versions of rules add to a table.

    Args:
        outputs: New ones.
        schema: Schema of the rows of these versions: column to type.
        versions: Tenant, rule and version of each.
        types: Types of the table's columns. A value that its column cannot hold becomes null.
    """
    ddl = ", ".join(f"{quoted_name(name)} {type_}" for name, type_ in schema.items())
    row = F.from_json(F.col("value").cast("string"), ddl)
    made = outputs.where(is_of(versions)).withColumn("row", row)
    columns = [
        F.concat_ws(
            "/", F.col("rule"), F.col("version").cast("string"), _text(HEADER_OUTPUT)
        ).alias("output_id"),
        F.col("rule"),
        F.col("version").alias("rule_version"),
        F.timestamp_millis(_text(HEADER_TS).try_cast("bigint")).alias("ts"),
        F.col("tenant"),
    ]
    for name, type_ in schema.items():
        value = F.col("row").getField(name)
        wanted = types.get(name.lower(), type_)
        if wanted != type_.lower():
            value = _converted(value, type_, wanted)
        columns.append(value.alias(name))
    return made.select(*columns)


def _converted(value: Column, type_: str, wanted: str) -> Column:
    nested = ("struct", "array", "map", "variant")
    if wanted == "string" and type_.lower().startswith(nested):
        return F.to_json(value)
    if wanted.startswith(nested) or type_.lower().startswith(nested):
        return F.lit(None).cast(wanted)
    return value.try_cast(wanted)


def is_of(versions: Iterable[Version]) -> Column:
    """Tell whether an output is of one of these versions; from `parsed`."""
    ours = F.lit(False)
    for tenant, rule, version in versions:
        is_it = (
            (F.col("tenant") == tenant) & (F.col("rule") == rule) & (F.col("version") == version)
        )
        ours = ours | is_it
    return ours


def refused(outputs: DataFrame, error: str, action: str | None = None) -> DataFrame:
    """Return outputs that a table cannot take as dead letters of the action, as from `parsed`.

    Args:
        outputs: From `parsed`.
        error: Why.
        action: `<index>/table`; None: they name it.
    """
    stage: Stage = "action"
    told = {HEADER_STAGE: stage, HEADER_ERROR: error}
    if action is not None:
        told[HEADER_ACTION] = action
    ours = [
        F.struct(F.lit(name).alias("key"), F.lit(text).cast("binary").alias("value"))
        for name, text in told.items()
    ]
    others = F.filter("headers", lambda one: ~one["key"].isin(*told))
    return outputs.withColumn("headers", F.concat(others, F.array(*ours)))


def dead_letter_rows(letters: DataFrame) -> DataFrame:
    """Return the rows of the table `dead_letters`; from `parsed` records."""
    return _letter_rows(letters, DEAD_LETTERS)


def late_rows(letters: DataFrame) -> DataFrame:
    """Return the rows of the table `late`; from `parsed` records of that stage."""
    return _letter_rows(letters, LATE)


def _letter_rows(letters: DataFrame, table: Table) -> DataFrame:
    # Of a stateful rule the run's name follows.
    letter = F.substring_index("source", ".", 1)
    sources = F.when(letter == SOURCE_INBOUND, F.lit(INBOUND)).when(
        letter == SOURCE_EVENTS, F.lit(EVENTS)
    )
    columns: dict[str, Any] = {
        "ts": F.col("timestamp"),
        "rule_version": F.col("version"),
        "stage": _text(HEADER_STAGE),
        "action": _text(HEADER_ACTION),
        "error": _text(HEADER_ERROR),
        "topic": _text(HEADER_TOPIC),
        "client_id": _text(HEADER_CLIENT_ID),
        "event_time": F.timestamp_millis(_text(HEADER_EVENT_TIME).try_cast("bigint")),
        "watermark": F.timestamp_millis(_text(HEADER_WATERMARK).try_cast("bigint")),
        "value": F.coalesce("value", F.lit(b"")),
        "source": F.coalesce(sources, F.col("source")),
        "log_partition": F.col("source_partition"),
        "log_offset": F.col("source_offset"),
    }
    return letters.select(
        *(
            columns.get(column.name, F.col(column.name)).cast(column.type).alias(column.name)
            for column in table.columns
        )
    )


def is_evaluation() -> Column:
    """Tell of a dead letter whether the engine wrote it, which may write it again."""
    return _is_of("evaluate", "late")


def is_late() -> Column:
    """Tell whether it is a message that came too late for a window."""
    return _is_of("late")


def _is_of(*stages: Stage) -> Column:
    return _text(HEADER_STAGE).isin(*stages)


def without_ended(marks: Marks, runs: Collection[str]) -> Marks:
    """Leave out the marks of runs that are over: they write nothing again.

    Args:
        marks: Some.
        runs: Names of those that may still write.
    """
    return {
        (source, partition): mark
        for (source, partition), mark in marks.items()
        if not (run := _RUN.search(source)) or run[1] in runs
    }


def is_fallback() -> Column:
    """Tell of a record of `mqlake.dead_letters` whether it is an output that a table gets."""
    return _text(HEADER_STAGE).eqNullSafe(STAGE_FALLBACK.decode())


def fallback_table() -> Column:
    """Return the table of such a record, without `rule_`."""
    return _text(HEADER_TABLE)


def _text(name: str) -> Column:
    return F.make_valid_utf8(header(name).cast("string"))
