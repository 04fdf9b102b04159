"""Tables of rules, as the lake makes and finds them."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mqlake.errors import OperationalError
from mqlake.records.rule_tables import rule_table, rule_tables
from streaming import queries
from streaming.log.checkpoints import checkpoint
from streaming.settings.lake import LakeSettings
from streaming.tables import tables
from streaming.tables.appends import batch_append
from streaming.tables.rule_tables import finish_division, tidy_rule_tables
from streaming.tables.tables import TableFull, grow_rule_table, make_rule_table, rule_table_path
from tests.cases import case

pytestmark = pytest.mark.spark

ACME = rule_table("acme", "rule_x")
BETA = rule_table("beta", "rule_x")
QUERY = "query-1"
OURS = "output_id STRING, rule STRING, rule_version INT, ts TIMESTAMP"


def test_a_table_whose_making_was_cut_short_by_a_kill_is_made(
    spark: SparkSession, streaming_settings: LakeSettings, tmp_path: Path
) -> None:
    settings = streaming_settings.model_copy(update={"data_dir": tmp_path})
    log = rule_table_path(settings, "rule_cut_short") / "_delta_log"
    (log / "_staged_commits").mkdir(parents=True)
    (log / f".{0:020}.json.290d9dbc.tmp").write_text("{")
    try:
        types = grow_rule_table(spark, settings, "default", "rule_cut_short", {"x": "bigint"})
        assert types["x"] == "bigint"
        assert spark.table("rule_cut_short").count() == 0
        again = grow_rule_table(spark, settings, "default", "rule_cut_short", {"y": "string"})
        assert again == {**types, "y": "string"}
    finally:
        spark.sql("DROP TABLE IF EXISTS rule_cut_short")


def test_a_table_has_a_largest_number_of_columns(
    spark: SparkSession,
    streaming_settings: LakeSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = streaming_settings.model_copy(update={"data_dir": tmp_path})
    monkeypatch.setattr(tables, "MOST_COLUMNS", 7)
    wide = {f"c{number}": "int" for number in range(8)}
    said = "it would have 13 columns, expected at most 7: there is no room for c0, c1, c2, c3, c4, "
    try:
        with pytest.raises(TableFull, match=said):
            grow_rule_table(spark, settings, "acme", "rule_full", wide)
        assert rule_tables(tmp_path / "tables") == [], "nothing was made"
        grow_rule_table(spark, settings, "acme", "rule_full", {"a": "int", "b": "int"})
        with pytest.raises(TableFull, match=r"8 columns, expected at most 7: .* for C"):
            grow_rule_table(spark, settings, "acme", "rule_full", {"A": "int", "C": "int"})
        grow_rule_table(spark, settings, "acme", "rule_full", {"B": "int"})
        grow_rule_table(spark, settings, "beta", "rule_full", {"c": "int"})
    finally:
        for tenant in ("acme", "beta"):
            spark.sql(f"DROP TABLE IF EXISTS {rule_table(tenant, 'rule_full')}")


@pytest.fixture(scope="module")
def common(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of an earlier version: three tenants write to `rule_x`."""
    root = tmp_path_factory.mktemp("common")
    folder = checkpoint(root, queries.OUTPUTS)
    folder.mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    path = root / "tables" / "rule_x"
    spark.sql(
        f"CREATE TABLE delta.`{path}` ({OURS}, tenant STRING, celsius BOOLEAN, `N-2` INT,"
        " secret STRUCT<`a-b`: INT>, n INT) USING delta CLUSTER BY (ts)"
    )
    for batch, tenants in enumerate(("acme", "acme beta default", "default")):
        values = ", ".join(f"('{tenant}', {batch})" for tenant in tenants.split())
        rows = (
            "SELECT concat(tenant, '/', batch) AS output_id, 'r' AS rule, 1 AS rule_version,"
            " timestamp_millis(batch) AS ts, tenant, if(tenant = 'acme', true, NULL) AS celsius,"
            " CAST(NULL AS INT) AS `N-2`, if(tenant = 'default', batch, NULL) AS n,"
            " if(tenant = 'acme', named_struct('a-b', batch), NULL) AS secret"
            f" FROM VALUES {values} AS rows (tenant, batch)"
        )
        batch_append(spark, path).append(spark.sql(rows)._jdf, QUERY, batch)
    # Of a version that knew no tenants.
    spark.sql(f"INSERT INTO delta.`{path}` (output_id, n) VALUES ('old', 7)")
    return root


