"""Tables of a system that nobody else queries: its query application is not started for them."""

from typing import Any

from deltalake import DeltaTable, QueryBuilder

from launcher.testing import LocalSystem


def rows_of(system: LocalSystem, table: str, query: str) -> list[dict[str, Any]]:
    """Return what a query of one table finds, in its newest version; nothing before it is made."""
    path = str(system.data_dir / "tables" / table)
    if not DeltaTable.is_deltatable(path):
        return []
    found = DeltaTable(path)
    rows: list[dict[str, Any]] = []
    for batch in QueryBuilder().register(table, found).execute(query):
        names = batch.schema.names
        values = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        rows += [dict(zip(names, row, strict=True)) for row in values]
    return rows
