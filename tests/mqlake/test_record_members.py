from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from mqlake.errors import InvalidRecord
from mqlake.records.members import (
    BOOLEAN,
    integer,
    integers,
    load,
    member,
    optional,
    text,
    texts,
    to_dataclass,
)


@dataclass
class Named:
    name: str
    number: int = 1


@pytest.mark.parametrize(
    ("read", "value", "words"),
    [
        (text, None, "member 'a' is None, expected text"),
        (text, "\ud800", "member 'a' has no UTF-8 form"),
        (texts, ["b", 1], r"member 'a' is \['b', 1\], expected a list of text"),
        (integer, True, "member 'a' is True, expected a number from 0 to 9223372036854775807"),
        (integer, 2**63, "member 'a' is 9223372036854775808, expected a number"),
        (integers, [-1], r"member 'a' is \[-1\], expected a list of numbers from 0"),
        (lambda found, name: member(found, name, BOOLEAN), 0, "member 'a' is 0, expected true or"),
        (text, ["x" * 50], r"member 'a' is \['x{35}\.\.\., expected text"),
    ],
)
def test_a_member_of_another_form_is_told_with_what_was_expected(
    read: Callable[[dict[str, Any], str], Any], value: object, words: str
) -> None:
    with pytest.raises(InvalidRecord, match=words):
        read({"a": value}, "a")
    with pytest.raises(InvalidRecord, match="member 'b' is missing, expected"):
        read({"a": value}, "b")


def test_a_member_that_may_be_null_may_not_be_missing() -> None:
    with pytest.raises(InvalidRecord, match="member 'a' is missing, expected text"):
        optional(text, {}, "a")
    assert optional(text, {"a": None}, "a") is None
    assert optional(text, {"a": "b"}, "a") == "b"


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"[]", r"word is \[\], expected an object"), (b"{", "word is not JSON"), (b"{}", "version")],
)
def test_an_object_of_our_version_is_expected(data: bytes, words: str) -> None:
    with pytest.raises(InvalidRecord, match=words):
        load(data, "word")


def test_a_dataclass_takes_the_members_that_it_knows() -> None:
    assert to_dataclass(Named, {"name": "a", "later": 2}, "word") == Named("a")
    with pytest.raises(InvalidRecord, match=r"word has not all members: .*'name'"):
        to_dataclass(Named, {"number": 2}, "word")
