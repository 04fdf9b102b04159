"""The messages of LDAP that a login needs (RFC 4511): bytes from and to them; no socket.

A part of BER alone: definite lengths, tags of one byte. A search has no filter as text, so that
nothing in a name could be part of one: it is for entries that have certain values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mqlake.errors import MqlakeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_MESSAGE_BYTES: Final = 256 * 1024
MAX_LENGTH_BYTES: Final = 4

_INTEGER, _OCTETS, _ENUMERATED, _BOOLEAN = 0x02, 0x04, 0x0A, 0x01
_SEQUENCE, _SET = 0x30, 0x31
_BIND, _BOUND, _UNBIND = 0x60, 0x61, 0x42
_SEARCH, _ENTRY, _DONE, _REFERENCE = 0x63, 0x64, 0x65, 0x73
_EXTENDED, _EXTENDED_DONE, _NAME = 0x77, 0x78, 0x80
_START_TLS: Final = b"1.3.6.1.4.1.1466.20037"
"""RFC 4511, 4.14.1."""
_SIMPLE, _AND, _EQUALS = 0x80, 0xA0, 0xA3
_WHOLE_SUBTREE, _NEVER_DEREFERENCE = 2, 0
_NOTICE: Final = 0
"""Message number of the server's notice of disconnection, which is unsolicited."""


class LdapMessageError(MqlakeError):
    """Bytes are no message of LDAP, or not one that may come here."""


class LdapResult(NamedTuple):
    """The end of an operation (RFC 4511, 4.1.9); 0 is success."""

    number: int
    code: int


class LdapEntry(NamedTuple):
    """One that a search has found."""

    number: int
    name: bytes
    """Distinguished name."""
    attributes: dict[str, tuple[bytes, ...]]
    """By description in small letters."""


def encode_bind(number: int, name: bytes, password: bytes) -> bytes:
    """Write a simple bind.

    Args:
        number: Identifier of the LDAP message.
        name: Distinguished name.
        password: Not empty: that would be no login, and succeed (RFC 4513, 5.1.2).
    """
    if not password or not name:
        raise LdapMessageError("a bind without name or password is no login")
    bind = _integer(3) + _write(_OCTETS, name) + _write(_SIMPLE, password)
    return _message(number, _write(_BIND, bind))


def encode_search(
    number: int,
    base: bytes,
    values: Sequence[tuple[str, bytes]],
    wanted: Sequence[str],
    *,
    size_limit: int,
    time_limit_seconds: int,
) -> bytes:
    """Write a search below a name for entries that have all of some values.

    Args:
        number: Identifier of the LDAP message.
        base: Distinguished name.
        values: Attributes with the value that they must have.
        wanted: Attributes to return.
        size_limit: Most entries.
        time_limit_seconds: That the server may take.
    """
    equal = b"".join(
        _write(_EQUALS, _write(_OCTETS, name.encode()) + _write(_OCTETS, value))
        for name, value in values
    )
    search = b"".join(
        (
            _write(_OCTETS, base),
            _write(_ENUMERATED, bytes([_WHOLE_SUBTREE])),
            _write(_ENUMERATED, bytes([_NEVER_DEREFERENCE])),
            _integer(size_limit),
            _integer(time_limit_seconds),
            _write(_BOOLEAN, b"\x00"),
            _write(_AND, equal),
            _write(_SEQUENCE, b"".join(_write(_OCTETS, name.encode()) for name in wanted)),
        )
    )
    return _message(number, _write(_SEARCH, search))


def encode_start_tls(number: int) -> bytes:
    """Return the question whether the connection goes on in TLS."""
    return _message(number, _write(_EXTENDED, _write(_NAME, _START_TLS)))


def encode_unbind(number: int) -> bytes:
    return _message(number, bytes([_UNBIND, 0]))


