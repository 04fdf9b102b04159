import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.protocol import packets
from mqlake.errors import InvalidTopic
from mqlake.topics.names import (
    MAX_TOPIC_BYTES,
    SHARE_PREFIX,
    SharedFilter,
    has_more_levels,
    is_system,
    split_shared,
    validate_topic_filter,
    validate_topic_name,
)

LEVELS = st.text(st.characters(exclude_characters="+#/\0", exclude_categories=["Cs"]), max_size=4)
PRINTABLE = st.text(
    st.characters(exclude_characters="+#/", exclude_categories=["Cs", "Cc"]), max_size=4
)
"""Levels of shared subscriptions, which have no control characters."""


@pytest.mark.parametrize(
    "topic_name",
    ["a", "/", "a/b", "/a", "a/", "//", "$SYS/uptime", "größe/°C", "a b", "x" * MAX_TOPIC_BYTES],
)
def test_a_topic_name_is_any_text_without_wildcards(topic_name: str) -> None:
    validate_topic_name(topic_name)


@pytest.mark.parametrize(
    ("topic_name", "clause"),
    [
        ("", "MQTT5-4.7.3-1"),
        ("a/+/b", "MQTT5-4.7.0-1"),
        ("a#", "MQTT5-4.7.0-1"),
        ("a\0b", "MQTT5-4.7.3-2"),
        ("x" * (MAX_TOPIC_BYTES + 1), "MQTT5-4.7.3-3"),  # [MQTT311-4.7.3-3]
        ("é" * (MAX_TOPIC_BYTES // 2 + 1), "MQTT5-4.7.3-3"),
    ],
)
def test_a_topic_name_that_is_none_is_refused_with_its_clause(topic_name: str, clause: str) -> None:
    with pytest.raises(InvalidTopic) as refused:
        validate_topic_name(topic_name)
    assert refused.value.clause == clause


@pytest.mark.parametrize(
    "topic_filter",
    [
        *("#", "+", "/", "+/+", "/+", "a/#", "a/+/b/#", "$SYS/#", "/#", "a//b", "+/a/#"),
        *("$share/g/a", "$share/g/#", "$share/g//", "$share/g/+/b", "$shared/a", "$share1"),
        "x" * MAX_TOPIC_BYTES,
    ],
)
def test_a_topic_filter_may_hold_wildcards_that_fill_their_level(topic_filter: str) -> None:
    validate_topic_filter(topic_filter)


@pytest.mark.parametrize(
    ("topic_filter", "clause"),
    [
        ("", "MQTT5-4.7.3-1"),
        ("a#", "MQTT5-4.7.1-1"),
        ("a/#/b", "MQTT5-4.7.1-1"),
        ("##", "MQTT5-4.7.1-1"),
        ("#/#", "MQTT5-4.7.1-1"),
        ("a+", "MQTT5-4.7.1-2"),
        ("+a/b", "MQTT5-4.7.1-2"),
        ("a/++/b", "MQTT5-4.7.1-2"),
        ("+#", "MQTT5-4.7.1-1"),
        ("a\0", "MQTT5-4.7.3-2"),
        ("x" * (MAX_TOPIC_BYTES + 1), "MQTT5-4.7.3-3"),
        ("$share", "MQTT5-4.8.2-1"),
        ("$share/", "MQTT5-4.8.2-1"),
        ("$share//a", "MQTT5-4.8.2-1"),
        ("$share/g", "MQTT5-4.8.2-2"),
        ("$share/g/", "MQTT5-4.8.2-2"),
        ("$share/+/a", "MQTT5-4.8.2-2"),
        ("$share/g#/a", "MQTT5-4.8.2-2"),
        ("$share/g/a#", "MQTT5-4.7.1-1"),
        # Records have a line for each group: this one would name a second.
        ("$share/g/alice/x\n$share/v/secret/#", "MQTT5-1.5.4"),
        ("$share/g\n/a", "MQTT5-1.5.4"),
        ("$share/g/a\x01", "MQTT5-1.5.4"),
        ("$share/g/\x7f", "MQTT5-1.5.4"),
        ("$share/\x85/a", "MQTT5-1.5.4"),
    ],
)
def test_a_topic_filter_that_is_none_is_refused_with_its_clause(
    topic_filter: str, clause: str
) -> None:
    with pytest.raises(InvalidTopic) as refused:
        validate_topic_filter(topic_filter)
    assert refused.value.clause == clause


@pytest.mark.parametrize(
    ("topic_filter", "shared"),
    [
        ("a/b", SharedFilter("", "a/b")),
        ("$share/g/a/b", SharedFilter("g", "a/b")),
        ("$share/g//a", SharedFilter("g", "/a")),
        ("$shared/g/a", SharedFilter("", "$shared/g/a")),
    ],
)
def test_a_shared_filter_splits_at_the_end_of_its_name(
    topic_filter: str, shared: SharedFilter
) -> None:
    assert split_shared(topic_filter) == shared


@given(st.lists(LEVELS, min_size=1, max_size=6).map("/".join))
def test_every_topic_name_is_a_topic_filter(text: str) -> None:
    if text and not text.startswith("$share"):
        validate_topic_name(text)
        validate_topic_filter(text)


@given(
    PRINTABLE.filter(bool), st.lists(PRINTABLE, min_size=1, max_size=6).map("/".join).filter(bool)
)
def test_a_share_name_can_be_put_on_and_taken_off(share_name: str, plain: str) -> None:
    topic_filter = f"$share/{share_name}/{plain}"
    validate_topic_filter(topic_filter)
    assert split_shared(topic_filter) == SharedFilter(share_name, plain)


@pytest.mark.parametrize(
    ("topic", "most", "has_more"),
    [("a", 1, False), ("a/b", 1, True), ("a/b", 2, False), ("//", 2, True), ("abc", 2, False)],
)
def test_levels_are_the_parts_between_slashes(topic: str, most: int, has_more: bool) -> None:
    assert has_more_levels(topic, most) is has_more


@pytest.mark.parametrize(
    ("topic", "expected"), [("$SYS", True), ("$SYS/x", True), ("$SYSx", False), ("a/$SYS", False)]
)
def test_only_the_tree_of_gateways_is_theirs(topic: str, expected: bool) -> None:
    assert is_system(topic) is expected


def test_the_codec_knows_the_same_prefix_of_shared_subscriptions() -> None:
    assert packets.SHARE_PREFIX == SHARE_PREFIX
