import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqlake.errors import InvalidRecord, NewerRecord
from mqlake.records.references import (
    ReferenceKey,
    decode_reference_key,
    decode_reference_request,
    decode_reference_state,
    reference_key,
)
from mqlake.records.rule_facts import Fact, keep, read_fact
from mqlake.records.rules import (
    DECIDED_KEY,
    Kind,
    RulesKey,
    decode_activation,
    decode_decided,
    rerun_key,
    rules_key,
)
from mqlake.records.schemas import SchemaKey, schema_key
from mqlake.records.versions import NEWEST_READ

NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True)
PAIRS = st.tuples(NAMES, NAMES)
NUMBERS = st.integers(0, 2**31)
VALUES = st.none() | st.binary()
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["v", "change", "spans", "schemas", "columns", "key", "kind"])
            | st.text(),
            inner,
        )
    ),
)
DECODERS: tuple[Callable[[bytes], Any], ...] = (
    decode_activation,
    decode_decided,
    decode_reference_request,
    decode_reference_state,
    json.loads,
)


@given(PAIRS, NUMBERS, VALUES)
def test_a_record_is_read_as_that_which_was_written(
    name: tuple[str, str], number: int, value: bytes | None
) -> None:
    facts = {
        rules_key(RulesKey("definition", *name)): Fact(Kind.DEFINITION, name, value),
        rules_key(RulesKey("version", *name, number)): Fact(Kind.VERSION, name, value, number),
        rules_key(RulesKey("activation", *name)): Fact(Kind.ACTIVATION, name, value),
        rerun_key(*name): Fact(Kind.RERUN, name, value),
        schema_key(SchemaKey(*name, number)): Fact(Kind.SCHEMA, name, value, number),
        reference_key(ReferenceKey("request", *name)): Fact(Kind.REQUEST, name, value),
        reference_key(ReferenceKey("state", *name)): Fact(Kind.STATE, name, value),
        DECIDED_KEY: Fact(Kind.DECIDED, ("", ""), value),
    }
    assert {fact.kind for fact in facts.values()} == set(Kind) - {Kind.UNSIGNED}
    for key, fact in facts.items():
        assert read_fact(key, value) == fact
        unsigned = Kind.UNSIGNED if fact.kind is Kind.ACTIVATION else fact.kind
        assert read_fact(key, value, is_ours=False) == replace(fact, kind=unsigned)


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"/t/r",
        b"c/",
        b"c/t/r",
        b"d",
        b"d/t",
        b"d/t/r/1",
        b"a/t/r/1",
        b"x/t",
        b"y/t/r",
        b"v/t/r",
        b"v/t/r/x",
        b"v/t/r/-1",
        b"v/t/r/",
        b"v/t/r/1/2",
        b"v/t/r/" + b"1" * 5000,
        b"s/t/s",
        b"s/t/s/x",
        b"r/t",
        b"r/too/many/parts",
        b"t/t",
        b"\xff",
        b"\0skipped",
    ],
)
def test_a_key_of_another_form_says_nothing(key: bytes | None) -> None:
    assert read_fact(key, b"{}") is None


@given(st.binary(), VALUES, st.booleans())
@example(b"v/t/r/" + "٣".encode(), b"{}", True)
def test_any_bytes_can_be_read(key: bytes, value: bytes | None, is_ours: bool) -> None:
    fact = read_fact(key, value, is_ours=is_ours)
    assert fact is None or fact.value == value


@given(
    st.sampled_from(DECODERS),
    st.binary() | JSON_VALUES.map(lambda value: json.dumps(value).encode()),
)
@example(decode_activation, b"[" * 100_000)
@example(json.loads, b"[" * 100_000)
def test_a_value_is_read_or_refused(decode: Callable[[bytes], Any], value: bytes) -> None:
    with contextlib.suppress(InvalidRecord):
        Fact(Kind.ACTIVATION, ("t", "r"), value).content(decode)


def test_the_reason_of_a_refusal_says_what_is_malformed() -> None:
    with pytest.raises(InvalidRecord, match=r"definition is malformed: .*Expecting"):
        Fact(Kind.DEFINITION, ("t", "r"), b"{").content(json.loads)


def test_a_record_of_a_later_release_is_told_from_a_malformed_one() -> None:
    value = json.dumps({"v": NEWEST_READ + 1, "change": 1}).encode()
    with pytest.raises(NewerRecord):
        Fact(Kind.DECIDED, ("", ""), value).content(decode_decided)


def test_the_value_of_a_deletion_is_not_decoded() -> None:
    def decode(value: bytes) -> None:
        raise AssertionError(value)

    assert Fact(Kind.ACTIVATION, ("t", "r"), None).content(decode) is None


def test_the_last_that_is_said_of_a_key_is_kept() -> None:
    known: dict[str, int] = {}
    for content in (1, 2, None, None, 0):
        keep(known, "r", content)
        assert known.get("r") == content


@given(st.sampled_from(["request", "state"]), PAIRS)
def test_the_key_of_a_reference_comes_back(kind: Any, name: tuple[str, str]) -> None:
    key = ReferenceKey(kind, *name)
    assert decode_reference_key(reference_key(key)) == key
    assert decode_reference_key(rules_key(RulesKey("definition", *name))) is None
