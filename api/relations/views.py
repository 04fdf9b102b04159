"""The relations that queries see: the tables, with payloads as JSON, as text and as bytes.

`docs/tables.md` describes them. The API puts them into each query, filtered to a tenant; for
clients of Spark Connect they are views (`catalog`).
"""

from dataclasses import dataclass
from typing import Final

from mqlake.records.references import reference_table
from mqlake.records.rule_tables import rule_table
from mqlake.tables.catalogue import MESSAGES, RETAINED, RULE_TABLE_COLUMNS, TABLES, Table

CATALOG_SCHEMA: Final = "spark_catalog.default"
"""Schema of the tables."""
VIEW_SCHEMA: Final = "mqlake"
"""Schema of the views, of all tenants."""

TENANT: Final = "tenant"
TOPIC_MATCHES: Final = "topic_matches"
TOPIC_LEVEL: Final = "topic_level"


@dataclass(frozen=True, slots=True)
class ViewColumn:
    name: str
    type: str
    expression: str
    """Spark SQL over the columns of the table."""
    comment: str


_TEXT: Final = "try_validate_utf8(CAST(payload AS STRING))"
PAYLOAD_COLUMNS: Final = (
    ViewColumn(
        "payload",
        "variant",
        # Of other payloads the text: a sensor that sends `21.5` and one that sends `on` are read
        # alike.
        f"coalesce(try_parse_json({_TEXT}), CAST({_TEXT} AS VARIANT))",
        "payload as JSON, else its text; null when it is not UTF-8",
    ),
    ViewColumn("payload_text", "string", _TEXT, "payload as text; null when it is not UTF-8"),
    ViewColumn("payload_bytes", "binary", "payload", "payload as published"),
)
"""Columns in place of the column `payload`."""


def view_columns(table: Table) -> tuple[ViewColumn, ...]:
    """Return the columns of the relation that has the table's name."""
    columns: list[ViewColumn] = []
    for column in table.columns:
        if column.name == "payload" and table in (MESSAGES, RETAINED):
            columns += PAYLOAD_COLUMNS
        else:
            columns.append(ViewColumn(column.name, column.type, f"`{column.name}`", column.comment))
    return tuple(columns)


def view_select(table: Table, *, time_travel: str = "", where: str = "") -> str:
    """Return the SELECT of a relation.

    Args:
        table: One of `TABLES`.
        time_travel: `VERSION AS OF …` or `TIMESTAMP AS OF …`.
        where: A condition over the columns of the table.
    """
    listed = ", ".join(
        column.expression
        if column.expression == f"`{column.name}`"
        else f"{column.expression} AS `{column.name}`"
        for column in view_columns(table)
    )
    return _select(listed, table.name, time_travel, where)


def rule_view_select(tenant: str, name: str, *, time_travel: str = "", where: str = "") -> str:
    """Return the SELECT of a relation that rules write to, which is of one tenant."""
    return _select("*", rule_table(tenant, name), time_travel, where)


def reference_view_select(tenant: str, reference: str, *, time_travel: str = "") -> str:
    """Return the SELECT of a reference table, which is of one tenant."""
    return _select("*", reference_table(tenant, reference), time_travel, "")


def _select(listed: str, name: str, time_travel: str, where: str) -> str:
    travel = f" {time_travel}" if time_travel else ""
    condition = f" WHERE {where}" if where else ""
    return f"SELECT {listed} FROM {CATALOG_SCHEMA}.`{name}`{travel}{condition}"  # noqa: S608


BY_NAME: Final = {table.name: table for table in TABLES}
RULE_COLUMN: Final = RULE_TABLE_COLUMNS[1].name
