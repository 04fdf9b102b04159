"""Outputs and dead letters to tables, by Spark and Delta without a log."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.records.messages import DEAD_LETTERS, OUTPUTS
from mqlake.records.outputs import (
    RERUN,
    DeadLetter,
    Output,
    Position,
    dead_letter_headers,
    output_headers,
    rule_record_key,
    table_row_headers,
)
from mqlake.records.rule_tables import rule_table, rule_tables
from rules.actions.contract import NewRecord
from rules.errors import RuleError
from rules.model import ActionSpec, Rule
from streaming import queries
from streaming.jobs.outputs import Outputs, columns
from streaming.log.checkpoints import checkpoint
from streaming.rules.program import Programs, TableAction, check_names, table_actions
from streaming.rules.table_metrics import TableMetrics
from streaming.rules.tables import Marks, without_ended
from streaming.settings.lake import LakeSettings
from streaming.tables.tables import create_tables

pytestmark = pytest.mark.spark

RECORDS = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


class Writer:
    """The writer of rule tables, and batches as they come from the log."""

    def __init__(self, spark: SparkSession, settings: LakeSettings) -> None:
        self.spark = spark
        self.actions: dict[tuple[str, str, int], tuple[TableAction, ...]] = {}
        self.waits: list[float] = []
        self.clock = ManualClock()
        self.told: list[NewRecord] = []
        self.metrics = TableMetrics(self.told.extend, lambda rule: rule != ("default", "gone"))
        self._settings = settings
        folder = checkpoint(settings.data_dir, queries.OUTPUTS)
        folder.mkdir(parents=True)
        (folder / "metadata").write_text('{"id": "query-1"}')
        self.outputs = self.restarted()
        self.offset = 0

    def restarted(self) -> Outputs:
        return Outputs(
            self._settings,
            self.clock,
            lambda version: self.actions.get(version, ()),
            self.waits.append,
            self.metrics,
        )

    def handed_over(self, *records: Output, table: str = "f") -> DataFrame:
        """Return a batch of outputs that the runner hands over for a table."""
        rows: list[Any] = []
        for record in records:
            self.offset += 1
            key = rule_record_key(record.tenant, record.rule)
            headers = table_row_headers(record, 0, table)
            at = [DEAD_LETTERS, 0, self.offset, None]
            rows.append([*at, bytearray(key), bytearray(record.row), headers])
        return self.spark.createDataFrame(rows, RECORDS)

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
    tenant: str = "default",
) -> Output:
    position = Position(source, partition, offset, index)
    data = json.dumps(row).encode()
    return Output(tenant, rule, version, data, position, 1_600_000_000_123, "a/b", "c")


def letter(offset: int, *, rule: str = "r", stage: Any = "evaluate") -> DeadLetter:
    action = None if stage == "evaluate" else "0/http"
    position = Position("i", 1, offset, 0)
    return DeadLetter(
        "default", rule, 1, b"\xff", position, stage, "why", "a/b", "c", action=action
    )


@pytest.fixture
def writer(
    spark: SparkSession, streaming_settings: LakeSettings, tmp_path: Path
) -> Iterator[Writer]:
    settings = streaming_settings.model_copy(update={"data_dir": tmp_path})
    create_tables(spark, settings)
    yield Writer(spark, settings)
    for name in (*rule_tables(tmp_path / "tables"), "dead_letters", "late"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_each_output_is_in_its_table_once_however_often_it_comes(writer: Writer) -> None:
    writer.actions["default", "r", 1] = (TableAction("rule_t", "n INT, v VARIANT", 0),)
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


@pytest.mark.campaign("the other tests of this file write outputs the same way")
def test_outputs_of_other_actions_are_left_alone_and_move_the_marks(writer: Writer) -> None:
    writer.actions["default", "b", 1] = (TableAction("rule_b", "n INT", 0),)
    writer.outputs(writer.batch(output(1, {}, rule="a"), output(1, {"n": 1}, rule="b")), 0)
    writer.outputs(writer.batch(output(1, {"n": 1}, rule="b"), output(2, {"n": 2}, rule="b")), 1)
    assert writer.rows("SELECT n FROM rule_b ORDER BY n") == [(1,), (2,)]


@pytest.mark.campaign("the other tests of this file write outputs the same way")
def test_rows_count_for_their_actions(writer: Writer) -> None:
    writer.actions["default", "r", 1] = (
        TableAction("rule_a", "n INT", 0),
        TableAction("rule_f", "n INT", 1, is_fallback=True),
        TableAction("rule_b", "n INT", 2),
    )
    writer.actions["default", "gone", 1] = (TableAction("rule_b", "n INT", 0),)
    # A column that Delta does not take: the table is left out.
    writer.actions["default", "bad", 1] = (TableAction("rule_c", "`a b` INT", 0),)
    writer.clock.step_calendar(30_123)
    first = [output(1, {"n": 1}), output(2, {"n": 2}), output(3, {"n": 3}, rule="elsewhere")]
    others = [output(4, {"a b": 1}, rule="bad"), output(5, {"n": 1}, rule="gone")]
    writer.outputs(writer.batch(*first, *others), 0)
    # The evaluation repeats what is there already: that counts once.
    writer.outputs(writer.batch(*first, output(6, {"n": 4})), 1)
    found = {record.key or b"": record.value or b"" for record in writer.told}
    (of_r,) = (json.loads(value) for key, value in found.items() if key.endswith(b"/default/r"))
    assert [(at, one["success"]) for at, one in of_r["actions"].items()] == [("0", 3), ("2", 3)]
    assert of_r["actions"]["0"]["latency_ms_sum"] == 90_000.0
    assert of_r["actions"]["0"]["latency"]["60000"] == 3
    (of_bad,) = (json.loads(value) for key, value in found.items() if key.endswith(b"/bad"))
    assert (of_bad["actions"]["0"]["success"], of_bad["actions"]["0"]["failed"]) == (0, 1)
    assert {key.rpartition(b"/")[2] for key in found} == {b"r", b"bad"}, "one rule is deleted"


def test_rows_that_a_table_cannot_take_are_dead_letters_and_the_others_arrive(
    writer: Writer,
) -> None:
    # Delta takes no such column; both versions write to one table.
    writer.actions["default", "r", 1] = (TableAction("rule_x", "n INT", 0),)
    writer.actions["default", "bad", 1] = (TableAction("rule_x", "n INT, `a b` INT", 2),)
    writer.actions["default", "fall", 1] = (
        TableAction("rule_y", "n INT, `a b` INT", 0, is_fallback=True),
    )
    batch = writer.batch(
        output(1, {"n": 1}),
        output(2, {"n": 2, "a b": 2}, rule="bad"),
        output(3, {"n": 3}),
        output(4, {"n": 4, "a b": 4}, rule="bad"),
    ).unionByName(writer.handed_over(output(5, {"n": 5}, rule="fall"), table="y"))
    writer.outputs(batch, 0)
    writer.restarted()(batch, 0)
    assert writer.rows("SELECT n FROM rule_x ORDER BY n") == [(1,), (3,)]
    rows = writer.rows(
        "SELECT rule, rule_version, stage, action, topic, client_id, source, log_partition,"
        " log_offset, CAST(value AS STRING), error FROM dead_letters ORDER BY log_offset"
    )
    place = ("a/b", "c", "mqlake.inbound", 0)
    assert [row[:-1] for row in rows] == [
        ("bad", 1, "action", "2/table", *place, 2, '{"n": 2, "a b": 2}'),
        ("bad", 1, "action", "2/table", *place, 4, '{"n": 4, "a b": 4}'),
        ("fall", 1, "action", "0/table", *place, 5, '{"n": 5}'),
    ]
    assert all("a b" in row[-1] for row in rows)
    # What the evaluation repeats comes once, here too.
    writer.outputs(writer.batch(output(4, {"n": 4, "a b": 4}, rule="bad")), 1)
    assert writer.rows("SELECT count(*) FROM dead_letters") == [(3,)]


@pytest.mark.promise
def test_tenants_that_write_to_a_name_share_nothing(writer: Writer) -> None:
    """No columns, no types, and no rows."""
    writer.actions["acme", "r", 1] = (TableAction("rule_x", "t BOOLEAN, secret INT", 0),)
    writer.actions["beta", "r", 1] = (TableAction("rule_x", "t DOUBLE", 0),)
    writer.actions["default", "r", 1] = (TableAction("rule_x", "t STRING", 0),)
    fallback = TableAction("rule_f", "t DOUBLE", 0, is_fallback=True)
    writer.actions["beta", "fall", 1] = (fallback,)
    batch = writer.batch(
        output(1, {"t": True, "secret": 1}, tenant="acme"),
        output(2, {"t": 21.5}, tenant="beta"),
        output(3, {"t": "hot"}),
    ).unionByName(writer.handed_over(output(4, {"t": 0.5}, rule="fall", tenant="beta")))
    writer.outputs(batch, 0)
    writer.restarted()(batch, 0)
    for tenant, name, t in (
        ("acme", "rule_x", True),
        ("beta", "rule_x", 21.5),
        ("default", "rule_x", "hot"),
        ("beta", "rule_f", 0.5),
    ):
        assert writer.rows(f"SELECT tenant, t FROM {rule_table(tenant, name)}") == [(tenant, t)]
    assert "secret" not in writer.spark.table(rule_table("beta", "rule_x")).columns
    assert not writer.spark.catalog.tableExists("rule_f")
    assert writer.rows("SELECT * FROM dead_letters") == []


@pytest.mark.campaign("the other tests of this file write outputs the same way")
def test_rows_for_which_a_table_has_no_room_are_dead_letters(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.tables.tables.MOST_COLUMNS", 6)
    writer.actions["acme", "r", 1] = (TableAction("rule_x", "n INT", 0),)
    writer.actions["acme", "r", 2] = (TableAction("rule_x", "n INT, m INT", 0),)
    first = output(1, {"n": 1}, tenant="acme")
    more = output(2, {"n": 2, "m": 2}, version=2, tenant="acme")
    writer.outputs(writer.batch(first, more), 0)
    assert writer.rows(f"SELECT n FROM {rule_table('acme', 'rule_x')}") == [(1,)]
    ((tenant, value, error),) = writer.rows(
        "SELECT tenant, CAST(value AS STRING), error FROM dead_letters"
    )
    assert (tenant, value) == ("acme", '{"n": 2, "m": 2}')
    assert error == (
        "rule_x cannot take it: it would have 7 columns, expected at most 6: there is no room for m"
    )


def test_metrics_that_the_log_did_not_take_are_told_later() -> None:
    told: list[NewRecord] = []
    is_away = True

    def append(records: list[NewRecord]) -> None:
        if is_away:
            raise LogError("away", definite=False)
        told.extend(records)

    metrics = TableMetrics(append, lambda _rule: True)
    metrics.rules.counters("default", "r", 0, "table").succeed_many(2, 0, 1.5)
    metrics.write()
    is_away = False
    metrics.write()
    metrics.write()
    (record,) = told
    assert record.value is not None
    assert json.loads(record.value)["actions"]["0"]["success"] == 2


@pytest.mark.campaign("the other tests of this file write outputs the same way")
def test_a_table_grows_with_its_rules_and_keeps_its_types(writer: Writer) -> None:
    writer.actions["default", "r", 1] = (TableAction("rule_g", "n INT, s STRING", 0),)
    writer.actions["default", "r", 2] = (
        TableAction("rule_g", "n STRING, `N-2` DOUBLE, s STRUCT<x: INT>, o VOID", 0),
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


@pytest.mark.campaign("the other tests of this file write outputs the same way")
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


def test_a_fallback_adds_each_output_once_however_often_it_is_handed_over(writer: Writer) -> None:
    fallback = TableAction("rule_f", "n INT", 0, is_fallback=True)
    writer.actions["default", "r", 1] = (fallback,)
    writer.outputs(writer.batch(output(1, {"n": 1}), output(2, {"n": 2})), 0)
    assert not writer.spark.catalog.tableExists("rule_f")
    again = writer.handed_over(output(2, {"n": 2}), output(1, {"n": 1}), output(2, {"n": 2}))
    writer.outputs(again, 1)
    writer.restarted()(again, 1)
    writer.outputs(writer.handed_over(output(1, {"n": 1}), output(3, {"n": 3})), 2)
    query = "SELECT output_id, n FROM rule_f ORDER BY output_id"
    assert writer.rows(query) == [(f"r/1/i:0:{n}:0", n) for n in (1, 2, 3)]
    assert writer.rows("SELECT * FROM dead_letters") == []
    # Days later nobody knows the version any more: the table itself has its columns.
    writer.actions.clear()
    writer.outputs(writer.handed_over(output(4, {"n": 4, "m": 1})), 3)
    assert len(writer.rows(query)) == 4


@pytest.mark.campaign("the other tests of this file write outputs the same way")
def test_a_fallback_whose_columns_nobody_knows_is_a_dead_letter(writer: Writer) -> None:
    batch = writer.handed_over(output(1, {"n": 1}), table="g").unionByName(
        writer.handed_over(output(2, {}), table="not; a name")
    )
    writer.outputs(batch.unionByName(writer.batch(letter(7, stage="action"))), 0)
    writer.restarted()(batch, 0)
    rows = writer.rows(
        "SELECT stage, action, log_offset, error FROM dead_letters ORDER BY log_offset"
    )
    assert [row[:3] for row in rows] == [("action", "0/table", 1), ("action", "0/http", 7)]
    assert "columns" in rows[0][3]


@pytest.mark.campaign("the other tests of this file write outputs the same way")
def test_what_a_rule_with_memory_left_out_is_there_once(writer: Writer) -> None:
    def of_stream(offset: int, stage: Any, stream: str = "s0") -> DeadLetter:
        position = Position(f"i.w3-0a.{stream}", 1, offset, 0)
        found = DeadLetter("default", "r", 1, b"v", position, stage, "why", "a/b", "c")
        if stage == "late":
            found.event_time_ms, found.watermark_ms = 1_600_000_000_123, 1_600_000_001_000
        return found

    first = [letter(90), of_stream(5, "late"), of_stream(6, "evaluate"), of_stream(5, "late", "s1")]
    writer.outputs(writer.batch(*first), 0)
    writer.outputs(writer.batch(*first[1:], of_stream(7, "late"), letter(91)), 1)
    writer.outputs(writer.batch(output(4, {"n": 1}, source="w3-0a")), 2)
    assert writer.rows(
        "SELECT rule, topic, source, log_partition, log_offset, unix_millis(event_time),"
        " unix_millis(watermark) FROM late ORDER BY log_offset"
    ) == [
        ("r", "a/b", "mqlake.inbound", 1, offset, 1_600_000_000_123, 1_600_000_001_000)
        for offset in (5, 5, 7)
    ]
    query = "SELECT source, log_offset FROM dead_letters ORDER BY log_offset"
    assert writer.rows(query) == [("mqlake.inbound", offset) for offset in (6, 90, 91)]


def test_marks_of_runs_that_are_over_are_forgotten() -> None:
    marks: Marks = {
        ("i", 0): (1, "r", 0),
        ("bjob", 0): (1, "r", 0),
        ("w3-0a", 1): (1, "r", 0),
        ("i.w3-0a.s0", 0): (1, "r", 0),
        ("w4-0a", 1): (1, "r", 0),
        ("e.w4-0a.s1", 0): (1, "r", 0),
    }
    assert without_ended(marks, {"w4-0a"}).keys() == marks.keys() - {
        ("w3-0a", 1),
        ("i.w3-0a.s0", 0),
    }


@pytest.mark.campaign("the other tests of this file write outputs the same way")
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
    table = ActionSpec(function="table", args={"name": "t"})
    http = ActionSpec(function="http", args={"url": "https://example.org"}, fallback=(table,))
    program = programs(a_rule(sql).model_copy(update={"actions": (http,)}))
    assert program.schema is not None
    (found,) = table_actions(program.actions, program.schema)
    assert found == TableAction("rule_t", program.schema, 0, is_fallback=True)
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


@pytest.mark.campaign("the other tests of this file write outputs the same way")
def test_what_is_run_again_comes_in_any_order(writer: Writer) -> None:
    writer.actions["default", "r", 1] = (TableAction("rule_t", "n INT", 0),)
    late, early = output(9, {"n": 9}, source=RERUN), output(3, {"n": 3}, source=RERUN)
    writer.outputs(writer.batch(late, early), 0)
    writer.outputs(writer.batch(output(1, {"n": 1}, source=RERUN), output(1, {"n": 0})), 1)
    found = writer.rows("SELECT output_id FROM rule_t ORDER BY n")
    assert [one for (one,) in found] == ["r/1/i:0:1:0", *(f"r/1/r:0:{n}:0" for n in (1, 3, 9))]
