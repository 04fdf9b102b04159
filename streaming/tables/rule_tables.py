"""Tables of rules as the lake finds them when it starts, before anybody writes.

An earlier version kept the rows that rules of all tenants write to `rule_x` in one table, and its
columns with those of all. Each tenant gets a table of its own from it
(`mqlake.records.rule_tables`): with its rows, and of the columns those in which it has a value.
That happens in a hidden folder. The one step that decides is the renaming of the common table into
that folder. A start that was killed before it has done nothing; one that was killed later is
finished by the next.
"""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from mqlake.errors import OperationalError
from mqlake.records.rule_tables import TENANT_PROPERTY, rule_table, rule_tables, shown_name
from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.tables.catalogue import RULE_TABLE_COLUMNS, RULE_TABLE_PREFIX, is_there
from rules.sql.quoting import quoted, quoted_name
from streaming import queries
from streaming.jvm.bridge import ddl_of, delta_log, java_rows, java_session
from streaming.log.checkpoints import checkpoint, query_id
from streaming.settings.spark import StreamingSettings
from streaming.tables.appends import batch_append
from streaming.tables.tables import make_rule_table

_logger = logging.getLogger(__name__)

_COMMON: Final = "common"
"""Folder of the common table, once it is divided, beside those of the new tables."""
_TENANT_COLUMN: Final = "tenant"
_DIVISION: Final = "division"
"""In the place of a query that writes batches, for a table that has none of them."""


def tidy_rule_tables(spark: SparkSession, settings: StreamingSettings) -> None:
    """Divide tables that are of several tenants, and remove those that a deleted tenant has left.

    Raises:
        OperationalError: A table cannot be divided.
        OSError: Folders cannot be moved.
    """
    folder = settings.data_dir.absolute() / "tables"
    for work in folder.glob(f".{RULE_TABLE_PREFIX}*"):
        finish_division(work)
    for name in rule_tables(folder, DEFAULT_TENANT):
        _give(spark, settings, folder / name)
    for name in rule_tables(folder):
        if shown_name(name) != name and _newest_state(folder / name).get("numFiles") == 0:
            _remove(folder / name)
    # Other tables are now where Delta knows these.
    delta_log(spark).clearCache()


def _give(spark: SparkSession, settings: StreamingSettings, path: Path) -> None:
    """Give a table to its tenant; if there are several, divide it."""
    tenant = _tenant_of(spark, path)
    if tenant is None:
        common = spark.read.format("delta").load(str(path))
        tenants = {DEFAULT_TENANT}
        if _TENANT_COLUMN in common.columns:
            tenants = {one for (one,) in common.select(_whose()).distinct().collect()}
        if len(tenants) > 1:
            _divide(spark, settings, path, common)
            return
        tenant = next(iter(tenants), DEFAULT_TENANT)
        noted = f"{quoted(TENANT_PROPERTY)} = {quoted(tenant)}"
        spark.sql(f"ALTER TABLE delta.{quoted_name(str(path))} SET TBLPROPERTIES ({noted})")
    if tenant != DEFAULT_TENANT:
        path.rename(_place(path, tenant))


def _divide(
    spark: SparkSession, settings: StreamingSettings, path: Path, common: DataFrame
) -> None:
    """Give each tenant that has rows in a table one of its own."""
    columns_of = _columns_by_tenant(common)
    fields = {"table": path.name, "tenants": len(columns_of)}
    _logger.info("table of rules is divided by tenant", extra={"fields": fields})
    work = path.with_name(f".{path.name}")
    for tenant, columns in columns_of.items():
        made = work / _place(path, tenant).name
        rows = common.where(_whose() == tenant).select(*map(quoted_name, columns))
        make_rule_table(spark, made, tenant, ddl_of(rows))
        # The last batch may come again: the query of outputs had not noted it when it was killed.
        append = batch_append(spark, made)
        append.append(java_rows(rows), *_last_batch(spark, settings, path))
    os.sync()  # what was copied is on the disk before the common table goes
    path.rename(work / _COMMON)
    finish_division(work)


def finish_division(work: Path) -> None:
    """Put new tables in their places if the common one has left its own; remove the rest."""
    if (work / _COMMON).exists():
        for made in sorted(work.iterdir()):
            if made.name != _COMMON:
                made.rename(work.with_name(made.name))
    shutil.rmtree(work)


def _place(path: Path, tenant: str) -> Path:
    """Return where the table of a tenant is to be that has rows in a common one.

    Raises:
        OperationalError: It has a table there.
    """
    place = path.with_name(rule_table(tenant, path.name))
    if place != path and is_there(place):
        raise OperationalError(
            f"the table {path} has rows of the tenant {tenant}, which has the table {place} "
            "already: move one of them out of this folder"
        )
    return place


def _whose() -> Column:
    """Return the tenant of a row; one without a tenant is of a version that knew none."""
    return F.coalesce(_TENANT_COLUMN, F.lit(DEFAULT_TENANT))


def _columns_by_tenant(common: DataFrame) -> dict[str, list[str]]:
    """Return the columns of each tenant: those that all tables have, and its own with a value."""
    ours = {column.name for column in RULE_TABLE_COLUMNS}
    names = [name for name in common.columns if name not in ours]
    values = [F.count(F.col(quoted_name(name))) for name in names]
    rows = common.groupBy(_whose()).agg(F.count(F.lit(1)), *values).collect()
    return {
        tenant: [
            *(name for name in common.columns if name in ours),
            *(name for name, count in zip(names, counts, strict=True) if count),
        ]
        for tenant, _, *counts in rows
    }


def _last_batch(spark: SparkSession, settings: StreamingSettings, path: Path) -> tuple[str, int]:
    """Return the identifier of the query of outputs, and its last batch that a table has."""
    try:
        query = query_id(checkpoint(settings.data_dir, queries.OUTPUTS))
    except FileNotFoundError:
        return _DIVISION, 0
    log = delta_log(spark).forTable(java_session(spark), str(path))
    batch = log.startTransaction().txnVersion(query)
    return (query, batch) if batch >= 0 else (_DIVISION, 0)


def _tenant_of(spark: SparkSession, path: Path) -> str | None:
    """Return whose a table is; None: it does not say."""
    state = _newest_state(path)
    if "metadata" in state:
        properties = state["metadata"].get("configuration", {})
    else:
        (row,) = spark.sql(f"DESCRIBE DETAIL delta.{quoted_name(str(path))}").collect()
        properties = row["properties"]
    found: str | None = properties.get(TENANT_PROPERTY)
    return found


def _newest_state(path: Path) -> dict[str, Any]:
    """Return what Delta has written beside the newest commit of a table; empty without that."""
    newest = max((path / "_delta_log").glob("*.json")).with_suffix(".crc")
    if not newest.exists():
        return {}
    state: dict[str, Any] = json.loads(newest.read_text(encoding="utf-8"))
    return state


def _remove(path: Path) -> None:
    """Remove a table: first out of sight as a whole."""
    grave = path.with_name(f".{path.name}")
    path.rename(grave)
    shutil.rmtree(grave)
