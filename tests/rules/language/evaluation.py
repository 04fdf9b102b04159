"""Evaluating compiled rules on made-up messages, many in one Spark job.

Spark runs in a JVM as router and lake start it, without anything of its own.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import py4j.java_gateway
import py4j.protocol
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from launcher.paths import RUNTIME
from mqlake.topics.matching import filter_matches
from rules.columns import ROW
from rules.detections import batch_query
from rules.language.compiled import CompiledRule
from rules.language.plan import AT_COLUMN, DETECTED, EVENT_TIME, ROW_COLUMN, Plan, StatefulStream
from streaming.engine.spark import start_spark
from streaming.settings.spark import StreamingSettings

FAILED = "failed"
"""What stands for the rows of a rule that failed."""

_AT_ONCE = 10
"""Rules in one expression: with more the JIT gives up on the generated code, with fewer Spark plans
longer."""


@dataclass(frozen=True, slots=True)
class Message:
    """A record as the engine gives it to a rule; what is not named is as in most cases."""

    payload: bytes = b"{}"
    topic: str = "plant/7/temp"
    username: str | None = "ann"
    qos: int = 1
    retain: bool = False
    dup: bool = False
    properties: dict[str, Any] | None = field(
        default_factory=lambda: {
            "content_type": "text/plain",
            "user_property": [["unit", "K"], ["site", "b"], ["unit", "C"]],
        }
    )
    event: str | None = None
    event_fields: dict[str, Any] | None = None
    id: str = "000102030405060708090a0b0c0d0e0f"
    tenant: str = "default"
    clientid: str = "c-1"
    protocol_level: int = 5
    publish_received_at: int = 1_700_000_000_123
    timestamp: int = 1_700_000_000_123
    peerhost: str | None = "192.0.2.7"
    gateway: str = "gateway-1"
    site: str = "local"
    log_partition: int = 0
    log_offset: int = 7

    def with_fields(self, fields: dict[str, Any]) -> "Message":
        """Return the message with some fields of a test's data; the payload is text or JSON."""
        fields = dict(fields)
        if "payload" in fields:
            payload = fields["payload"]
            text = payload if isinstance(payload, str) else json.dumps(payload)
            fields["payload"] = text.encode()
        return replace(self, **fields)


_PARSED = {
    "payload_json": "try_parse_json(try_validate_utf8(CAST(payload AS STRING)))",
    "properties": "try_parse_json(properties)",
    "event_fields": "try_parse_json(event_fields)",
}


_CONF = {
    "spark.default.parallelism": "1",
    "spark.sql.shuffle.partitions": "1",
    # Expressions are compiled, as the engine does it. A whole stage costs more for one row.
    "spark.sql.codegen.wholeStage": "false",
    # The last windows of a stream end without a record behind them.
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    "spark.sql.session.timeZone": "America/St_Johns",
}
"""Of the tests' Spark, in place of what the applications have."""


@contextmanager
def running_session() -> Iterator[SparkSession]:
    """Run Spark as the applications do, in a JVM of its own that leaves no trace in pyspark."""
    if SparkContext._active_spark_context is not None:  # another test's
        yield SparkSession.builder.getOrCreate()
        return
    with TemporaryDirectory() as folder:
        settings = StreamingSettings(
            data_dir=Path(folder), jars_dir=RUNTIME / "jars", master="local[1]", spark=_CONF
        )
        one_compiler = ("-XX:TieredStopAtLevel=1",)
        session, jvm = start_spark(
            settings, "rules", Path(folder), 1024, java=one_compiler, has_tables=False
        )
        try:
            session.sparkContext.setLogLevel("OFF")
            yield session
            session.stop()
        finally:
            jvm.kill()
            SparkContext._gateway = SparkContext._jvm = None
            # pyspark put its own here, which asks the context about each error in Java.
            py4j.java_gateway.get_return_value = py4j.protocol.get_return_value
            del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]


