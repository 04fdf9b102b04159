"""What a compiled stateful rule tells; no Spark."""

import json
import time

import pytest

from rules.errors import RuleError
from rules.language.compiler import compile_rule
from rules.language.plan import HOPS, Plan, decode_plan, encode_plan
from rules.sql.durations import InvalidDuration, interval, milliseconds, shown
from tests.pace import within
from tests.rules.language.cases import read_stateful_cases, read_stateful_examples
from tests.rules.language.test_refused import BIG

WINDOW = "tumble(timestamp, '1 minute')"
REFERENCES = {
    "machines": (("id", "BIGINT"), ("site", "STRING")),
    "meters": (("id", "STRING"),),
}


def plan_of(sql: str) -> Plan:
    plan = compile_rule(sql).plan
    assert plan is not None
    return plan


def refusal(sql: str) -> RuleError:
    with pytest.raises(RuleError) as caught:
        compile_rule(sql, REFERENCES)
    return caught.value


def test_plans_survive_json() -> None:
    for case in (*read_stateful_cases(), *read_stateful_examples()):
        plan = plan_of(case.sql)
        assert decode_plan(json.loads(json.dumps(encode_plan(plan)))) == plan


def test_a_rule_has_an_expression_or_a_plan() -> None:
    assert compile_rule("SELECT topic FROM 'a'").plan is None
    rule = compile_rule(f"SELECT count(*) AS n FROM 'a' GROUP BY {WINDOW}")
    assert rule.expression is None
    assert rule.columns == ("n",)
    assert rule.filters == ("a",)


def test_conditions_are_those_of_single_messages() -> None:
    rule = compile_rule(
        f"SELECT count(*) AS n FROM 'a' JOIN machines AS m ON m.id = clientid "
        f"WHERE payload.x > 1 AND m.site = 'Ulm' AND qos = 1 GROUP BY {WINDOW} HAVING n > 1"
    )
    assert [condition.text for condition in rule.conditions] == ["payload.x > 1", "qos = 1"]
    assert [one.name for one in rule.fields] == ["clientid", "payload.x", "qos", "timestamp"]


def test_streams_have_only_the_columns_that_are_used() -> None:
    plan = plan_of(
        "SELECT a.topic FROM 'a' AS a JOIN 'b' AS b ON a.clientid = b.clientid WITHIN '1 s' "
        "WHERE b.payload.x = 1 AND a.qos = 1"
    )
    expressions = [
        [column.expression for column in stream.columns if column.name != HOPS]
        for stream in plan.streams
    ]
    assert expressions == [["clientid", "topic"], ["clientid"]]
    assert "qos" in plan.streams[0].condition
    assert "x" in plan.streams[1].condition


def test_a_condition_on_what_may_be_missing_comes_after_the_join() -> None:
    plan = plan_of(
        "SELECT a.topic FROM 'a' AS a LEFT JOIN 'b' AS b ON a.clientid = b.clientid WITHIN '1 s' "
        "WHERE b.topic IS NULL"
    )
    assert plan.streams[1].condition == "true"
    assert plan.query.endswith("WHERE (s1.c1 IS NULL)")


@pytest.mark.parametrize(
    ("window", "is_receive_time", "lateness", "size", "slide"),
    [
        ("tumble(timestamp, '1 minute')", True, 2_000, 60_000, 60_000),
        ("tumble(publish_received_at, '1 minute', '0 s')", True, 0, 60_000, 60_000),
        ("hop(payload.ts, '1 hour', '5 min')", False, 10_000, 3_600_000, 300_000),
        ("session(payload.ts, '1 day', lateness => '1h')", False, 3_600_000, 86_400_000, 0),
        ("tumble(time => payload.ts, size => '1 minute')", False, 10_000, 60_000, 60_000),
    ],
)
def test_windows_tell_their_time(
    window: str, is_receive_time: bool, lateness: int, size: int, slide: int
) -> None:
    (stream,) = plan_of(f"SELECT count(*) AS n FROM 'a' GROUP BY {window}").streams
    assert stream.is_receive_time is is_receive_time
    assert (stream.lateness_ms, stream.size_ms, stream.slide_ms) == (lateness, size, slide)


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        ("true WITHIN '30 s'", ("-30.000", "30.000")),
        ("b.timestamp BETWEEN a.timestamp AND a.timestamp + INTERVAL '5 s'", ("0.000", "5.000")),
        (
            "a.timestamp BETWEEN b.timestamp - INTERVAL '1 minute' AND b.timestamp + INTERVAL 2 s",
            ("-2.000", "60.000"),
        ),
        ("b.timestamp > a.timestamp AND b.timestamp < a.timestamp + INTERVAL '1 s'",
         ("0.001", "0.999")),
        ("a.timestamp - b.timestamp < 5 WITHIN '1 s'", ("-1.000", "1.000")),
        ("b.timestamp >= a.timestamp WITHIN '1 s'", ("0.000", "1.000")),
    ],
)  # fmt: skip
def test_intervals_of_joins(condition: str, bounds: tuple[str, str]) -> None:
    plan = plan_of(f"SELECT a.topic FROM 'a' AS a JOIN 'b' AS b ON a.qos = b.qos AND {condition}")
    low, high = bounds
    assert f"s1.event_time >= s0.event_time + INTERVAL '{low}' SECOND" in plan.query
    assert f"s1.event_time <= s0.event_time + INTERVAL '{high}' SECOND" in plan.query


