"""Everybody's stored sessions, as `mqlake.sessions` has them, on the gateway's disk.

Values stay as the log holds them; beside them stand the columns by which they are found: owner and
due time. What cannot be decoded is refused on its way in, so that nothing stored fails its reader.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from ingest.gateway.store.database import Database
from mqlake.errors import InvalidRecord
from mqlake.log.contract import LogRecord
from mqlake.session_records import (
    PROGRESS,
    SESSION,
    MarksRecord,
    ProgressRecord,
    SessionRecord,
    decode_marks,
    decode_progress,
    decode_session,
    decode_sessions_key,
    encode_marks,
    encode_progress,
    encode_session,
)
from mqlake.topics import SHARE_PREFIX

_SCHEMA: Final = """
CREATE TABLE sessions (
    tenant TEXT NOT NULL,
    client_id TEXT NOT NULL,
    gateway TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    connected INTEGER NOT NULL,
    due_at_ms INTEGER,
    value BLOB NOT NULL,
    UNIQUE (tenant, client_id)
);
CREATE INDEX session_owner ON sessions (gateway, incarnation, connected, tenant, client_id);
CREATE INDEX session_due ON sessions (gateway, due_at_ms) WHERE due_at_ms IS NOT NULL;
-- Apart from its session: it changes a hundred times as often.
CREATE TABLE progress (
    tenant TEXT NOT NULL,
    client_id TEXT NOT NULL,
    value BLOB NOT NULL,
    UNIQUE (tenant, client_id)
);
CREATE TABLE marks (gateway TEXT PRIMARY KEY, value BLOB NOT NULL);
"""
_ADD_SESSION: Final = """
INSERT INTO sessions (tenant, client_id, gateway, incarnation, connected, due_at_ms, value)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_REPLACE_SESSION: Final = """
UPDATE sessions SET gateway = ?3, incarnation = ?4, connected = ?5, due_at_ms = ?6, value = ?7
WHERE tenant = ?1 AND client_id = ?2
"""
_PUT_PROGRESS: Final = """
INSERT INTO progress (tenant, client_id, value) VALUES (?, ?, ?)
ON CONFLICT (tenant, client_id) DO UPDATE SET value = excluded.value
"""
_PUT_MARKS: Final = """
INSERT INTO marks (gateway, value) VALUES (?, ?)
ON CONFLICT (gateway) DO UPDATE SET value = excluded.value
"""
_JOINED: Final = "sessions LEFT JOIN progress USING (tenant, client_id)"
_FIRST_OWNER: Final = (
    "SELECT gateway, incarnation, connected FROM sessions"
    " ORDER BY gateway, incarnation, connected LIMIT 1"
)
# To SQLite any blob is greater than any text: this seeks behind all tenants of an owner.
_NEXT_OWNER: Final = (
    "SELECT gateway, incarnation, connected FROM sessions"
    " WHERE (gateway, incarnation, connected, tenant) > (?, ?, ?, X'')"
    " ORDER BY gateway, incarnation, connected, tenant LIMIT 1"
)


class StoredSession(NamedTuple):
    session: SessionRecord
    progress: ProgressRecord | None
    """None when there is none yet, or only that of an earlier session of the client."""


class Owner(NamedTuple):
    """A run of a gateway that holds sessions."""

    gateway: str
    incarnation: str
    connected: bool
    """Whether these are the sessions whose clients it has, or those it had."""


