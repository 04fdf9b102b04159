import json
from typing import Any

import pytest

from mqlake.errors import InvalidRecord
from mqlake.records.access import (
    AccessKind,
    AccessValue,
    Account,
    ApiKey,
    LoginSession,
    access_key,
    decode_access,
    decode_access_key,
    encode_access,
)

VALUES: list[tuple[AccessKind, AccessValue]] = [
    ("key", ApiKey("editor", "°C", "00", 1, "ann", 2)),
    ("key", ApiKey("viewer", "", "00", 1, "ann")),
    ("key", ApiKey("viewer", "", "00", 1, "ann", None, ("a/#", "b"))),
    ("key", ApiKey("viewer", "", "00", 1, "ann", None, ())),
    ("account", Account("admin", "SCRAM-SHA-256$…", 1, "api-token", 2)),
    ("session", LoginSession("account", "ann", "00", 1, 2)),
]


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_a_value_comes_back_from_its_record(kind: AccessKind, value: AccessValue) -> None:
    assert decode_access(kind, encode_access(value)) == value
    assert decode_access_key(access_key(kind, "a/b")) == (kind, "a/b")


def test_fields_that_are_not_known_are_left_out() -> None:
    value = VALUES[0][1]
    fields = json.loads(encode_access(value)) | {"later": 1}
    assert decode_access("key", json.dumps(fields).encode()) == value


@pytest.mark.parametrize(
    "change", [{"v": 5}, {"role": "god"}, {"role": None}, None], ids=["v", "role", "none", "list"]
)
def test_a_record_of_another_form_is_refused(change: dict[str, Any] | None) -> None:
    fields = json.loads(encode_access(VALUES[0][1]))
    data = json.dumps([] if change is None else fields | change).encode()
    with pytest.raises(InvalidRecord):
        decode_access("key", data)
    with pytest.raises(InvalidRecord):
        decode_access("key", b'{"v":1}')


@pytest.mark.parametrize("data", [b"", b"k", b"k/", b"x/a", b"\xff/a"])
def test_a_key_of_another_kind_is_none(data: bytes) -> None:
    assert decode_access_key(data) is None
