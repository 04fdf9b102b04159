"""Retained messages, read from their table without Spark.

deltalake takes a while to load and memory to hold: so this waits for the first request.
"""

import json
import threading
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mqlake.errors import OperationalError
from mqlake.tables.catalogue import RETAINED
from mqlake.topics.names import SEPARATOR

if TYPE_CHECKING:
    from deltalake import DeltaTable

_BYTES: Final = "octet_length(encode(payload, 'hex')) / 2"
"""DataFusion knows the length of texts only."""
_COLUMNS: Final = (
    f"topic, {{payload}} AS payload, {_BYTES} AS payload_bytes, qos, id, client_id, username,"
    " protocol_level, properties, origin, ts, expires_at"
)
_SPECIAL: Final = frozenset("\\.+*?()|[]{}^$#&-~")
"""Characters that mean something in a regular expression of Rust."""


class RetainedTable:
    """The Delta table `retained` at its newest version; safe to use from any thread.

    Args:
        path: The table's folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._table: DeltaTable | None = None

    def get(self, tenant: str, topic_name: str) -> dict[str, Any] | None:
        """Return the message of a topic.

        Raises:
            OperationalError: The table cannot be read; `page` raises it too.
        """
        rows = self._rows(tenant, f"topic = {literal(topic_name)}", "payload", 1)
        return rows[0] if rows else None

    def page(
        self,
        tenant: str,
        topic_filter: str | None,
        after: str,
        limit: int,
        *,
        max_payload_bytes: int,
    ) -> list[dict[str, Any]]:
        """Return messages by topic name, behind the given one; larger payloads as None."""
        where = f"topic > {literal(after)}"
        if topic_filter is not None:
            where += f" AND regexp_like(topic, {literal(to_regex(topic_filter))})"
        payload = f"CASE WHEN {_BYTES} <= {max_payload_bytes:d} THEN payload END"
        return self._rows(tenant, where, payload, limit)

    def _rows(self, tenant: str, where: str, payload: str, limit: int) -> list[dict[str, Any]]:
        from deltalake import QueryBuilder

        # Expired messages stand in the table for up to a minute more.
        sql = (
            f"SELECT {_COLUMNS.format(payload=payload)} FROM {RETAINED.name}"  # noqa: S608
            f" WHERE tenant = {literal(tenant)} AND (expires_at IS NULL OR expires_at > now())"
            f" AND {where} ORDER BY topic LIMIT {limit:d}"
        )
        with self._lock:
            try:
                query = QueryBuilder().register(RETAINED.name, self._newest())
                return [row for batch in query.execute(sql) for row in _rows_of(batch)]
            except OperationalError:
                raise
            except Exception as exc:  # files that cannot be read raise no other
                self._table = None
                # Only the first line is for people: a trace of the library's follows.
                reason = str(exc).partition("\n")[0]
                raise OperationalError(f"table {self._path} cannot be read: {reason}") from exc

    def _newest(self) -> "DeltaTable":
        from deltalake import DeltaTable

        if self._table is None:
            if not DeltaTable.is_deltatable(str(self._path)):
                raise OperationalError(f"there is no table {self._path} (yet)")
            self._table = DeltaTable(str(self._path))
        else:
            self._table.update_incremental()
        return self._table


def to_regex(topic_filter: str) -> str:
    """Return the regular expression of topics that a valid topic filter matches (5.0: 4.7)."""
    levels = topic_filter.split(SEPARATOR)
    is_open = levels[-1] == "#"
    if is_open:
        levels.pop()
    patterns = ["[^/]*" if level == "+" else _escape(level) for level in levels]
    if levels and levels[0] == "+":  # a leading `$` never meets a leading wildcard
        patterns[0] = "(?:[^/$][^/]*)?"
    if not levels:
        return "(?s)^(?:[^$]|$)"  # no topic name is empty, other texts of a query are
    return f"(?s)^{SEPARATOR.join(patterns)}{'(?:/.*)?' if is_open else ''}$"


def _rows_of(batch: Any) -> list[dict[str, Any]]:
    names = batch.schema.names
    columns = [batch.column(name).to_pylist() for name in names]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    for row in rows:
        row["properties"] = None if row["properties"] is None else json.loads(row["properties"])
        for name in ("ts", "expires_at"):
            row[name] = None if row[name] is None else row[name].astimezone(UTC)
    return rows


def literal(text: str) -> str:
    """Return a text as it stands in the SQL of DataFusion."""
    return "'" + text.replace("'", "''") + "'"


def _escape(text: str) -> str:
    return "".join(f"\\{one}" if one in _SPECIAL else one for one in text)