class SessionStore:
    """Client -> session and progress; gateway -> marks.

    Args:
        database: Where; one store in each database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._count = 0  # SQLite would go through all rows each time
        database.create(_SCHEMA)
        # Few sessions share; what they share is asked for often.
        self._shared: dict[tuple[str, str], tuple[str, ...]] = {}
        self._sharing: dict[tuple[str, str], dict[str, None]] = {}

    def apply(self, records: Iterable[LogRecord]) -> list[InvalidRecord]:
        """Take records of `mqlake.sessions` in their order; return what could not be read.

        What stood under the key of a record that cannot be read stays.
        """
        refused: list[InvalidRecord] = []
        with self._database.batch():
            for record in records:
                try:
                    self._apply(record)
                except InvalidRecord as exc:
                    refused.append(exc)
        return refused

    def put_session(self, session: SessionRecord, value: bytes | None = None) -> None:
        """Keep a session; `value` is its encoded form when the caller has it."""
        self._count_shared(session)
        row = (
            session.tenant,
            session.client_id,
            session.gateway,
            session.incarnation,
            session.connected,
            session.due_at_ms(),
            encode_session(session) if value is None else value,
        )
        if not self._database.write(_REPLACE_SESSION, row):
            self._count += self._database.write(_ADD_SESSION, row)

    def put_progress(self, tenant: str, client_id: str, progress: ProgressRecord | bytes) -> None:
        """Keep a progress, encoded or not; encoded it must be readable."""
        value = progress if isinstance(progress, bytes) else encode_progress(progress)
        self._database.write(_PUT_PROGRESS, (tenant, client_id, value))

    def put_marks(self, gateway: str, marks: MarksRecord | bytes) -> None:
        """Keep a gateway's marks, encoded or not; encoded they must be readable."""
        value = marks if isinstance(marks, bytes) else encode_marks(marks)
        self._database.write(_PUT_MARKS, (gateway, value))

    def delete_session(self, tenant: str, client_id: str) -> bool:
        """Forget a session; its progress stays until `delete_progress`. False: there was none."""
        self._forget_shared(tenant, client_id)
        deleted = self._database.write(
            "DELETE FROM sessions WHERE tenant = ? AND client_id = ?", (tenant, client_id)
        )
        self._count -= deleted
        return deleted > 0

    def delete_progress(self, tenant: str, client_id: str) -> bool:
        return (
            self._database.write(
                "DELETE FROM progress WHERE tenant = ? AND client_id = ?", (tenant, client_id)
            )
            > 0
        )

    def delete_marks(self, gateway: str) -> bool:
        return self._database.write("DELETE FROM marks WHERE gateway = ?", (gateway,)) > 0

    def get(self, tenant: str, client_id: str) -> StoredSession | None:
        found = self._database.row(
            f"SELECT sessions.value, progress.value FROM {_JOINED}"  # noqa: S608
            " WHERE tenant = ? AND client_id = ?",
            (tenant, client_id),
        )
        return None if found is None else _stored(found)

    def marks(self, gateway: str) -> MarksRecord | None:
        found = self._database.row("SELECT value FROM marks WHERE gateway = ?", (gateway,))
        return None if found is None else decode_marks(found[0])

    def owners(self) -> list[Owner]:
        """Return which runs of which gateways hold sessions. Cost: O(owners), not O(sessions)."""
        owners: list[Owner] = []
        found = self._database.row(_FIRST_OWNER)
        while found is not None:
            gateway, incarnation, connected = found
            owners.append(Owner(gateway, incarnation, bool(connected)))
            found = self._database.row(_NEXT_OWNER, found)
        return owners

    def owned_by(
        self, owner: Owner, *, after: tuple[str, str] = ("", ""), limit: int = 100
    ) -> list[StoredSession]:
        """Return sessions of an owner by tenant and client identifier, a page at a time.

        Args:
            owner: Which run of which gateway, and whether the clients are connected.
            after: Tenant and client identifier of the last one of the page before.
            limit: Most sessions to return; fewer than that: the last page.
        """
        found = self._database.rows(
            f"SELECT sessions.value, progress.value FROM {_JOINED}"  # noqa: S608
            " WHERE gateway = ? AND incarnation = ? AND connected = ?"
            " AND (tenant, client_id) > (?, ?) ORDER BY tenant, client_id LIMIT ?",
            (*owner, *after, limit),
        )
        return [_stored(row) for row in found]

    def due(self, gateway: str, now_ms: int, *, limit: int = 100) -> list[SessionRecord]:
        """Return a gateway's sessions with a will or an expiry that is due, the earliest first.

        They stay due until their record in the log, without the will or a tombstone, comes back.
        """
        found = self._database.rows(
            "SELECT value FROM sessions WHERE gateway = ? AND due_at_ms <= ?"
            " ORDER BY due_at_ms LIMIT ?",
            (gateway, now_ms, limit),
        )
        return [decode_session(value) for (value,) in found]

    def next_due_ms(self, gateway: str) -> int | None:
        """Return when the next session of a gateway is due."""
        found = self._database.row(
            "SELECT min(due_at_ms) FROM sessions WHERE gateway = ? AND due_at_ms IS NOT NULL",
            (gateway,),
        )
        due_at_ms: int | None = found[0] if found else None
        return due_at_ms

    def has_shared(self, tenant: str, shared_filter: str) -> bool:
        """Tell whether a session that outlives its connection has a shared subscription."""
        return (tenant, shared_filter) in self._sharing

    def shared_in_flight(self, tenant: str, shared_filter: str) -> set[tuple[int, int]]:
        """Return where in the log the messages of a share group are that sessions have in flight.

        Returns:
            Pairs of partition and offset.
        """
        found: set[tuple[int, int]] = set()
        for client_id in self._sharing.get((tenant, shared_filter), ()):
            stored = self.get(tenant, client_id)
            if stored is not None and stored.progress is not None:
                shared = stored.progress.shared
                found.update(
                    (one.partition, one.offset)
                    for one in stored.progress.outgoing
                    if shared.get(one.packet_id) == shared_filter
                )
        return found

    def _count_shared(self, session: SessionRecord) -> None:
        shared = tuple(
            one.topic_filter
            for one in session.subscriptions
            if session.session_expiry_interval and one.topic_filter.startswith(SHARE_PREFIX)
        )
        key = (session.tenant, session.client_id)
        if shared == self._shared.get(key, ()):
            return
        self._forget_shared(*key)
        self._shared[key] = shared
        for shared_filter in shared:
            self._sharing.setdefault((session.tenant, shared_filter), {})[session.client_id] = None

    def _forget_shared(self, tenant: str, client_id: str) -> None:
        for shared_filter in self._shared.pop((tenant, client_id), ()):
            sharing = self._sharing[tenant, shared_filter]
            del sharing[client_id]
            if not sharing:
                del self._sharing[tenant, shared_filter]

    def count(self) -> int:
        """Return how many sessions there are, of all gateways."""
        return self._count

    def _apply(self, record: LogRecord) -> None:
        kind, tenant, name = decode_sessions_key(record.key or b"")
        value = record.value
        if kind == SESSION:
            if value is None:
                self.delete_session(tenant, name)
                return
            session = decode_session(value)
            if session.tenant != tenant or session.client_id != name:
                raise InvalidRecord(f"session under key {record.key!r} is that of another client")
            self.put_session(session, value)
        elif kind == PROGRESS:
            if value is None:
                self.delete_progress(tenant, name)
                return
            decode_progress(value)
            self.put_progress(tenant, name, value)
        elif value is None:
            self.delete_marks(name)
        else:
            decode_marks(value)
            self.put_marks(name, value)


def _stored(values: tuple[Any, ...]) -> StoredSession:
    session = decode_session(values[0])
    progress = None if values[1] is None else decode_progress(values[1])
    if progress is not None and progress.session_id != session.session_id:
        progress = None
    return StoredSession(session, progress)
