"""Maintenance over simulated time: small files stay few, old rows go, a client's go for good."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from api.jobs.jobs import Job
from api.messages.history import DELETED, Deleter, Deletion
from api.spark.connect import SparkConnect
from mqlake.clock import ManualClock
from mqlake.records.messages import EVENTS
from mqlake.tables.catalogue import MESSAGES, TABLES
from mqlake.tables.retention import KeepingPolicy, write_policies
from streaming.engine.spark import small_session
from streaming.settings.lake import LakeSettings
from streaming.tables import maintenance as maintenance_module
from streaming.tables.maintenance import (
    OPTIMIZE_SECONDS,
    RETENTION_SECONDS,
    Maintenance,
    small_files,
)
from streaming.tables.state import StateWriter
from streaming.tables.tables import create_tables, table_path
from tests.api.conftest import MemoryAppender

pytestmark = pytest.mark.spark

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000 // DAY_MS * DAY_MS
WEEK_SECONDS = 7 * 24 * 3600


@pytest.fixture
def settings(
    spark: SparkSession, streaming_settings: LakeSettings, tmp_path: Path
) -> Iterator[LakeSettings]:
    settings = streaming_settings.model_copy(update={"data_dir": tmp_path})
    for table in TABLES:  # of another module, elsewhere
        spark.sql(f"DROP TABLE IF EXISTS {table.name}")
    create_tables(spark, settings)
    yield settings
    for table in TABLES:
        spark.sql(f"DROP TABLE {table.name}")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=NOW_MS)


@pytest.fixture
def maintenance(spark: SparkSession, settings: LakeSettings, clock: ManualClock) -> Maintenance:
    checkpoint = settings.data_dir / "checkpoint"
    state = StateWriter(settings, checkpoint, clock, lambda _seconds: None)
    return Maintenance(small_session(spark), settings, state, clock)


def insert(spark: SparkSession, *rows: tuple[str, str, str, int]) -> None:
    """Append messages: tenant, topic, client identifier, age in days."""
    for tenant, topic, client_id, age_days in rows:
        spark.sql(
            "INSERT INTO messages (id, tenant, topic, payload, client_id, ts) VALUES "
            f"""('x', '{tenant}', '{topic}', X'31', "{client_id}", """
            f"timestamp_millis({NOW_MS - age_days * DAY_MS}))"
        )


def topics(spark: SparkSession) -> list[str]:
    return [row[0] for row in spark.sql("SELECT topic FROM messages ORDER BY topic").collect()]


def data_files(path: Path) -> set[str]:
    return {file.name for file in path.glob("**/*.parquet") if "_delta_log" not in file.parts}


def append_files(spark: SparkSession, count: int) -> None:
    """Append as many files as so many appends of the history bring, in one go."""
    rows = spark.range(0, count, 1, count).selectExpr(
        "CAST(id AS string) AS id", "'t' AS tenant", "'a' AS topic", "now() AS ts"
    )
    rows.write.format("delta").mode("append").saveAsTable("messages")


@pytest.mark.campaign("the bound is computed in the test beside it")
def test_small_files_stay_few_over_a_week(
    spark: SparkSession,
    settings: LakeSettings,
    maintenance: Maintenance,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Appends every 4 h in place of every 2 s, looks once a day in place of every 10 min.

    The law is the same: at a look there are fewer files than the threshold, or they are joined;
    until the next look come as many as there are appends. So never more than
    threshold + appends between two looks + one for each `FILE_BYTES`, and on disk, before VACUUM,
    those and what has been joined since the last one.
    """
    threshold, looks_every, appends_every = 10, 24 * 3600, 4 * 3600
    monkeypatch.setattr(maintenance_module, "MOST_SMALL_FILES", threshold)
    path = table_path(settings, MESSAGES)
    between = looks_every // appends_every
    large = 1
    bound = threshold + between + large
    most = joined = total = 0
    for _ in range(WEEK_SECONDS // looks_every):
        append_files(spark, between)
        total += between
        files = len(DeltaTable(str(path)).file_uris())
        most = max(most, files)
        clock.advance(looks_every)
        maintenance.optimize()
        if len(DeltaTable(str(path)).file_uris()) < files:
            joined += 1
    assert total == 42
    assert joined >= 3
    assert most <= bound
    assert small_files(path) < threshold
    assert spark.sql("SELECT count(*) FROM messages").collect()[0][0] == total
    session = small_session(spark)
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    session.sql("VACUUM messages RETAIN 0 HOURS")
    assert len(data_files(path)) == len(DeltaTable(str(path)).file_uris()) <= bound


def test_the_real_bound_is_what_the_constants_give() -> None:
    appends = OPTIMIZE_SECONDS / LakeSettings.model_fields["history_interval_seconds"].default
    assert maintenance_module.MOST_SMALL_FILES + appends <= 500


def test_old_rows_go_by_the_first_policy_that_fits(
    spark: SparkSession, settings: LakeSettings, maintenance: Maintenance, clock: ManualClock
) -> None:
    write_policies(
        settings.data_dir,
        [
            KeepingPolicy(tenant="t", topic_filter="keep/#", keep_days=365),
            KeepingPolicy(topic_filter="short/+", keep_days=1),
            KeepingPolicy(keep_days=10),
        ],
    )
    insert(
        spark,
        ("t", "keep/a", "c", 100),
        ("u", "keep/b", "c", 100),
        ("t", "short/a", "c", 3),
        ("t", "short/a/b", "c", 3),
        ("t", "young", "c", 5),
        ("t", "old", "c", 30),
    )
    clock.advance(RETENTION_SECONDS)
    maintenance.delete_old()
    assert topics(spark) == ["keep/a", "short/a/b", "young"]
    version = DeltaTable(str(table_path(settings, MESSAGES))).version()
    clock.advance(RETENTION_SECONDS)
    maintenance.delete_old()
    assert DeltaTable(str(table_path(settings, MESSAGES))).version() == version, "once a day"


@pytest.mark.campaign("what is due is decided in tests without Spark; Delta deletes it")
def test_what_a_client_has_left_is_deleted_for_good(
    spark: SparkSession, settings: LakeSettings, clock: ManualClock, query_dir: Path
) -> None:
    insert(spark, ("t", "a", "it's me", 0), ("t", "b", "other", 0), ("u", "c", "it's me", 0))
    spark.sql("OPTIMIZE messages")
    spark.sql(
        "INSERT INTO events (ts, event, tenant, client_id) "
        "VALUES (now(), 'client.connected', 't', 'it\\'s me')"
    )
    path = table_path(settings, MESSAGES)
    uncommitted = path / "part-of-an-append-that-is-not-committed.parquet"
    shutil.copyfile(next(iter(path.glob("*.parquet"))), uncommitted)
    connect = SparkConnect(query_dir)
    log = MemoryAppender()
    job = Job("j1", "delete_history", "t", "", 0)
    deletion = Deletion("t", "it's me", "alice")
    result: dict[str, Any] = Deleter(connect, log, clock).delete(job, deletion)
    connect.close()
    assert result == {"rows": {"messages": 1, "events": 1, "drops": 0, "dead_letters": 0}}
    assert topics(spark) == ["b", "c"]
    left = data_files(path)
    assert uncommitted.name in left, "what is being appended is left alone"
    assert len(left) == 1 + len(DeltaTable(str(path)).file_uris())
    (record,) = log.records
    event = json.loads(record.value or b"")
    assert (record.log_topic, event["event"], event["by"]) == (EVENTS, DELETED, "alice")
    assert (event["deleted_client_id"], event["rows"]["messages"]) == ("it's me", 1)
