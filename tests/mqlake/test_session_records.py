import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import InvalidRecord
from mqlake.records.sessions import (
    MARKS,
    NEVER_EXPIRES,
    PROGRESS,
    SESSION,
    SessionOutline,
    SessionRecord,
    SessionsKey,
    StoredSubscription,
    StoredWill,
    decode_session,
    decode_sessions_key,
    encode_session,
    marks_key,
    progress_key,
    read_outline,
    session_key,
)
from tests.mqlake.sessions import a_session

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
NAMES = st.from_regex(r"[a-z0-9-]{1,12}", fullmatch=True)
TIMES = st.integers(0, 2**45)
OFFSETS = st.lists(st.integers(0, 2**62), max_size=4)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "payload_format_indicator": st.integers(0, 1),
        "message_expiry_interval": st.integers(0, 2**32 - 1),
        "correlation_data": st.binary(max_size=20),
        "user_property": st.lists(st.tuples(TEXT, TEXT), max_size=3),
    },
)
SUBSCRIPTIONS = st.builds(
    StoredSubscription,
    topic_filter=TEXT,
    qos=st.integers(0, 2),
    no_local=st.booleans(),
    retain_as_published=st.booleans(),
    retain_handling=st.integers(0, 2),
    identifier=st.none() | st.integers(1, 268_435_455),
    starts=st.none() | OFFSETS,
)
WILLS = st.builds(
    StoredWill,
    topic_name=TEXT,
    payload=st.binary(max_size=50),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    properties=PROPERTIES,
    will_delay_interval=st.integers(0, 2**32 - 1),
)
SESSIONS = st.builds(
    SessionRecord,
    session_id=st.from_regex(r"[0-9a-f]{16}", fullmatch=True),
    tenant=NAMES,
    client_id=TEXT.filter(bool),
    protocol_level=st.sampled_from([3, 4, 5]),
    username=st.none() | TEXT,
    keep_alive=st.integers(0, 65_535),
    clean_start=st.booleans(),
    session_expiry_interval=st.integers(0, NEVER_EXPIRES),
    gateway=NAMES,
    incarnation=NAMES,
    connected=st.booleans(),
    connected_at_ms=TIMES,
    disconnected_at_ms=st.none() | TIMES,
    reason=st.none() | TEXT,
    subscriptions=st.lists(SUBSCRIPTIONS, max_size=3),
    will=st.none() | WILLS,
    will_at_ms=st.none() | TIMES,
)


@given(SESSIONS)
def test_a_session_comes_back_from_its_value(session: SessionRecord) -> None:
    assert decode_session(encode_session(session)) == session


@given(NAMES, TEXT.filter(bool))
def test_a_key_comes_back_whatever_the_client_identifier_holds(tenant: str, name: str) -> None:
    assert decode_sessions_key(session_key(tenant, name)) == SessionsKey(SESSION, tenant, name)
    assert decode_sessions_key(progress_key(tenant, name)) == SessionsKey(PROGRESS, tenant, name)
    assert decode_sessions_key(marks_key(name)) == SessionsKey(MARKS, "", name)


def test_a_client_identifier_may_hold_slashes() -> None:
    assert session_key("default", "a/b//c") == b"s/default/a/b//c"
    assert decode_sessions_key(b"p/default//a/") == SessionsKey(PROGRESS, "default", "/a/")


@pytest.mark.parametrize(
    "key", [b"", b"s", b"s/", b"s/default", b"s/default/", b"p//c", b"g/", b"x/default/c", b"\xff"]
)
def test_a_key_of_another_form_is_refused(key: bytes) -> None:
    with pytest.raises(InvalidRecord, match="sessions key"):
        decode_sessions_key(key)


def test_the_value_is_the_documented_json() -> None:
    session = a_session(
        subscriptions=[
            StoredSubscription("$share/g/a/+", 1, identifier=7),
            StoredSubscription("ü", 2, no_local=True, starts=[4, 5]),
        ],
        will=StoredWill("w", b"\xff", 1, True, {"user_property": [("a", "b")]}, 30),
    )
    assert json.loads(encode_session(session)) == {
        "v": 3,
        "id": "00000000000000ab",
        "tenant": "default",
        "client_id": "c1",
        "protocol_level": 5,
        "username": None,
        "keep_alive": 60,
        "clean_start": False,
        "expiry": 3600,
        "gateway": "gateway-1",
        "incarnation": "i1",
        "connected": True,
        "connected_at": 1_700_000_000_000,
        "disconnected_at": None,
        "reason": None,
        "subscriptions": [
            {
                "filter": "$share/g/a/+",
                "qos": 1,
                "no_local": False,
                "retain_as_published": False,
                "retain_handling": 0,
                "identifier": 7,
                "starts": None,
            },
            {
                "filter": "ü",
                "qos": 2,
                "no_local": True,
                "retain_as_published": False,
                "retain_handling": 0,
                "identifier": None,
                "starts": [4, 5],
            },
        ],
        "will": {
            "topic": "w",
            "payload": "/w==",
            "qos": 1,
            "retain": True,
            "properties": {"user_property": [["a", "b"]]},
            "delay": 30,
        },
        "will_at": None,
    }


def test_a_reader_ignores_members_it_does_not_know() -> None:
    members = json.loads(encode_session(a_session())) | {"later": [1]}
    assert decode_session(json.dumps(members).encode()) == a_session()


