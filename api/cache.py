"""Everybody's sessions as `mqlake.sessions` has them, in a SQLite file.

The log is the truth: the file is made anew at each start and nothing is done for its durability.
The follower's thread writes it; whoever answers a request reads it over a connection of its own,
so that a million sessions are rows on the disk and never objects in memory.

What is in a session's value is read in `api.sessions`; columns are what clients are found by.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from mqlake.errors import InvalidRecord, OperationalError
from mqlake.session_records import (
    PROGRESS,
    SESSION,
    SessionRecord,
    decode_session,
    decode_sessions_key,
    encode_subscription,
)
from mqlake.shard_records import ORDERING_KEYS

FILE_NAME: Final = "sessions.sqlite"

_SCHEMA: Final = """
CREATE TABLE sessions (
    tenant TEXT NOT NULL,
    client_id TEXT NOT NULL,
    username TEXT,
    gateway TEXT NOT NULL,
    connected INTEGER NOT NULL,
    value BLOB NOT NULL,
    UNIQUE (tenant, client_id)
);
-- Apart from its session: it changes a hundred times as often.
CREATE TABLE progress (
    tenant TEXT NOT NULL,
    client_id TEXT NOT NULL,
    value BLOB NOT NULL,
    UNIQUE (tenant, client_id)
);
CREATE TABLE marks (gateway TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE subscriptions (
    tenant TEXT NOT NULL,
    filter TEXT NOT NULL,
    client_id TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (tenant, filter, client_id)
) WITHOUT ROWID;
"""
# At once and in order when everything has been read: ten times quicker than one by one.
_FINISH: Final = """
CREATE INDEX session_username ON sessions (tenant, username, client_id);
CREATE INDEX session_gateway ON sessions (tenant, gateway, client_id);
CREATE INDEX session_connected ON sessions (tenant, connected, client_id);
INSERT OR REPLACE INTO subscriptions
    SELECT
        tenant, json_extract(one.value, '$.filter'), client_id,
        json_set(one.value, '$.starts', NULL)
    FROM sessions, json_each(CAST(sessions.value AS TEXT), '$.subscriptions') AS one
    ORDER BY 1, 2, 3;
PRAGMA journal_mode = WAL; -- readers and the writer do not wait for each other
PRAGMA cache_size = -4096;
"""
_PUT_SESSION: Final = """
INSERT INTO sessions (tenant, client_id, username, gateway, connected, value)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, client_id) DO UPDATE SET
    username = excluded.username, gateway = excluded.gateway, connected = excluded.connected,
    value = excluded.value
"""
_PUT_PROGRESS: Final = """
INSERT INTO progress (tenant, client_id, value) VALUES (?, ?, ?)
ON CONFLICT (tenant, client_id) DO UPDATE SET value = excluded.value
"""
_PUT_MARKS: Final = """
INSERT INTO marks (gateway, value) VALUES (?, ?)
ON CONFLICT (gateway) DO UPDATE SET value = excluded.value
"""
_PUT_SUBSCRIPTION: Final = """
INSERT INTO subscriptions (tenant, filter, client_id, value) VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, filter, client_id) DO UPDATE SET value = excluded.value
"""


Record = tuple[bytes, bytes | None]
"""Key and value of a record of `mqlake.sessions`; the value None is a tombstone."""


class StoredSession(NamedTuple):
    """Values as the log holds them."""

    session: bytes
    progress: bytes | None
    marks: bytes | None
    """Of the session's gateway."""


class StoredSubscription(NamedTuple):
    topic_filter: str
    client_id: str
    value: str
    """JSON, as in the session."""


@dataclass(frozen=True, slots=True)
class ClientFilter:
    """Which sessions of a tenant are asked for; None: all."""

    connected: bool | None = None
    username: str | None = None
    gateway: str | None = None
    client_id_prefix: str | None = None


