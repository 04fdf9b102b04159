"""What the language refuses, and where it says so."""

import time
from pathlib import Path

import pytest

from rules.errors import RuleError
from rules.language.compiler import compile_rule
from rules.language.limits import DEFAULT_LIMITS
from tests.pace import within

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


LONG_PATH = ".".join("a" * 70)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("nth(0, [1])", "there is no element 0; the first is 1"),
        ("topic(70000)", "no topic has that many levels"),
        ("split('a', '')", "the separator is empty"),
        ("tokens('a', '')", "there are no separators"),
        ("pad('a', 5, 'both', 'xy')", "expected one character to pad with"),
        ("regex_replace('a', 'a', '\\9')", "the regular expression has no group 9"),
        (f"regex_replace('a', 'a', '{'x' * 5_000}')", "the replacement has more than 1024"),
        ("sprintf('~s ~s', 'x')", "the format asks for more values than there are"),
        (
            "cast(topic as date)",
            "expected one of the types STRING, BIGINT, DOUBLE, BOOLEAN, BINARY",
        ),
        ("qos is true", "expected a condition, this is an integer"),
        ("topic RLIKE '('", "not a regular expression: missing )"),
        ("topic LIKE 'a' ESCAPE '!!'", "ESCAPE takes one character, these are 2"),
        ("topic LIKE 'a' ESCAPE ''", "ESCAPE takes one character, these are 0"),
        ("topic LIKE 'a!b' ESCAPE '!'", "! stands before %, _ or !, here it is before b"),
        ("topic LIKE 'a!' ESCAPE '!'", "here it is before nothing"),
        ("topic LIKE 'a' ESCAPE topic", "expected a character in single quotes after ESCAPE"),
        ("topic IN ()", "the list after IN is empty"),
        ("subbits(payload, 1, 12, 'integer', 'unsigned', 'little')", "'little' takes whole bytes"),
        ("format_date('second', 'Z', '%Q', 0)", "the format's %Q is not supported"),
        ("date_to_unix_ts('second', '%Y-%Y', 'x')", "%Y is not supported, or given twice"),
        ("date_to_unix_ts('second', '%Y-%m', 'x')", "the format needs %Y, %m and %d"),
        ("regex_match('a', '(?P<n>a)')", "groups with names are not supported"),
        ("regex_match('a', '(?x)a')", "of the flags only i, m and s are supported"),
        ("regex_match('a', '(?i:a)')", "flags inside a regular expression are not supported"),
        ("regex_match('a', '(a+)+')", "a repeat inside a repeat is not supported"),
        (f"map_get('{LONG_PATH}', payload)", "more than 32 keys inside each other"),
        (f"json_decode(payload).{LONG_PATH}", "more than 32 fields inside each other"),
        ("upper(topic).a(1)", "a field cannot be called"),
        ("count(* ", "expected a closing parenthesis"),
        ("nullif(true, 1)", "a condition and a number do not compare"),
        ("sparkplug_decode(1)", "expected bytes, this is an integer"),
        ("sprintf('x', 1)", "there are more values than the format asks for"),
        ("qos IN 1", "expected a list in parentheses after IN"),
        ("CASE WHEN qos = 1 2 END", "expected THEN"),
        ("CASE WHEN = 1 THEN 2 END", "expected an expression"),
        ("qos < ", "expected an expression"),
        ("if([1], 2)", "expected a condition, this is an array"),
        ("qos BETWEEN 1", "expected AND after the lower bound of BETWEEN"),
        ("qos IS 5", "expected NULL, TRUE or FALSE after IS"),
        ("CASE qos END", "expected WHEN"),
        ("CASE WHEN qos = 1 THEN 2 3 END", "expected WHEN, ELSE or END"),
        ("greatest([1], 2)", "expected a number, this is an array"),
        ("eq(true, 1)", "a condition and a number do not compare"),
        ("upper(*)", "expected an expression"),
        ("INTERVAL '1 second'", "this is not part of the rule language"),
    ],
)
def test_call_is_refused_with_its_problem(expression: str, problem: str) -> None:
    assert problem in refusal(f"SELECT {expression} AS x FROM 't'").problem


@pytest.mark.parametrize(
    ("aggregate", "problem"),
    [
        ("count()", "count needs an argument"),
        ("sum()", "sum takes 1 argument(s), here are 0"),
        ("sum(payload.a, 2)", "sum takes 1 argument(s), here are 2"),
        ("sum(payload.a) FILTER (qos = 1)", "expected WHERE and a condition"),
        ("sum(payload.a) FILTER (WHERE qos = 1", "expected a closing parenthesis"),
    ],
)
def test_aggregate_is_refused_with_its_problem(aggregate: str, problem: str) -> None:
    sql = f"SELECT {aggregate} AS n FROM 't' GROUP BY tumble(timestamp, '1 minute')"
    assert problem in refusal(sql).problem


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("SELECT topic FROM 't' WHERE qos =", "expected an expression"),
        ("SELECT topic FROM 't' WHERE", "expected an expression"),
        ("SELECT t.topic FROM 't' AS t WHERE t = 1", "t is a source"),
        ("SELECT topic FROM", "expected"),
        ("SELECT topic FROM 't',", "expected"),
        ("SELECT topic FROM 't' JOIN", "expected a reference table or a topic filter in quotes"),
        ("SELECT topic FROM 't' GROUP tumble(timestamp, '1 s')", "expected BY after GROUP"),
        ("SELECT event FROM '$events/client_connected' DECODE 's'", "events have no payload"),
    ],
)
def test_statement_is_refused_with_its_problem(sql: str, problem: str) -> None:
    assert problem in refusal(sql).problem


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
    assert time.process_time() - started < within(5)


def test_a_long_chain_of_conditions_is_no_nesting() -> None:
    rule = compile_rule("SELECT topic FROM 't' WHERE " + " AND ".join(["qos = 1"] * 500))
    assert len(rule.conditions) == 500
    compile_rule("SELECT topic FROM 't' WHERE " + " OR ".join(["qos = 1"] * 500))
