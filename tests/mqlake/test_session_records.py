import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import InvalidRecord
from mqlake.progress_records import (
    HistoryRecord,
    MarksRecord,
    Outgoing,
    ProgressRecord,
    RetainedScan,
    check_progress,
    decode_marks,
    decode_progress,
    encode_marks,
    encode_progress,
    is_storing,
    resume_cursor,
)
from mqlake.session_records import (
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
PROGRESSES = st.builds(
    ProgressRecord,
    session_id=NAMES,
    cursor=OFFSETS,
    settled=st.booleans(),
    outgoing=st.lists(
        st.builds(
            Outgoing,
            packet_id=st.integers(1, 65_535),
            qos=st.integers(1, 2),
            partition=st.integers(0, 1000),
            offset=st.integers(0, 2**62),
            released=st.booleans(),
        ),
        max_size=3,
    ),
    incoming=st.lists(st.integers(1, 65_535), max_size=3),
    scans=st.lists(
        st.builds(
            RetainedScan,
            topic_filter=TEXT,
            qos=st.integers(0, 2),
            identifiers=st.lists(st.integers(1, 268_435_455), max_size=2).map(tuple),
            limits=OFFSETS,
            shard=st.integers(0, 2**16),
            position=st.none() | TEXT,
        ),
        max_size=2,
    ),
    histories=st.lists(
        st.builds(
            HistoryRecord,
            topic_filters=st.lists(TEXT, max_size=2),
            from_ms=st.integers(0, 2**45),
            cursor=OFFSETS,
        ),
        max_size=2,
    ),
)

A_SCAN = {"filter": "a", "qos": 1, "identifiers": [], "limits": [], "position": None}


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


@given(SESSIONS)
def test_a_session_comes_back_from_its_value(session: SessionRecord) -> None:
    assert decode_session(encode_session(session)) == session


@given(PROGRESSES)
def test_progress_comes_back_from_its_value(progress: ProgressRecord) -> None:
    check_progress(encode_progress(progress))
    decoded = decode_progress(encode_progress(progress))
    assert decoded == progress
    assert all(type(entry.released) is bool for entry in decoded.outgoing)


@given(st.builds(MarksRecord, incarnation=NAMES, marks=st.lists(st.integers(-1, 2**62))))
def test_marks_come_back_from_their_value(marks: MarksRecord) -> None:
    assert decode_marks(encode_marks(marks)) == marks


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


def test_the_values_are_the_documented_json() -> None:
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
    progress = ProgressRecord("00000000000000ab", [3, 4], False, [Outgoing(1, 2, 0, 9, True)], [5])
    assert encode_progress(progress) == (
        b'{"v":3,"id":"00000000000000ab","cursor":[3,4],"settled":false,'
        b'"out":[[1,2,0,9,1]],"in":[5],"storing":[],"storing_from":[]}'
    )
    progress.scans = [RetainedScan("a/#", 1, (7,), [5, 6], 1, "a/b\0")]
    assert encode_progress(progress).endswith(
        b',"retained":[{"filter":"a/#","qos":1,"identifiers":[7],"limits":[5,6],'
        b'"shard":1,"position":"a/b\\u0000"}]}'
    )
    progress.shared = {1: "$share/g/a"}
    assert encode_progress(progress).endswith(b',"shared":[[1,"$share/g/a"]]}')
    progress.histories = [HistoryRecord(["a/#"], 12, [5, 6])]
    assert encode_progress(progress).endswith(
        b',"history":[{"filters":["a/#"],"from":12,"cursor":[5,6]}]}'
    )
    assert encode_marks(MarksRecord("i1", [-1, 8], 9)) == (
        b'{"v":3,"incarnation":"i1","marks":[-1,8],"next":9}'
    )


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
    "change",
    [
        {"cursor": [-1]},
        {"cursor": [True]},
        {"cursor": 1},
        {"settled": 1},
        {"in": [0]},
        {"out": [[1, 1, 0, 0]]},
        {"out": [[0, 1, 0, 0, 0]]},
        {"out": [[1, 0, 0, 0, 0]]},
        {"out": [[1, 1, 0, 0, 2]]},
        {"out": [[1, 1, 0, 0, False]]},
        {"out": [1]},
        {"retained": None},
        {"retained": [1]},
        {
            "retained": [
                {"filter": "a", "qos": 3, "identifiers": [], "limits": [], "position": None}
            ]
        },
        {"retained": [{"filter": "a", "qos": 1, "identifiers": [], "limits": [], "position": 1}]},
        {"history": None},
        {"history": [1]},
        {"history": [{"filters": [1], "from": 0, "cursor": []}]},
        {"history": [{"filters": ["a"], "from": "0", "cursor": []}]},
        {"history": [{"filters": ["a"], "from": 0, "cursor": [-1]}]},
    ],
)
def test_progress_with_a_member_of_another_form_is_refused(change: dict[str, Any]) -> None:
    members = json.loads(encode_progress(ProgressRecord("a", [0], True))) | change
    for data in (json.dumps(members), json.dumps(members, separators=(",", ":"))):
        for read in (decode_progress, check_progress):
            with pytest.raises(InvalidRecord):
                read(data.encode())


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 100_000, b'{"v":1' + b"0" * 5000 + b"}"]
)
def test_what_is_no_json_object_of_our_version_is_refused(data: bytes) -> None:
    for read in (decode_session, decode_progress, check_progress, decode_marks):
        with pytest.raises(InvalidRecord):
            read(data)


