from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.gateway.store.database import Database
from ingest.gateway.store.sessions import Owner, SessionStore, StoredSession
from mqlake.log.contract import LogRecord
from mqlake.session_records import (
    NEVER_EXPIRES,
    MarksRecord,
    ProgressRecord,
    SessionRecord,
    encode_marks,
    encode_progress,
    encode_session,
    marks_key,
    progress_key,
    session_key,
)


def a_session(client_id: str = "c1", **changes: Any) -> SessionRecord:
    session = SessionRecord(
        session_id=f"id-{client_id}",
        tenant="default",
        client_id=client_id,
        protocol_level=5,
        username=None,
        keep_alive=60,
        clean_start=False,
        session_expiry_interval=3600,
        gateway="gateway-1",
        incarnation="i1",
        connected=True,
        connected_at_ms=1_000,
    )
    for name, value in changes.items():
        setattr(session, name, value)
    return session


def progress_of(client_id: str, cursor: int = 0) -> ProgressRecord:
    return ProgressRecord(f"id-{client_id}", [cursor], True)


def a_record(key: bytes, value: bytes | None) -> LogRecord:
    return LogRecord(0, 0, 0, key, value, [])


@pytest.fixture
def store(database: Database) -> SessionStore:
    return SessionStore(database)


def test_a_session_comes_back_with_its_progress(store: SessionStore) -> None:
    session = a_session("a/b")
    assert store.get("default", "a/b") is None
    store.put_session(session)
    assert store.get("default", "a/b") == StoredSession(session, None)
    store.put_progress("default", "a/b", progress_of("a/b", 4))
    store.put_progress("default", "a/b", progress_of("a/b", 5))
    assert store.get("default", "a/b") == StoredSession(session, progress_of("a/b", 5))
    assert store.get("other", "a/b") is None
    assert store.count() == 1


def test_a_later_record_replaces_the_session(store: SessionStore) -> None:
    store.put_session(a_session())
    later = a_session(gateway="gateway-2", incarnation="j1", keep_alive=5)
    store.put_session(later, encode_session(later))
    assert store.get("default", "c1") == StoredSession(later, None)
    assert store.owners() == [Owner("gateway-2", "j1", connected=True)]
    assert store.count() == 1


def test_the_progress_of_an_earlier_session_does_not_count(store: SessionStore) -> None:
    store.put_progress("default", "c1", progress_of("c1"))
    store.put_session(a_session(session_id="another"))
    found = store.get("default", "c1")
    assert found is not None
    assert found.progress is None


def test_records_of_the_log_are_applied_in_their_order(store: SessionStore) -> None:
    marks = MarksRecord("i1", [7])
    assert not store.apply(
        [
            a_record(progress_key("default", "c1"), encode_progress(progress_of("c1"))),
            a_record(session_key("default", "c1"), encode_session(a_session("c1"))),
            a_record(session_key("default", "c2"), encode_session(a_session("c2"))),
            a_record(progress_key("default", "c2"), encode_progress(progress_of("c2"))),
            a_record(marks_key("gateway-1"), encode_marks(MarksRecord("i0", [3]))),
            a_record(marks_key("gateway-1"), encode_marks(marks)),
            a_record(marks_key("gateway-2"), encode_marks(marks)),
            a_record(session_key("default", "c2"), None),
            a_record(progress_key("default", "c2"), None),
            a_record(marks_key("gateway-2"), None),
            a_record(session_key("default", "never"), None),
        ]
    )
    assert store.get("default", "c1") == StoredSession(a_session("c1"), progress_of("c1"))
    assert store.get("default", "c2") is None
    assert store.count() == 1
    assert store.marks("gateway-1") == marks
    assert store.marks("gateway-2") is None
    # A new session does not find what the ended one left.
    store.put_session(a_session("c2"))
    assert store.get("default", "c2") == StoredSession(a_session("c2"), None)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=20))
def test_the_count_is_that_of_the_rows_after_every_change(changes: list[tuple[str, bool]]) -> None:
    database = Database(None)
    store = SessionStore(database)
    for client_id, is_there in changes:
        if is_there:
            store.put_session(a_session(client_id))
        else:
            store.delete_session("default", client_id)
        assert database.row("SELECT count(*) FROM sessions") == (store.count(),)


def test_a_new_run_counts_from_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        database = Database(tmp_path)
        store = SessionStore(database)
        assert store.count() == 0
        store.put_session(a_session())
        assert store.count() == 1
        database.close()


