"""Sizes of the tables by tenant: file by file, for files do not change.

A reference table is of one tenant. Of most files of the others Delta's statistics say that all rows
are of one; of the rest the column `tenant` is read, once. The size of a file on the disk is divided
by its rows.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from mqlake.errors import OperationalError
from mqlake.records.references import REFERENCE_TABLE_PREFIX, reference_table
from mqlake.records.rule_tables import rule_tables, shown_name
from mqlake.tables.catalogue import AUDIT_LOG, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from deltalake import DeltaTable

    from mqlake.clock import Clock

_Shared: TypeAlias = "dict[tuple[str, str], Counter[str]]"

KEPT_SECONDS: Final = 60.0
"""How long the sizes found are good enough."""
TRUNCATED_CHARACTERS: Final = 32
"""Delta's statistics have no more of a text."""
OF_TENANTS: Final = tuple(one.name for one in TABLES if one is not AUDIT_LOG)


class StoredPart(NamedTuple):
    """A part of a table."""

    rows: int
    size: int
    """Bytes on the disk."""


class Storage:
    """Looks at the tables on request; safe to use from any thread.

    deltalake and pyarrow take a while to load and memory to hold: not before that.

    Args:
        folder: Folder of the tables.
        references: Returns tenant and identifier of each reference table.
        clock: Says how old known sizes are.
    """

    def __init__(
        self,
        folder: Path,
        references: Callable[[], Iterable[tuple[str, str]]],
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._references = references
        self._clock = clock
        self._lock = threading.Lock()
        self._tables: dict[str, DeltaTable] = {}
        # By table and file: the rows of each tenant, of files that several share.
        self._shared: dict[tuple[str, str], Counter[str]] = {}
        self._found: dict[str, dict[str, StoredPart]] = {}
        self._until = 0.0

    def all(self) -> dict[str, dict[str, StoredPart]]:
        """Return the stored sizes of each tenant, by table; at most `KEPT_SECONDS` old.

        Raises:
            OperationalError: A table cannot be read.
        """
        with self._lock:
            now = self._clock.monotonic()
            if now >= self._until:
                self._found = self._look()
                self._until = now + KEPT_SECONDS
            return self._found

    def _look(self) -> dict[str, dict[str, StoredPart]]:
        found: dict[str, dict[str, StoredPart]] = defaultdict(dict)
        shared: dict[tuple[str, str], Counter[str]] = {}
        for name in (*OF_TENANTS, *rule_tables(self._folder)):
            for tenant, stored in self._read(name, shared).items():
                found[tenant][shown_name(name)] = stored
        for tenant, reference in self._references():
            of_table = self._read(reference_table(tenant, reference), shared, tenant)
            if tenant in of_table:
                found[tenant][REFERENCE_TABLE_PREFIX + reference] = of_table[tenant]
        self._shared = shared
        return dict(found)

    def _read(self, name: str, shared: _Shared, whose: str | None = None) -> dict[str, StoredPart]:
        try:
            return self._of_table(name, shared, whose)
        except Exception as exc:  # files that cannot be read raise no other
            self._tables.pop(name, None)
            reason = str(exc).partition("\n")[0]
            raise OperationalError(f"table {name} cannot be read: {reason}") from exc

    def _of_table(self, name: str, shared: _Shared, whose: str | None) -> dict[str, StoredPart]:
        table = self._newest(name)
        if table is None:
            return {}
        rows, sizes = Counter[str](), Counter[str]()
        actions = table.get_add_actions(flatten=True)
        names = ("path", "size_bytes", "num_records", "min.tenant", "max.tenant")
        known = set(actions.schema.names)
        columns = [
            actions.column(one).to_pylist() if one in known else [None] * actions.num_rows
            for one in names
        ]
        for path, size, records, first, last in zip(*columns, strict=True):
            if whose is not None:
                parts = Counter({whose: records or 0})
            elif records and first == last and _is_whole(first):
                parts = Counter({first: records})
            else:
                key = name, path
                parts = self._shared.get(key) or _read_tenants(self._folder / name / path)
                shared[key] = parts
            total = max(parts.total(), 1)
            for tenant, count in parts.items():
                rows[tenant] += count
                sizes[tenant] += round(size * count / total)
        return {tenant: StoredPart(count, sizes[tenant]) for tenant, count in rows.items()}

    def _newest(self, name: str) -> DeltaTable | None:
        from deltalake import DeltaTable

        path = str(self._folder / name)
        if not DeltaTable.is_deltatable(path):
            self._tables.pop(name, None)
            return None
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = DeltaTable(path)
        else:
            table.update_incremental()
        return table


def _is_whole(text: str | None) -> bool:
    """Tell whether statistics have all of a text."""
    return text is not None and len(text) < TRUNCATED_CHARACTERS


def _read_tenants(path: Path) -> Counter[str]:
    """Return the number of rows of a file by tenant."""
    import pyarrow.parquet as pq

    column = pq.read_table(path, columns=["tenant"]).column("tenant")
    return Counter({one["values"]: one["counts"] for one in column.value_counts().to_pylist()})
