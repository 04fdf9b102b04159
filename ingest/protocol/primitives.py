"""The data types of the wire: integers, UTF-8 strings, binary data, string pairs [MQTT5-1.5].

Readers take the bytes of one packet body and an offset, and return the value with the offset behind
it. A value that does not fit into the body is malformed: the body ends where Remaining Length says.
"""

from typing import Final

from ingest.protocol.errors import LocalProtocolError
from ingest.protocol.violations import (
    STRING_HAS_NULL,
    STRING_NOT_UTF8,
    TRUNCATED,
    VARIABLE_BYTE_INTEGER_NOT_MINIMAL,
    VARIABLE_BYTE_INTEGER_TOO_LONG,
)

MAX_VARIABLE_BYTE_INTEGER: Final = 268_435_455  # four bytes of seven bits [MQTT5-1.5.5]
MAX_TWO_BYTE_INTEGER: Final = 0xFFFF
MAX_FOUR_BYTE_INTEGER: Final = 0xFFFF_FFFF

# One byte holds 0 to 127, so most lengths on the wire are one of these.
_SINGLE_BYTES: Final = tuple(bytes((value,)) for value in range(128))


def read_byte(body: bytes, offset: int, protocol_level: int) -> tuple[int, int]:
    """Read one byte."""
    if offset >= len(body):
        raise TRUNCATED.error(protocol_level, "read 0 bytes, expected 1")
    return body[offset], offset + 1


def read_two_byte_integer(body: bytes, offset: int, protocol_level: int) -> tuple[int, int]:
    """Read a big-endian integer of two bytes [MQTT5-1.5.2]."""
    end = offset + 2
    if end > len(body):
        raise TRUNCATED.error(protocol_level, f"read {len(body) - offset} bytes, expected 2")
    return body[offset] << 8 | body[offset + 1], end


def read_four_byte_integer(body: bytes, offset: int, protocol_level: int) -> tuple[int, int]:
    """Read a big-endian integer of four bytes [MQTT5-1.5.3]."""
    end = offset + 4
    if end > len(body):
        raise TRUNCATED.error(protocol_level, f"read {len(body) - offset} bytes, expected 4")
    return int.from_bytes(body[offset:end], "big"), end


def read_variable_byte_integer(body: bytes, offset: int, protocol_level: int) -> tuple[int, int]:
    """Read one to four bytes of seven bits each, in the shortest form [MQTT5-1.5.5-1]."""
    value = 0
    shift = 0
    while shift < 28:
        if offset >= len(body):
            raise TRUNCATED.error(protocol_level, "variable byte integer ends early")
        byte = body[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift > 0:
                message = f"variable byte integer {value} is not in its shortest form"
                raise VARIABLE_BYTE_INTEGER_NOT_MINIMAL.error(protocol_level, message)
            return value, offset
        shift += 7
    raise VARIABLE_BYTE_INTEGER_TOO_LONG.error(
        protocol_level, "variable byte integer has more than 4 bytes"
    )


def read_binary_data(body: bytes, offset: int, protocol_level: int) -> tuple[bytes, int]:
    """Read two bytes of length and as many bytes of data [MQTT5-1.5.6]."""
    length, offset = read_two_byte_integer(body, offset, protocol_level)
    end = offset + length
    if end > len(body):
        raise TRUNCATED.error(protocol_level, f"read {len(body) - offset} bytes, expected {length}")
    return body[offset:end], end


def read_utf8_string(body: bytes, offset: int, protocol_level: int) -> tuple[str, int]:
    """Read a UTF-8 string: well formed, no surrogate, no U+0000 [MQTT5-1.5.4-1] [MQTT5-1.5.4-2].

    U+FEFF at the start is part of the string. [MQTT5-1.5.4-3] [MQTT311-1.5.3-3]
    """
    # As `read_binary_data`, but flat: properties consist mainly of strings.
    start = offset + 2
    size = len(body)
    if start > size:
        raise TRUNCATED.error(protocol_level, f"read {size - offset} bytes, expected 2")
    end = start + (body[offset] << 8 | body[offset + 1])
    if end > size:
        message = f"read {size - start} bytes, expected {end - start}"
        raise TRUNCATED.error(protocol_level, message)
    return to_string(body[start:end], protocol_level), end


def read_string_pair(body: bytes, offset: int, protocol_level: int) -> tuple[tuple[str, str], int]:
    """Read a name and a value, both UTF-8 strings [MQTT5-1.5.7-1]."""
    name, offset = read_utf8_string(body, offset, protocol_level)
    value, offset = read_utf8_string(body, offset, protocol_level)
    return (name, value), offset


def to_string(data: bytes, protocol_level: int) -> str:
    """Decode the bytes of a UTF-8 string [MQTT5-1.5.4-1] [MQTT5-1.5.4-2]."""
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        message = f"string is not well-formed UTF-8 at byte {exc.start}: {exc.reason}"
        raise STRING_NOT_UTF8.error(protocol_level, message) from exc
    if "\0" in text:
        raise STRING_HAS_NULL.error(protocol_level, "string holds U+0000")
    return text


def encode_two_byte_integer(value: int) -> bytes:
    """Encode 0 to 65,535 big-endian."""
    if not 0 <= value <= MAX_TWO_BYTE_INTEGER:
        raise LocalProtocolError(f"two byte integer is {value}, expected 0 to 65535")
    return value.to_bytes(2, "big")


def encode_variable_byte_integer(value: int) -> bytes:
    """Encode 0 to 268,435,455 in one to four bytes, the shortest form [MQTT5-1.5.5-1]."""
    if 0 <= value < 0x80:
        return _SINGLE_BYTES[value]
    if not 0 <= value <= MAX_VARIABLE_BYTE_INTEGER:
        raise LocalProtocolError(f"variable byte integer is {value}, expected 0 to 268435455")
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_binary_data(data: bytes) -> bytes:
    """Encode at most 65,535 bytes behind their length."""
    length = len(data)
    if length > MAX_TWO_BYTE_INTEGER:
        raise LocalProtocolError(f"binary data has {length} bytes, expected at most 65535")
    return length.to_bytes(2, "big") + data


def encode_utf8_string(text: str) -> bytes:
    """Encode a string without U+0000 and surrogates, at most 65,535 bytes in UTF-8."""
    if "\0" in text:
        raise LocalProtocolError("string holds U+0000")
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise LocalProtocolError(f"string holds a surrogate at {exc.start}") from exc
    length = len(data)
    if length > MAX_TWO_BYTE_INTEGER:
        raise LocalProtocolError(f"string has {length} bytes in UTF-8, expected at most 65535")
    return length.to_bytes(2, "big") + data
