"""What a compiled rule tells beside its expression; no Spark."""

import pytest

from rules.columns import EVENTS, MESSAGE, ROW
from rules.language.compiler import compile_rule
from tests.rules.language.cases import (
    read_examples,
    read_expressions,
    read_stateful_cases,
    read_stateful_examples,
    read_statements,
)
from tests.rules.language.evaluation import expression_of


def test_filters_are_told_once_and_in_order() -> None:
    rule = compile_rule('SELECT topic FROM "b/#", \'a/+\', "b/#"')
    assert rule.filters == ("b/#", "a/+")
    assert not rule.is_events


@pytest.mark.parametrize(
    "spelling",
    ["$events/client_connected", "$events/client/connected", "$events/client.connected"],
)
def test_events_have_one_spelling(spelling: str) -> None:
    rule = compile_rule(f'SELECT clientid FROM "{spelling}"')
    assert rule.filters == ("$events/client_connected",)
    assert rule.is_events


def test_columns_are_the_keys_of_an_output_row() -> None:
    rule = compile_rule("SELECT payload.a, qos AS x.q, upper(topic), topic AS payload FROM 't'")
    assert rule.columns == ("payload", "x.q", "upper(topic)")
    everything = compile_rule("SELECT * FROM 't'")
    assert everything.columns == tuple(c.name for c in MESSAGE if c.is_selected)


def test_conditions_are_what_and_joins() -> None:
    rule = compile_rule(
        "SELECT payload.t AS t FROM 'a'\n"
        "WHERE t > 50 AND (qos = 1 or topic =~ 'a/#') AND\n clientid in ('x', 'y')"
    )
    assert [condition.text for condition in rule.conditions] == [
        "t > 50",
        "(qos = 1 or topic =~ 'a/#')",
        "clientid in ('x', 'y')",
    ]
    assert [[field.name for field in c.fields] for c in rule.conditions] == [
        ["payload.t"],
        ["qos", "topic"],
        ["clientid"],
    ]


def test_conditions_in_parentheses_are_taken_apart() -> None:
    rule = compile_rule("SELECT topic FROM 'a' WHERE (qos = 1 AND payload.x = 2)")
    assert len(rule.conditions) == 1
    assert [field.name for field in rule.conditions[0].fields] == ["qos", "payload.x"]


def test_fields_are_all_that_is_read() -> None:
    rule = compile_rule(
        "FOREACH payload.sensors AS s DO s.v, payload.site, username INCASE s.v > qos "
        "FROM 'a' WHERE user_properties.unit = 'C'"
    )
    assert [field.name for field in rule.fields] == [
        "payload.sensors",
        "user_properties.unit",
        "qos",
        "payload.site",
        "username",
    ]


def test_no_rule_depends_on_when_it_is_evaluated() -> None:
    assert compile_rule("SELECT now_timestamp(), random(), uuid_v4() FROM 'a'").deterministic


def test_what_nobody_reads_is_not_in_the_expression() -> None:
    rule = compile_rule("SELECT topic FROM 'a' WHERE qos = 1")
    for column in ROW:
        assert (column.name in expression_of(rule)) is (column.name in ("topic", "qos"))


def test_the_condition_comes_before_the_output() -> None:
    rule = compile_rule("SELECT topic FROM 'a' WHERE payload.t > 5")
    assert expression_of(rule).startswith("CASE WHEN (try_variant_get(payload_json, ")


def test_a_rule_may_end_with_a_semicolon_and_have_comments() -> None:
    assert compile_rule("-- which\nSELECT topic /* all */ FROM 'a' ;").filters == ("a",)


def test_keywords_have_no_case() -> None:
    assert compile_rule("select UPPER(topic) as x from 'a' where Not qos Is Null").columns == ("x",)


def test_every_name_of_a_column_is_told_once() -> None:
    names = [column.name for column in MESSAGE]
    assert len(set(names)) == len(names)
    for columns in EVENTS.values():
        names = [column.name for column in columns]
        assert len(set(names)) == len(names)


def test_what_is_random_reads_the_message() -> None:
    (condition,) = compile_rule("SELECT topic FROM 'a' WHERE random() < 0.1").conditions
    assert [field.name for field in condition.fields] == ["id"]


def test_every_rule_of_the_tables_compiles_to_the_same_again() -> None:
    """After a crash the engine compiles it once more, and outputs must get the same identifiers."""
    statements = [sql for sql, _, _ in (*read_expressions(), *read_statements())]
    statements += [case.sql for case in (*read_stateful_cases(), *read_stateful_examples())]
    statements += [sql for sql, _, _, shown in read_examples() if shown != "refused\n"]
    for sql in statements:
        assert compile_rule(sql) == compile_rule(sql), sql
