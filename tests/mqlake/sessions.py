"""A session for tests of its records."""

from typing import Any

from mqlake.records.sessions import SessionRecord


def a_session(**changes: Any) -> SessionRecord:
    session = SessionRecord(
        session_id="00000000000000ab",
        tenant="default",
        client_id="c1",
        protocol_level=5,
        username=None,
        keep_alive=60,
        clean_start=False,
        session_expiry_interval=3600,
        gateway="gateway-1",
        incarnation="i1",
        connected=True,
        connected_at_ms=1_700_000_000_000,
    )
    for name, value in changes.items():
        setattr(session, name, value)
    return session
