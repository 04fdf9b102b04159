"""What stateful rules yield, evaluated as a batch: a table and the document's examples.

The table was written by hand.
"""

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rules.language.compiler import compile_rule
from tests.rules.language.cases import StatefulCase, read_stateful_cases, read_stateful_examples
from tests.rules.language.evaluation import run

pytestmark = [
    pytest.mark.campaign("tests/streaming/test_stateful_query.py runs windows and joins live"),
    pytest.mark.spark,
]

CASES = read_stateful_cases()
EXAMPLES = read_stateful_examples()


@pytest.fixture(scope="module", autouse=True)
def _settings(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.subexpressionElimination.enabled", "false")
    spark.conf.set("spark.sql.shuffle.partitions", "1")


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 25
    assert len(EXAMPLES) >= 11


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.sql.split("FROM")[0][:60])
def test_stateful_rule_yields_what_the_table_says(spark: SparkSession, case: StatefulCase) -> None:
    rule = compile_rule(case.sql)
    found = run(spark, rule, case.messages, case.references, case.until_ms)
    assert in_any_order(found) == in_any_order(case.rows)


@pytest.mark.parametrize("case", EXAMPLES, ids=lambda case: case.sql.split("FROM")[0][:60])
def test_examples_yield_what_the_document_says(spark: SparkSession, case: StatefulCase) -> None:
    found = run(spark, compile_rule(case.sql), case.messages, case.references, case.until_ms)
    assert in_any_order(found) == in_any_order(case.rows)


def in_any_order(rows: list[Any]) -> list[str]:
    """Write rows as JSON does: 1 is not 1.0, the order of keys counts, that of rows not."""
    return sorted(json.dumps(row, ensure_ascii=False) for row in rows)
