"""Outputs and dead letters to tables, by Spark and Delta without a log."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from mqlake.clock import ManualClock
from mqlake.records import DEAD_LETTERS, OUTPUTS
from mqlake.rule_records import (
    DeadLetter,
    Output,
    Position,
    dead_letter_headers,
    output_headers,
    rule_record_key,
)
from rules.errors import RuleError
from rules.model import ActionSpec, Rule
from streaming.jobs.outputs import Outputs, checkpoint, columns
from streaming.rules.program import Programs, TableAction, check_names
from streaming.settings import StreamingSettings
from streaming.tables import create_tables, rule_tables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

RECORDS = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


class Writer:
    """The writer of rule tables, and batches as they come from the log."""

    def __init__(self, spark: SparkSession, settings: StreamingSettings) -> None:
        self.spark = spark
        self.actions: dict[tuple[str, str, int], tuple[TableAction, ...]] = {}
        self.waits: list[float] = []
        self._settings = settings
        folder = checkpoint(settings)
        folder.mkdir(parents=True)
        (folder / "metadata").write_text('{"id": "query-1"}')
        self.outputs = self.restarted()
        self.offset = 0

    def restarted(self) -> Outputs:
        return Outputs(
            self._settings,
            ManualClock(),
            lambda version: self.actions.get(version, ()),
            self.waits.append,
        )

    def batch(self, *records: Output | DeadLetter) -> DataFrame:
        rows: list[Any] = []
        for record in records:
            self.offset += 1
            is_output = isinstance(record, Output)
            log_topic = OUTPUTS if is_output else DEAD_LETTERS
            partition = record.position.partition if is_output else 0
            value = record.row if isinstance(record, Output) else record.value
            headers = (
                output_headers(record)
                if isinstance(record, Output)
                else dead_letter_headers(record)
            )
            key = rule_record_key(record.tenant, record.rule)
            at = [log_topic, partition, self.offset, None]
            rows.append([*at, bytearray(key), bytearray(value), headers])
        return self.spark.createDataFrame(rows, RECORDS)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(sql).collect()]


def output(
    offset: int,
    row: dict[str, Any],
    *,
    rule: str = "r",
    version: int = 1,
    index: int = 0,
    source: str = "i",
    partition: int = 0,
) -> Output:
    position = Position(source, partition, offset, index)
    data = json.dumps(row).encode()
    return Output("default", rule, version, data, position, 1_600_000_000_123, "a/b", "c")


def letter(offset: int, *, rule: str = "r", stage: Any = "evaluate") -> DeadLetter:
    action = None if stage == "evaluate" else "0/http"
    position = Position("i", 1, offset, 0)
    return DeadLetter(
        *("default", rule, 1, b"\xff", position, stage, "why", "a/b", "c"), action=action
    )


@pytest.fixture
def writer(
    spark: SparkSession, streaming_settings: StreamingSettings, tmp_path: Path
) -> Iterator[Writer]:
    settings = streaming_settings.model_copy(update={"data_dir": tmp_path})
    create_tables(spark, settings)
    yield Writer(spark, settings)
    for name in (*rule_tables(settings), "dead_letters"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_each_output_is_in_its_table_once_however_often_it_comes(writer: Writer) -> None:
    writer.actions["default", "r", 1] = (TableAction("rule_t", "n INT, v VARIANT"),)
    first = [output(1, {"n": 1, "v": {"a": 1}}), output(2, {"n": 2}), output(2, {"n": 3}, index=1)]
    writer.outputs(writer.batch(*first, output(1, {"n": 9})), 0)
    expected = [("r/1/i:0:1:0", 1), ("r/1/i:0:2:0", 2), ("r/1/i:0:2:1", 3)]
    query = "SELECT output_id, n FROM rule_t ORDER BY output_id"
    assert writer.rows(query) == expected
    assert writer.rows("SELECT v:a::int, rule, rule_version, unix_millis(ts) FROM rule_t")[0] == (
        *(1, "r", 1),
        1_600_000_000_123,
    )
    # The evaluation repeats its last outputs; then the batch comes again, after a kill.
    again = writer.batch(*first, output(3, {"n": 4}), output(1, {"n": 5}, partition=1))
    writer.outputs(again, 1)
    writer.restarted()(again, 1)
    expected += [("r/1/i:0:3:0", 4), ("r/1/i:1:1:0", 5)]
    assert writer.rows(query) == sorted(expected)
    writer.restarted()(writer.batch(output(3, {"n": 4}), output(1, {"n": 6}, source="bjob")), 2)
    assert writer.rows(query) == sorted([*expected, ("r/1/bjob:0:1:0", 6)])
    assert len(writer.waits) == 4


def test_outputs_of_other_actions_are_left_alone_and_move_the_marks(writer: Writer) -> None:
    writer.actions["default", "b", 1] = (TableAction("rule_b", "n INT"),)
    writer.outputs(writer.batch(output(1, {}, rule="a"), output(1, {"n": 1}, rule="b")), 0)
    writer.outputs(writer.batch(output(1, {"n": 1}, rule="b"), output(2, {"n": 2}, rule="b")), 1)
    assert writer.rows("SELECT n FROM rule_b ORDER BY n") == [(1,), (2,)]


def test_a_table_grows_with_its_rules_and_keeps_its_types(writer: Writer) -> None:
    writer.actions["default", "r", 1] = (TableAction("rule_g", "n INT, s STRING"),)
    writer.actions["default", "r", 2] = (
        TableAction("rule_g", "n STRING, `N-2` DOUBLE, s STRUCT<x: INT>, o VOID"),
    )
    writer.outputs(writer.batch(output(1, {"n": 1, "s": "a"})), 0)
    writer.outputs(
        writer.batch(
            output(2, {"n": 2, "s": "b"}),
            output(3, {"n": "3", "N-2": 1.5, "s": {"x": 1}, "o": None}, version=2),
            output(4, {"n": "no number"}, version=2),
        ),
        1,
    )
    assert writer.rows("SELECT n, `N-2`, s, o FROM rule_g ORDER BY output_id") == [
        (1, None, "a", None),
        (2, None, "b", None),
        (3, 1.5, '{"x":1}', None),
        (None, None, None, None),
    ]


def test_dead_letters_of_the_evaluation_are_there_once(writer: Writer) -> None:
    records = [letter(1), letter(1, rule="s"), letter(2), letter(1, stage="action")]
    writer.outputs(writer.batch(*records), 0)
    writer.outputs(writer.batch(letter(1), letter(2), letter(3)), 1)
    rows = writer.rows(
        "SELECT rule, stage, action, error, topic, client_id, source, log_partition, log_offset "
        "FROM dead_letters ORDER BY log_offset, rule, stage DESC"
    )
    place = ("mqlake.inbound", 1)
    assert rows == [
        ("r", "evaluate", None, "why", "a/b", "c", *place, 1),
        ("r", "action", "0/http", "why", "a/b", "c", *place, 1),
        ("s", "evaluate", None, "why", "a/b", "c", *place, 1),
        ("r", "evaluate", None, "why", "a/b", "c", *place, 2),
        ("r", "evaluate", None, "why", "a/b", "c", *place, 3),
    ]
    assert writer.rows("SELECT DISTINCT value FROM dead_letters") == [(bytearray(b"\xff"),)]


def test_records_of_others_harm_nothing(writer: Writer) -> None:
    row = [OUTPUTS, 0, 1, None, bytearray(b"\xff"), None, [("output", bytearray(b"x"))]]
    writer.outputs(writer.spark.createDataFrame([row], RECORDS), 0)
    assert columns("a INT, b STRUCT<c: STRING>") == {"a": "int", "b": "struct<c:string>"}


def a_rule(sql: str, *, table: bool = True) -> Rule:
    actions = (ActionSpec(function="table", args={"name": "t"}),) if table else ()
    return Rule(id="r", sql=sql, actions=actions, created_at=0, updated_at=0)


def test_a_definition_becomes_a_program_with_the_schema_of_its_rows(spark: SparkSession) -> None:
    programs = Programs(spark)
    sql = 'SELECT payload.t AS t, payload.t + 1 AS u, clientid, 1 AS a.b FROM "a/#" WHERE qos = 1'
    program = programs(a_rule(sql))
    assert program.filters == ("a/#",)
    assert program.schema is not None
    assert list(columns(program.schema)) == ["t", "u", "clientid", "a"]
    assert columns(program.schema)["t"] == "variant"
    assert columns(program.schema)["clientid"] == "string"
    assert programs(a_rule(sql, table=False)).schema is None
    with pytest.raises(RuleError, match="ts"):
        programs(a_rule('SELECT qos AS ts FROM "a"'))
    with pytest.raises(RuleError):
        programs(a_rule("SELECT"))


def test_columns_that_a_table_cannot_have_are_refused() -> None:
    check_names(("a", "b.c", "b.d"))
    with pytest.raises(RuleError, match="two columns"):
        check_names(("a", "A"))
    for name in ("a b", "a.b=c", "f(x)"):
        with pytest.raises(RuleError, match="cannot have a column"):
            check_names((name,))
