"""Examples and tables of `docs/rules.md`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rules.columns import EVENTS, EVENTS_NOT_TOLD, MESSAGE
from rules.errors import RuleError
from rules.language import DEFAULT_LIMITS, compile_rule
from rules.language.functions import FUNCTIONS
from tests.rules.language.evaluation import Message, evaluate, failure, start_session

TEXT = (Path(__file__).parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(
    r"```sql\n(.+?)```\n\n(?:```json\n(.+?)```\n\n)?```(json|text)\n(.+?)```", re.DOTALL
)
NAME = re.compile(r"`([a-z][a-z0-9_]*)(?:\(|`)")


def section(title: str) -> str:
    return TEXT.partition(f"\n{title}\n")[2].partition("\n#")[0]


def functions_in(text: str) -> set[str]:
    """Return the functions named in the first column of tables."""
    cells = re.findall(r"^\| (.+?) \| .+ \|$", text, re.MULTILINE)
    return {name for cell in cells[1:] for name in NAME.findall(cell)} - {"function"}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_session()
    yield session
    session.stop()


def message(written: str) -> Message:
    fields: dict[str, Any] = json.loads(written or "{}")
    digits = fields.pop("payload_hex", None)
    made = Message().with_fields(fields)
    return made if digits is None else Message(payload=bytes.fromhex(digits))


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_examples_yield_what_the_document_says(spark: SparkSession) -> None:
    examples = EXAMPLE.findall(TEXT)
    assert len(examples) == TEXT.count("```sql")
    going = []
    for sql, given, _, shown in examples:
        if shown == "refused\n":
            with pytest.raises(RuleError):
                compile_rule(sql)
        elif shown == "failed\n":
            assert failure(spark, compile_rule(sql), message(given)), sql
        else:
            rows = [json.loads(line) for line in shown.splitlines()]
            going.append((sql, compile_rule(sql), message(given), rows))
    found = evaluate(spark, [(rule, given) for _, rule, given, _ in going])
    for (sql, _, _, expected), outputs in zip(going, found, strict=True):
        assert json.dumps(outputs) == json.dumps(expected), sql


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_comparisons_give_what_the_table_says(spark: SparkSession) -> None:
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \| (true|false) \|$", TEXT, re.MULTILINE)
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


def test_every_function_is_in_a_table() -> None:
    described = TEXT.partition("\n## Functions\n")[2].partition("\n### What EMQX has")[0]
    assert functions_in(described) == set(FUNCTIONS)


def test_what_is_said_not_to_exist_does_not() -> None:
    named = functions_in(section("### What EMQX has and this language has not"))
    assert len(named) > 20
    assert not named & set(FUNCTIONS)


def test_columns_are_those_of_the_language() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (.+?) \| (yes)? ?\|$", section("## The message"), re.MULTILINE
    )
    expected = [(c.name, c.meaning, "yes" if c.is_selected else "") for c in MESSAGE]
    assert rows == expected


def test_events_are_those_of_the_language() -> None:
    rows = re.findall(r"^\| `\$events/(\w+)` \| (.+) \|$", section("## Events"), re.MULTILINE)
    common = {"event", "clientid", "tenant", "gateway", "timestamp"}
    assert {name: re.findall(r"`(\w+)`", columns) for name, columns in rows} == {
        name: [c.name for c in columns if c.name not in common] for name, columns in EVENTS.items()
    }
    assert not set(EVENTS) & set(EVENTS_NOT_TOLD)


@pytest.mark.parametrize(
    "limit",
    [
        DEFAULT_LIMITS.sql_characters,
        DEFAULT_LIMITS.depth,
        DEFAULT_LIMITS.select_items,
        DEFAULT_LIMITS.filters,
        DEFAULT_LIMITS.list_items,
        DEFAULT_LIMITS.foreach_elements,
        DEFAULT_LIMITS.foreach_bytes // 2**20,
        DEFAULT_LIMITS.text_characters,
    ],
)
def test_limits_are_those_of_the_language(limit: int) -> None:
    assert f"{limit:,}" in section("## Limits")
