"""What rules yield: tables of rules and messages, made-up ones, and the document's examples.

The tables were written by hand, from EMQX's documentation where it has the case.
"""

import json
import random
import re
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from rules.errors import RuleError
from rules.language.compiler import compile_rule
from tests.rules.language.cases import DOCUMENT, read_examples, read_expressions, read_statements
from tests.rules.language.evaluation import (
    FAILED,
    Message,
    evaluate,
    expression_of,
    failure,
    interpreted,
)
from tests.rules.language.generating import PAYLOADS, expression

if TYPE_CHECKING:
    from rules.language.compiled import CompiledRule

pytestmark = pytest.mark.spark


def check(spark: SparkSession, cases: list[tuple[str, Message, Any]]) -> None:
    compiled = [(compile_rule(sql), message) for sql, message, _ in cases]
    going: list[tuple[CompiledRule, Message]] = []
    wanted = []
    for (sql, _, rows), (rule, message) in zip(cases, compiled, strict=True):
        if rows == FAILED:
            reason = failure(spark, rule, message)
            assert reason is not None, sql
            assert "USER_RAISED_EXCEPTION" in reason, sql
        else:
            going.append((rule, message))
            wanted.append((sql, message.payload, rows))
    found = evaluate(spark, going)
    different = [
        f"{sql} of {payload!r}: {rows or None} instead of {expected}"
        for (sql, payload, expected), rows in zip(wanted, found, strict=True)
        if not is_same(rows or None, expected)
    ]
    assert not different, "\n".join(different)


def is_same(found: Any, expected: Any) -> bool:
    """Compare as JSON does: 1 is not true, 1 is not 1.0, the order of keys counts."""
    return json.dumps(found) == json.dumps(expected)


def test_there_are_enough_cases() -> None:
    assert len(read_expressions()) + len(read_statements()) >= 150


def test_expressions_yield_what_the_table_says(spark: SparkSession) -> None:
    check(spark, read_expressions())


def test_statements_yield_what_the_table_says(spark: SparkSession) -> None:
    check(spark, read_statements())


def test_the_interpreter_yields_the_same(spark: SparkSession) -> None:
    """As the engine evaluates a rule until it is much used."""
    with interpreted(spark):
        check(spark, [*read_expressions(), *read_statements()])


@pytest.mark.campaign("the tables run each operator by code and by interpreter")
def test_generated_rules_run_or_fail_on_purpose(spark: SparkSession) -> None:
    """A rule fails only as the language says, never by an error of Spark's."""
    chance = random.Random(20)
    going: list[tuple[CompiledRule, Message]] = []
    failing: list[tuple[CompiledRule, Message]] = []
    while len(going) < 80 or len(failing) < 8:
        sql = f"SELECT {expression(chance, 3)} AS x FROM 't'"
        if chance.random() < 0.3:
            sql += f" WHERE {expression(chance, 2)} = 1"
        try:
            rule = compile_rule(sql)
        except RuleError:
            continue
        payload = chance.choice(PAYLOADS)
        made = failing if "raise_error" in expression_of(rule) else going
        made.append((rule, Message().with_fields({"payload": payload})))
    evaluate(spark, going)
    for rule, given in failing[:8]:
        reason = failure(spark, rule, given)
        assert reason is None or "USER_RAISED_EXCEPTION" in reason, rule.expression


def test_output_is_json_whatever_the_payload(spark: SparkSession) -> None:
    chance = random.Random(7)
    rule = compile_rule("SELECT payload, payload.a AS a, upper(payload) AS u FROM 't'")
    payloads = [chance.randbytes(chance.randrange(40)) for _ in range(100)]
    payloads += [json.dumps({"a": chance.random()}).encode() for _ in range(20)]
    found = evaluate(spark, [(rule, Message(payload=payload)) for payload in payloads[:40]])
    assert all(rows is not None and set(rows[0]) == {"payload", "a", "u"} for rows in found)


def message(written: str) -> Message:
    fields: dict[str, Any] = json.loads(written or "{}")
    digits = fields.pop("payload_hex", None)
    made = Message().with_fields(fields)
    return made if digits is None else Message(payload=bytes.fromhex(digits))


def test_examples_yield_what_the_document_says(spark: SparkSession) -> None:
    examples = read_examples()
    assert len(examples) == DOCUMENT.count("```sql")
    going = []
    for sql, _, given, shown in examples:
        if shown == "refused\n":
            with pytest.raises(RuleError):
                compile_rule(sql)
        elif shown == "failed\n":
            assert failure(spark, compile_rule(sql), message(given)), sql
        else:
            rule = compile_rule(sql)
            if rule.plan is None:
                rows = [json.loads(line) for line in shown.splitlines()]
                going.append((sql, rule, message(given), rows))
    found = evaluate(spark, [(rule, given) for _, rule, given, _ in going])
    for (sql, _, _, expected), outputs in zip(going, found, strict=True):
        assert json.dumps(outputs) == json.dumps(expected), sql


def test_comparisons_give_what_the_table_says(spark: SparkSession) -> None:
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \| (true|false) \|$", DOCUMENT, re.MULTILINE)
    cases = []
    for condition, fields, expected in rows:
        for field in fields.split(", "):
            payload = "{}" if field == "missing" else f'{{"x": {field.strip("`")}}}'
            rule = compile_rule(f"SELECT topic FROM 'a' WHERE {condition}")
            cases.append((rule, Message(payload=payload.encode()), expected == "true", condition))
    assert len(cases) >= 15
    found = evaluate(spark, [(rule, given) for rule, given, _, _ in cases])
    for (_, given, expected, condition), outputs in zip(cases, found, strict=True):
        assert (outputs is not None) is expected, f"{condition} of {given.payload!r}"
