"""Rights are written as a file that says the same."""

import pytest

from mqlake.errors import InvalidRecord, NewerRecord
from mqlake.rights.applied import (
    AppliedRights,
    decode_rights,
    encode_rights,
    rights_version_key,
    rights_version_of,
)
from mqlake.rights.documents import difference, write_rights
from mqlake.rights.files import parse_rights
from mqlake.rights.model import RightsFile

ALL = """
[roles]
operators = ["olga", "o\\"tto \\\\ ü"]
"a.b" = []

[[rules]]
effect = "allow"
actions = ["connect"]
authenticated = false
client_ids = ["%u", "%u-*", "\\u007f\\u0001"]

[[rules]]
effect = "deny"
actions = ["publish"]
topics = ["plant/#", "a b/%c/%%"]
users = ["x"]
roles = ["a.b"]
qos = [0, 2]
retain = false
"""
TEXTS = [ALL, "rules = []\n", "rules = []\n[roles]\na = []\n"]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_written_says_the_same(text: str) -> None:
    rights = parse_rights(text)
    written = write_rights(rights)
    assert parse_rights(written) == rights
    assert write_rights(parse_rights(written)) == written


@pytest.mark.parametrize("text", TEXTS)
def test_a_record_says_the_same(text: str) -> None:
    rights = parse_rights(text)
    applied = AppliedRights(roles=rights.roles, rules=rights.rules, version=3, at=5, by="olga")
    found = decode_rights(encode_rights(applied))
    assert found == applied
    assert found.content == rights


def test_a_difference_is_that_of_the_files() -> None:
    one, other = parse_rights(ALL), parse_rights(ALL.replace("[0, 2]", "[0]"))
    assert difference(one, one, ("a", "b")) == ""
    diff = difference(one, other, ("a", "b")).splitlines()
    assert diff[:2] == ["--- a", "+++ b"]
    assert [line for line in diff[2:] if line[0] in "+-"] == ["-qos = [0, 2]", "+qos = [0]"]
    assert difference(None, RightsFile(rules=()), ("a", "b")).endswith("+rules = []\n")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"v":2,"version":1,"at":1,"by":"x"}',
        b'{"v":2,"version":1,"at":1,"by":"x","rules":[{"effect":"perhaps","actions":["connect"]}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_rights_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_rights(value)


def test_a_later_release_is_named() -> None:
    with pytest.raises(NewerRecord):
        decode_rights(b'{"v":9,"version":1,"at":1,"by":"x","rules":[]}')


def test_versions_have_keys() -> None:
    assert rights_version_of(rights_version_key(12)) == 12
    for key in (b"\0rights", b"\0rights/", b"\0rights/x", b"12", b"\0ban/1"):
        assert rights_version_of(key) is None
