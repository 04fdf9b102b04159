"""What the language refuses, and where it says so."""

import time
from pathlib import Path

import pytest

from rules.errors import RuleError
from rules.language.compiler import compile_rule
from rules.language.limits import DEFAULT_LIMITS

HOSTILE = [
    line
    for line in (Path(__file__).parent / "hostile.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


BIG = " + ".join(["payload.some.long.name.of.a.field"] * 90)


def refusal(sql: str) -> RuleError:
    with pytest.raises(RuleError) as caught:
        compile_rule(sql)
    return caught.value


def test_there_are_enough_hostile_statements() -> None:
    assert len(HOSTILE) >= 60


@pytest.mark.parametrize("sql", HOSTILE)
def test_hostile_statement_is_refused_with_a_place(sql: str) -> None:
    error = refusal(sql)
    assert error.line == 1
    assert error.column is not None
    assert 1 <= error.column <= len(sql) + 1
    assert error.fragment in sql


@pytest.mark.parametrize(
    ("sql", "line", "column", "fragment", "hint"),
    [
        ('SELECT uper(topic) FROM "t"', 1, 8, "uper(topic)", "did you mean upper?"),
        ('SELECT clientId FROM "t"', 1, 8, "clientId", "did you mean clientid?"),
        (
            'SELECT temperature FROM "t"',
            1,
            8,
            "temperature",
            "a field of the payload is payload.temperature; text is in single quotes",
        ),
        ('SELECT a,\n  b AS c\nFRM "t"', 3, 1, "FRM", "did you mean FROM in place of FRM?"),
        ("SELECT payload.t FORM 't'", 1, 23, "'t'", "did you mean FROM in place of FORM?"),
        ("SELECT payload.form 't'", 1, 21, "'t'", 'SELECT … FROM "topic/filter"'),
        ("SELECT t FROM 't' WERE x > 1", 1, 19, "WERE", "did you mean WHERE in place of WERE?"),
        ('SELECT topic\nFROM "t"\nWHERE qos = 1 AND\n  x > 2', 4, 3, "x", ""),
        ('SELECT topic FROM "t" WHERE', 1, 28, "", ""),
        ("SELECT topic FROM t", 1, 19, "t", 'for example FROM "plant/+/temp"'),
        ('SELECT "é" AS a, nothing FROM "t"', 1, 8, '"é"', ""),
        ('SELECT topic,\n  \'open FROM "t"', 2, 3, '\'open FROM "t"', "text is 'in single quotes'"),
    ],
)
def test_refusal_names_the_place(
    sql: str, line: int, column: int, fragment: str, hint: str
) -> None:
    error = refusal(sql)
    assert (error.line, error.column, error.fragment) == (line, column, fragment)
    assert hint in error.hint


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT {'x' * DEFAULT_LIMITS.sql_characters} FROM 't'",
        f"SELECT {'(' * 200}1{')' * 200} AS x FROM 't'",
        f"SELECT {'[' * 200}1{']' * 200} AS x FROM 't'",
        f"SELECT {'upper(' * 200}'a'{')' * 200} AS x FROM 't'",
        f"SELECT {'case when true then ' * 200}1{' end' * 200} AS x FROM 't'",
        f"SELECT {'not ' * 3_000}true AS x FROM 't'",
        f"SELECT {'- ' * 3_000}1 AS x FROM 't'",
        f"SELECT {'+ ' * 3_000}1 AS x FROM 't'",
        f"SELECT {' + '.join(['qos'] * 2_000)} AS x FROM 't'",
        f"SELECT {', '.join(['qos'] * 201)} FROM 't'",
        f"SELECT topic FROM {', '.join([repr('t')] * 65)}",
        f"SELECT topic FROM 't' WHERE qos IN ({', '.join(['1'] * 1_001)})",
        f"SELECT payload{'.a' * 33} FROM 't'",
        f"SELECT regex_match(topic, '{'a' * 513}') FROM 't'",
        f"SELECT concat({', '.join(['topic'] * 101)}) FROM 't'",
        # Each name holds the one before twice.
        "SELECT topic AS a0, "
        + ", ".join(f"concat(a{n}, a{n}) AS a{n + 1}" for n in range(30))
        + " FROM 't'",
        "SELECT payload.x AS a0, "
        + ", ".join(f"a{n} + a{n} AS a{n + 1}" for n in range(30))
        + " FROM 't'",
        # Lists of what is large.
        f"SELECT {BIG} AS a, [{', '.join(['a'] * 900)}] AS x FROM 't'",
        f"SELECT {BIG} AS a FROM 't' WHERE {' AND '.join(['a = 1'] * 1_000)}",
        f"SELECT {BIG} AS a FROM 't' WHERE a IN ({', '.join(['qos'] * 900)})",
        f"SELECT {BIG} AS a, CASE a {'WHEN qos THEN 1 ' * 500} END AS x FROM 't'",
        # Each call holds its argument three times.
        "SELECT " + "rm_prefix(" * 30 + "topic" + ", 'x')" * 30 + " AS x FROM 't'",
        "SELECT topic FROM 't\0'",
    ],
)
def test_what_is_too_large_is_refused_soon(sql: str) -> None:
    started = time.process_time()
    refusal(sql)
    assert time.process_time() - started < 5


def test_a_long_chain_of_conditions_is_no_nesting() -> None:
    rule = compile_rule("SELECT topic FROM 't' WHERE " + " AND ".join(["qos = 1"] * 500))
    assert len(rule.conditions) == 500
    compile_rule("SELECT topic FROM 't' WHERE " + " OR ".join(["qos = 1"] * 500))
