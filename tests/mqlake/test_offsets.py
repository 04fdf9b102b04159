import pytest

from mqlake.offsets import have_reached, latest


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


def test_lists_of_different_logs_are_not_compared() -> None:
    with pytest.raises(ValueError, match="zip"):
        latest([1], [1, 2])
    with pytest.raises(ValueError, match="zip"):
        have_reached([1], [1, 2])
