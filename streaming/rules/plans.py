"""The plan of a stateful rule as a streaming query.

records(key, value, headers, topic, partition, offset, timestamp), ticks(timestamp) -> (at BIGINT
microseconds, row STRING, hops BIGINT)
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from mqlake.records.messages import EVENTS, INBOUND
from mqlake.records.outputs import run_name
from mqlake.records.rules import Activation, Span
from rules.language.plan import (
    AT_COLUMN,
    DETECTED,
    EVENT_TIME,
    HOPS,
    ROW_COLUMN,
    SINCE,
    STATE,
    Detection,
    Plan,
    StatefulStream,
    decode_plan,
)
from rules.sql.confined import FUNCTIONS_OPTION, Confined, listed
from rules.sql.functions import RULE_FUNCTIONS
from streaming.jvm.bridge import java_class, java_map, java_strings, register
from streaming.jvm.vocabulary import STATEFUL_SENDER

_FILTER_CLASS: Final = "mqlake.stateful.StreamFilter"
_FUNCTION_CLASS: Final = "mqlake.stateful.StreamFunction"
_WRITER_CLASS: Final = "mqlake.stateful.OutputWriter"
SENDER: Final = STATEFUL_SENDER
"""Under this name the records of the runs wait."""
_MICROS: Final = "event_micros"
_IS_TICK: Final = "is_tick"
ARRIVED: Final = "arrived"
"""Column of rows: TIMESTAMP, when the gateway accepted the message."""
_MOVES: Final = "moves_watermark"
_DELAY_MS: Final = "spark.watermarkDelayMs"
"""Spark's mark of a column that has a watermark (`EventTimeWatermark.delayKey`)."""

FindReference = Callable[[SparkSession, str], DataFrame]
"""Returns the rows of a reference table, as they are when a batch begins."""
Detect = Callable[[SparkSession, DataFrame, Detection], DataFrame]


@dataclass(frozen=True)
class StatefulRun:
    """One version of a stateful rule, from the change that put it in force."""

    tenant: str
    rule: str
    span: Span

    @cached_property
    def name(self) -> str:
        return run_name(self.tenant, self.rule, self.span.change)

    @cached_property
    def plan(self) -> Plan:
        assert self.span.plan is not None
        return decode_plan(self.span.plan)

    @property
    def has_receive_time(self) -> bool:
        """Tell whether time goes on without messages."""
        return any(stream.is_receive_time for stream in self.plan.streams)


def runs_of(activations: Mapping[tuple[str, str], Activation]) -> tuple[StatefulRun, ...]:
    """Return all stateful versions, ended ones too."""
    return tuple(
        StatefulRun(tenant, rule, span)
        for (tenant, rule), activation in activations.items()
        for span in activation.spans
        if span.plan is not None
    )


def log_topic(stream: StatefulStream) -> str:
    """Return the log topic that a stream reads."""
    return EVENTS if stream.is_events else INBOUND


COMPILER_CLASS: Final = "mqlake.rules.RuleCompiler"
DETECTED_COLUMNS: Final = {AT_COLUMN: "TIMESTAMP", STATE: "STRING", SINCE: "TIMESTAMP"}
"""Columns that a detection adds to those of its stream."""


def stream_columns(stream: StatefulStream) -> dict[str, str]:
    """Return the columns of a stream's relation and their types."""
    return {EVENT_TIME: "TIMESTAMP"} | {one.name: one.type for one in stream.columns}


def expressions(stream: StatefulStream) -> list[str]:
    """Return the expressions over a message: its time in microseconds, then the columns."""
    columns = [f"CAST({one.expression} AS {one.type})" for one in stream.columns]
    return [f"unix_micros({stream.event_time})", *columns]


def _place_of_hops(stream: StatefulStream) -> int:
    """Return which of the expressions stands for HOPS; -1 in a plan that has none yet."""
    names = [EVENT_TIME, *(one.name for one in stream.columns)]
    return names.index(HOPS) if HOPS in names else -1


def compile_stream(spark: SparkSession, stream: StatefulStream) -> None:
    """Compile the expressions over a message; the layouts of schemas in them are known then.

    Raises:
        JavaError: Spark does not take it.
    """
    texts = java_strings(spark, [stream.condition, *expressions(stream)])
    java_class(spark, COMPILER_CLASS).compileColumns(texts)


def output_rows(
    spark: SparkSession,
    plan: Plan,
    relations: Callable[[StatefulStream], DataFrame],
    reference: FindReference,
    detect: Detect,
) -> DataFrame:
    """Return the rows of a plan.

    Args:
        spark: A session of its own: the relations' names are known in it from now on.
        plan: Which.
        relations: Makes the relation of a stream.
        reference: Finds that of a reference table.
        detect: Makes the relation of a detection.
    """
    for stream in plan.streams:
        relations(stream).createOrReplaceTempView(stream.name)
    for one in plan.references:
        reference(spark, one.table).createOrReplaceTempView(one.name)
    if plan.detection is not None:
        told = detect(spark, spark.table(plan.detection.stream), plan.detection)
        told.createOrReplaceTempView(DETECTED)
    streams, references = plan.streams, plan.references
    known = [*(one.name for one in streams), *(one.name for one in references), DETECTED]
    spark.conf.set(FUNCTIONS_OPTION, listed(RULE_FUNCTIONS))
    query = plan.query
    if "`end`" not in query:
        # Of a version in force that was compiled before `end` was a reserved word.
        query = query.replace(".end AS window_end", ".`end` AS window_end")
    made = spark.sql(Confined(query, dict.fromkeys(known)).text)
    # A plan that was compiled before there was such a column goes on without.
    hops = F.col(HOPS) if HOPS in made.columns else F.lit(None).cast("BIGINT")
    return made.select(
        F.unix_micros(F.col(AT_COLUMN)).alias("at"),
        F.col(ROW_COLUMN).alias("row"),
        hops.alias("hops"),
    )


