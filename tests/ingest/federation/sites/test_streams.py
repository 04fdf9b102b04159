"""Marks and gaps say exactly what a set of all numbers would."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.federation.sites.streams.streams import NumberedStream, StreamKey, Streams
from mqlake.errors import InvalidRecord

STEPS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 3)).map(lambda one: (one[0] - one[1], one[0]))
)


@given(STEPS)
def test_what_was_had_is_what_a_set_would_hold(steps: list[tuple[int, int]]) -> None:
    stream, had = NumberedStream(), set[int]()
    for below, number in steps:
        assert stream.has(number) == (number in had)
        stream.add(max(below - 1, 0), number)
        had.update(range(max(below, 1), number + 1))
        assert {one for one in range(1, 45) if stream.has(one)} == had
        gaps = stream.gaps
        assert all(first <= last for first, last in gaps)
        assert all(a[1] + 1 < b[0] for a, b in pairwise(gaps))
        assert not gaps or gaps[-1][1] < stream.mark


@given(STEPS)
def test_what_is_written_is_read(steps: list[tuple[int, int]]) -> None:
    streams = Streams()
    for below, number in steps:
        streams.add(StreamKey(7, 1, number % 2), max(below - 1, 0), number)
    again = Streams.from_json(streams.to_json())
    assert again.to_json() == streams.to_json()
    assert len(again) == len(streams)
    assert again.gaps == streams.gaps


def test_a_stream_has_room_for_what_makes_no_gap_or_one_more() -> None:
    streams, key = Streams(), StreamKey(1, 1, 0)
    assert streams.has_room(key, 9, 2)
    for number in (10, 20):
        streams.add(key, number - 1, number)
    assert not streams.has_room(key, 29, 2)
    assert streams.has_room(key, 29, 3)
    assert streams.has_room(key, 20, 2)  # what follows the last one
    assert streams.has_room(key, 4, 2)  # what lies in a gap, though that becomes two
    assert not streams.has(key, 5)


@given(STEPS)
def test_what_is_reopened_was_had_between_the_lowest_two_gaps(steps: list[tuple[int, int]]) -> None:
    stream = NumberedStream()
    for below, number in steps:
        stream.add(max(below - 1, 0), number)
    gaps, mark = stream.gaps, stream.mark
    if len(gaps) > 1:
        stream.reopen_lowest()
        assert stream.gaps == [(gaps[0][0], gaps[1][1]), *gaps[2:]]
    assert stream.mark == mark


@given(STEPS, st.integers(0, 45))
def test_gaps_are_closed_up_to_a_number(steps: list[tuple[int, int]], last: int) -> None:
    stream = NumberedStream()
    for below, number in steps:
        stream.add(max(below - 1, 0), number)
    before = {one for one in range(1, 45) if stream.has(one)}
    mark = stream.mark
    stream.close(last)
    had = {one for one in range(1, 45) if stream.has(one)}
    assert had == before | {one for one in range(1, 45) if one <= min(last, mark)}
    assert stream.mark == mark


def test_gaps_as_an_earlier_release_wrote_them_are_read() -> None:
    streams = Streams.from_json([[1, 1, 0, 30, [[1, 4], [11, 19]]]])
    assert streams.to_json() == [[1, 1, 0, 30, [1, 3, 7, 8]]]
    assert Streams.from_json(streams.to_json()).to_json() == streams.to_json()


def test_streams_do_not_touch_each_other() -> None:
    streams = Streams()
    streams.add(StreamKey(1, 1, 0), 4, 5)
    assert streams.has(StreamKey(1, 1, 0), 5)
    assert not streams.has(StreamKey(1, 1, 1), 5)
    assert not streams.has(StreamKey(1, 2, 0), 5)


@pytest.mark.parametrize(
    "found", [[1], [[1, 2, 3]], [[1, 2, 3, 4, [5]]], [[1, 2, 3, 4, [[5]]]], [["a", 2, 3, 4, []]]]
)
def test_what_cannot_be_is_refused(found: list[object]) -> None:
    with pytest.raises(InvalidRecord):
        Streams.from_json(found)
