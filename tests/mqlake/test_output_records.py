import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import InvalidRecord
from mqlake.records.outputs import (
    DeadLetter,
    Output,
    Position,
    dead_letter_headers,
    decode_dead_letter,
    decode_output,
    decode_position,
    output_headers,
    rule_record_key,
)
from mqlake.records.versions import Headers

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True)
VERSIONS = st.integers(1, 2**31)
POSITIONS = st.builds(
    Position,
    source=st.sampled_from(["i", "e", "bjob-1"]),
    partition=st.integers(0, 1000),
    offset=st.integers(0, 2**62),
    index=st.integers(0, 10_000),
)
OUTPUTS = st.builds(
    Output,
    tenant=NAMES,
    rule=NAMES,
    version=VERSIONS,
    row=st.binary(),
    position=POSITIONS,
    received_at_ms=st.integers(0, 2**45),
    topic_name=TEXT,
    client_id=TEXT,
    message_id=st.none() | st.binary(min_size=16, max_size=16),
    chain=st.lists(NAMES, max_size=3).map(tuple),
    traceparent=st.sampled_from([b"", b"00-1-2-01"]),
)
DEAD_LETTERS = st.builds(
    DeadLetter,
    tenant=NAMES,
    rule=NAMES,
    version=VERSIONS,
    value=st.binary(),
    position=POSITIONS,
    stage=st.sampled_from(["evaluate", "action"]),
    error=TEXT,
    topic_name=TEXT,
    client_id=TEXT,
    action=st.none() | TEXT,
)


@given(OUTPUTS)
def test_an_output_comes_back_from_its_record(output: Output) -> None:
    key = rule_record_key(output.tenant, output.rule)
    assert decode_output(key, output.row, output_headers(output)) == output


@given(DEAD_LETTERS)
def test_a_dead_letter_comes_back_from_its_record(letter: DeadLetter) -> None:
    key = rule_record_key(letter.tenant, letter.rule)
    assert decode_dead_letter(key, letter.value, dead_letter_headers(letter)) == letter


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["rule", "output", "ts", "topic", "stage", "action"]), st.binary()
        )
    ),
    st.binary(),
)
def test_whatever_the_bytes_reading_gives_a_record_or_the_one_error(
    headers: Headers, key: bytes
) -> None:
    output = Output("t", "r", 1, b"{}", Position("i", 0, 0, 0), 0, "a", "c")
    letter = DeadLetter("t", "r", 1, b"", Position("i", 0, 0, 0), "evaluate", "e", "a", "c")
    with contextlib.suppress(InvalidRecord):
        decode_output(key, b"", [*output_headers(output), *headers])
    with contextlib.suppress(InvalidRecord):
        decode_dead_letter(key, b"", [*dead_letter_headers(letter), *headers])


@pytest.mark.parametrize("missing", ["rule", "output", "ts", "topic", "client_id"])
def test_an_output_lacks_no_header(missing: str) -> None:
    output = Output("t", "r", 1, b"{}", Position("i", 0, 0, 0), 0, "a", "c")
    kept = [header for header in output_headers(output) if header[0] != missing]
    with pytest.raises(InvalidRecord, match=missing):
        decode_output(b"t/r", b"{}", kept)


@pytest.mark.parametrize("data", [b"", b"i:1:2", b"i:1:2:x", b"i:1:2:3:4", b"\xff:1:2:3"])
def test_a_position_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_position(data)


def test_a_dead_letter_has_a_known_stage() -> None:
    letter = DeadLetter("t", "r", 1, b"", Position("i", 0, 0, 0), "evaluate", "e", "a", "c")
    headers = dict(dead_letter_headers(letter)) | {"stage": b"later"}
    with pytest.raises(InvalidRecord, match="stage"):
        decode_dead_letter(b"t/r", b"", list(headers.items()))
    del headers["stage"]
    with pytest.raises(InvalidRecord, match="stage"):
        decode_dead_letter(b"t/r", b"", list(headers.items()))


def test_outputs_of_one_partition_are_ordered_by_offset_rule_and_index() -> None:
    first = Output("t", "a", 1, b"{}", Position("i", 0, 5, 9), 0, "x", "c")
    second = replace(first, rule="b", position=Position("i", 0, 5, 0))
    third = replace(first, position=Position("i", 0, 6, 0))
    assert first.mark < second.mark < third.mark


def test_what_comes_of_an_added_partition_is_an_order_of_its_own() -> None:
    old, added = Position("i", 1, 5, 0), Position("i", 5, 2, 0)
    assert old.order(1) == "i", "as it has always been"
    assert added.order(1) == "i:5"
    assert Position("b7", 5, 2, 0).order(1) == "b7:5"
