"""The checkpoint of a federator comes back from its record, or is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import InvalidRecord
from mqlake.records.federation import (
    FederationCheckpoint,
    LinkPosition,
    decode_checkpoint,
    decode_latest,
    encode_checkpoint,
    encode_latest,
    needed,
)

OFFSETS = st.dictionaries(st.integers(0, 9), st.integers(0, 2**62), max_size=4)
CHECKPOINTS = st.builds(
    FederationCheckpoint,
    epoch=st.integers(0, 2**62),
    read=OFFSETS,
    streams=st.just([[1, 2, 0, 9, [[3, 4]]]]),
    links=st.dictionaries(
        st.integers(0, 2**32 - 1), st.builds(LinkPosition, OFFSETS, OFFSETS, st.booleans())
    ),
    interest=st.just({}) | st.just({"version": 3, "heard": {"2": {"2": [1, [2], ["f/#"], 0]}}}),
    retained=st.none() | st.builds(LinkPosition, OFFSETS, OFFSETS),
)


@given(CHECKPOINTS)
def test_a_checkpoint_comes_back_from_its_record(checkpoint: FederationCheckpoint) -> None:
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


def test_the_latest_retained_message_comes_back_from_its_record() -> None:
    latest = [[5, 1, 7, 0, 9], [0, 8], None]
    assert decode_latest(encode_latest(latest)) == latest
    for value in (b"", b"3", b"[]", b"[99,[1,1,1,1,1],null,null]"):
        with pytest.raises(InvalidRecord):
            decode_latest(value)


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b"{}", b'{"v":99}', b'{"v":2,"epoch":1,"read":{"a":1},"streams":[],"links":{}}'],
)
def test_what_is_none_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_checkpoint(value)


def test_what_one_neighbour_needs_is_needed() -> None:
    positions = [LinkPosition({0: 5, 1: 9}), LinkPosition({0: 7, 1: 3})]
    assert needed(positions) == {0: 5, 1: 3}
