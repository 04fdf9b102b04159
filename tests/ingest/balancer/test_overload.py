import pytest

from ingest.balancer.overload import Overload


def test_a_node_is_overloaded_above_the_threshold_until_it_is_well_below() -> None:
    overload = Overload(4, 2, 60)
    seen = []
    for at, level in enumerate((0, 4, 5, 4, 3, 2, 3, 10, 0)):
        overload.note(at, level)
        seen.append(overload.is_over(at))
    assert seen == [False, False, True, True, True, False, False, True, False]


def test_a_level_is_forgotten_when_none_follows() -> None:
    overload = Overload(4, 2, 60)
    overload.note(0, 9)
    assert overload.is_over(60)
    assert not overload.is_over(60.1)
    assert overload.level is None


def test_what_is_no_level_is_ignored() -> None:
    overload = Overload(4, 2, 60)
    for level in (-1, 11, float("nan")):
        overload.note(0, level)
    assert overload.level is None


def test_release_is_not_above_the_threshold() -> None:
    with pytest.raises(ValueError, match="release level 5"):
        Overload(4, 5, 60)
