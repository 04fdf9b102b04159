"""Forms that few rules have: how they are written makes no difference, or they are refused."""

from dataclasses import replace

import pytest
from sqlglot.errors import ParseError

from rules.errors import RuleError
from rules.language.choosing import is_missing, one_of
from rules.language.comparing import NotComparable, compare
from rules.language.compiler import compile_rule
from rules.language.limits import DEFAULT_LIMITS
from rules.language.syntax.statements import RuleParser
from rules.language.values import ValueKind, as_output, as_variant, constant, operand, text
from rules.sql.quoting import quoted
from tests.rules.language.evaluation import expression_of

JOINED = "SELECT a.topic AS x, b.topic AS y FROM 't' AS a JOIN 'u' AS b ON a.qos = b.qos"
COUNTED = "SELECT count(*) AS n FROM 't'"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            f"{COUNTED} GROUP BY tumble(timestamp, ('1 minute'))",
            f"{COUNTED} GROUP BY tumble(timestamp, '1 minute')",
        ),
        (
            f"{JOINED} AND (b.timestamp) BETWEEN a.timestamp AND (a.timestamp + INTERVAL '5 s')",
            f"{JOINED} AND b.timestamp BETWEEN a.timestamp AND a.timestamp + INTERVAL '5 s'",
        ),
        (
            JOINED.replace(" AS a", " a").replace(" AS b", " b") + " WITHIN '1 s'",
            f"{JOINED} WITHIN '1 s'",
        ),
        (
            JOINED.replace("a.qos = b.qos", "((a.qos = b.qos))") + " WITHIN '1 s'",
            f"{JOINED} WITHIN '1 s'",
        ),
    ],
)
def test_plan_does_not_depend_on_how_it_is_written(one: str, other: str) -> None:
    assert compile_rule(one).plan == compile_rule(other).plan is not None


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        (
            (
                "b.timestamp >= a.timestamp - INTERVAL '20 hours'"
                " AND b.timestamp <= a.timestamp + INTERVAL '20 hours'"
            ),
            "the interval is longer than 1 day",
        ),
        (
            (
                "b.timestamp >= a.timestamp - INTERVAL '1 s'"
                " AND b.payload.at <= a.timestamp + INTERVAL '1 s'"
            ),
            "a stream has one time in a join",
        ),
        ("5 <= a.timestamp + INTERVAL '1 s'", "expected the time of one of the two streams"),
        ("b.timestamp <= a.timestamp", "two streams are joined within an interval of time"),
    ],
)
def test_interval_of_a_join_is_refused_with_its_problem(condition: str, problem: str) -> None:
    with pytest.raises(RuleError, match=problem):
        compile_rule(f"{JOINED} AND {condition}")


@pytest.mark.parametrize(
    ("sql", "made"),
    [
        # What can fail is tried, so that a message on which it fails has no partner.
        (
            (
                "SELECT a.topic AS x FROM 't' AS a JOIN 'u' AS b"
                " ON a.payload.x + 1 = b.payload.x + 1 WITHIN '1 s'"
            ),
            "try_to_binary",
        ),
        (
            (
                "SELECT count(*) AS n FROM 't' JOIN machines AS m ON m.id = topic(2)"
                " WHERE payload.x + 1 > m.most GROUP BY tumble(timestamp, '1 minute')"
            ),
            "= 'true'",
        ),
        # Conditions are no times, though they are compared.
        (f"{JOINED} AND a.retain >= b.retain WITHIN '1 s'", "retain"),
        (f"{COUNTED} GROUP BY tumble(upper(payload.at), '1 s')", "RLIKE"),
        ("SELECT last(sqrt(payload.v)) AS v FROM 't' GROUP BY tumble(timestamp, '1 s')", "DOUBLE"),
        (
            "SELECT clientid, state.x AS s FROM 't' WHERE absent('1 minute') GROUP BY clientid",
            "state",
        ),
        ("SELECT m.site.name AS s FROM 't' JOIN machines AS m ON m.id = topic(2)", "site"),
        (
            (
                "SELECT last(5) AS five, last(null) AS nothing FROM 't'"
                " GROUP BY tumble(timestamp, '1 s')"
            ),
            "5L",
        ),
    ],
)
def test_plan_has_what_the_form_needs(sql: str, made: str) -> None:
    plan = compile_rule(sql).plan
    assert plan is not None
    assert made in str(plan)


def test_name_of_a_column_with_a_field_leaves_the_column() -> None:
    rule = compile_rule("SELECT 1 AS topic.x, topic AS b FROM 't'")
    assert rule.columns == ("topic.x", "b")
    assert "`topic`" in expression_of(rule) or "topic" in expression_of(rule)


def test_payload_is_what_it_is_decoded_to() -> None:
    rule = compile_rule("SELECT payload.metrics AS m, payload AS p FROM 't' DECODE 'sparkplug_b'")
    assert "mqlake_decode" in expression_of(rule)


def test_rule_whose_names_grow_too_large_is_refused() -> None:
    limits = replace(DEFAULT_LIMITS, expression_characters=40)
    with pytest.raises(RuleError, match="too large once its names are put in"):
        compile_rule("SELECT upper(topic) AS a, concat(a, a) AS b FROM 't'", limits=limits)


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (RecursionError(), "nested too deeply"),
        (ParseError("x", [{"highlight": "FROM"}]), "this is not understood"),
        (ParseError("x"), "this is not understood"),
    ],
)
def test_failure_of_the_parser_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch, error: Exception, problem: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(RuleParser, "parse", fail)
    with pytest.raises(RuleError, match=problem):
        compile_rule("SELECT topic FROM 't'")


def test_single_condition_needs_no_or() -> None:
    assert one_of(["x"]) == "x"
    assert one_of(["x", "y"]) == "(x OR y)"


def test_null_is_missing_and_written_as_null() -> None:
    null = constant(None)
    assert is_missing(null) == "true"
    assert as_output(null) == "CAST(NULL AS STRING)"
    assert as_variant(null) == "CAST(NULL AS VARIANT)"
    with pytest.raises(NotComparable, match="IS NULL"):
        compare("=", null, constant(1))


def test_number_missing_has_neither_whole_nor_fraction() -> None:
    rule = compile_rule("SELECT (payload.a + 1) IS NULL AS x FROM 't'")
    assert "IS NULL AND" in expression_of(rule)


def test_constant_beyond_64_bits_is_a_double() -> None:
    assert constant(2**63).kind is ValueKind.DOUBLE
    assert constant(1 - 2**63).kind is ValueKind.INTEGER


def test_text_is_no_operand() -> None:
    whole, fraction = operand(text("x"))
    assert whole == "CAST(NULL AS BIGINT)"
    assert "raise_error" in fraction


def test_half_a_surrogate_pair_is_written_as_a_replacement() -> None:
    assert quoted("a\ud800") == "'a\\ufffd'"
