"""A table's first commit is what Delta itself writes for it, and the table is one for Spark."""

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mqlake.tables.catalogue import TABLES, Table
from streaming.settings.lake import LakeSettings
from streaming.tables.first_commit import write_first_commit
from streaming.tables.tables import create_tables, make_tables, table_properties

pytestmark = [pytest.mark.promise, pytest.mark.spark]


def create_by_delta(spark: SparkSession, folder: Path, table: Table) -> None:
    columns = ", ".join(f'{one.name} {one.type} COMMENT "{one.comment}"' for one in table.columns)
    clustering = f"CLUSTER BY ({', '.join(table.cluster_by)}) " if table.cluster_by else ""
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in table_properties(table).items())
    spark.sql(
        f"CREATE TABLE delta.`{folder}` ({columns}) USING delta {clustering}"
        f'COMMENT "{table.comment}" TBLPROPERTIES ({properties})'
    )


def written(folder: Path) -> tuple[list[Any], Any]:
    """Return the actions and the checksum of the first commit, without what differs each time."""
    log = folder / "_delta_log"
    lines = (log / f"{0:020}.json").read_text(encoding="utf-8").splitlines()
    checksum = json.loads((log / f"{0:020}.crc").read_text(encoding="utf-8"))
    checksum.pop("fileSizeHistogram", None)  # Delta does without
    actions = [json.loads(line) for line in lines]
    info = actions[0]["commitInfo"]
    assert info.pop("txnId") == checksum.pop("txnId")
    assert info.pop("engineInfo")
    assert info.pop("timestamp")
    info["operationParameters"]["properties"] = json.loads(
        info["operationParameters"]["properties"]
    )
    for metadata in (actions[1]["metaData"], checksum["metadata"]):
        assert metadata.pop("id")
        assert metadata.pop("createdTime")
        metadata["schemaString"] = json.loads(metadata["schemaString"])
    for holder in (
        *(one.get("domainMetadata", {}) for one in actions),
        *checksum["domainMetadata"],
    ):
        if holder:
            holder["configuration"] = json.loads(holder["configuration"])
    info["operationParameters"]["clusterBy"] = json.loads(info["operationParameters"]["clusterBy"])
    return actions, checksum


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_it_is_what_delta_writes(spark: SparkSession, tmp_path: Path, table: Table) -> None:
    ours, deltas = tmp_path / "tables" / "ours", tmp_path / "deltas"
    write_first_commit(ours, table, table_properties(table))
    create_by_delta(spark, deltas, table)
    assert written(ours) == written(deltas)
    assert spark.read.format("delta").load(str(ours)).schema == (
        spark.read.format("delta").load(str(deltas)).schema
    )
    assert DeltaTable(str(ours)).version() == 0, "for readers without Spark, too"


def test_tables_are_made_where_an_earlier_start_was_killed(
    spark: SparkSession, streaming_settings: LakeSettings, tmp_path: Path
) -> None:
    settings = streaming_settings.model_copy(update={"data_dir": tmp_path})
    for table in TABLES:  # of another module, elsewhere
        spark.sql(f"DROP TABLE IF EXISTS {table.name}")
    (tmp_path / "tables" / "events" / "_delta_log").mkdir(parents=True)
    names = {table.name for table in TABLES}
    assert make_tables(settings) == names
    assert make_tables(settings) == set(), "found"
    for made in (names, set()):
        create_tables(spark, settings, made)
    spark.sql("INSERT INTO events (event, client_id) VALUES ('client.connected', 'c')")
    for table in TABLES:
        rows = 1 if table.name == "events" else 0
        assert spark.table(table.name).count() == rows
        assert [one.name for one in spark.table(table.name).schema] == [
            one.name for one in table.columns
        ]
        spark.sql(f"DROP TABLE {table.name}")