def length_of(head: bytes) -> int | None:
    """Return how many bytes a message has, by its first ones; None: they do not tell yet.

    Raises:
        LdapMessageError: It is none, or too long.
    """
    if head[:1] != bytes([_SEQUENCE])[: len(head)]:
        raise LdapMessageError("the answer is not LDAP")
    if len(head) < 2:
        return None
    size = head[1]
    if size < 0x80:
        return 2 + size
    count = size & 0x7F
    if not 0 < count <= MAX_LENGTH_BYTES:
        raise LdapMessageError("a length of the answer is not definite, or too long")
    if len(head) < 2 + count:
        return None
    length = 2 + count + int.from_bytes(head[2 : 2 + count])
    if length > MAX_MESSAGE_BYTES:
        raise LdapMessageError(f"an answer of {length} bytes, expected {MAX_MESSAGE_BYTES} at most")
    return length


def decode(message: bytes, *, is_extended: bool = False) -> LdapResult | LdapEntry | None:
    """Decode a whole message; None: it refers to another server, which is not asked.

    Args:
        message: As `length_of` says.
        is_extended: It answers an extended operation, as StartTLS is.

    Raises:
        LdapMessageError: It is none, or not one that may come here.
    """
    parts = _parts(_only(message, _SEQUENCE))
    tag, text = _next(parts)
    if tag != _INTEGER or not 0 < len(text) <= 4:
        raise LdapMessageError("an answer without a number")
    number = int.from_bytes(text, signed=True)
    operation, body = _next(parts)
    if number == _NOTICE:
        raise LdapMessageError("the server hangs up")
    if operation in ({_EXTENDED_DONE} if is_extended else {_BOUND, _DONE}):
        tag, code = _next(_parts(body))
        if tag != _ENUMERATED or not 0 < len(code) <= 2:
            raise LdapMessageError("a result without a code")
        return LdapResult(number, int.from_bytes(code, signed=True))
    if operation == _REFERENCE:
        return None
    if operation != _ENTRY:
        raise LdapMessageError(f"an answer of the kind {operation:#04x}")
    inside = _parts(body)
    tag, name = _next(inside)
    if tag != _OCTETS:
        raise LdapMessageError("an entry without a name")
    return LdapEntry(number, name, dict(_attributes(_expect(inside, _SEQUENCE))))


def _attributes(data: bytes) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    for tag, body in _parts(data):
        if tag != _SEQUENCE:
            raise LdapMessageError("an attribute that is none")
        inside = _parts(body)
        description = _expect(inside, _OCTETS)
        values = tuple(value for _, value in _parts(_expect(inside, _SET)))
        yield description.decode(errors="replace").lower(), values


def _message(number: int, operation: bytes) -> bytes:
    return _write(_SEQUENCE, _integer(number) + operation)


def _integer(value: int) -> bytes:
    return _write(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, signed=True))


def _write(tag: int, body: bytes) -> bytes:
    size = len(body)
    if size < 0x80:
        return bytes([tag, size]) + body
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + body


def _only(data: bytes, tag: int) -> bytes:
    parts = list(_parts(data))
    if len(parts) != 1 or parts[0][0] != tag:
        raise LdapMessageError("the answer is not LDAP")
    return parts[0][1]


def _next(parts: Iterator[tuple[int, bytes]]) -> tuple[int, bytes]:
    found = next(parts, None)
    if found is None:
        raise LdapMessageError("the answer ends too soon")
    return found


def _expect(parts: Iterator[tuple[int, bytes]], tag: int) -> bytes:
    found, body = _next(parts)
    if found != tag:
        raise LdapMessageError(f"a part of the kind {found:#04x}, expected {tag:#04x}")
    return body


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of elements that stand one behind the other."""
    position = 0
    while position < len(data):
        if position + 2 > len(data):
            raise LdapMessageError("the answer ends too soon")
        tag, size = data[position], data[position + 1]
        position += 2
        if size >= 0x80:
            count = size & 0x7F
            if not 0 < count <= MAX_LENGTH_BYTES or position + count > len(data):
                raise LdapMessageError("a length of the answer is not definite, or too long")
            size = int.from_bytes(data[position : position + count])
            position += count
        if tag & 0x1F == 0x1F or position + size > len(data):
            raise LdapMessageError("the answer ends too soon")
        yield tag, data[position : position + size]
        position += size
