"""The rows of `tests/wire/*.json`, as they stand and mutated.

A row: `name` begins with the clause; `direction` is who sends; `bytes` is hexadecimal; then either
`packet`, fields that differ from their default, or `error`. In a packet, fields of binary data are
hexadecimal too. `canonical: false` marks bytes that are valid but not what our encoder makes.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest.protocol import packets
from ingest.protocol.decoder import Decoder
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import Packet
from ingest.protocol.reason_codes import (
    AuthReasonCode,
    ConnackReasonCode,
    DisconnectReasonCode,
    PubackReasonCode,
    PubcompReasonCode,
    PubrecReasonCode,
    PubrelReasonCode,
    SubackReasonCode,
    UnsubackReasonCode,
)

WIRE = Path(__file__).parents[1] / "wire"
LEVELS = {"3.1": 3, "3.1.1": 4, "5.0": 5}
BINARY_FIELDS = {"payload", "password", "correlation_data", "authentication_data"}
REASON_CODES: dict[str, Any] = {
    "Connack": ConnackReasonCode,
    "Puback": PubackReasonCode,
    "Pubrec": PubrecReasonCode,
    "Pubrel": PubrelReasonCode,
    "Pubcomp": PubcompReasonCode,
    "Suback": SubackReasonCode,
    "Unsuback": UnsubackReasonCode,
    "Disconnect": DisconnectReasonCode,
    "Auth": AuthReasonCode,
}


@dataclass(frozen=True, slots=True)
class WireRow:
    name: str
    file: str
    protocol_level: int
    role: Role  # of the receiver
    data: bytes
    packet: Packet | None
    canonical: bool
    reason_code: int
    clause: str

    def decoder(self, *, max_packet_bytes: int = 1_000_000) -> Decoder:
        level = None if self.file.startswith("connect-") else self.protocol_level
        return Decoder(level, max_packet_bytes, role=self.role)


def read_rows() -> list[WireRow]:
    rows = []
    for path in sorted(WIRE.glob("*.json")):
        level = LEVELS[path.stem.partition("-")[2]]
        for document in json.loads(path.read_text(encoding="utf-8")):
            error = document.get("error", {})
            packet = document.get("packet")
            rows.append(
                WireRow(
                    document["name"],
                    path.stem,
                    level,
                    Role.SERVER if document["direction"] == "client" else Role.CLIENT,
                    bytes.fromhex(document["bytes"]),
                    None if packet is None else to_packet(packet),
                    document.get("canonical", True),
                    error.get("reason_code", 0),
                    error.get("clause", ""),
                )
            )
    return rows


def to_packet(document: dict[str, Any]) -> Packet:
    fields = to_fields(document)
    kind = fields.pop("type")
    codes = REASON_CODES.get(kind, int)
    if "reason_code" in fields:
        fields["reason_code"] = codes(fields["reason_code"])
    if "reason_codes" in fields:
        fields["reason_codes"] = [codes(code) for code in fields["reason_codes"]]
    if "will" in fields:
        fields["will"] = packets.Will(**to_fields(fields["will"]))
    if "subscriptions" in fields:
        fields["subscriptions"] = [packets.Subscription(**item) for item in fields["subscriptions"]]
    packet: Packet = getattr(packets, kind)(**fields)
    return packet


def to_fields(document: dict[str, Any]) -> dict[str, Any]:
    fields = dict(document)
    for name in BINARY_FIELDS & fields.keys():
        fields[name] = bytes.fromhex(fields[name])
    if "user_property" in fields:
        fields["user_property"] = [(name, value) for name, value in fields["user_property"]]
    if "properties" in fields:
        fields["properties"] = to_fields(fields["properties"])
    return fields


def mutate(data: bytes, other: bytes, source: random.Random) -> bytes:
    """Break a packet as a bad line, a bad client or an enemy does: in one to three places.

    Args:
        data: A packet.
        other: What may be spliced into it.
        source: Of the choices.
    """
    mutated = bytearray(data)
    for _ in range(source.randint(1, 3)):
        _ACTIONS[source.randrange(len(_ACTIONS))](mutated, other, source)
    return bytes(mutated)


def _flip_bit(data: bytearray, _other: bytes, source: random.Random) -> None:
    if data:
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)


def _replace_byte(data: bytearray, _other: bytes, source: random.Random) -> None:
    if data:
        at = source.randrange(len(data))
        data[at] = source.choice((0x00, 0x01, 0x7F, 0x80, 0xFF, source.randrange(256)))


def _insert_byte(data: bytearray, _other: bytes, source: random.Random) -> None:
    data.insert(source.randint(0, len(data)), source.randrange(256))


def _delete_byte(data: bytearray, _other: bytes, source: random.Random) -> None:
    if data:
        del data[source.randrange(len(data))]


def _truncate(data: bytearray, _other: bytes, source: random.Random) -> None:
    del data[source.randint(0, len(data)) :]


def _duplicate(data: bytearray, _other: bytes, source: random.Random) -> None:
    """Repeat a part where it stands, the whole packet among others."""
    start = source.randint(0, len(data))
    end = source.randint(start, len(data))
    if source.randrange(3) == 0:
        start, end = 0, len(data)
    data[end:end] = data[start:end]


def _splice(data: bytearray, other: bytes, source: random.Random) -> None:
    """Put another packet's end behind this one's beginning."""
    del data[source.randint(0, len(data)) :]
    data += other[source.randint(0, len(other)) :]


def _change_remaining_length(data: bytearray, _other: bytes, source: random.Random) -> None:
    if len(data) > 1:
        changes = (-2, -1, 1, 2, 0x7F, 0x80, source.randrange(256))
        data[1] = (data[1] + source.choice(changes)) & 0xFF


def _change_inner_length(data: bytearray, _other: bytes, source: random.Random) -> None:
    """Change two bytes that may be the length of a string."""
    if len(data) > 3:
        at = source.randrange(2, len(data) - 1)
        length = source.choice((0, 1, 0xFFFF, len(data), source.randrange(65_536)))
        data[at : at + 2] = length.to_bytes(2, "big")


_ACTIONS = (
    _flip_bit,
    _replace_byte,
    _insert_byte,
    _delete_byte,
    _truncate,
    _duplicate,
    _splice,
    _change_remaining_length,
    _change_inner_length,
)
