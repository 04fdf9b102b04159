from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.gateway.store.scanning import FilterScan, just_after
from mqlake.topics.matching import filter_matches

# Levels with characters on both sides of the separator, and beyond one byte.
LEVELS = st.sampled_from(["", "a", "b", "a!", "a0", "aa", "$", "$a", "ä", "\U0001f600"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.builds(
    lambda levels, tail: "/".join([*levels, *tail]),
    st.lists(LEVELS | st.just("+"), min_size=0, max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool)


def scanned(topic_filter: str, topics: list[str]) -> tuple[list[str], int]:
    """Return what matches among sorted topics, and how many of them were looked at."""
    scan = FilterScan(topic_filter)
    found = []
    looked_at = 0
    position: str | None = scan.start
    while position is not None:
        at = bisect_left(topics, position)
        if at == len(topics):
            break
        looked_at += 1
        position = scan.seek(topics[at])
        assert position is None or position >= topics[at]
        if position == topics[at]:
            found.append(topics[at])
            position = just_after(topics[at])
    return found, looked_at


@given(FILTERS, st.sets(TOPICS, max_size=30))
def test_a_scan_finds_exactly_what_the_filter_matches(topic_filter: str, topics: set[str]) -> None:
    found, _ = scanned(topic_filter, sorted(topics))
    assert found == sorted(topic for topic in topics if filter_matches(topic_filter, topic))


@given(st.lists(TOPICS, unique=True))
def test_topics_sort_as_their_bytes_do(topics: list[str]) -> None:
    assert sorted(topics) == sorted(topics, key=str.encode)


@pytest.mark.parametrize(
    ("topic_filter", "found", "at_most"),
    [
        ("plant/5/sensor/7", 1, 4),
        ("plant/5/#", 100, 102),
        ("plant/5/+/7", 1, 5),
        ("plant/+/sensor/7", 100, 301),
        ("plant/+/none/7", 0, 200),
        ("plant/+", 0, 101),
        ("+/+/sensor", 0, 101),
        ("other/#", 0, 1),
        ("#", 10_000, 10_001),
    ],
)
def test_a_scan_skips_where_a_level_cannot_match(
    topic_filter: str, found: int, at_most: int
) -> None:
    topics = sorted(f"plant/{line}/sensor/{number}" for line in range(100) for number in range(100))
    topics.append("~")
    matching, looked_at = scanned(topic_filter, topics)
    assert len(matching) == found + (topic_filter == "#")
    assert looked_at <= at_most


def test_topics_that_begin_with_a_dollar_are_passed_in_one_step() -> None:
    topics = sorted(["!", *(f"$SYS/{number}" for number in range(100)), "a"])
    assert scanned("#", topics) == (["!", "a"], 3)
    assert scanned("+", topics) == (["!", "a"], 3)
    assert len(scanned("$SYS/#", topics)[0]) == 100