@pytest.fixture
def settings(
    spark: SparkSession, streaming_settings: LakeSettings, tmp_path: Path
) -> Iterator[LakeSettings]:
    yield streaming_settings.model_copy(update={"data_dir": tmp_path})
    forget(spark)


def forget(spark: SparkSession) -> None:
    """Have Delta know no table any more, as in a new process."""
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def found(spark: SparkSession, folder: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Return the columns of each table beside ours, and its rows' identifiers."""
    result = {}
    for name in rule_tables(folder):
        rows = spark.read.format("delta").load(str(folder / name))
        fields = [f"{one.name} {one.dataType.simpleString()}" for one in rows.schema.fields[5:]]
        assert rows.columns[:5] == ["output_id", "rule", "rule_version", "ts", "tenant"]
        result[name] = fields, sorted(row["output_id"] for row in rows.collect())
    return result


DIVIDED = {
    "rule_x": (["n int"], ["default/1", "default/2", "old"]),
    ACME: (["celsius boolean", "secret struct<a-b:int>"], ["acme/0", "acme/1"]),
    BETA: ([], ["beta/1"]),
}


@pytest.mark.promise
def test_a_table_of_several_tenants_is_divided_once(
    spark: SparkSession, settings: LakeSettings, common: Path
) -> None:
    shutil.copytree(common, settings.data_dir, dirs_exist_ok=True)
    folder = settings.data_dir / "tables"
    tidy_rule_tables(spark, settings)
    assert found(spark, folder) == DIVIDED
    assert sorted(path.name for path in folder.iterdir()) == sorted(DIVIDED), "nothing else is left"
    # Whose value the type of a column had been, another's is a type of its own.
    types = grow_rule_table(spark, settings, "beta", "rule_x", {"celsius": "double"})
    spark.sql(f"DROP TABLE {BETA}")
    assert types["celsius"] == "double"
    # The last batch comes again after a kill; the tables have it. The next one they take.
    for batch in (2, 3):
        for name, tenant in ((ACME, "acme"), ("rule_x", "default")):
            row = f"SELECT '{tenant}/{batch}' AS output_id, '{tenant}' AS tenant"
            append = batch_append(spark, folder / name)
            append.append(spark.sql(row)._jdf, QUERY, batch)
    after = {name: rows for name, (_, rows) in found(spark, folder).items()}
    assert after[ACME] == [*DIVIDED[ACME][1], "acme/3"]
    assert after["rule_x"] == ["default/1", "default/2", "default/3", "old"]
    commits = {name: len(list((folder / name).glob("_delta_log/*.json"))) for name in DIVIDED}
    tidy_rule_tables(spark, settings)
    assert commits == {
        name: len(list((folder / name).glob("_delta_log/*.json"))) for name in DIVIDED
    }


class Killed(BaseException):
    """The process has ended there."""


@contextmanager
def killed(owner: Any, attribute: str, call: int = 1) -> Iterator[None]:
    """End the process at a call of a function of something."""
    calls, real = 0, getattr(owner, attribute)

    def step(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, attribute, step)
        with pytest.raises(Killed):
            yield


@pytest.mark.promise
def test_a_division_that_was_killed_anywhere_is_finished(
    spark: SparkSession, settings: LakeSettings, common: Path
) -> None:
    """Before the common table has gone the next start begins anew; later it goes on."""
    folder = settings.data_dir / "tables"
    steps: dict[str, tuple[Any, str, int]] = {
        "when all is copied": (os, "sync", 1),
        "when the common table has gone": (Path, "rename", 2),
    }
    for name, (owner, attribute, number) in steps.items():
        with case(name):
            shutil.rmtree(settings.data_dir)
            shutil.copytree(common, settings.data_dir)
            with killed(owner, attribute, number):
                tidy_rule_tables(spark, settings)
            forget(spark)
            tidy_rule_tables(spark, settings)
            assert found(spark, folder) == DIVIDED
            assert sorted(path.name for path in folder.iterdir()) == sorted(DIVIDED)


@pytest.mark.promise
def test_new_tables_come_to_their_places_though_it_is_killed_between(tmp_path: Path) -> None:
    for steps in range(4):
        with case(f"after {steps} steps"):
            work = tmp_path / str(steps) / ".rule_x"
            for name in ("common", *DIVIDED):
                (work / name).mkdir(parents=True)
            is_moving = steps < len(DIVIDED)
            step = killed(Path, "rename", steps + 1) if is_moving else killed(shutil, "rmtree")
            with step:
                finish_division(work)
            finish_division(work)
            assert {path.name for path in work.parent.iterdir()} == DIVIDED.keys()


@pytest.mark.campaign("the other tests of this file move tables the same way")
def test_a_tenant_that_has_a_table_already_loses_nothing(
    spark: SparkSession, settings: LakeSettings, common: Path
) -> None:
    """The common table has come from elsewhere, of a backup say."""
    shutil.copytree(common, settings.data_dir, dirs_exist_ok=True)
    make_rule_table(spark, settings.data_dir / "tables" / ACME, "acme", f"{OURS}, tenant STRING")
    with pytest.raises(
        OperationalError, match="rule_x has rows of the tenant acme, which has the table"
    ):
        tidy_rule_tables(spark, settings)
    assert found(spark, settings.data_dir / "tables").keys() == {"rule_x", ACME}


@pytest.mark.campaign("the other tests of this file move tables the same way")
def test_a_table_of_one_tenant_stays_as_it_is(spark: SparkSession, settings: LakeSettings) -> None:
    folder = settings.data_dir / "tables"
    spark.sql(f"CREATE TABLE delta.`{folder / 'rule_old'}` ({OURS}, n INT) USING delta")
    spark.sql(f"INSERT INTO delta.`{folder / 'rule_old'}` (output_id, n) VALUES ('old', NULL)")
    inode = (folder / "rule_old").stat().st_ino
    for _ in range(2):
        tidy_rule_tables(spark, settings)
        assert (folder / "rule_old").stat().st_ino == inode
        assert len(list((folder / "rule_old").glob("_delta_log/*.json"))) == 3, "it is noted once"
    assert spark.read.format("delta").load(str(folder / "rule_old")).count() == 1


@pytest.mark.campaign("the other tests of this file move tables the same way")
def test_a_table_of_another_tenant_alone_is_renamed(
    spark: SparkSession, settings: LakeSettings
) -> None:
    folder = settings.data_dir / "tables"
    spark.sql(
        f"CREATE TABLE delta.`{folder / 'rule_x'}` ({OURS}, tenant STRING, n INT) USING delta"
    )
    spark.sql(f"INSERT INTO delta.`{folder / 'rule_x'}` (tenant, n) VALUES ('acme', 7)")
    inode = (folder / "rule_x").stat().st_ino
    with killed(Path, "rename"):
        tidy_rule_tables(spark, settings)
    forget(spark)
    tidy_rule_tables(spark, settings)
    assert rule_tables(folder) == [ACME]
    assert (folder / ACME).stat().st_ino == inode, "with all its versions"


@pytest.mark.campaign("the other tests of this file move tables the same way")
def test_what_a_deleted_tenant_has_left_goes(spark: SparkSession, settings: LakeSettings) -> None:
    """A new tenant of its name does not see the columns that it had."""
    folder = settings.data_dir / "tables"
    for tenant in ("default", "acme", "beta"):
        path = folder / rule_table(tenant, "rule_x")
        make_rule_table(spark, path, tenant, f"{OURS}, tenant STRING, n INT")
        spark.sql(f"INSERT INTO delta.`{path}` (output_id, tenant) VALUES ('a', '{tenant}')")
    for tenant in ("default", "acme"):
        spark.sql(f"DELETE FROM delta.`{folder / rule_table(tenant, 'rule_x')}`")
    tidy_rule_tables(spark, settings)
    assert rule_tables(folder) == sorted(["rule_x", BETA])
