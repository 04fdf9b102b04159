"""What holds for every text, every rule and every message."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from rules.errors import RuleError
from rules.language import DEFAULT_LIMITS, compile_rule, dialect
from rules.language.functions import FUNCTIONS
from rules.language.patterns import InvalidPattern, Regex, topic_pattern
from rules.language.quoting import quoted, variant_path
from tests.rules.language import writing
from tests.rules.language.evaluation import Message, evaluate, failure, start_session
from tests.rules.language.test_values import read_expressions, read_statements

WORDS = """
SELECT FROM WHERE AND OR NOT IN IS NULL LIKE RLIKE BETWEEN CASE WHEN THEN ELSE END AS DIV MOD
FOREACH DO INCASE TRUE FALSE CAST ( ) [ ] , . * + - / % = <> != < > <= >= =~ || ; -- /* */
payload payload.a.b payload.items[1].c clientid topic(2) upper(topic) item qos 'a''b' "t/#"
`x` 1 2.5 -1 1e3 'a/+' $events :: -> => ${x} {{ }} \\ ' " GROUP BY UNION x
""".split()  # noqa: SIM905

OPERANDS = [
    "payload.a", "payload.b", "payload.c", "payload.l[1]", "payload.o.x", "clientid", "topic(2)",
    "qos", "payload", "1", "2.5", "-3", "'x'", "'5'", "true", "user_properties.unit", "[1, 'x']",
]  # fmt: skip
OPERATORS = ["+", "-", "*", "/", "div", "mod", "||", "=", "<>", "<", ">=", "AND", "OR"]
PAYLOADS: list[Any] = [
    {"a": 1, "b": 2.5, "c": "x", "l": [1, {"z": None}], "o": {"x": True}},
    {"a": "5", "b": None, "c": [1], "l": {"a": 1}, "o": 5},
    {"a": 9223372036854775807, "b": -1, "c": 0, "l": [], "o": {"x": "NaN"}},
    {"a": 1e308, "b": 1e308, "c": True, "l": ["é☃"], "o": {"x": {}}},
    {},
    "not json",
]


def compiles(sql: str) -> bool:
    error = None
    try:
        compile_rule(sql)
    except RuleError as exc:
        error = exc
    if error is None:
        return True
    assert error.problem
    if error.line is not None:
        assert error.column is not None
        assert error.line <= sql.count("\n") + 1
    return False


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
@example("SELECT")
@example("\\")
@example("SELECT 'a' FROM '\ud800'")
def test_any_text_compiles_or_is_refused(text: str) -> None:
    compiles(text)
    compiles(f"SELECT {text} FROM 't'")
    compiles(f"SELECT topic FROM {text}")
    compiles(f"SELECT topic FROM 't' WHERE {text}")


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join))
def test_any_words_compile_or_are_refused(text: str) -> None:
    compiles(text)
    compiles(f"SELECT {text} FROM 't'")


def expression(chance: random.Random, depth: int) -> str:
    """Make an expression; many are refused, none may break the compiler."""
    kind = chance.randrange(8) if depth else 0
    if kind < 2:
        return chance.choice(OPERANDS)
    inner = [expression(chance, depth - 1) for _ in range(3)]
    if kind < 5:
        return f"({inner[0]} {chance.choice(OPERATORS)} {inner[1]})"
    if kind == 5:
        return f"CASE WHEN {inner[0]} = {inner[1]} THEN {inner[2]} ELSE {inner[0]} END"
    if kind == 6:
        return f"({inner[0]} IN ({inner[1]}, {inner[2]}) OR {inner[0]} IS NULL)"
    name = chance.choice(sorted(FUNCTIONS))
    count = chance.randint(FUNCTIONS[name].minimum, min(FUNCTIONS[name].maximum or 3, 3))
    return f"{name}({', '.join(inner[:count])})"


@settings(max_examples=500, deadline=None)
@given(st.integers(min_value=0))
def test_any_expression_compiles_or_is_refused(seed: int) -> None:
    compiles(f"SELECT {expression(random.Random(seed), 4)} AS x FROM 't'")


def test_what_is_written_again_parses_to_the_same() -> None:
    statements = [sql for sql, _, _ in (*read_expressions(), *read_statements())]
    for sql in statements:
        tree = dialect.parse(sql, DEFAULT_LIMITS)
        written = writing.statement(tree)
        again = dialect.parse(written, DEFAULT_LIMITS)
        assert writing.statement(again) == written
        if "AS" in sql:
            assert strip_names(compile_rule(written).expression) == strip_names(
                compile_rule(sql).expression
            )


def strip_names(expression: str) -> str:
    """Leave out what shows the rule's own text: names without AS, seeds, error messages."""
    expression = re.sub(r"raise_error\('(?:[^'\\]|\\.)*'\)", "raise_error('')", expression)
    return re.sub(r"log_offset, [0-9]+L", "log_offset", expression)


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_a_literal_ends_where_it_ends(text: str) -> None:
    literal = quoted(text)
    inner = literal[1:-1]
    assert literal[0] == literal[-1] == "'"
    assert not re.search(r"(?<!\\)(?:\\\\)*'", inner)
    assert not re.search(r"[$\x00-\x1f]", literal)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(), max_size=4))