def test_references_are_named_with_the_columns_read() -> None:
    (reference,) = plan_of(
        "SELECT m.site FROM 'a' JOIN machines AS m ON m.id = clientid WHERE m.on = true"
    ).references
    assert (reference.table, reference.columns) == ("machines", ("id", "site", "on"))


def test_a_reference_that_is_not_there_is_refused() -> None:
    error = refusal("SELECT topic FROM 'a'\nJOIN machine ON machine.id = clientid")
    assert error.problem == "there is no reference table machine"
    assert (error.line, error.column, error.fragment) == (2, 6, "machine")
    assert error.hint == "there are: machines, meters"
    compile_rule("SELECT topic FROM 'a' JOIN machines ON machines.id = clientid", REFERENCES)


def test_a_column_that_a_reference_has_not_is_refused() -> None:
    error = refusal("SELECT machines.name FROM 'a' JOIN machines ON machines.id = clientid")
    assert (error.column, error.hint) == (8, "machines has: id, site")


@pytest.mark.parametrize(
    ("sql", "line", "column", "fragment", "hint"),
    [
        (
            f"SELECT payload.t,\n count(*) AS n FROM 'a'\nGROUP BY clientid, {WINDOW}",
            1, 8, "payload.t", "last(payload.t)",
        ),
        (
            f"SELECT count(*) AS n FROM 'a' GROUP BY\n clientId, {WINDOW}",
            2, 2, "clientId", "did you mean clientid?",
        ),
        (
            f"SELECT avg(payload.t) AS t FROM 'a' WHERE t > 5 GROUP BY {WINDOW}",
            1, 43, "t", "HAVING",
        ),
        ("SELECT count(*) AS n FROM 'a'", 1, 8, "count(*)", "GROUP BY"),
        ("SELECT topic FROM 'a' JOIN 'b' AS b ON true", 1, 23, "JOIN 'b' AS b ON true", "AS a"),
    ],
)  # fmt: skip
def test_refusal_names_the_place(
    sql: str, line: int, column: int, fragment: str, hint: str
) -> None:
    error = refusal(sql)
    assert (error.line, error.column, error.fragment) == (line, column, fragment)
    assert hint in error.hint


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT {', '.join(['count(*)'] * 201)} FROM 't' GROUP BY {WINDOW}",
        f"SELECT 1 AS x FROM 't' GROUP BY {', '.join(['qos'] * 17)}, {WINDOW}",
        "SELECT payload.x AS a0, "
        + ", ".join(f"a{n} + a{n} AS a{n + 1}" for n in range(30))
        + f", sum(a30) AS s FROM 't' GROUP BY {WINDOW}",
        "SELECT sum(payload.x) AS a0, "
        + ", ".join(f"a{n} + a{n} AS a{n + 1}" for n in range(30))
        + f" FROM 't' GROUP BY {WINDOW}",
        (
            f"SELECT {BIG} AS a, {', '.join(f'sum(a + {n})' for n in range(190))} "
            f"FROM 't' GROUP BY {WINDOW}"
        ),
        (
            f"SELECT {BIG} AS a, count(*) AS n FROM 't' GROUP BY {', '.join(['a'] * 15)}, {WINDOW} "
            f"HAVING {' AND '.join(['a = 1'] * 500)}"
        ),
        (
            f"SELECT a.topic FROM 't' AS a JOIN 'u' AS b ON a.qos = b.qos AND "
            f"{' AND '.join(['a.payload.x + b.payload.x > 1'] * 400)} WITHIN '1 s'"
        ),
        f"SELECT {BIG} AS a, topic FROM 't' WHERE debounce({' AND '.join(['a = 1'] * 500)}, '1 s')",
    ],
)
def test_what_is_too_large_is_refused_soon(sql: str) -> None:
    started = time.process_time()
    refusal(sql)
    assert time.process_time() - started < within(5)


def test_a_key_is_the_same_however_it_is_written() -> None:
    rule = compile_rule(
        "SELECT topic(2) AS machine, upper((topic( 2 ))) AS shown, count(*) AS n FROM 'a' "
        f"GROUP BY machine, {WINDOW}"
    )
    assert rule.columns == ("machine", "shown", "n")


@pytest.mark.parametrize(
    ("written", "expected"),
    [("30 seconds", 30_000), ("1h 30 min", 5_400_000), ("500ms", 500), (" 2 DAYS ", 172_800_000)],
)
def test_spans_of_time(written: str, expected: int) -> None:
    assert milliseconds(written) == expected


@pytest.mark.parametrize("written", ["", "5", "five minutes", "1 month", "-1 s", "1.5 s", "1 s,"])
def test_what_is_no_span_of_time(written: str) -> None:
    with pytest.raises(InvalidDuration):
        milliseconds(written)


def test_spans_are_shown_in_their_largest_unit() -> None:
    assert [shown(ms) for ms in (1_000, 120_000, 3_600_000, 172_800_000, 1_500)] == [
        "1 second", "2 minutes", "1 hour", "2 days", "1500 milliseconds",
    ]  # fmt: skip
    assert interval(-1_500) == "INTERVAL '-1.500' SECOND"
