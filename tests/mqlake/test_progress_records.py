import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import InvalidRecord
from mqlake.records.progress import (
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
from tests.mqlake.sessions import a_session

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
NAMES = st.from_regex(r"[a-z0-9-]{1,12}", fullmatch=True)
OFFSETS = st.lists(st.integers(0, 2**62), max_size=4)
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
            fell_behind=st.booleans(),
        ),
        max_size=2,
    ),
)


@given(PROGRESSES)
def test_progress_comes_back_from_its_value(progress: ProgressRecord) -> None:
    check_progress(encode_progress(progress))
    decoded = decode_progress(encode_progress(progress))
    assert decoded == progress
    assert all(type(entry.released) is bool for entry in decoded.outgoing)


@given(st.builds(MarksRecord, incarnation=NAMES, marks=st.lists(st.integers(-1, 2**62))))
def test_marks_come_back_from_their_value(marks: MarksRecord) -> None:
    assert decode_marks(encode_marks(marks)) == marks


def test_the_values_are_the_documented_json() -> None:
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
    for read in (decode_progress, check_progress, decode_marks):
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
