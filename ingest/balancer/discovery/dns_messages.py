"""DNS messages (RFC 1035, 2782 and 3596): a question as bytes, the answer from bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from mqlake.errors import MqlakeError

NAME_ERROR: Final = 3
_CLASS_IN: Final = 1
_RECURSION_DESIRED: Final = 0x0100
_RESPONSE: Final = 0x8000
_TRUNCATED: Final = 0x0200
_CODE: Final = 0x000F
_HEADER: Final = struct.Struct("!HHHHHH")
_RECORD: Final = struct.Struct("!HHIH")
_POINTER: Final = 0xC0
_MOST_LABELS: Final = 128


class DnsError(MqlakeError):
    """An answer that cannot be read, that says no, or none at all."""


class Truncated(DnsError):  # noqa: N818 - a state, not a failure
    """The answer does not fit into a datagram: ask over TCP."""


class RecordType(IntEnum):
    A = 1
    CNAME = 5
    AAAA = 28
    SRV = 33


@dataclass(frozen=True, slots=True)
class Srv:
    priority: int
    weight: int
    port: int
    target: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a server for a name; the server follows aliases, not this process."""

    addresses: tuple[str, ...]
    services: tuple[Srv, ...]
    ttl_seconds: int | None
    """The shortest one; None: nothing was found."""


def encode_query(identifier: int, name: str, record_type: RecordType) -> bytes:
    """Return a question.

    Raises:
        DnsError: The name cannot be one.
    """
    return (
        _HEADER.pack(identifier, _RECURSION_DESIRED, 1, 0, 0, 0)
        + _encode_name(name)
        + struct.pack("!HH", record_type, _CLASS_IN)
    )


def decode_answer(data: bytes, identifier: int) -> Answer:
    """Read the answer to a question.

    Raises:
        Truncated: There is more.
        DnsError: It is none, or an error; a name that there is not is an empty answer.
    """
    try:
        return _decode_answer(data, identifier)
    except (struct.error, IndexError, ValueError) as exc:
        raise DnsError(f"answer of {len(data)} bytes is malformed: {exc}") from exc


def _decode_answer(data: bytes, identifier: int) -> Answer:
    found, flags, questions, answers, _, _ = _HEADER.unpack_from(data)
    if found != identifier or not flags & _RESPONSE:
        raise DnsError("not the answer to this question")
    if flags & _TRUNCATED:
        raise Truncated("the answer is truncated")
    code = flags & _CODE
    if code not in (0, NAME_ERROR):
        raise DnsError(f"the server answers with code {code}")
    offset = _HEADER.size
    for _ in range(questions):
        offset = _decode_name(data, offset)[1] + 4
    addresses: list[str] = []
    services: list[Srv] = []
    ttls: list[int] = []
    for _ in range(answers):
        offset = _decode_name(data, offset)[1]
        kind, _, ttl, size = _RECORD.unpack_from(data, offset)
        offset += _RECORD.size
        body = data[offset : offset + size]
        if kind == RecordType.A:
            addresses.append(str(IPv4Address(body)))
        elif kind == RecordType.AAAA:
            addresses.append(str(IPv6Address(body)))
        elif kind == RecordType.SRV:
            priority, weight, port = struct.unpack_from("!HHH", body)
            services.append(Srv(priority, weight, port, _decode_name(data, offset + 6)[0]))
        ttls.append(ttl)
        offset += size
    return Answer(tuple(addresses), tuple(services), min(ttls, default=None))


def _encode_name(name: str) -> bytes:
    encoded = bytearray()
    for label in name.rstrip(".").split("."):
        data = label.encode("idna") if not label.isascii() else label.encode()
        if not 1 <= len(data) <= 63:
            raise DnsError(f"name {name!r} has a label of {len(data)} bytes, expected 1 to 63")
        encoded += bytes((len(data),)) + data
    return bytes(encoded) + b"\0"


def _decode_name(data: bytes, offset: int) -> tuple[str, int]:
    """Return a name and the offset behind it; pointers lead elsewhere (RFC 1035, 4.1.4)."""
    labels: list[str] = []
    end = None
    for _ in range(_MOST_LABELS):
        length = data[offset]
        if length & _POINTER == _POINTER:
            end = offset + 2 if end is None else end
            offset = (length & ~_POINTER) << 8 | data[offset + 1]
        elif length == 0:
            return ".".join(labels), offset + 1 if end is None else end
        else:
            labels.append(data[offset + 1 : offset + 1 + length].decode("ascii"))
            offset += 1 + length
    raise DnsError("a name of too many labels")