@pytest.mark.parametrize("name", list(json.loads(encode_session(a_session()))))
def test_every_member_of_a_session_is_required(name: str) -> None:
    members = json.loads(encode_session(a_session()))
    del members[name]
    with pytest.raises(InvalidRecord, match="version" if name == "v" else f"'{name}' is missing"):
        decode_session(json.dumps(members).encode())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("v", 5),
        ("id", 1),
        ("tenant", None),
        ("client_id", "\ud800"),
        ("protocol_level", 6),
        ("protocol_level", True),
        ("username", 1),
        ("keep_alive", 65_536),
        ("keep_alive", 1.0),
        ("clean_start", 0),
        ("expiry", 2**32),
        ("connected", None),
        ("connected_at", -1),
        ("connected_at", 2**63),
        ("disconnected_at", "1"),
        ("subscriptions", None),
        ("subscriptions", {}),
        ("subscriptions", ["a"]),
        ("subscriptions", [{"filter": "a"}]),
        ("will", []),
        ("will", {}),
        ("will_at", False),
    ],
)
def test_a_session_with_a_member_of_another_form_is_refused(name: str, value: Any) -> None:
    members = json.loads(encode_session(a_session())) | {name: value}
    with pytest.raises(InvalidRecord):
        decode_session(json.dumps(members).encode())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("payload", "?"),
        ("payload", "ü"),
        ("payload", None),
        ("qos", 3),
        ("properties", {"user_property": 1}),
        ("properties", {"correlation_data": {"base64": "?"}}),
        ("properties", None),
        ("delay", -1),
    ],
)
def test_a_will_with_a_member_of_another_form_is_refused(name: str, value: Any) -> None:
    members = json.loads(encode_session(a_session(will=StoredWill("w", b"", 0, False))))
    members["will"][name] = value
    with pytest.raises(InvalidRecord):
        decode_session(json.dumps(members).encode())


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 100_000, b'{"v":1' + b"0" * 5000 + b"}"]
)
def test_what_is_no_json_object_of_our_version_is_refused(data: bytes) -> None:
    for read in (decode_session, read_outline):
        with pytest.raises(InvalidRecord):
            read(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(st.sampled_from(list(json.loads(encode_session(a_session())))), JSON)
def test_whatever_a_member_holds_reading_gives_a_session_or_the_one_error(
    name: str, value: Any
) -> None:
    members = json.loads(encode_session(a_session())) | {name: value}
    with contextlib.suppress(InvalidRecord):
        encode_session(decode_session(json.dumps(members).encode()))


def test_a_session_is_due_at_the_earlier_of_will_and_expiry() -> None:
    assert a_session().due_at_ms() is None
    gone = a_session(connected=False, disconnected_at_ms=1_000, session_expiry_interval=10)
    assert gone.expires_at_ms() == 11_000
    assert gone.due_at_ms() == 11_000
    gone.will_at_ms = 3_000
    assert gone.due_at_ms() == 3_000
    gone.session_expiry_interval = NEVER_EXPIRES
    assert gone.expires_at_ms() is None
    assert gone.due_at_ms() == 3_000


@given(SESSIONS, TIMES)
def test_an_outline_says_when_a_session_is_due_that_was_let_go_of(
    session: SessionRecord, closed_at_ms: int
) -> None:
    outline = read_outline(encode_session(session))
    session.disconnected_at_ms, session.will_at_ms = closed_at_ms, None
    if session.will is not None:
        session.will_at_ms = closed_at_ms + session.will.will_delay_interval * 1000
    assert outline.due_at_ms(closed_at_ms) == session.due_at_ms()
    assert outline.due_at_ms(None) is None
    assert outline[:5] == (
        session.tenant,
        session.client_id,
        session.gateway,
        session.incarnation,
        session.connected,
    )


def _outline(data: bytes) -> SessionOutline | None:
    try:
        return read_outline(data)
    except InvalidRecord:
        return None


@given(st.data())
def test_an_outline_of_the_usual_form_is_that_of_its_json(data: st.DataObject) -> None:
    two = [StoredSubscription("a/+", 1), StoredSubscription("b", 2, identifier=7, starts=[3, 4])]
    closed_at_ms = data.draw(st.none() | TIMES)
    session = a_session(
        connected=closed_at_ms is None,
        disconnected_at_ms=closed_at_ms,
        reason=data.draw(st.sampled_from([None, "bye"])),
        subscriptions=two[: data.draw(st.integers(0, 2))],
        more=data.draw(st.integers(0, 1)),
    )
    value = bytearray(encode_session(session))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(value) - 1))
        value[at : at + data.draw(st.integers(0, 1))] = data.draw(
            st.sampled_from(
                [b"", b'"', b"\\", b"0", b"9", b",", b"}", b"{}", b"null", b"\xff", b"\0"]
            )
        )
    # With a space behind it, the same JSON is not of the usual form.
    assert _outline(bytes(value)) == _outline(bytes(value) + b" ")


@pytest.mark.parametrize("name", ["v", "tenant", "client_id", "gateway", "connected", "expiry"])
def test_an_outline_needs_what_a_shard_goes_by(name: str) -> None:
    members = json.loads(encode_session(a_session()))
    del members[name]
    with pytest.raises(InvalidRecord):
        read_outline(json.dumps(members).encode())
