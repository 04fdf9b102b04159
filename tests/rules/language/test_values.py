"""What rules yield, for tables of rules and messages. The tables were written by hand, from EMQX's
documentation where it has the case."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rules.language import CompiledRule, compile_rule
from tests.rules.language.evaluation import (
    FAILED,
    Message,
    evaluate,
    failure,
    start_session,
)

HERE = Path(__file__).parent
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_session()
    yield session
    session.stop()


def read_expressions() -> list[tuple[str, Message, Any]]:
    """Return each line's rule, message and expected rows."""
    cases = []
    for line in (HERE / "expressions.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        expression, payload, expected = (part.strip() for part in line.split(" ;; "))
        data = bytes.fromhex(payload[2:]) if payload.startswith("0x") else payload.encode()
        rows = FAILED if expected == FAILED else [{"x": json.loads(expected)}]
        cases.append((f"SELECT {expression} AS x FROM 'a'", Message(payload=data), rows))
    return cases


def read_statements() -> list[tuple[str, Message, Any]]:
    """Return each block's rule, message and expected rows."""
    cases = []
    for block in (HERE / "statements.txt").read_text().split("\n\n"):
        sql: list[str] = []
        fields: dict[str, Any] = {}
        rows: Any = []
        for line in block.splitlines():
            if line.startswith("<"):
                fields = json.loads(line[1:])
            elif line.startswith(">"):
                expected = line[1:].strip()
                rows = FAILED if expected == FAILED else [*rows, json.loads(expected)]
            elif not line.startswith(("#", "--")):
                sql.append(line)
        if sql:
            cases.append(("\n".join(sql), Message().with_fields(fields), rows or None))
    return cases


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