def test_a_path_is_one_literal(keys: list[str]) -> None:
    assert not re.search(r"(?<!\\)(?:\\\\)*'", variant_path(keys)[1:-1])


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab.*+?|()[]{}^$\\d1,-", max_size=12))
def test_any_pattern_is_understood_or_refused(pattern: str) -> None:
    try:
        regex = Regex(pattern, 512)
    except InvalidPattern:
        return
    re.compile(pattern)
    assert 1 <= regex.text_characters <= 1_000_000


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=20))
def test_any_topic_filter_becomes_a_pattern_or_is_refused(text: str) -> None:
    try:
        assert topic_pattern(text).startswith("'(?s)")
    except InvalidPattern:
        return


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_session()
    yield session
    session.stop()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_generated_rules_run_or_fail_on_purpose(spark: SparkSession) -> None:
    """A rule fails only as the language says, never by an error of Spark's."""
    chance = random.Random(20)
    cases: list[Any] = []
    while len(cases) < 150:
        sql = f"SELECT {expression(chance, 3)} AS x FROM 't' WHERE {expression(chance, 2)} = 1"
        sql = sql if chance.random() < 0.3 else sql.partition(" WHERE")[0]
        if compiles(sql):
            payload = chance.choice(PAYLOADS)
            cases.append((compile_rule(sql), Message().with_fields({"payload": payload}), sql))
    unexpected: list[str] = []

    def run(part: list[Any]) -> None:
        try:
            evaluate(spark, [(rule, message) for rule, message, _ in part])
        except Exception:  # noqa: BLE001 - which one it is, is asked next
            if len(part) > 1:
                run(part[: len(part) // 2])
                run(part[len(part) // 2 :])
                return
            rule, message, sql = part[0]
            reason = failure(spark, rule, message) or "only in a batch"
            if "USER_RAISED_EXCEPTION" not in reason:
                unexpected.append(f"{sql} on {message.payload!r}: {reason[:300]}")

    run(cases)
    assert not unexpected, "\n".join(unexpected)


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_output_is_json_whatever_the_payload(spark: SparkSession) -> None:
    chance = random.Random(7)
    rule = compile_rule("SELECT payload, payload.a AS a, upper(payload) AS u FROM 't'")
    payloads = [chance.randbytes(chance.randrange(40)) for _ in range(100)]
    payloads += [json.dumps({"a": chance.random()}).encode() for _ in range(20)]
    found = evaluate(spark, [(rule, Message(payload=payload)) for payload in payloads[:40]])
    assert all(rows is not None and set(rows[0]) == {"payload", "a", "u"} for rows in found)
