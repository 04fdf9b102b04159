from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import InvalidRecord
from mqlake.records.rules import (
    Activation,
    LeftUnread,
    OffsetRange,
    RuleMetricsKey,
    Span,
    decode_activation,
    decode_decided,
    decode_rule_metrics_key,
    encode_activation,
    encode_decided,
    rule_metrics_key,
    rules_barrier_key,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True)
OFFSETS = st.lists(st.integers(0, 2**62), min_size=1, max_size=4).map(tuple)
VERSIONS = st.integers(1, 2**31)
SPANS = st.builds(
    Span,
    version=VERSIONS,
    filters=st.lists(TEXT).map(tuple),
    expression=st.none() | TEXT,
    actions=st.lists(st.dictionaries(TEXT, TEXT, max_size=2), max_size=2).map(tuple),
    schema=st.none() | TEXT,
    sources=st.dictionaries(
        NAMES, st.builds(OffsetRange, OFFSETS, st.none() | OFFSETS), max_size=2
    ),
    plan=st.none() | st.dictionaries(TEXT, TEXT, max_size=2),
    change=st.integers(0, 2**53),
    ended_at_ms=st.none() | st.integers(0, 2**45),
)
UNREAD = st.builds(
    LeftUnread,
    version=VERSIONS,
    change=st.integers(0, 2**53),
    at_ms=st.integers(0, 2**45),
    reason=TEXT,
    offsets=st.dictionaries(
        NAMES,
        st.dictionaries(
            st.integers(0, 999),
            st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)),
            max_size=2,
        ),
        max_size=2,
    ),
)
ACTIVATIONS = st.builds(
    Activation,
    tenant=NAMES,
    rule=NAMES,
    state=st.sampled_from(["running", "stopped", "failed", "paused"]),
    version=VERSIONS,
    change=st.integers(0, 2**53),
    error=st.none() | TEXT,
    spans=st.lists(SPANS, max_size=3).map(tuple),
    updated_at=st.integers(0, 2**45),
    unread=st.none() | UNREAD,
)


def test_a_barrier_of_rules_looks_like_no_message() -> None:
    assert rules_barrier_key(17) == b"\0rules/17"


@given(ACTIVATIONS)
def test_an_activation_comes_back_from_its_record(activation: Activation) -> None:
    assert decode_activation(encode_activation(activation)) == activation


def test_the_last_span_is_in_force_until_it_ends() -> None:
    first = Span(1, ("a",), "x", (), None, {"mqlake.inbound": OffsetRange((1, 2), (3, 4))})
    second = replace(first, version=2, sources={"mqlake.inbound": OffsetRange((3, 4))})
    activation = Activation("t", "r", "running", 2, 1, spans=(first, second))
    assert activation.current == second
    assert replace(activation, spans=(first,)).current is None
    assert replace(activation, spans=()).current is None


@pytest.mark.parametrize(
    "value", [b"", b"\xff", b"[]", b"{}", b'{"v":2}', b'{"v":1,"spans":[1]}', b'{"v":1}']
)
def test_an_activation_of_another_form_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_activation(value)


@given(st.integers(0, 2**53))
def test_the_number_of_a_change_comes_back(change: int) -> None:
    assert decode_decided(encode_decided(change)) == change


@pytest.mark.parametrize("value", [b"", b"[]", b'{"v":1}', b'{"v":1,"change":"x"}'])
def test_the_number_of_a_change_of_another_form_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_decided(value)


@given(st.builds(RuleMetricsKey, NAMES, NAMES, NAMES, NAMES))
def test_the_key_of_metrics_comes_back(key: RuleMetricsKey) -> None:
    assert decode_rule_metrics_key(rule_metrics_key(key)) == key


def test_other_metrics_are_told_apart() -> None:
    assert decode_rule_metrics_key(b"gateway/1/clients") is None
    assert decode_rule_metrics_key(b"engine/1/other/t/r") is None
