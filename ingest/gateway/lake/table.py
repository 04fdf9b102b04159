"""Read a Delta table without Spark, by delta-rs; everything here blocks.

A query is SQL as DataFusion has it, over the table's columns under the name of the table. It reads
only files whose statistics let them hold matching rows.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from ingest.gateway.lake.exchange import TableError
from mqlake.tables.catalogue import NEXT_OFFSETS

_CONFIG: Final = {
    # Read the columns that are only shown, for the rows that were found alone.
    "datafusion.execution.parquet.pushdown_filters": "true",
    # Delta's statistics have left out files already; asking each of the small ones again costs more
    # than reading it.
    "datafusion.execution.parquet.pruning": "false",
    "datafusion.execution.parquet.enable_page_index": "false",
    "datafusion.execution.parquet.bloom_filter_on_read": "false",
}
_LOOK_BACK: Final = (16, 256, None)
"""How many commits are asked for their metadata, in turn; None is all that the table remembers."""


class TableReader:
    """One table, at its newest version as of the last `refresh`.

    Args:
        path: The table's folder; its last part is the table's name in queries.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: DeltaTable | None = None

    def refresh(self) -> bool:
        """Go to the newest version; False when there is no table (yet).

        Raises:
            TableError: The table's log cannot be read, or asks for a feature we do not have.
        """
        try:
            if self._table is None:
                if not DeltaTable.is_deltatable(str(self._path)):
                    return False
                self._table = DeltaTable(str(self._path))
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            return False
        except DeltaError as exc:
            self._table = None
            raise self._error(exc) from exc
        return True

    def rows(self, sql: str) -> Iterator[list[tuple[Any, ...]]]:
        """Run a query and yield its rows in batches.

        Raises:
            TableError: A file cannot be read.
        """
        assert self._table is not None, "no version of the table is open"
        try:
            query = QueryBuilder(_CONFIG).register(self._path.name, self._table)
            for batch in query.execute(sql):
                columns = [column.to_pylist() for column in batch.columns]
                yield list(zip(*columns, strict=True))
        except Exception as exc:  # files that cannot be read raise no other
            raise self._error(exc) from exc

    def next_offsets(self) -> dict[int, int]:
        """Return partition -> the first offset of the log that this version does not have yet.

        It stands in the user metadata of commits. A commit that says none (files put together) has
        changed nothing, so an earlier one's still hold. Empty when none is remembered.

        Raises:
            TableError: The table's log cannot be read.
        """
        assert self._table is not None, "no version of the table is open"
        version = self._table.version()
        try:
            for limit in _LOOK_BACK:
                for commit in self._table.history(limit):
                    if commit["version"] <= version:
                        offsets = _offsets(commit.get("userMetadata"))
                        if offsets is not None:
                            return offsets
        except DeltaError as exc:
            raise self._error(exc) from exc
        return {}

    def _error(self, exc: Exception) -> TableError:
        # Only the first line is for people: a trace of the library's follows.
        reason = str(exc).partition("\n")[0]
        return TableError(f"table {self._path.name} ({self._path}) cannot be read: {reason}")


def text_literal(text: str) -> str:
    """Return a text as it stands in a query."""
    return "'" + text.replace("'", "''") + "'"


def _offsets(metadata: str | None) -> dict[int, int] | None:
    """Return the offsets in a commit's metadata; None when there are none."""
    try:
        offsets = json.loads(metadata or "")[NEXT_OFFSETS]
        return {int(partition): int(offset) for partition, offset in offsets.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
