"""Reads the Delta tables of references, any version of them, without Spark.

deltalake takes a while to load and memory to hold: so this waits for the first request.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqlake.errors import OperationalError
from mqlake.records.references import Columns, ColumnType, reference_table_path

if TYPE_CHECKING:
    from deltalake import DeltaTable


class UnknownVersion(OperationalError):  # noqa: N818 - it names the missing thing
    """The table has no such version, or no longer."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a table, as its commit says."""

    version: int
    at_ms: int
    kind: str
    rows: int
    key: tuple[str, ...]
    columns: Columns
    description: str
    of_version: int | None
    """The version that was gone back to."""


class ReferenceTables:
    """The tables below a data directory.

    Args:
        data_dir: Data directory of the system.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    def versions(self, tenant: str, reference: str) -> list[Version]:
        """Return the versions that are kept, the newest first.

        Raises:
            OperationalError: The table cannot be read.
        """
        table = self._open(tenant, reference, None)
        found = [_version(commit) for commit in table.history()]
        return sorted(
            (one for one in found if one is not None), key=lambda one: one.version, reverse=True
        )

    def rows(
        self,
        tenant: str,
        reference: str,
        version: int,
        key: Sequence[str],
        after: Sequence[Any] | None,
        limit: int,
    ) -> list[dict[str, Any]]:
        """Return rows by their key, those behind a key's values.

        Raises:
            UnknownVersion: The table has no such version.
            OperationalError: The table cannot be read.
        """
        from deltalake import QueryBuilder

        table = self._open(tenant, reference, version)
        where = "" if after is None else f" WHERE {_behind(key, after)}"
        order = ", ".join(map(_quoted, key))
        sql = f"SELECT * FROM reference{where} ORDER BY {order} LIMIT {limit:d}"  # noqa: S608
        try:
            batches = list(QueryBuilder().register("reference", table).execute(sql))
        except Exception as exc:  # files that cannot be read raise no other
            raise _unreadable(table, exc) from exc
        return [row for batch in batches for row in _rows_of(batch)]

    def _open(self, tenant: str, reference: str, version: int | None) -> "DeltaTable":
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        path = reference_table_path(self._data_dir, tenant, reference)
        if not DeltaTable.is_deltatable(str(path)):
            raise OperationalError(f"there is no table {path} (yet)")
        try:
            return DeltaTable(str(path), version=version)
        except DeltaError as exc:
            raise UnknownVersion(
                f"reference table {reference!r} has no version {version} (any more)"
            ) from exc


def _version(commit: dict[str, Any]) -> Version | None:
    try:
        said = json.loads(commit["userMetadata"])
        return Version(
            version=int(commit["version"]),
            at_ms=said["at"],
            kind=said["kind"],
            rows=said["rows"],
            key=tuple(said["key"]),
            columns=tuple((str(name), _type(type_)) for name, type_ in said["columns"]),
            description=said["description"],
            of_version=said["version"],
        )
    except (KeyError, TypeError, ValueError):
        return None  # a commit that is no version of ours


def _type(text: ColumnType) -> ColumnType:
    return text


def _behind(key: Sequence[str], after: Sequence[Any]) -> str:
    """Return the condition that a row's key is greater; its first column counts most."""
    equal = ""
    found = []
    for name, value in zip(key, after, strict=True):
        found.append(f"({equal}{_quoted(name)} > {_literal(value)})")
        equal += f"{_quoted(name)} = {_literal(value)} AND "
    return " OR ".join(found)


def _quoted(name: str) -> str:
    return f'"{name}"'


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    return str(value).lower()


def _rows_of(batch: Any) -> list[dict[str, Any]]:
    names = batch.schema.names
    columns = [batch.column(name).to_pylist() for name in names]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _unreadable(table: "DeltaTable", error: Exception) -> OperationalError:
    # Only the first line is for people: a trace of the library's follows.
    reason = str(error).partition("\n")[0]
    if "not found" in reason.lower():
        return UnknownVersion(f"the files of version {table.version()} are gone")
    return OperationalError(f"table {table.table_uri} cannot be read: {reason}")
