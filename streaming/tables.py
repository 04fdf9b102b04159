"""Create the Delta tables of `mqlake.tables` and make them known by name to every session."""

from pathlib import Path
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from mqlake.tables import TABLES, Column, Table
from streaming.settings import StreamingSettings

_PROPERTIES: Final = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 day",
    "delta.deletedFileRetentionDuration": "interval 1 day",
}
# Statistics on what queries ask for; not on payloads.
_STATISTICS: Final = (
    "tenant",
    "topic",
    "ts",
    "client_id",
    "expires_at",
    "log_partition",
    "log_offset",
)


def table_path(settings: StreamingSettings, table: Table) -> Path:
    """Return the folder of a table."""
    return settings.data_dir.absolute() / "tables" / table.name


def create_tables(spark: SparkSession, settings: StreamingSettings) -> None:
    """Create what is missing: tables, columns, and their names in the catalog.

    The catalog lives in the JVM's memory and is the same for all sessions, Connect's included.
    """
    for table in TABLES:
        path = str(table_path(settings, table))
        location = _literal(path)
        if DeltaTable.isDeltaTable(spark, path):
            spark.sql(f"CREATE TABLE IF NOT EXISTS {table.name} USING delta LOCATION {location}")
            present = set(spark.table(table.name).columns)
            missing = [column for column in table.columns if column.name not in present]
            if missing:
                added = ", ".join(map(_definition, missing))
                spark.sql(f"ALTER TABLE {table.name} ADD COLUMNS ({added})")
        else:
            columns = ", ".join(map(_definition, table.columns))
            clustering = f"CLUSTER BY ({', '.join(table.cluster_by)}) " if table.cluster_by else ""
            spark.sql(
                f"CREATE TABLE IF NOT EXISTS {table.name} ({columns}) USING delta "
                f"{clustering}COMMENT {_literal(table.comment)} "
                f"LOCATION {location} TBLPROPERTIES ({_properties(table)})"
            )


def _properties(table: Table) -> str:
    names = {column.name for column in table.columns}
    statistics = ",".join(name for name in _STATISTICS if name in names)
    properties = {**_PROPERTIES, "delta.dataSkippingStatsColumns": statistics}
    return ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())


def _definition(column: Column) -> str:
    return f"{column.name} {column.type} COMMENT {_literal(column.comment)}"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
