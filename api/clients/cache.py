"""Everybody's sessions as `mqlake.sessions` has them, in a SQLite file.

The log is the truth: the file is made again at each start and nothing is done for its durability.
The follower's thread writes it; each thread that answers a request reads it over a connection of
its own, so that a million sessions are rows on the disk and never objects in memory.

`api.clients.sessions` reads the value of a session; the columns serve to find clients.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from api.log.following import Followed, Taker
from mqlake.errors import InvalidRecord, OperationalError
from mqlake.records.sessions import (
    PROGRESS,
    SESSION,
    SUBSCRIPTION,
    SessionRecord,
    decode_session,
    decode_sessions_key,
    decode_subscription,
    decode_subscription_record,
    encode_subscription,
)
from mqlake.records.sessions import StoredSubscription as Subscription
from mqlake.records.shards import ORDERING_KEYS

FILE_NAME: Final = "sessions.sqlite"

_SCHEMA: Final = """
CREATE TABLE sessions (
    tenant TEXT NOT NULL,
    client_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
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
-- Those that have records of their own, of sessions that are over too.
CREATE TABLE own_records (
    tenant TEXT NOT NULL,
    client_id TEXT NOT NULL,
    filter TEXT NOT NULL,
    session_id TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (tenant, client_id, filter)
) WITHOUT ROWID;
-- Those that sessions have, wherever they stand.
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
INSERT INTO subscriptions
    SELECT tenant, filter, client_id, own_records.value
    FROM own_records JOIN sessions USING (tenant, client_id, session_id)
    ORDER BY 1, 2, 3;
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
INSERT INTO sessions (tenant, client_id, session_id, username, gateway, connected, value)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, client_id) DO UPDATE SET
    session_id = excluded.session_id, username = excluded.username,
    gateway = excluded.gateway, connected = excluded.connected, value = excluded.value
"""
_PUT_PROGRESS: Final = """
INSERT INTO progress (tenant, client_id, value) VALUES (?, ?, ?)
ON CONFLICT (tenant, client_id) DO UPDATE SET value = excluded.value
"""
_PUT_MARKS: Final = """
INSERT INTO marks (gateway, value) VALUES (?, ?)
ON CONFLICT (gateway) DO UPDATE SET value = excluded.value
"""
_OWN_RECORDS_OF: Final = """
SELECT filter, value FROM own_records
WHERE tenant = ? AND client_id = ? AND session_id = ? ORDER BY filter
"""
_PUT_SUBSCRIPTION: Final = """
INSERT INTO subscriptions (tenant, filter, client_id, value) VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, filter, client_id) DO UPDATE SET value = excluded.value
"""


Record = tuple[bytes, bytes | None]
"""Key and value of a record of `mqlake.sessions`; the value None is a tombstone."""


class CachedSession(NamedTuple):
    """Values as the log holds them."""

    session: bytes
    progress: bytes | None
    marks: bytes | None
    """Marks of the session's gateway."""
    more: tuple[str, ...] = ()
    """Its subscriptions that have records of their own, each as JSON."""

    def record(self) -> SessionRecord:
        """Return the session with all its subscriptions.

        Raises:
            InvalidRecord: It is of another form.
        """
        session = decode_session(self.session)
        found = {one.topic_filter: one for one in map(decode_subscription, self.more)}
        found.update((one.topic_filter, one) for one in session.subscriptions)
        session.subscriptions = list(found.values())
        return session


class ListedSession(NamedTuple):
    """One of many."""

    session: bytes
    more: int
    """How many subscriptions have records of their own; one that just moves out of the session's
    record is in both."""


class CachedSubscription(NamedTuple):
    topic_filter: str
    client_id: str
    value: str
    """JSON, as in the session."""


@dataclass(frozen=True, slots=True)
class ClientFilter:
    """Filter of a tenant's sessions; None: all."""

    connected: bool | None = None
    username: str | None = None
    gateway: str | None = None
    client_id_prefix: str | None = None