class SessionCache:
    """The file.

    Attributes:
        is_complete: All that was in the log at the start is here.

    Args:
        directory: Where the file is made; whatever an earlier run left there is removed.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self.is_complete = False

    @contextmanager
    def writing(self) -> Iterator["CacheWriter"]:
        """Begin anew and hand out the one writer.

        Raises:
            OperationalError: The file cannot be written.
        """
        self.is_complete = False
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            for suffix in ("", "-wal", "-shm"):
                self._path.with_name(FILE_NAME + suffix).unlink(missing_ok=True)
            with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode = OFF")  # nobody reads it yet
                connection.execute("PRAGMA synchronous = OFF")
                connection.execute("PRAGMA cache_size = -32768")  # KiB
                connection.executescript(_SCHEMA)
                yield CacheWriter(connection, self)
        except (OSError, sqlite3.Error) as exc:
            raise OperationalError(f"the API's cache {self._path}: {exc}") from exc
        finally:
            self.is_complete = False

    def client(self, tenant: str, client_id: str) -> StoredSession | None:
        rows = self._rows(
            "SELECT sessions.value, progress.value, marks.value FROM sessions"
            " LEFT JOIN progress USING (tenant, client_id) LEFT JOIN marks USING (gateway)"
            " WHERE tenant = ? AND client_id = ?",
            (tenant, client_id),
        )
        return StoredSession(*rows[0]) if rows else None

    def clients(self, tenant: str, asked: ClientFilter, after: str, limit: int) -> list[bytes]:
        """Return sessions by client identifier, behind the given one."""
        where = ["tenant = ?", "client_id > ?"]
        values: list[Any] = [tenant, after]
        for column in ("connected", "username", "gateway"):
            wanted = getattr(asked, column)
            if wanted is not None:
                where.append(f"{column} = ?")
                values.append(wanted)
        if asked.client_id_prefix:
            # No code point is beyond the last, and none of UTF-8's bytes beyond its first.
            where.append("client_id >= ? AND client_id < ?")
            values += [asked.client_id_prefix, asked.client_id_prefix + "\U0010ffff"]
        rows = self._rows(
            f"SELECT value FROM sessions WHERE {' AND '.join(where)} ORDER BY client_id LIMIT ?",  # noqa: S608
            (*values, limit),
        )
        return [value for (value,) in rows]

    def tenants(self) -> dict[str, int]:
        """Return who has sessions, and how many."""
        return dict(self._rows("SELECT tenant, count(*) FROM sessions GROUP BY tenant", ()))

    def subscriptions(
        self, tenant: str, topic_filter: str | None, after: tuple[str, str], limit: int
    ) -> list[StoredSubscription]:
        """Return subscriptions by topic filter and client identifier, behind the given pair."""
        where = "tenant = ? AND (filter, client_id) > (?, ?)"
        values: list[Any] = [tenant, *after]
        if topic_filter is not None:
            where += " AND filter = ?"
            values.append(topic_filter)
        rows = self._rows(
            f"SELECT filter, client_id, value FROM subscriptions WHERE {where}"  # noqa: S608
            " ORDER BY filter, client_id LIMIT ?",
            (*values, limit),
        )
        return [StoredSubscription(*row) for row in rows]

    def _rows(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                return connection.execute(sql, values).fetchall()
        except sqlite3.Error as exc:
            raise OperationalError(f"the API's cache {self._path}: {exc}") from exc


class CacheWriter:
    """Brings records of the log into the file."""

    def __init__(self, connection: sqlite3.Connection, cache: SessionCache) -> None:
        self._connection = connection
        self._cache = cache

    def complete(self) -> None:
        """Let others read: all that was in the log at the start has been applied."""
        self._connection.executescript(_FINISH)
        self._cache.is_complete = True

    def apply(self, records: Iterable[Record]) -> list[InvalidRecord]:
        """Take records in their order; return what could not be read.

        What stood under the key of a record that cannot be read stays.
        """
        refused: list[InvalidRecord] = []
        last = dict(records)  # of a key that comes several times only its last value counts
        self._connection.execute("BEGIN")
        for key, value in last.items():
            try:
                self._apply(key, value)
            except InvalidRecord as exc:
                refused.append(exc)
        self._connection.execute("COMMIT")
        return refused

    def _apply(self, key: bytes, value: bytes | None) -> None:
        if key.startswith(ORDERING_KEYS):
            return  # of the gateways alone
        kind, tenant, name = decode_sessions_key(key)
        if kind == SESSION:
            self._put_session(tenant, name, value)
        elif kind == PROGRESS:
            self._put(_PUT_PROGRESS, "progress", (tenant, name), value)
        else:
            self._put(_PUT_MARKS, "marks", (name,), value)

    def _put(self, put: str, table: str, key: tuple[str, ...], value: bytes | None) -> None:
        if value is not None:
            self._connection.execute(put, (*key, value))
            return
        where = "gateway = ?" if table == "marks" else "tenant = ? AND client_id = ?"
        self._connection.execute(f"DELETE FROM {table} WHERE {where}", key)  # noqa: S608

    def _put_session(self, tenant: str, client_id: str, value: bytes | None) -> None:
        key = (tenant, client_id)
        session = None if value is None else decode_session(value)
        if self._cache.is_complete:
            self._put_subscriptions(tenant, client_id, session)
        if session is None:
            self._connection.execute("DELETE FROM sessions WHERE tenant = ? AND client_id = ?", key)
        else:
            columns = (session.username, session.gateway, session.connected, value)
            self._connection.execute(_PUT_SESSION, (*key, *columns))

    def _put_subscriptions(
        self, tenant: str, client_id: str, session: SessionRecord | None
    ) -> None:
        """Change only what has changed: a session is written more often than its subscriptions."""
        before = self._connection.execute(
            "SELECT value FROM sessions WHERE tenant = ? AND client_id = ?", (tenant, client_id)
        ).fetchone()
        old = {} if before is None else _subscriptions(decode_session(before[0]))
        new = {} if session is None else _subscriptions(session)
        for topic_filter in old.keys() - new.keys():
            self._connection.execute(
                "DELETE FROM subscriptions WHERE tenant = ? AND filter = ? AND client_id = ?",
                (tenant, topic_filter, client_id),
            )
        for topic_filter, subscription in new.items():
            if old.get(topic_filter) != subscription:
                self._connection.execute(
                    _PUT_SUBSCRIPTION, (tenant, topic_filter, client_id, subscription)
                )


def _subscriptions(session: SessionRecord) -> dict[str, str]:
    """Return topic filter -> the subscription, without what only its gateway needs."""
    return {
        one.topic_filter: encode_subscription(replace(one, starts=None)).decode()
        for one in session.subscriptions
    }
