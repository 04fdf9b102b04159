"""Sets of topic filters, against matching itself."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.federation.filters import covers, disjoint, join, meet, summarise, uncovered
from mqlake.topics.matching import filter_matches

NAMES = ["/".join(levels) for n in (1, 2, 3, 4) for levels in product("ab", repeat=n)]
FILTERS = st.lists(st.sampled_from(["a", "b", "+", "#"]), min_size=1, max_size=4).map(
    lambda levels: "/".join(levels[: levels.index("#") + 1] if "#" in levels else levels)
)


def topics(topic_filter: str) -> set[str]:
    return {name for name in NAMES if filter_matches(topic_filter, name)}


@given(FILTERS, FILTERS)
def test_covers_means_that_no_topic_is_left(wide: str, narrow: str) -> None:
    if covers(wide, narrow):
        assert topics(narrow) <= topics(wide)
    elif not topic_limit(narrow) and (wide, narrow) != ("+/#", "#"):
        assert not topics(narrow) <= topics(wide)


def topic_limit(topic_filter: str) -> bool:
    """Whether names of four levels of two letters tell too little: `a/+/+/#` is `a/+/+/+` there."""
    return topic_filter.count("/") >= 2


@given(FILTERS, FILTERS)
def test_meet_is_what_both_match(one: str, other: str) -> None:
    common = meet(one, other)
    both = topics(one) & topics(other)
    assert (topics(common) if common is not None else set()) == both


@given(FILTERS, FILTERS)
def test_join_covers_both(one: str, other: str) -> None:
    joined = join(one, other)
    assert covers(joined, one)
    assert covers(joined, other)


@given(st.lists(FILTERS, min_size=1, max_size=8))
def test_disjoint_filters_cover_all_and_share_nothing(filters: list[str]) -> None:
    found = disjoint(filters)
    assert set().union(*map(topics, filters)) <= set().union(*map(topics, found))
    assert sum(len(topics(one)) for one in found) == len(set().union(*map(topics, found)))


@given(st.lists(FILTERS, min_size=1, max_size=12), st.integers(1, 4))
def test_a_summary_covers_all_with_few(filters: list[str], most: int) -> None:
    summary = summarise(filters, most)
    assert len(summary) <= most
    assert all(any(covers(one, other) for one in summary) for other in filters)


@pytest.mark.parametrize(
    ("filters", "summary"),
    [
        ({f"dev/{n}/cmd" for n in range(1000)}, {"dev/+/cmd"}),
        ({f"dev/{n}/cmd" for n in range(10)}, {f"dev/{n}/cmd" for n in range(10)}),
        ({f"dev/{n}" for n in range(1000)} | {"other"}, {"dev/+", "other"}),
        ({f"dev/{n}/#" for n in range(1000)}, {"dev/+/#"}),
    ],
)
def test_many_filters_of_one_shape_become_one(filters: set[str], summary: set[str]) -> None:
    assert summarise(filters, 100) == summary


def test_a_filter_inside_another_is_left_out() -> None:
    assert uncovered(["a/#", "a/b", "a", "b/+", "b/c", "+/d"]) == {"a/#", "b/+", "+/d"}
