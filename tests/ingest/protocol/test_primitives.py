from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.protocol import primitives
from ingest.protocol.errors import LocalProtocolError, MalformedPacket


# The bounds of MQTT 5.0, table 1-1.
@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "80 01"),
        (16_383, "ff 7f"),
        (16_384, "80 80 01"),
        (2_097_151, "ff ff 7f"),
        (2_097_152, "80 80 80 01"),
        (268_435_455, "ff ff ff 7f"),
    ],
)
def test_variable_byte_integers_have_their_shortest_form(value: int, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert primitives.encode_variable_byte_integer(value) == data
    assert primitives.read_variable_byte_integer(b"\xff" + data, 1, 5) == (value, 1 + len(data))


@pytest.mark.parametrize(
    ("encoded", "clause"),
    [
        ("", "MQTT5-2.1.4"),
        ("80", "MQTT5-2.1.4"),
        ("80 00", "MQTT5-1.5.5-1"),
        ("ff 80 00", "MQTT5-1.5.5-1"),
        ("80 80 80 80 01", "MQTT5-1.5.5"),
        ("ff ff ff ff", "MQTT5-1.5.5"),
    ],
)
def test_variable_byte_integers_in_another_form_are_malformed(encoded: str, clause: str) -> None:
    with pytest.raises(MalformedPacket) as caught:
        primitives.read_variable_byte_integer(bytes.fromhex(encoded), 0, 5)
    assert caught.value.clause == clause


@given(st.integers(0, 268_435_455))
def test_variable_byte_integers_come_back(value: int) -> None:
    data = primitives.encode_variable_byte_integer(value)
    assert primitives.read_variable_byte_integer(data, 0, 5) == (value, len(data))


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_strings_come_back(text: str) -> None:
    data = primitives.encode_utf8_string(text)
    assert primitives.read_utf8_string(data, 0, 5) == (text, len(data))


@pytest.mark.parametrize(
    ("data", "clause"),
    [
        (b"\xff", "MQTT5-1.5.4-1"),
        (b"\xed\xa0\x80", "MQTT5-1.5.4-1"),
        (b"\xed\xbf\xbf", "MQTT5-1.5.4-1"),
        (b"\xc0\x80", "MQTT5-1.5.4-1"),
        (b"\xf5\x80\x80\x80", "MQTT5-1.5.4-1"),
        (b"\xe2\x82", "MQTT5-1.5.4-1"),
        (b"a\0", "MQTT5-1.5.4-2"),
    ],
)
def test_ill_formed_strings_are_malformed(data: bytes, clause: str) -> None:
    with pytest.raises(MalformedPacket) as caught:
        primitives.to_string(data, 5)
    assert caught.value.clause == clause


def test_clauses_are_those_of_the_version() -> None:
    for level, clause in ((3, "MQTT31-2.5"), (4, "MQTT311-1.5.3-1"), (5, "MQTT5-1.5.4-1")):
        with pytest.raises(MalformedPacket) as caught:
            primitives.to_string(b"\xff", level)
        assert caught.value.clause == clause


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (primitives.read_byte, b""),
        (primitives.read_two_byte_integer, b"\0"),
        (primitives.read_four_byte_integer, b"\0\0\0"),
        (primitives.read_binary_data, b"\0\2a"),
        (primitives.read_utf8_string, b"\0\2a"),
        (primitives.read_string_pair, b"\0\1a\0\2a"),
    ],
)
def test_values_that_end_early_are_malformed(read: Any, data: bytes) -> None:
    with pytest.raises(MalformedPacket, match=r"read \d bytes, expected"):
        read(data, 0, 5)


@pytest.mark.parametrize(
    ("encode", "value"),
    [
        (primitives.encode_two_byte_integer, -1),
        (primitives.encode_two_byte_integer, 65_536),
        (primitives.encode_variable_byte_integer, -1),
        (primitives.encode_variable_byte_integer, 268_435_456),
        (primitives.encode_binary_data, bytes(65_536)),
        (primitives.encode_utf8_string, "a" * 65_536),
        (primitives.encode_utf8_string, "é" * 32_768),
        (primitives.encode_utf8_string, "\0"),
        (primitives.encode_utf8_string, "\udfff"),
    ],
)
def test_values_out_of_range_are_local_errors(encode: Any, value: object) -> None:
    with pytest.raises(LocalProtocolError):
        encode(value)


def test_the_longest_values_can_be_encoded() -> None:
    assert len(primitives.encode_utf8_string("é" * 32_767 + "a")) == 65_537
    assert len(primitives.encode_binary_data(bytes(65_535))) == 65_537