@contextmanager
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Have expressions interpreted, no code made of them, for the length of a `with` block."""
    settings = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # which counts in tests only
    }
    jvm: Any = spark.sparkContext._jvm
    compilations = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    before = compilations.getCount()
    jvm.java.lang.System.setProperty("spark.testing", "true")
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
        assert compilations.getCount() == before
    finally:
        jvm.java.lang.System.clearProperty("spark.testing")
        for name in settings:
            spark.conf.unset(name)


def rows_of(spark: SparkSession, messages: Sequence[Message]) -> DataFrame:
    """Return the messages as rows of `rules.columns.ROW`, with their number as `case_id`."""
    plain = [column for column in ROW if column.name != "payload_json"]
    schema = "case_id INT, " + ", ".join(
        f"{column.name} {'STRING' if column.type == 'VARIANT' else column.type}" for column in plain
    )
    data = []
    for number, message in enumerate(messages):
        values: list[Any] = [number]
        for column in plain:
            value = getattr(message, column.name)
            values.append(json.dumps(value) if isinstance(value, dict) else value)
        data.append(tuple(values))
    frame = spark.createDataFrame(data, schema)
    columns = (f"{_PARSED.get(column.name, column.name)} AS {column.name}" for column in ROW)
    return frame.selectExpr("case_id", *columns)


def expression_of(rule: CompiledRule) -> str:
    """Return the expression of a stateless rule."""
    assert rule.expression is not None
    return rule.expression


def evaluate(
    spark: SparkSession, cases: Sequence[tuple[CompiledRule, Message]]
) -> list[list[Any] | None]:
    """Return the output rows of each rule on its message; none of them may fail."""
    numbers: dict[str, list[int]] = {}
    for number, (rule, _) in enumerate(cases):
        numbers.setdefault(expression_of(rule), []).append(number)
    expressions = list(numbers)
    columns = []
    for first in range(0, len(expressions), _AT_ONCE):
        whens = " ".join(
            f"WHEN case_id IN ({', '.join(map(str, numbers[expression]))}) THEN {expression}"
            for expression in expressions[first : first + _AT_ONCE]
        )
        columns.append(f"CASE {whens} END AS c{first}")
    frame = rows_of(spark, [message for _, message in cases]).selectExpr("case_id", *columns)
    found: list[list[Any] | None] = [None] * len(cases)
    for case_id, *outputs in frame.collect():
        made = next((one for one in outputs if one is not None), None)
        found[case_id] = None if made is None else [json.loads(output) for output in made]
    return found


def failure(spark: SparkSession, rule: CompiledRule, message: Message) -> str | None:
    """Return why a rule fails on a message, None when it does not."""
    try:
        rows_of(spark, [message]).selectExpr(expression_of(rule)).collect()
    except (Py4JJavaError, PySparkException) as exc:
        return str(exc)
    return None


def values(spark: SparkSession, message: Message, expressions: Iterable[str]) -> list[Any]:
    """Return what expressions yield on a message."""
    (row,) = rows_of(spark, [message]).selectExpr(*expressions).collect()
    return list(row)


def run(
    spark: SparkSession,
    rule: CompiledRule,
    messages: Sequence[Message],
    references: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    until_ms: int | None = None,
) -> list[Any]:
    """Return the outputs of a stateful rule, evaluated as one batch; None for one that failed.

    Args:
        spark: The session.
        rule: A rule that has a plan.
        messages: In the order of the log.
        references: The rows of the reference tables.
        until_ms: How far time has gone on when detections look; the last message without it.
    """
    plan = rule.plan
    assert plan is not None
    relate(spark, plan, messages, references or {}, until_ms)
    rows = spark.sql(plan.query).orderBy(AT_COLUMN, ROW_COLUMN).collect()
    return [None if row[0] is None else json.loads(row[0]) for row in rows]


def relate(
    spark: SparkSession,
    plan: Plan,
    messages: Sequence[Message],
    references: Mapping[str, Sequence[Mapping[str, Any]]],
    until_ms: int | None = None,
) -> None:
    """Give the relations of a plan what it reads."""
    numbered = [replace(one, log_offset=place) for place, one in enumerate(messages)]
    for stream in plan.streams:
        rows = rows_of(spark, [one for one in numbered if takes(stream, one)])
        columns = [f"{column.expression} AS {column.name}" for column in stream.columns]
        rows.where(stream.condition).selectExpr(
            *columns, f"{stream.event_time} AS {EVENT_TIME}"
        ).createOrReplaceTempView(stream.name)
    for reference in plan.references:
        given = references[reference.table]
        spark.createDataFrame([dict(row) for row in given]).createOrReplaceTempView(reference.name)
    if plan.detection is not None:
        columns = [EVENT_TIME, *(column.name for column in plan.streams[0].columns)]
        until = "NULL" if until_ms is None else f"timestamp_millis({until_ms})"
        query = batch_query(plan.detection, columns, plan.detection.stream, until)
        spark.sql(query).createOrReplaceTempView(DETECTED)


def takes(stream: StatefulStream, message: Message) -> bool:
    if stream.is_events:
        name = f"$events/{(message.event or '').replace('.', '_')}"
        return name in stream.filters
    return message.event is None and any(filter_matches(f, message.topic) for f in stream.filters)
