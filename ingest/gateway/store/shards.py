"""The entries of the shards that a gateway reads, embedded on disk: a table for each shard.

A million sessions are rows, not Python objects; a shard that is let go of is a table that is
dropped. Progress is apart from its session: it changes a hundred times as often.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Final

from ingest.session.ownership import Entry
from mqlake.shard_records import Claim, Run

if TYPE_CHECKING:
    from ingest.gateway.store.database import Database
    from mqlake.shard_records import Key

_SCHEMA: Final = """
DROP TABLE IF EXISTS clients_{0};
DROP TABLE IF EXISTS progress_{0};
CREATE TABLE clients_{0} (
    tenant TEXT NOT NULL,
    client_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    gateway TEXT,
    incarnation TEXT,
    granted TEXT,
    claim TEXT,
    session BLOB,
    session_epoch INTEGER NOT NULL,
    is_proven INTEGER NOT NULL,
    closed_at_ms INTEGER,
    due_at_ms INTEGER,
    UNIQUE (tenant, client_id)
);
CREATE INDEX held_{0} ON clients_{0} (gateway, incarnation, tenant, client_id)
    WHERE gateway IS NOT NULL;
CREATE INDEX due_{0} ON clients_{0} (due_at_ms) WHERE gateway IS NULL AND due_at_ms IS NOT NULL;
CREATE INDEX waiting_{0} ON clients_{0} (tenant, client_id) WHERE claim IS NOT NULL;
CREATE TABLE progress_{0} (
    tenant TEXT NOT NULL,
    client_id TEXT NOT NULL,
    value BLOB NOT NULL,
    UNIQUE (tenant, client_id)
);
"""
_DROP: Final = "DROP TABLE IF EXISTS clients_{0}; DROP TABLE IF EXISTS progress_{0};"
_COLUMNS: Final = (
    "epoch, gateway, incarnation, granted, claim, session, session_epoch, is_proven,"
    " closed_at_ms, due_at_ms"
)
_WHERE: Final = "tenant = ?1 AND client_id = ?2"


class SqliteShardStore:
    """One shard's part of the database. Keeps `ingest.session.ownership.ShardStore`.

    Args:
        database: Of the gateway.
        number: Of the shard; what was kept of it before is dropped.
    """

    def __init__(self, database: Database, number: int) -> None:
        self._database = database
        database.create(_SCHEMA.format(number))
        self._count = 0  # SQLite would go through all rows each time
        clients, progress = f"clients_{number}", f"progress_{number}"
        self._drop = _DROP.format(number)
        self._get = f"SELECT {_COLUMNS} FROM {clients} WHERE {_WHERE}"  # noqa: S608
        self._put = (
            f"INSERT INTO {clients} (tenant, client_id, {_COLUMNS})"  # noqa: S608
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (tenant, client_id) DO UPDATE SET "
            + ", ".join(f"{one} = excluded.{one}" for one in _COLUMNS.split(", "))
        )
        self._has = f"SELECT session IS NOT NULL FROM {clients} WHERE {_WHERE}"  # noqa: S608
        self._delete = f"DELETE FROM {clients} WHERE {_WHERE}"  # noqa: S608
        self._delete_progress = f"DELETE FROM {progress} WHERE {_WHERE}"  # noqa: S608
        self._progress = f"SELECT value FROM {progress} WHERE {_WHERE}"  # noqa: S608
        self._put_progress = (
            f"INSERT INTO {progress} (tenant, client_id, value) VALUES (?1, ?2, ?3)"  # noqa: S608
            " ON CONFLICT (tenant, client_id) DO UPDATE SET value = excluded.value"
        )
        self._advance = (
            f"INSERT INTO {progress} (tenant, client_id, value) SELECT ?1, ?2, ?3"  # noqa: S608
            f" WHERE EXISTS (SELECT 1 FROM {clients} WHERE {_WHERE} AND epoch = ?4"
            " AND gateway IS NOT NULL)"
            " ON CONFLICT (tenant, client_id) DO UPDATE SET value = excluded.value"
        )
        # A seek behind each run found: the cost is that of the runs, not of their sessions.
        self._next_holder = (
            f"SELECT gateway, incarnation FROM {clients} WHERE gateway IS NOT NULL"  # noqa: S608
            " AND (gateway, incarnation) > (?, ?) ORDER BY gateway, incarnation LIMIT 1"
        )
        self._held_by = (
            f"SELECT tenant, client_id FROM {clients} WHERE gateway = ? AND incarnation = ?"  # noqa: S608
            " ORDER BY tenant, client_id LIMIT ?"
        )
        self._waiting = (
            f"SELECT tenant, client_id FROM {clients} WHERE claim IS NOT NULL"  # noqa: S608
            " ORDER BY tenant, client_id"
        )
        self._due = (
            f"SELECT tenant, client_id FROM {clients} WHERE gateway IS NULL"  # noqa: S608
            " AND due_at_ms IS NOT NULL AND due_at_ms <= ? ORDER BY due_at_ms LIMIT ?"
        )

    def close(self) -> None:
        """Drop what is kept of the shard."""
        self._database.create(self._drop)

    def get(self, key: Key) -> Entry | None:
        row = self._database.row(self._get, key)
        return None if row is None else _to_entry(row)

    def put(self, key: Key, entry: Entry) -> None:
        had = self._database.row(self._has, key)
        self._count += (entry.session is not None) - bool(had and had[0])
        holder = entry.holder
        row = (
            *key,
            entry.epoch,
            None if holder is None else holder.gateway,
            None if holder is None else holder.incarnation,
            _from_claim(entry.granted),
            _from_claim(entry.claim),
            entry.session,
            entry.session_epoch,
            entry.is_proven,
            entry.closed_at_ms,
            entry.due_at_ms,
        )
        self._database.write(self._put, row)

    def delete(self, key: Key) -> None:
        had = self._database.row(self._has, key)
        self._count -= bool(had and had[0])
        self._database.write(self._delete, key)
        self._database.write(self._delete_progress, key)

    def progress(self, key: Key) -> bytes | None:
        row = self._database.row(self._progress, key)
        return None if row is None else row[0]

    def put_progress(self, key: Key, value: bytes | None) -> None:
        if value is None:
            self._database.write(self._delete_progress, key)
        else:
            self._database.write(self._put_progress, (*key, value))

    def advance(self, key: Key, epoch: int, value: bytes) -> bool:
        return self._database.write(self._advance, (*key, value, epoch)) > 0

    def holders(self) -> list[Run]:
        runs: list[Run] = []
        # A run without a name holds what only progress is known of: it comes before all.
        if self._database.row(self._held_by, ("", "", 1)) is not None:
            runs.append(Run("", ""))
        at = Run("", "")
        while (row := self._database.row(self._next_holder, at)) is not None:
            at = Run(*row)
            runs.append(at)
        return runs

    def held_by(self, run: Run, limit: int | None = None) -> list[Key]:
        return _keys(self._database.rows(self._held_by, (*run, -1 if limit is None else limit)))

    def waiting(self) -> list[Key]:
        return _keys(self._database.rows(self._waiting))

    def due(self, now_ms: int, limit: int) -> list[Key]:
        return _keys(self._database.rows(self._due, (now_ms, limit)))

    def count(self) -> int:
        return self._count


def _keys(rows: list[tuple[Any, ...]]) -> list[Key]:
    return [(tenant, client_id) for tenant, client_id in rows]


def _to_entry(row: tuple[Any, ...]) -> Entry:
    epoch, gateway, incarnation, granted, claim, session, session_epoch, is_proven, closed, due = (
        row
    )
    return Entry(
        epoch,
        None if gateway is None else Run(gateway, incarnation),
        _to_claim(granted),
        _to_claim(claim),
        session,
        session_epoch,
        bool(is_proven),
        closed,
        due,
    )


def _from_claim(claim: Claim | None) -> str | None:
    if claim is None:
        return None
    run, *rest = astuple(claim)
    return json.dumps([*run, *rest])


def _to_claim(text: str | None) -> Claim | None:
    if text is None:
        return None
    gateway, incarnation, *rest = json.loads(text)
    return Claim(Run(gateway, incarnation), *rest)
