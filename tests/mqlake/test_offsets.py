from hypothesis import given
from hypothesis import strategies as st

from mqlake.records.offsets import advance, at, earliest, have_reached, latest, widened

OFFSETS = st.lists(st.integers(0, 5), max_size=4)


def test_each_partition_has_its_own_latest_offset() -> None:
    assert latest([1, 5, 3], [2, 4, 3]) == [2, 5, 3]


def test_nothing_is_before_everything_and_the_result_is_a_copy() -> None:
    offsets = [0, 7]
    result = latest(offsets, None)
    assert result == offsets
    assert result is not offsets


def test_all_partitions_must_have_reached_their_goals() -> None:
    assert have_reached([3, 4], [3, 2])
    assert not have_reached([3, 4], [3, 5])


def test_a_shorter_list_stands_at_the_beginning_of_what_it_lacks() -> None:
    assert at([4], 0) == 4
    assert at([4], 1) == 0
    assert latest([4], [1, 2]) == [4, 2]
    assert latest([1, 2], [4]) == [4, 2]
    assert earliest([4, 9], [5], [6, 7, 8]) == [4, 0, 0]
    assert have_reached([4], [4, 0])
    assert not have_reached([4], [4, 1])
    assert have_reached([4, 1], [4])
    assert widened([4], 3) == [4, 0, 0]
    assert widened([4, 5], 1) == [4, 5]


def test_a_partition_moves_on_and_never_back() -> None:
    offsets = [4]
    advance(offsets, 0, 3)
    advance(offsets, 2, 7)
    advance(offsets, 0, 6)
    assert offsets == [6, 0, 7]


@given(OFFSETS, OFFSETS)
def test_the_greater_of_two_has_reached_both(first: list[int], second: list[int]) -> None:
    both = latest(first, second)
    assert have_reached(both, first)
    assert have_reached(both, second)
    assert have_reached(first, earliest(first, second))
    assert have_reached(first, second) == (latest(first, second) == widened(first, len(both)))