class SessionCache:
    """The file.

    Attributes:
        is_complete: All that was in the log at the start is here.

    Args:
        directory: Folder of the file; files that an earlier run left there are removed.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self.is_complete = False

    @contextmanager
    def taking(self) -> Iterator["CacheWriter"]:
        """Begin again and hand out the one writer.

        Raises:
            OperationalError: The file cannot be written.
        """
        self.is_complete = False
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            for suffix in ("", "-wal", "-shm"):
                self._path.with_name(FILE_NAME + suffix).unlink(missing_ok=True)
            with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode = OFF")  # it has no reader yet
                connection.execute("PRAGMA synchronous = OFF")
                connection.execute("PRAGMA cache_size = -32768")  # KiB
                connection.executescript(_SCHEMA)
                yield CacheWriter(connection, self)
        except (OSError, sqlite3.Error) as exc:
            raise OperationalError(f"the API's cache {self._path}: {exc}") from exc
        finally:
            self.is_complete = False

    def client(self, tenant: str, client_id: str) -> CachedSession | None:
        rows = self._rows(
            "SELECT session_id, sessions.value, progress.value, marks.value FROM sessions"
            " LEFT JOIN progress USING (tenant, client_id) LEFT JOIN marks USING (gateway)"
            " WHERE tenant = ? AND client_id = ?",
            (tenant, client_id),
        )
        if not rows:
            return None
        session_id, session, progress, marks = rows[0]
        more = self._rows(_OWN_RECORDS_OF, (tenant, client_id, session_id))
        return CachedSession(session, progress, marks, tuple(value for _, value in more))

    def clients(
        self, tenant: str, asked: ClientFilter, after: str, limit: int
    ) -> list[ListedSession]:
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
            "SELECT value, (SELECT count(*) FROM own_records AS own WHERE"  # noqa: S608
            " own.tenant = sessions.tenant AND own.client_id = sessions.client_id"
            " AND own.session_id = sessions.session_id)"
            f" FROM sessions WHERE {' AND '.join(where)} ORDER BY client_id LIMIT ?",
            (*values, limit),
        )
        return [ListedSession(*row) for row in rows]

    def tenants(self) -> dict[str, int]:
        """Return the tenants that have sessions, and how many."""
        return dict(self._rows("SELECT tenant, count(*) FROM sessions GROUP BY tenant", ()))

    def subscriptions(
        self, tenant: str, topic_filter: str | None, after: tuple[str, str], limit: int
    ) -> list[CachedSubscription]:
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
        return [CachedSubscription(*row) for row in rows]

    def _rows(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                return connection.execute(sql, values).fetchall()
        except sqlite3.Error as exc:
            raise OperationalError(f"the API's cache {self._path}: {exc}") from exc


class CacheWriter(Taker):
    """Brings records of the log into the file."""

    def __init__(self, connection: sqlite3.Connection, cache: SessionCache) -> None:
        self._connection = connection
        self._cache = cache

    def complete(self) -> None:
        """Let others read: all that was in the log at the start has been applied."""
        self._connection.executescript(_FINISH)
        self._cache.is_complete = True

    def take(self, records: Sequence[Followed], *, is_old: bool) -> list[InvalidRecord]:
        return self.apply([(one.key, one.value) for one in records])

    def apply(self, records: Iterable[Record]) -> list[InvalidRecord]:
        """Take records in their order; return errors of those that could not be read.

        The row of a record that cannot be read stays as it was.
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
        kind, tenant, name, topic_filter = decode_sessions_key(key)
        if kind == SESSION:
            self._put_session(tenant, name, value)
        elif kind == SUBSCRIPTION:
            self._put_own_record(tenant, name, topic_filter, value)
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
            self._put_subscriptions(key, self._session(key), session)
        if session is None:
            self._connection.execute("DELETE FROM sessions WHERE tenant = ? AND client_id = ?", key)
        else:
            columns = (session.username, session.gateway, session.connected, value)
            self._connection.execute(_PUT_SESSION, (*key, session.session_id, *columns))

    def _session(self, key: tuple[str, str]) -> SessionRecord | None:
        row = self._connection.execute(
            "SELECT value FROM sessions WHERE tenant = ? AND client_id = ?", key
        ).fetchone()
        return None if row is None else decode_session(row[0])

    def _put_subscriptions(
        self, key: tuple[str, str], before: SessionRecord | None, session: SessionRecord | None
    ) -> None:
        """Write only changed ones: a session is written more often than its subscriptions."""
        old, new = _subscriptions(before), _subscriptions(session)
        if before and session and before.session_id == session.session_id:
            left = old.keys() - new.keys()
            if left:  # one that has moved into a record of its own counts from there on
                more = self._own_records(key, session)
                new |= {one: more[one] for one in left & more.keys()}
        else:
            old = self._own_records(key, before) | old
            new = self._own_records(key, session) | new
        for topic_filter in old.keys() - new.keys():
            self._delete_subscription(key, topic_filter)
        for topic_filter, subscription in new.items():
            if old.get(topic_filter) != subscription:
                self._put_subscription(key, topic_filter, subscription)

    def _own_records(self, key: tuple[str, str], session: SessionRecord | None) -> dict[str, str]:
        if session is None:
            return {}
        rows = self._connection.execute(_OWN_RECORDS_OF, (*key, session.session_id))
        return dict(rows.fetchall())

    def _put_own_record(
        self, tenant: str, client_id: str, topic_filter: str, value: bytes | None
    ) -> None:
        key = (tenant, client_id)
        found = None if value is None else decode_subscription_record(value)
        if found is None:
            self._connection.execute(
                "DELETE FROM own_records WHERE tenant = ? AND client_id = ? AND filter = ?",
                (*key, topic_filter),
            )
        else:
            subscription = _to_text(found.subscription)
            self._connection.execute(
                "INSERT OR REPLACE INTO own_records (tenant, client_id, filter, session_id, value)"
                " VALUES (?, ?, ?, ?, ?)",
                (*key, topic_filter, found.session_id, subscription),
            )
        if not self._cache.is_complete:
            return
        session = self._session(key)
        if topic_filter in _subscriptions(session):
            return  # that one counts
        if found is None or session is None or found.session_id != session.session_id:
            self._delete_subscription(key, topic_filter)
        else:
            self._put_subscription(key, topic_filter, subscription)

    def _put_subscription(self, key: tuple[str, str], topic_filter: str, value: str) -> None:
        tenant, client_id = key
        self._connection.execute(_PUT_SUBSCRIPTION, (tenant, topic_filter, client_id, value))

    def _delete_subscription(self, key: tuple[str, str], topic_filter: str) -> None:
        tenant, client_id = key
        self._connection.execute(
            "DELETE FROM subscriptions WHERE tenant = ? AND filter = ? AND client_id = ?",
            (tenant, topic_filter, client_id),
        )


def _subscriptions(session: SessionRecord | None) -> dict[str, str]:
    """Return topic filter -> the subscription, of those that stand in a session's record."""
    if session is None:
        return {}
    return {one.topic_filter: _to_text(one) for one in session.subscriptions}


def _to_text(subscription: Subscription) -> str:
    """Return a subscription as JSON, without data that only its gateway needs."""
    return encode_subscription(replace(subscription, starts=None)).decode()
