"""A merge leaves the same rows whether the table is written anew or Delta merges."""

from collections.abc import Callable
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from streaming.engine.spark import small_session
from streaming.tables import merges
from streaming.tables.merges import Matched, Merge

pytestmark = pytest.mark.spark

NAME = "merged"
MERGE = Merge(
    on="row.tenant = change.tenant AND row.id = change.id",
    matched=(
        Matched("change.gone AND change.at > row.at"),
        Matched("change.at > row.at", {"n": "change.n", "at": "change.at", "text": "NULL"}),
        Matched("change.n = 9", {"n": "row.n + change.n"}),
    ),
    insert_if="NOT change.gone",
    inserted={"tenant": "change.tenant", "id": "change.id", "n": "change.n", "at": "change.at"},
)

Row = tuple[str, int | None, int | None, str | None]
Change = tuple[str, int | None, int | None, bool | None]


@pytest.fixture
def session(spark: SparkSession, tmp_path: Any) -> Any:
    session = small_session(spark)
    session.sql(
        f"CREATE TABLE {NAME} (tenant STRING, id STRING, n INT, at BIGINT, text STRING)"
        f" USING delta LOCATION '{tmp_path / NAME}'"
    )
    yield session
    session.sql(f"DROP TABLE {NAME}")


@pytest.fixture(params=["written anew", "merged by Delta"])
def operation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the table's last commit was."""
    if request.param == "written anew":
        return "WRITE"
    monkeypatch.setattr(merges, "SMALL_BYTES", -1)
    return "MERGE"


def add(session: SparkSession, *rows: Row) -> None:
    values = [("t", *row) for row in rows]
    schema = "tenant string, id string, n int, at bigint, text string"
    session.createDataFrame(values, schema).coalesce(1).write.format("delta").insertInto(NAME)


def changes(session: SparkSession, *rows: Change) -> DataFrame:
    values = [("t", *row) for row in rows]
    schema = "tenant string, id string, n int, at bigint, gone boolean"
    return session.createDataFrame(values, schema)


def rows(session: SparkSession) -> list[Row]:
    return sorted(
        tuple(row) for row in session.sql(f"SELECT id, n, at, text FROM {NAME}").collect()
    )


def last_operation(session: SparkSession) -> str:
    history = DeltaTable.forName(session, NAME).history(1).first()
    assert history is not None
    return str(history["operation"])


def test_the_first_condition_that_holds_counts(session: SparkSession, operation: str) -> None:
    kept: Row = ("kept", 1, 5, "x")
    add(session, kept, ("gone", 1, 5, "x"), ("new", 1, 5, "x"))
    add(session, ("nine", 1, 5, "x"), ("old", 1, 5, "x"), ("null", 1, None, "x"))
    said = changes(
        session,
        ("gone", 9, 6, True),
        ("new", 9, 6, False),
        ("nine", 9, 5, False),
        ("old", 2, 4, True),
        ("null", 2, 6, True),
        ("inserted", 3, 1, False),
        ("refused", 3, 1, True),
        ("unsure", 3, 1, None),
    )
    MERGE.into(NAME, said)
    assert last_operation(session) == operation
    after: list[Row] = [
        ("inserted", 3, 1, None),
        kept,
        ("new", 9, 6, None),
        ("nine", 10, 5, "x"),
        ("null", 1, None, "x"),
        ("old", 1, 5, "x"),
    ]
    assert rows(session) == after
    MERGE.into(NAME, changes(session, ("new", 8, 6, True), ("inserted", 8, 1, True)))
    assert rows(session) == after


@pytest.mark.campaign("the other tests of this file merge the same way")
def test_tables_and_changes_may_be_empty(session: SparkSession, operation: str) -> None:
    MERGE.into(NAME, changes(session))
    assert rows(session) == []
    MERGE.into(NAME, changes(session, ("a", 1, 1, False)))
    MERGE.into(NAME, changes(session))
    assert rows(session) == [("a", 1, 1, None)]
    MERGE.into(NAME, changes(session, ("a", 1, 2, True)))
    assert rows(session) == []
    assert operation in {"WRITE", "MERGE"}


@pytest.mark.campaign("the other tests of this file merge the same way")
def test_a_row_has_one_change_and_a_change_many_rows(session: SparkSession, operation: str) -> None:
    add(session, ("a", 1, 1, "x"), ("b", 1, 1, "x"), ("c", 1, 9, "x"))
    of_all = Merge(
        on="row.tenant = change.tenant AND change.gone",
        matched=(Matched("change.at >= row.at"),),
        insert_if="NOT change.gone",
        inserted={"tenant": "change.tenant", "id": "change.id", "text": "'new'"},
    )
    of_all.into(NAME, changes(session, ("-", 0, 5, True), ("d", 0, 5, False), ("e", 0, 5, False)))
    assert last_operation(session) == operation
    assert rows(session) == [("c", 1, 9, "x"), ("d", None, None, "new"), ("e", None, None, "new")]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda session: add(session, ("b", 1, 1, None)), id="append"),
        pytest.param(lambda session: session.sql(f"DELETE FROM {NAME}"), id="delete"),
    ],
)
def test_a_commit_of_another_is_not_undone(
    session: SparkSession, other: Callable[[SparkSession], object]
) -> None:
    add(session, ("a", 1, 1, None))
    jvm: Any = session.sparkContext._jvm
    begun = jvm.mqlake.spark.SmallTable.begin(session._jsparkSession, NAME, merges.SMALL_BYTES)
    other(session)
    before = rows(session)
    with pytest.raises(PySparkException, match=r"DELTA_CONCURRENT_(APPEND|DELETE)"):
        begun.write(changes(session).selectExpr("tenant", "id", "n", "at", "'x' AS text")._jdf)
    assert rows(session) == before


@pytest.mark.campaign("the other tests of this file merge the same way")
def test_one_file_is_left_of_many(session: SparkSession) -> None:
    before = changes(session, *((f"{number}", 1, 1, False) for number in range(120)))
    many = before.selectExpr("tenant", "id", "n", "at", "'x' AS text").repartition(120)
    many.write.format("delta").insertInto(NAME)
    assert len(session.table(NAME).inputFiles()) > 50
    MERGE.into(NAME, changes(session, ("120", 1, 1, False)))
    assert len(session.table(NAME).inputFiles()) == 1
    assert sorted(int(row[0]) for row in rows(session)) == [*range(121)]
