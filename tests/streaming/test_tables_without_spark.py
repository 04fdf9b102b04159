"""What Spark writes is read by gateways, which have no Spark."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ingest.gateway.lake.exchange import (
    END,
    MESSAGES_OPERATION,
    RETAINED_OPERATION,
    HistoryPage,
)
from ingest.gateway.lake.worker import Worker
from ingest.gateway.store.retained import RetainedRow
from mqlake.records.versions import RECORD_VERSION
from mqlake.tables.catalogue import MESSAGES, RETAINED, TABLES, Table
from streaming.settings.lake import LakeSettings
from streaming.tables.retained import delete_expired, merge_retained, note_offsets
from streaming.tables.tables import create_tables, table_path

pytestmark = pytest.mark.spark

PAST = datetime(2020, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)
ROW = {
    "id": "0f" * 16,
    "tenant": "test-lake",
    "payload": b"\0\xff",
    "qos": 1,
    "retain": True,
    "dup": False,
    "client_id": "c1",
    "username": None,
    "protocol_level": 5,
    "properties": '{"content_type":"ü"}',
    "origin": "local/gateway-1",
    "ts": PAST,
    "expires_at": None,
    "log_partition": 7,
}


@pytest.fixture
def settings(
    spark: SparkSession, streaming_settings: LakeSettings, tmp_path: Path
) -> Iterator[LakeSettings]:
    settings = streaming_settings.model_copy(update={"data_dir": tmp_path})
    for table in TABLES:  # the catalog may know them in the folder of another test
        spark.sql(f"DROP TABLE IF EXISTS {table.name}")
    create_tables(spark, settings)
    yield settings
    for table in TABLES:
        spark.sql(f"DROP TABLE {table.name}")


def rows_of(table: Table, rows: list[dict[str, Any]]) -> list[list[Any]]:
    return [[{**ROW, **row}[column.name] for column in table.columns] for row in rows]


def schema_of(table: Table) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in table.columns)


def answer(data_dir: Path, operation: str, *arguments: Any) -> tuple[list[Any], Any]:
    *frames, (kind, end) = Worker(data_dir).answer(operation, arguments)
    assert kind == END, end
    return [row for _, rows in frames for row in rows], end


def test_messages_appended_and_put_together_by_spark(
    spark: SparkSession, settings: LakeSettings
) -> None:
    for offset in range(4):
        rows = [{"topic": f"t/{offset % 2}", "log_offset": offset}]
        data = spark.createDataFrame(rows_of(MESSAGES, rows), schema_of(MESSAGES))
        data.write.format("delta").mode("append").saveAsTable(MESSAGES.name)
        if offset == 2:
            spark.sql(f"OPTIMIZE {MESSAGES.name}")
    records, page = answer(
        settings.data_dir,
        MESSAGES_OPERATION,
        "test-lake",
        {7: (0, 9)},
        ["+/0"],
        10,
        None,
    )
    assert page == HistoryPage([], {7: 4}, has_more=False)
    assert [record.offset for record in records] == [0, 2]
    assert records[0].key == b"test-lake/t/0"
    assert records[0].value == b"\0\xff"
    assert records[0].timestamp_ms == 1_577_836_800_123
    assert dict(records[0].headers) == {
        "mqtt": bytes((RECORD_VERSION, 5, 5)),
        "id": b"\x0f" * 16,
        "client_id": b"c1",
        "origin": b"local/gateway-1",
        "properties": '{"content_type":"ü"}'.encode(),
    }


def test_retained_merged_deleted_and_put_together_by_spark(
    spark: SparkSession, settings: LakeSettings
) -> None:

    def merge(next_offset: int, *rows: dict[str, Any], gone: bool = False) -> None:
        data = spark.createDataFrame(rows_of(RETAINED, list(rows)), schema_of(RETAINED))
        merge_retained(data.selectExpr("*", f"{gone} AS gone"), {7: next_offset})

    merge(2, *({"topic": f"r/{number}", "log_offset": 1} for number in range(4)))
    merge(3, {"topic": "r/0", "log_offset": 2, "payload": b"new"})
    merge(4, {"topic": "r/1", "log_offset": 3}, gone=True)
    merge(5, {"topic": "r/2", "log_offset": 4, "expires_at": PAST})
    delete_expired(spark, datetime.now(UTC), {7: 5})
    note_offsets(spark, table_path(settings, RETAINED), {7: 9})
    spark.sql(f"OPTIMIZE {RETAINED.name}")
    rows, offsets = answer(settings.data_dir, RETAINED_OPERATION, list(range(8)))
    assert offsets == {7: 9}
    ours = sorted(row for row in rows if row.tenant == "test-lake")
    assert [(row.topic_name, row.payload, row.rank) for row in ours] == [
        ("r/0", b"new", 2),
        ("r/3", b"\0\xff", 1),
    ]
    assert ours[0] == RetainedRow(
        tenant="test-lake",
        topic_name="r/0",
        payload=b"new",
        qos=1,
        properties='{"content_type":"ü"}'.encode(),
        client_id="c1",
        received_at_ms=1_577_836_800_123,
        expires_at_ms=None,
        shard=7,
        rank=2,
    )


@pytest.mark.parametrize("table", [MESSAGES, RETAINED], ids=lambda table: table.name)
def test_our_tables_ask_nothing_special_of_a_reader(settings: LakeSettings, table: Table) -> None:
    protocol = DeltaTable(str(table_path(settings, table))).protocol()
    assert protocol.min_reader_version == 1
    assert not protocol.reader_features
