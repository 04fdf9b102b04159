"""The entries of the shards that a gateway reads, embedded on disk: a table for each shard.

A million sessions are rows, not Python objects; a shard that is let go of is a table that is
dropped. Progress is apart from its session: it changes a hundred times as often.

Rows wait in memory until a thousand have come together and are written at once, or a query asks
for more than one client: rows cost a third then. Progress waits then, too, for no query asks for
that of more than one: overtaken progress is never written.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from ingest.session.shard.entries import ShardEntry, absent_subscriptions
from ingest.session.shard.stored_subscriptions import SubscriptionRow
from mqlake.records.shards import Claim, Run

if TYPE_CHECKING:
    from ingest.gateway.store.database import Database
    from mqlake.records.shards import Key

_SCHEMA: Final = """
DROP TABLE IF EXISTS clients_{0};
DROP TABLE IF EXISTS progress_{0};
DROP TABLE IF EXISTS subscriptions_{0};
DROP TABLE IF EXISTS absent_{0};
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
    absent INTEGER NOT NULL,
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
CREATE TABLE subscriptions_{0} (
    tenant TEXT NOT NULL,
    client_id TEXT NOT NULL,
    filter TEXT NOT NULL,
    session_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (tenant, client_id, filter)
) WITHOUT ROWID;
-- Subscriptions of sessions that nobody holds; to go through all of them each time would take long.
CREATE TABLE absent_{0} (
    tenant TEXT PRIMARY KEY,
    subscriptions INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER absent_added_{0} AFTER INSERT ON clients_{0} WHEN new.absent > 0 BEGIN
    INSERT INTO absent_{0} SELECT new.tenant, 0
    WHERE NOT EXISTS (SELECT 1 FROM absent_{0} WHERE tenant = new.tenant);
    UPDATE absent_{0} SET subscriptions = subscriptions + new.absent WHERE tenant = new.tenant;
END;
CREATE TRIGGER absent_changed_{0} AFTER UPDATE ON clients_{0} WHEN new.absent <> old.absent BEGIN
    INSERT INTO absent_{0} SELECT new.tenant, 0
    WHERE NOT EXISTS (SELECT 1 FROM absent_{0} WHERE tenant = new.tenant);
    UPDATE absent_{0} SET subscriptions = subscriptions + new.absent - old.absent
    WHERE tenant = new.tenant;
END;
CREATE TRIGGER absent_removed_{0} AFTER DELETE ON clients_{0} WHEN old.absent > 0 BEGIN
    UPDATE absent_{0} SET subscriptions = subscriptions - old.absent WHERE tenant = old.tenant;
END;
"""
_DROP: Final = (
    "DROP TABLE IF EXISTS clients_{0}; DROP TABLE IF EXISTS progress_{0};"
    " DROP TABLE IF EXISTS subscriptions_{0}; DROP TABLE IF EXISTS absent_{0};"
)
_COLUMNS: Final = (
    "epoch, gateway, incarnation, granted, claim, session, session_epoch, is_proven,"
    " closed_at_ms, due_at_ms, absent"
)
_WHERE: Final = "tenant = ?1 AND client_id = ?2"

_NO_RUN: Final = (None, None)

_Row = tuple[Any, ...]
"""Tenant, client identifier, `_COLUMNS`."""
_GRANTED_AT: Final = 5
_CLAIM_AT: Final = 6
_SESSION_AT: Final = 7

_MOST_UNWRITTEN: Final = 1_000
"""Rows of a shard that wait in memory; a session is a kilobyte, say."""
_MOST_WRITTEN: Final = 100
"""Rows of a shard that are kept when they are in the database."""
_FILTER_BITS: Final = 2**22
_SUBSCRIBER_BITS: Final = 2**20
_MOST_EPOCHS: Final = 20_000
"""Epochs of a shard that are kept: some hundred bytes each."""


class _KeyBits:
    """Keys, each by a bit of its hash: few that were never added are taken for one that was."""

    __slots__ = ("_bits", "_count")

    def __init__(self, count: int) -> None:
        self._count = count
        self._bits = bytearray(count // 8)

    def add(self, key: Key) -> None:
        bit = hash(key) % self._count
        self._bits[bit >> 3] |= 1 << (bit & 7)

    def __contains__(self, key: Key) -> bool:
        bit = hash(key) % self._count
        return bool(self._bits[bit >> 3] & 1 << (bit & 7))


class _Statements:
    """SQL over the tables of one shard."""

    def __init__(self, number: int) -> None:
        clients, progress = f"clients_{number}", f"progress_{number}"
        self.drop = _DROP.format(number)
        self.get = f"SELECT {_COLUMNS} FROM {clients} WHERE {_WHERE}"  # noqa: S608
        self.put = (
            f"INSERT INTO {clients} (tenant, client_id, {_COLUMNS})"  # noqa: S608
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (tenant, client_id) DO UPDATE SET "
            + ", ".join(f"{one} = excluded.{one}" for one in _COLUMNS.split(", "))
        )
        self.absent = f"SELECT subscriptions FROM absent_{number} WHERE tenant = ?"  # noqa: S608
        self.held = f"SELECT epoch, gateway IS NOT NULL FROM {clients} WHERE {_WHERE}"  # noqa: S608
        self.delete = f"DELETE FROM {clients} WHERE {_WHERE}"  # noqa: S608
        self.delete_progress = f"DELETE FROM {progress} WHERE {_WHERE}"  # noqa: S608
        self.progress = f"SELECT value FROM {progress} WHERE {_WHERE}"  # noqa: S608
        self.put_progress = (
            f"INSERT INTO {progress} (tenant, client_id, value) VALUES (?1, ?2, ?3)"  # noqa: S608
            " ON CONFLICT (tenant, client_id) DO UPDATE SET value = excluded.value"
        )
        subscriptions = f"subscriptions_{number}"
        row = "session_id, epoch, value"
        self.subscription = f"SELECT {row} FROM {subscriptions} WHERE {_WHERE} AND filter = ?3"  # noqa: S608
        self.put_subscription = (
            f"INSERT OR REPLACE INTO {subscriptions} (tenant, client_id, filter, {row})"  # noqa: S608
            " VALUES (?, ?, ?, ?, ?, ?)"
        )
        self.delete_subscription = f"DELETE FROM {subscriptions} WHERE {_WHERE} AND filter = ?3"  # noqa: S608
        self.list_subscriptions = (
            f"SELECT filter, {row} FROM {subscriptions} WHERE {_WHERE} AND filter > ?3"  # noqa: S608
            " AND (?5 IS NULL OR session_id = ?5) AND session_id IS NOT ?6"
            " ORDER BY filter LIMIT ?4"
        )
        # A seek behind each run found: the cost is that of the runs, not of their sessions.
        self.next_holder = (
            f"SELECT gateway, incarnation FROM {clients} WHERE gateway IS NOT NULL"  # noqa: S608
            " AND (gateway, incarnation) > (?, ?) ORDER BY gateway, incarnation LIMIT 1"
        )
        self.held_by = (
            f"SELECT tenant, client_id FROM {clients} WHERE gateway = ? AND incarnation = ?"  # noqa: S608
            " ORDER BY tenant, client_id LIMIT ?"
        )
        self.waiting = (
            f"SELECT tenant, client_id FROM {clients} WHERE claim IS NOT NULL"  # noqa: S608
            " ORDER BY tenant, client_id"
        )
        self.due = (
            f"SELECT tenant, client_id FROM {clients} WHERE gateway IS NULL"  # noqa: S608
            " AND due_at_ms IS NOT NULL AND due_at_ms <= ? ORDER BY due_at_ms LIMIT ?"
        )


class SqliteShardStore:
    """One shard's part of the database. Keeps `ingest.session.shard.entries.ShardStore`.

    Args:
        database: Database of the gateway.
        number: Number of the shard; rows kept of it before are dropped.
    """

    def __init__(self, database: Database, number: int) -> None:
        self._database = database
        database.create(_SCHEMA.format(number))
        self._count = 0  # SQLite would go through all rows each time
        # That were ever put: of most new keys it is known without a look that they are not there.
        self._filter = _KeyBits(_FILTER_BITS)
        # Rows not in the database yet; None: deleted.
        self._rows: dict[Key, _Row | None] = {}
        # Rows that went there last: clients that come and go are asked for again soon.
        self._written: dict[Key, _Row | None] = {}
        self._values: dict[Key, bytes | None] = {}
        self._subscriptions: dict[tuple[str, str, str], SubscriptionRow | None] = {}
        # That ever had a subscription with a record of its own; there are few, or none.
        self._subscribers: _KeyBits | None = None
        # Whether there was a session when the entry was last read: the count needs to know.
        self._had: dict[Key, bool] = {}
        # Epochs under which sessions are held, None for those without a holder; not of all.
        self._epochs: dict[Key, int | None] = {}
        self._sql = _Statements(number)

    def close(self) -> None:
        """Drop all rows of the shard."""
        self._database.create(self._sql.drop)

    def get(self, key: Key) -> ShardEntry | None:
        row = self._row(key)
        if row is None:
            return None
        _, _, epoch, gateway, incarnation, *rest, _ = row
        return ShardEntry(epoch, None if gateway is None else Run(gateway, incarnation), *rest)

    def put(self, key: Key, entry: ShardEntry) -> None:
        rows = self._rows
        before = rows.get(key)
        if before is None:
            had_session = self._has_session(key)
            self._filter.add(key)
        else:
            had_session = before[_SESSION_AT] is not None
        self._count += (entry.session is not None) - had_session
        holder = entry.holder
        gateway, incarnation = _NO_RUN if holder is None else holder
        rows[key] = (
            *key,
            entry.epoch,
            gateway,
            incarnation,
            entry.granted,
            entry.claim,
            entry.session,
            entry.session_epoch,
            entry.is_proven,
            entry.closed_at_ms,
            entry.due_at_ms,
            absent_subscriptions(entry),
        )
        self._epochs[key] = None if holder is None else entry.epoch
        if len(rows) >= _MOST_UNWRITTEN:
            self._flush()

    def delete(self, key: Key) -> None:
        self._count -= self._has_session(key)
        self._rows[key] = None
        self._values[key] = None
        self._epochs[key] = None
        self._flush_if_full()

    def progress(self, key: Key) -> bytes | None:
        if key in self._values:
            return self._values[key]
        row = self._database.row(self._sql.progress, key)
        return None if row is None else row[0]

    def put_progress(self, key: Key, value: bytes | None) -> None:
        self._values[key] = value
        if len(self._values) >= _MOST_UNWRITTEN:
            self._flush()

    def advance(self, key: Key, epoch: int, value: bytes) -> bool:
        if key not in self._epochs:
            if key not in self._filter:
                return False
            row = self._database.row(self._sql.held, key)
            self._epochs[key] = row[0] if row is not None and row[1] else None
        if self._epochs[key] != epoch:
            return False
        self._values[key] = value
        if len(self._values) >= _MOST_UNWRITTEN:
            self._flush()
        return True

    def subscription(self, key: Key, topic_filter: str) -> SubscriptionRow | None:
        at = (*key, topic_filter)
        if at in self._subscriptions:
            return self._subscriptions[at]
        if not self.has_subscriptions(key):
            return None
        found = self._database.row(self._sql.subscription, at)
        return None if found is None else SubscriptionRow(*found)

    def put_subscription(self, key: Key, topic_filter: str, row: SubscriptionRow | None) -> None:
        if self._subscribers is None:
            self._subscribers = _KeyBits(_SUBSCRIBER_BITS)
        self._subscribers.add(key)
        self._subscriptions[*key, topic_filter] = row
        self._flush_if_full()

    def has_subscriptions(self, key: Key) -> bool:
        return self._subscribers is not None and key in self._subscribers

    def subscriptions(
        self,
        key: Key,
        after: str,
        limit: int,
        *,
        of: str | None = None,
        but_of: str | None = None,
    ) -> list[tuple[str, SubscriptionRow]]:
        self._flush()
        rows = self._database.rows(self._sql.list_subscriptions, (*key, after, limit, of, but_of))
        return [(topic_filter, SubscriptionRow(*row)) for topic_filter, *row in rows]

    def _row(self, key: Key) -> _Row | None:
        if key in self._rows:
            return self._rows[key]
        if key not in self._filter:
            self._had[key] = False
            return None
        if key in self._written:
            row = self._written[key]
        else:
            found = self._database.row(self._sql.get, key)
            row = None if found is None else _from_database(key, found)
        self._had[key] = row is not None and row[_SESSION_AT] is not None
        return row

    def _has_session(self, key: Key) -> bool:
        row = self._rows.get(key)
        if row is not None:
            return row[_SESSION_AT] is not None
        if key in self._rows:
            return False
        if key not in self._had:
            self._row(key)
        return self._had[key]

    def _flush_if_full(self) -> None:
        waiting = len(self._rows) + len(self._values) + len(self._subscriptions)
        if waiting >= _MOST_UNWRITTEN:
            self._flush()

    def _flush(self) -> None:
        """Write the waiting rows."""
        values, subscriptions = self._values, self._subscriptions
        if not self._rows and not values and not subscriptions:
            return
        with self._database.batch():
            self._flush_rows()
            put = ((*key, value) for key, value in values.items() if value is not None)
            self._database.write_many(self._sql.put_progress, put)
            gone = [key for key, value in values.items() if value is None]
            self._database.write_many(self._sql.delete_progress, gone)
            filters = ((*at, *row) for at, row in subscriptions.items() if row is not None)
            self._database.write_many(self._sql.put_subscription, filters)
            over = [at for at, row in subscriptions.items() if row is None]
            self._database.write_many(self._sql.delete_subscription, over)
        self._values, self._subscriptions = {}, {}

    def _flush_rows(self) -> None:
        """Write rows that are searched in order; progress, which comes most often, waits."""
        rows = self._rows
        if not rows:
            return
        with self._database.batch():
            put = (_to_database(row) for row in rows.values() if row is not None)
            self._database.write_many(self._sql.put, put)
            gone = [key for key, row in rows.items() if row is None]
            self._database.write_many(self._sql.delete, gone)
        self._written = rows if len(rows) <= _MOST_WRITTEN else {}
        self._rows, self._had = {}, {}
        if len(self._epochs) > _MOST_EPOCHS:
            self._epochs = {}

    def holders(self) -> list[Run]:
        self._flush_rows()
        runs: list[Run] = []
        # A run without a name holds sessions with progress alone: it comes before all.
        if self._database.row(self._sql.held_by, ("", "", 1)) is not None:
            runs.append(Run("", ""))
        at = Run("", "")
        while (row := self._database.row(self._sql.next_holder, at)) is not None:
            at = Run(*row)
            runs.append(at)
        return runs

    def held_by(self, run: Run, limit: int | None = None) -> list[Key]:
        self._flush_rows()
        return _keys(self._database.rows(self._sql.held_by, (*run, -1 if limit is None else limit)))

    def waiting(self) -> list[Key]:
        self._flush_rows()
        return _keys(self._database.rows(self._sql.waiting))

    def due(self, now_ms: int, limit: int) -> list[Key]:
        self._flush_rows()
        return _keys(self._database.rows(self._sql.due, (now_ms, limit)))

    def count(self) -> int:
        return self._count

    def absent_subscriptions(self, tenant: str) -> int:
        self._flush_rows()
        row = self._database.row(self._sql.absent, (tenant,))
        return 0 if row is None else int(row[0])


def _keys(rows: list[tuple[Any, ...]]) -> list[Key]:
    return [(tenant, client_id) for tenant, client_id in rows]


def _to_database(row: _Row) -> _Row:
    """Claims are few, and gone before most rows are written: they stay as they are until then."""
    if row[_GRANTED_AT] is None and row[_CLAIM_AT] is None:
        return row
    granted, claim = _from_claim(row[_GRANTED_AT]), _from_claim(row[_CLAIM_AT])
    return (*row[:_GRANTED_AT], granted, claim, *row[_SESSION_AT:])


def _from_database(key: Key, found: tuple[Any, ...]) -> _Row:
    epoch, gateway, incarnation, granted, claim, session, session_epoch, is_proven, *rest = found
    claims = (_to_claim(granted), _to_claim(claim))
    head = (*key, epoch, gateway, incarnation)
    return (*head, *claims, session, session_epoch, bool(is_proven), *rest)


def _from_claim(claim: Claim | None) -> str | None:
    if claim is None:
        return None
    at = (claim.number, claim.epoch, claim.at_ms, claim.clean_start, claim.goes_on)
    return json.dumps([*claim.run, *at, claim.principal, claim.session])


def _to_claim(text: str | None) -> Claim | None:
    if text is None:
        return None
    gateway, incarnation, *rest = json.loads(text)
    return Claim(Run(gateway, incarnation), *rest)