def with_watermark(rows: DataFrame, lateness_ms: int) -> DataFrame:
    """Give rows a watermark: `event_time, arrived, … -> event_time, …`.

    It is as far behind the latest row as messages may be late. A row whose time is later than its
    arrival moves it to its arrival only: a clock that is ahead says nothing of the other clocks.
    Spark has one column for both, the one that moves the watermark and the one that is compared
    with it, and knows the latter by its metadata.
    """
    delay = f"{lateness_ms} milliseconds"
    marked = rows.withColumn(_MOVES, F.least(EVENT_TIME, ARRIVED)).withWatermark(_MOVES, delay)
    # Each row is to move it. A condition that is not deterministic lets none of the query (on a
    # key, say) pass below it.
    marked = marked.where("spark_partition_id() >= 0")
    compared = F.col(EVENT_TIME).alias(EVENT_TIME, metadata={_DELAY_MS: lateness_ms})
    return marked.withColumn(EVENT_TIME, compared).drop(_MOVES, ARRIVED)


class Relations:
    """Makes the relations of a run's streams.

    Args:
        run: Run of the rule.
        records: Records of all log topics that it reads.
        ticks: A row now and then, with messages or without.
        config: How a Kafka client in the executors reaches the log.
        checkpoint: Folder of the query's checkpoint.
        partitions: How many tasks the query's state is shared out to.
    """

    def __init__(
        self,
        run: StatefulRun,
        records: DataFrame,
        ticks: DataFrame,
        config: dict[str, str],
        checkpoint: str,
        partitions: int,
    ) -> None:
        self._run = run
        self._records = records
        self._ticks = ticks
        self._config = config
        self._checkpoint = checkpoint
        self._partitions = partitions

    def __call__(self, stream: StatefulStream) -> DataFrame:
        """Return the rows of a stream, with its watermark."""
        # The query may name layouts too, and nothing knows them after a restart.
        compile_stream(self._records.sparkSession, stream)
        rows = self._rows(stream)
        if stream.is_receive_time:
            rows = rows.withColumn(_IS_TICK, F.lit(False)).unionByName(self._tick_rows(stream))
        if self._partitions == 1:
            # Then everything is one task, and nothing is shuffled.
            rows = rows.coalesce(1)
        rows = with_watermark(rows, stream.lateness_ms)
        if stream.is_receive_time:
            # Ticks have moved the watermark.
            rows = rows.where(f"NOT {_IS_TICK}").drop(_IS_TICK)
        return rows

    def writer(self, spark: SparkSession) -> Any:
        """Return the Java object that writes a batch of output rows to the log."""
        return java_class(spark, _WRITER_CLASS)(
            java_map(spark, self._config),
            self._spec(self._run.plan.streams[0]),
            self._run.has_receive_time,
        )

    def _rows(self, stream: StatefulStream) -> DataFrame:
        spark = self._records.sparkSession
        spec = self._spec(stream)
        filter_name, function_name = f"mqlake_filter_{stream.name}", f"mqlake_{stream.name}"
        filter_ = java_class(spark, _FILTER_CLASS)(spec)
        register(spark, filter_name, filter_, 3, "boolean")
        function = java_class(spark, _FUNCTION_CLASS)(java_map(spark, self._config), spec)
        # Text travels as bytes: it is UTF-8 on both sides of the function.
        types = [
            (one.name, "BINARY" if one.type == "STRING" else one.type) for one in stream.columns
        ]
        fields = ", ".join(f"{name}: {type_}" for name, type_ in [(_MICROS, "BIGINT"), *types])
        register(spark, function_name, function, 8, f"ARRAY<STRUCT<{fields}>>")
        concerned = self._records.where(
            F.call_function(filter_name, F.col("topic"), F.col("key"), F.col("value"))
        )
        made = concerned.select(
            F.inline(
                F.call_function(
                    function_name,
                    F.col("topic"),
                    F.col("partition"),
                    F.col("offset"),
                    F.unix_millis("timestamp"),
                    F.col("key"),
                    F.col("value"),
                    F.col("headers.key"),
                    F.col("headers.value"),
                )
            ),
            F.col("timestamp").alias(ARRIVED),
        )
        return made.select(
            F.timestamp_micros(F.col(_MICROS)).alias(EVENT_TIME),
            ARRIVED,
            *(F.col(one.name).cast(one.type).alias(one.name) for one in stream.columns),
        )

    def _tick_rows(self, stream: StatefulStream) -> DataFrame:
        # The time of the batch, which a batch that comes again has too.
        return self._ticks.select(
            F.current_timestamp().alias(EVENT_TIME),
            F.current_timestamp().alias(ARRIVED),
            *(F.lit(None).cast(one.type).alias(one.name) for one in stream.columns),
            F.lit(True).alias(_IS_TICK),
        )

    def _spec(self, stream: StatefulStream) -> str:
        """Return the specification for the Java functions: StreamSpec.java reads it."""
        run = self._run
        return json.dumps(
            {
                "run": {
                    "tenant": run.tenant,
                    "rule": run.rule,
                    "version": run.span.version,
                    "change": run.span.change,
                    "run": run.name,
                    "checkpoint": self._checkpoint,
                },
                "stream": {
                    "name": stream.name,
                    "log_topic": log_topic(stream),
                    "is_events": stream.is_events,
                    "filters": stream.filters,
                    "condition": stream.condition,
                    "columns": expressions(stream),
                    "hops_column": _place_of_hops(stream),
                    "size_ms": stream.size_ms,
                    "slide_ms": stream.slide_ms,
                },
            }
        )