def test_what_cannot_be_read_is_told_and_the_rest_applied(store: SessionStore) -> None:
    store.put_session(a_session("c1"))
    refused = store.apply(
        [
            a_record(b"x/default/c1", b"{}"),
            a_record(session_key("default", "c1"), b"{}"),
            a_record(session_key("default", "c1"), encode_session(a_session("c2"))),
            a_record(progress_key("default", "c1"), b"[]"),
            a_record(marks_key("gateway-1"), b""),
            a_record(session_key("default", "c3"), encode_session(a_session("c3"))),
        ]
    )
    assert len(refused) == 5
    assert "that of another client" in str(refused[2])
    assert store.get("default", "c1") == StoredSession(a_session("c1"), None)
    assert store.marks("gateway-1") is None
    assert store.count() == 2


def test_an_owner_gives_its_sessions_page_by_page(store: SessionStore) -> None:
    names = [f"c{number:02}" for number in range(25)]
    for name in names:
        store.put_session(a_session(name))
        store.put_progress("default", name, progress_of(name))
    store.put_session(a_session("c-offline", connected=False))
    store.put_session(a_session("c-other", incarnation="i2"))
    store.put_session(a_session("c-tenant", tenant="zone"))
    owner = Owner("gateway-1", "i1", connected=True)
    assert store.owners() == [
        Owner("gateway-1", "i1", connected=False),
        owner,
        Owner("gateway-1", "i2", connected=True),
    ]
    found: list[str] = []
    page = store.owned_by(owner, limit=10)
    while page:
        assert all(progress is not None for session, progress in page if session.tenant != "zone")
        found.extend(session.client_id for session, _ in page)
        last = page[-1].session
        page = store.owned_by(owner, after=(last.tenant, last.client_id), limit=10)
    assert found == [*names, "c-tenant"]
    assert store.owned_by(Owner("gateway-9", "i1", connected=True)) == []


def test_sessions_are_due_in_the_order_of_their_wills_and_expiries(store: SessionStore) -> None:
    gone: dict[str, Any] = {"connected": False, "disconnected_at_ms": 1_000}
    store.put_session(a_session("online"))
    store.put_session(a_session("expires", **gone, session_expiry_interval=5))
    store.put_session(a_session("will", **gone, will_at_ms=3_000))
    store.put_session(a_session("never", **gone, session_expiry_interval=NEVER_EXPIRES))
    store.put_session(a_session("other", **gone, gateway="gateway-2", session_expiry_interval=0))
    assert store.next_due_ms("gateway-1") == 3_000
    assert store.next_due_ms("gateway-2") == 1_000
    assert store.next_due_ms("gateway-3") is None
    assert store.due("gateway-1", 2_999) == []
    assert [session.client_id for session in store.due("gateway-1", 6_000)] == ["will", "expires"]
    assert [session.client_id for session in store.due("gateway-1", 6_000, limit=1)] == ["will"]
    store.put_session(a_session("will", **gone))
    store.delete_session("default", "expires")
    assert store.next_due_ms("gateway-1") == 3_601_000


class ExplainedDatabase(Database):
    """Notes how SQLite goes about each question."""

    def __init__(self) -> None:
        super().__init__(None)
        self.plans: list[str] = []

    def row(self, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        self._explain(sql, values)
        return super().row(sql, values)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self._explain(sql, values)
        return super().rows(sql, values)

    def _explain(self, sql: str, values: Sequence[Any]) -> None:
        steps = super().rows("EXPLAIN QUERY PLAN " + sql, values)
        self.plans.extend(f"{sql}: {step[3]}" for step in steps)


def test_every_question_is_answered_by_an_index() -> None:
    database = ExplainedDatabase()
    store = SessionStore(database)
    store.put_session(a_session())
    assert len(store.owners()) == 1
    store.owned_by(Owner("gateway-1", "i1", connected=True))
    store.due("gateway-1", 0)
    store.next_due_ms("gateway-1")
    store.get("default", "c1")
    assert len(database.plans) >= 7
    for plan in database.plans:
        assert "USING" in plan.rpartition(": ")[2], plan
        assert "TEMP B-TREE" not in plan
        # From the first entry of an index and one step on is no scan.
        assert ": SCAN" not in plan or plan.startswith("SELECT gateway"), plan
