"""Create the Delta tables of `mqlake.tables.catalogue`, known by name to every session."""

import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from mqlake.errors import MqlakeError
from mqlake.records.rule_tables import MOST_COLUMNS, TENANT_PROPERTY, rule_table, rule_tables
from mqlake.tables.catalogue import RULE_TABLE_COLUMNS, TABLES, Column, Table, is_there
from rules.sql.quoting import quoted, quoted_name
from streaming.settings.spark import StreamingSettings
from streaming.tables.first_commit import write_first_commit

_PROPERTIES: Final = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 day",
    "delta.deletedFileRetentionDuration": "interval 1 day",
}
_SHOWN_COLUMNS: Final = 5
# Statistics on columns that queries ask for; not on payloads.
_STATISTICS: Final = (
    "tenant",
    "topic",
    "ts",
    "client_id",
    "expires_at",
    "log_partition",
    "log_offset",
)


class TableFull(MqlakeError):  # noqa: N818 - it names what is wrong
    """A table of rules has as many columns as it may have."""


def table_path(settings: StreamingSettings, table: Table) -> Path:
    """Return the folder of a table."""
    return settings.data_dir.absolute() / "tables" / table.name


def make_tables(settings: StreamingSettings) -> frozenset[str]:
    """Make the tables that are missing, without Spark; return their names.

    No other process may do so at the same time.

    Raises:
        OSError: They cannot be written.
    """
    made = set()
    for table in TABLES:
        folder = table_path(settings, table)
        # A folder without a commit is of a start that was killed.
        if not is_there(folder):
            write_first_commit(folder, table, table_properties(table))
            made.add(table.name)
    return frozenset(made)


def create_tables(
    spark: SparkSession, settings: StreamingSettings, made: Collection[str] = ()
) -> None:
    """Create missing tables, columns, and their names in the catalog.

    The catalog lives in the JVM's memory and is the same for all sessions.

    Args:
        spark: Any session.
        settings: Folder of the tables.
        made: Tables that have just been made: they lack no column.
    """
    complete = {*made, *make_tables(settings)}
    for table in TABLES:
        location = quoted(str(table_path(settings, table)))
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table.name} USING delta LOCATION {location}")
        if table.name not in complete:
            _add_missing(spark, table.name, table.columns)
    for name in rule_tables(settings.data_dir.absolute() / "tables"):
        location = quoted(str(rule_table_path(settings, name)))
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {location}")
        _add_missing(spark, name, RULE_TABLE_COLUMNS)


def _add_missing(spark: SparkSession, name: str, columns: Iterable[Column]) -> None:
    """Add columns that a table of an earlier version lacks."""
    present = set(spark.table(name).columns)
    missing = [column for column in columns if column.name not in present]
    if missing:
        spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({', '.join(map(_definition, missing))})")


def rule_table_path(settings: StreamingSettings, name: str) -> Path:
    """Return the folder of a table that rules write to, by its name in the lake."""
    return settings.data_dir.absolute() / "tables" / name


def grow_rule_table(
    spark: SparkSession,
    settings: StreamingSettings,
    tenant: str,
    table: str,
    columns: Mapping[str, str],
) -> dict[str, str]:
    """Create a table that rules write to, or add those of these columns that it lacks.

    Args:
        spark: Any session.
        settings: Folder of the tables.
        tenant: Owner of the rules.
        table: As they name it, with `rule_`.
        columns: Name to Spark SQL type.

    Returns:
        The type of each column of the table, in lower case as is the column's name: a column that
        was there keeps its own.

    Raises:
        TableFull: It would have more than `MOST_COLUMNS`.
        AnalysisException: Spark does not take these columns.
    """
    name = rule_table(tenant, table)
    path = rule_table_path(settings, name)
    if not spark.catalog.tableExists(name):
        _check_room(len(RULE_TABLE_COLUMNS), columns)
        ours = {column.name: column.type for column in RULE_TABLE_COLUMNS}
        make_rule_table(spark, path, tenant, _definitions(ours | dict(columns)))
        spark.sql(f"CREATE TABLE {name} USING delta LOCATION {quoted(str(path))}")
    types = column_types(spark, name)
    added = {column: type_ for column, type_ in columns.items() if column.lower() not in types}
    if added:
        _check_room(len(types), added)
        spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({_definitions(added)})")
        types |= {column.lower(): type_.lower() for column, type_ in added.items()}
    return types


def _check_room(count: int, added: Collection[str]) -> None:
    """Refuse columns that a table with `count` columns has no room for."""
    if count + len(added) > MOST_COLUMNS:
        some = ", ".join([*list(added)[:_SHOWN_COLUMNS], *["…"] * (len(added) > _SHOWN_COLUMNS)])
        raise TableFull(
            f"it would have {count + len(added)} columns, expected at most {MOST_COLUMNS}: there "
            f"is no room for {some}"
        )


def _definitions(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{quoted_name(column)} {type_}" for column, type_ in columns.items())


def make_rule_table(spark: SparkSession, path: Path, tenant: str, definitions: str) -> None:
    """Make a table that rules of a tenant write to; the catalog does not learn of it.

    Args:
        spark: Any session.
        path: Folder of the table.
        tenant: Owner of the table.
        definitions: Definitions of its columns, in Spark SQL.
    """
    if path.exists() and not is_there(path):
        # Its making was cut short by a kill; Delta makes no table where anything is.
        shutil.rmtree(path)
    properties = {
        **_PROPERTIES,
        "delta.dataSkippingStatsColumns": "ts,rule",
        TENANT_PROPERTY: tenant,
    }
    listed = ", ".join(f"{quoted(key)} = {quoted(value)}" for key, value in properties.items())
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS delta.{quoted_name(str(path))} ({definitions})"
        f" USING delta CLUSTER BY (ts) TBLPROPERTIES ({listed})"
    )


def column_types(spark: SparkSession, name: str) -> dict[str, str]:
    """Return the type of each column of a table, both in lower case."""
    fields = spark.table(name).schema.fields
    return {field.name.lower(): field.dataType.simpleString().lower() for field in fields}


def table_properties(table: Table) -> dict[str, str]:
    """Return the properties that a table is made with."""
    names = {column.name for column in table.columns}
    statistics = ",".join(name for name in _STATISTICS if name in names)
    return {**_PROPERTIES, "delta.dataSkippingStatsColumns": statistics}


def _definition(column: Column) -> str:
    return f"{column.name} {column.type} COMMENT {quoted(column.comment)}"
