import json
from enum import IntEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.records import compact_json

TEXT = st.text(st.characters(codec="utf-8"))
SCALARS = st.none() | st.booleans() | st.integers() | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=6
)


class Qos(IntEnum):
    EXACTLY_ONCE = 2


@settings(max_examples=50)
@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_it_writes_and_reads_as_json_does(value: dict[str, object]) -> None:
    text = compact_json.encode(value)
    assert text == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    assert compact_json.decode(text) == value
    assert compact_json.decode(json.dumps(value)) == value


def test_tuples_are_lists_and_reason_codes_numbers() -> None:
    assert compact_json.encode({"at": (1, 2), "qos": Qos.EXACTLY_ONCE}) == b'{"at":[1,2],"qos":2}'


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"{'a':1}", b"\xff", b'{"a":1} 2', b'"\\ud800"', b"[" * 100_000],
    ids=["nothing", "half", "quotes", "no UTF-8", "more", "half a pair", "deep"],
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        compact_json.decode(data)


def test_text_without_utf_8_is_refused() -> None:
    with pytest.raises(ValueError, match=r"surrogate|UTF-8|utf-8"):
        compact_json.encode({"client_id": "\ud800"})
