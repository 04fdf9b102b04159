"""Tables of a system that nobody else queries: its query application is not started for them."""

from typing import Any

from ingest.gateway.lake.table import TableReader
from launcher.testing.systems import LocalSystem


def rows_of(system: LocalSystem, table: str, query: str) -> list[tuple[Any, ...]]:
    """Return what a query of one table finds, in its newest version; nothing before it is made."""
    reader = TableReader(system.data_dir / "tables" / table)
    if not reader.refresh():
        return []
    return [row for batch in reader.rows(query) for row in batch]
