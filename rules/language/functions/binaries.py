"""Bytes: encodings, hashes, bits taken out."""

from collections.abc import Sequence
from typing import Final

from rules.language.functions.function import (
    CallContext,
    Function,
    Unusable,
    literal_choice,
    literal_integer,
    literal_text,
)
from rules.language.values import Value, ValueKind, as_bytes, as_text, integer, text
from rules.sql.quoting import quoted

_HASHES: Final = {
    "md5": "md5({})",
    "sha": "sha1({})",
    "sha1": "sha1({})",
    "sha224": "sha2({}, 224)",
    "sha256": "sha2({}, 256)",
    "sha384": "sha2({}, 384)",
    "sha512": "sha2({}, 512)",
}
_MAX_BITS: Final = 56
"""Bits taken out reach into at most one byte more, and that many fit a BIGINT."""


def _hashed(name: str) -> Function:
    return Function(1, 1, lambda a, _: text(_HASHES[name].format(as_bytes(a[0]))))


def _hash(arguments: Sequence[Value], _context: CallContext) -> Value:
    name = literal_choice(arguments, 0, tuple(_HASHES))
    return text(_HASHES[name].format(as_bytes(arguments[1])))


def _bin2hexstr(arguments: Sequence[Value], _context: CallContext) -> Value:
    digits = f"hex({as_bytes(arguments[0])})"
    return text(f"concat({as_text(arguments[1])}, {digits})" if len(arguments) > 1 else digits)


def _sqlserver(arguments: Sequence[Value], _context: CallContext) -> Value:
    return text(f"concat('0x', hex({as_bytes(arguments[0])}))")


def _hexstr2bin(arguments: Sequence[Value], _context: CallContext) -> Value:
    digits = as_text(arguments[0])
    if len(arguments) > 1:
        prefix = literal_text(arguments, 1, "the prefix")
        rest = f"substring({digits}, {len(prefix) + 1})"
        digits = f"IF(startswith({digits}, {quoted(prefix)}), {rest}, NULL)"
    return Value(ValueKind.BINARY, f"try_to_binary({digits}, 'hex')")


def _base64_encode(arguments: Sequence[Value], _context: CallContext) -> Value:
    options = {
        literal_choice(arguments, index, ("no_padding", "urlsafe"))
        for index in range(1, len(arguments))
    }
    made = f"base64({as_bytes(arguments[0])})"
    if "urlsafe" in options:
        made = f"translate({made}, '+/', '-_')"
    if "no_padding" in options:
        made = f"trim(TRAILING '=' FROM {made})"
    return text(made)


def _base64_decode(arguments: Sequence[Value], _context: CallContext) -> Value:
    options = {
        literal_choice(arguments, index, ("no_padding", "urlsafe"))
        for index in range(1, len(arguments))
    }
    written = as_text(arguments[0])
    if "urlsafe" in options:
        written = f"translate({written}, '-_', '+/')"
    return Value(ValueKind.BINARY, f"try_to_binary({written}, 'base64')")


def _bytesize(arguments: Sequence[Value], _context: CallContext) -> Value:
    return integer(f"octet_length({as_bytes(arguments[0])})")


def _bitsize(arguments: Sequence[Value], _context: CallContext) -> Value:
    return integer(f"(octet_length({as_bytes(arguments[0])}) * 8L)")


def _subbits(arguments: Sequence[Value], _context: CallContext) -> Value:
    """Bits counted from 1, at the first byte's highest, as an integer."""
    place = 1 if len(arguments) > 2 else 0
    start = literal_integer(arguments, 1, "the first bit", 1, 2**27) if place else 1
    count = literal_integer(arguments, 1 + place, "the number of bits", 1, _MAX_BITS)
    literal_choice(arguments, 3, ("integer",))
    sign = literal_choice(arguments, 4, ("unsigned", "signed"))
    order = literal_choice(arguments, 5, ("big", "little"))
    first, last = (start - 1) // 8, (start + count - 2) // 8
    data = as_bytes(arguments[0])
    taken = f"substring({data}, {first + 1}, {last - first + 1})"
    if order == "little":
        if count % 8 or (start - 1) % 8:
            raise Unusable("'little' takes whole bytes", 5)
        each = (f"substring({data}, {at + 1}, 1)" for at in range(last, first - 1, -1))
        taken = f"concat({', '.join(each)})"
    # Of a value of 64 bits conv yields the unsigned form; here are at most 63.
    number = f"CAST(conv(hex({taken}), 16, 10) AS BIGINT)"
    behind = (last + 1) * 8 - (start + count - 1)
    bits = f"(shiftright({number}, {behind}) & {2**count - 1}L)"
    if sign == "signed":
        bits = f"({bits} - ({bits} & {2 ** (count - 1)}L) * 2L)"
    enough = f"octet_length({data}) >= {last + 1}"
    return integer(f"IF({enough}, {bits}, NULL)")


FUNCTIONS: Final = {
    **{name: _hashed(name) for name in ("md5", "sha", "sha1", "sha256", "sha512")},
    "hash": Function(2, 2, _hash),
    "bin2hexstr": Function(1, 2, _bin2hexstr),
    "hexstr2bin": Function(1, 2, _hexstr2bin),
    "sqlserver_bin2hexstr": Function(1, 1, _sqlserver),
    "base64_encode": Function(1, 3, _base64_encode),
    "base64_decode": Function(1, 3, _base64_decode),
    "bytesize": Function(1, 1, _bytesize),
    "numbytes": Function(1, 1, _bytesize),
    "bitsize": Function(1, 1, _bitsize),
    "subbits": Function(2, 6, _subbits),
}
