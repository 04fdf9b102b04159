"""Each batch of a query is in its table once, and Delta is asked for it as seldom as can be."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from launcher.testing.systems import await_condition
from streaming.tables.appends import batch_append

pytestmark = [pytest.mark.promise, pytest.mark.spark]

QUERY = "query"


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Path:
    path = tmp_path / "table"
    made = DeltaTable.create(spark).location(str(path)).addColumn("n", "BIGINT")
    made.addColumn("text", "STRING").execute()
    return path


def append(run: Any, rows: DataFrame, batch: int, query: str = QUERY) -> None:
    run.append(rows._jdf, query, batch)


def numbers(spark: SparkSession, table: Path) -> list[int]:
    return sorted(row["n"] for row in spark.read.format("delta").load(str(table)).collect())


def one(spark: SparkSession, number: int) -> DataFrame:
    return spark.sql(f"SELECT CAST({number} AS BIGINT) AS n, 'text' AS text")


def test_a_batch_that_comes_again_is_there_once(spark: SparkSession, table: Path) -> None:
    first = batch_append(spark, table)
    for batch in (0, 1, 1):
        append(first, one(spark, batch), batch)
    assert numbers(spark, table) == [0, 1]
    second = batch_append(spark, table)
    for batch in (1, 2, 2):
        append(second, one(spark, batch), batch)
    assert numbers(spark, table) == [0, 1, 2]


def test_queries_count_their_own_batches(spark: SparkSession, table: Path) -> None:
    run = batch_append(spark, table)
    append(run, one(spark, 1), 7)
    append(run, one(spark, 2), 0, query="one with a new checkpoint")
    append(run, one(spark, 3), 0, query="one with a new checkpoint")
    append(run, one(spark, 4), 7)
    append(run, one(spark, 5), 8)
    assert numbers(spark, table) == [1, 2, 5]


def test_of_two_runs_at_once_one_fails_and_finds_what_the_other_has(
    spark: SparkSession, table: Path, tmp_path: Path
) -> None:
    first, second = batch_append(spark, table), batch_append(spark, table)
    append(first, one(spark, 0), 0)
    append(second, one(spark, 0), 0)
    writing, go_on = tmp_path / "writing", tmp_path / "go-on"

    def wait(number: int) -> int:  # in a process that does not know this module
        writing.touch()
        while not go_on.exists():
            pass
        return number

    slow = one(spark, 1).withColumn("n", F.udf(wait, "bigint", useArrow=False)("n"))
    with ThreadPoolExecutor(1) as thread:
        appended = thread.submit(append, first, slow, 1)
        await_condition(writing.exists, "the first one writes")
        append(second, one(spark, 1), 1)
        go_on.touch()
        with pytest.raises(Exception, match=r"ConcurrentTransactionException|[cC]oncurrent"):
            appended.result()
    assert numbers(spark, table) == [0, 1]
    append(first, one(spark, 1), 1)
    append(first, one(spark, 2), 2)
    assert numbers(spark, table) == [0, 1, 2]


def test_delta_computes_the_state_of_the_table_for_the_first_batch_alone(
    spark: SparkSession, table: Path
) -> None:
    run = batch_append(spark, table)
    jobs = []
    for batch in range(4):
        spark.sparkContext.setJobGroup(f"append-{batch}", "")
        append(run, one(spark, batch), batch)
        jobs.append(len(spark.sparkContext.statusTracker().getJobIdsForGroup(f"append-{batch}")))
    assert jobs[0] > 1
    assert jobs[1:] == [1, 1, 1]


def test_columns_are_those_of_the_table(spark: SparkSession, table: Path) -> None:
    run = batch_append(spark, table)
    append(run, spark.sql("SELECT 'text' AS text, 1 AS n, 'other' AS other"), 0)
    append(run, spark.sql("SELECT CAST(2 AS BIGINT) AS n"), 1)
    with pytest.raises(AnalysisException, match=r"INVALID_COLUMN_OR_FIELD_DATA_TYPE"):
        append(run, spark.sql("SELECT array(1) AS n"), 2)
    append(run, one(spark, 3), 2)
    rows = spark.read.format("delta").load(str(table)).orderBy("n").collect()
    assert [row.asDict() for row in rows] == [
        {"n": 1, "text": "text"},
        {"n": 2, "text": None},
        {"n": 3, "text": "text"},
    ]