USUAL = encode_progress(
    ProgressRecord("00000000000000ab", [0, 2**63 - 1], False, [Outgoing(1, 2, 3, 4, True)], [65535])
)

OWED = encode_progress(
    ProgressRecord(
        "ab", [0], True, scans=[RetainedScan("a/b", 1, (7,), [3]), RetainedScan("+", 0, (), [4], 1)]
    )
)


@pytest.mark.parametrize("usual", [USUAL, OWED])
@given(
    part=st.floats(0, 1, exclude_max=True),
    byte=st.sampled_from(list(b'[]{},"\\n0129-. ')),
    adds=st.booleans(),
)
def test_progress_that_passes_the_check_can_be_decoded(
    usual: bytes, part: float, byte: int, adds: bool
) -> None:
    at = int(part * len(usual))
    data = usual[:at] + bytes([byte]) + usual[at + (not adds) :]
    try:
        check_progress(data)
    except InvalidRecord:
        with pytest.raises(InvalidRecord):
            decode_progress(data)
    else:
        decode_progress(data)


@pytest.mark.parametrize("packet_id", [0, 1, 9_999, 10_000, 59_999, 64_999, 65_535, 65_536, 70_000])
def test_packet_identifiers_are_checked_in_their_range(packet_id: int) -> None:
    data = USUAL.replace(b"65535", b"%d" % packet_id)
    if 1 <= packet_id <= 65_535:
        check_progress(data)
    else:
        with pytest.raises(InvalidRecord):
            check_progress(data)


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


def test_marks_move_only_settled_sessions_of_their_own_incarnation() -> None:
    session = a_session()
    settled = ProgressRecord("00000000000000ab", [5, 5], True)
    marks = MarksRecord("i1", [3, 9])
    assert resume_cursor(session, settled, marks) == [5, 10]
    assert resume_cursor(session, settled, None) == [5, 5]
    assert resume_cursor(session, settled, MarksRecord("i2", [9, 9])) == [5, 5]
    assert resume_cursor(session, settled, MarksRecord("i1", [9])) == [10, 5], "of fewer partitions"
    settled.settled = False
    assert resume_cursor(session, settled, marks) == [5, 5]


@pytest.mark.parametrize("storing", [[], [7]])
def test_what_may_not_be_stored_yet_is_told_without_decoding(storing: list[int]) -> None:
    progress = ProgressRecord("s", [1], settled=not storing, storing=storing)
    assert is_storing(encode_progress(progress)) == bool(storing)
