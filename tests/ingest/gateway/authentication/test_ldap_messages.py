"""Messages of LDAP: as another implementation writes them, and what is none."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.gateway.authentication.ldap_messages import (
    MAX_MESSAGE_BYTES,
    LdapEntry,
    LdapMessageError,
    LdapResult,
    decode,
    encode_bind,
    encode_search,
    encode_unbind,
    length_of,
)

# Written by hand after RFC 4511.
BIND = bytes.fromhex("3013020101600e0201030404636e3d618003707764")
BOUND = bytes.fromhex("300c02010161070a010004000400")


def test_questions_are_written_as_the_specification_has_them() -> None:
    assert encode_bind(1, b"cn=a", b"pwd") == BIND
    assert encode_unbind(3) == bytes.fromhex("30050201034200")
    search = encode_search(
        2, b"dc=x", [("uid", b"a"), ("b", b"c")], ["uid"], size_limit=2, time_limit_seconds=5
    )
    expected = (
        "30350201026330"  # message 2, search
        "040464633d78"  # below dc=x
        "0a0102"
        "0a0100"  # the whole subtree, aliases never
        "020102"
        "020105"
        "010100"  # limits, not types only
        "a012"
        "a308"
        "0403756964"
        "040161"
        "a306"
        "040162"
        "040163"  # both equal
        "3005"
        "0403756964"  # attributes
    )
    assert search.hex() == expected


def test_answers_are_read() -> None:
    assert length_of(BOUND) == len(BOUND)
    assert decode(BOUND) == LdapResult(1, 0)
    body = _tlv(0x30, _tlv(0x04, b"UID") + _tlv(0x31, _tlv(0x04, b"a") + _tlv(0x04, b"b")))
    message = _tlv(0x30, _tlv(0x02, b"\x02") + _tlv(0x64, _tlv(0x04, b"cn=a") + _tlv(0x30, body)))
    assert decode(message) == LdapEntry(2, b"cn=a", {"uid": (b"a", b"b")})
    assert decode(_tlv(0x30, _tlv(0x02, b"\x02") + _tlv(0x73, b"ldap://x"))) is None


def test_a_bind_without_a_password_is_not_written() -> None:
    with pytest.raises(LdapMessageError):
        encode_bind(1, b"cn=a", b"")
    with pytest.raises(LdapMessageError):
        encode_bind(1, b"", b"x")


@pytest.mark.parametrize(
    "head",
    [b"H", b"0\x80", b"0\x85\0\0\0\0\1", b"0\x84\xff\xff\xff\xff", b"0\xff", b"\x16\x03\x01"],
)
def test_what_cannot_be_an_answer_is_not_waited_for(head: bytes) -> None:
    with pytest.raises(LdapMessageError):
        length_of(head)


def test_the_length_is_known_as_soon_as_it_has_come() -> None:
    message = _tlv(0x30, b"x" * 70_000)
    assert [length_of(message[:count]) for count in range(6)] == [None] * 5 + [len(message)]
    with pytest.raises(LdapMessageError, match="262144 at most"):
        length_of(_tlv(0x30, b"x" * MAX_MESSAGE_BYTES)[:10])


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"0\0",
        BOUND + b"0",
        BOUND[:-1],
        bytes.fromhex("300c02010061070a010004000400"),  # number 0: it hangs up
        bytes.fromhex("300c02010178070a010004000400"),  # an extended answer
        bytes.fromhex("300c04010161070a010004000400"),  # no number
        bytes.fromhex("300502010161020201"),
        bytes.fromhex("30050201016400"),  # an entry without a name
    ],
)
def test_what_is_no_answer(message: bytes) -> None:
    with pytest.raises(LdapMessageError):
        decode(message)


@given(st.binary(max_size=120))
def test_no_bytes_make_it_fail_otherwise(data: bytes) -> None:
    for message in (data, _tlv(0x30, data), _tlv(0x30, _tlv(0x02, b"\x01") + data)):
        with suppress(LdapMessageError):
            length_of(message)
        with suppress(LdapMessageError):
            decode(message)


@given(st.integers(0, 13), st.integers(1, 255))
def test_no_change_of_one_byte_makes_it_fail_otherwise(position: int, change: int) -> None:
    message = bytearray(BOUND)
    message[position] ^= change
    with suppress(LdapMessageError):
        decode(bytes(message))


def _tlv(tag: int, body: bytes) -> bytes:
    if len(body) < 0x80:
        return bytes([tag, len(body)]) + body
    length = len(body).to_bytes((len(body).bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + body
