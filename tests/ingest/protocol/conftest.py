"""Feeds the rows of `tests/wire/*.json` to every test that takes a `wire_row`.

A row: `name` begins with the clause; `direction` is who sends; `bytes` is hexadecimal; then either
`packet`, fields that differ from their default, or `error`. In a packet, fields of binary data are
hexadecimal too. `canonical: false` marks bytes that are valid but not what our encoder makes.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

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

WIRE = Path(__file__).parents[2] / "wire"
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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "wire_row" in metafunc.fixturenames:
        rows = read_rows()
        metafunc.parametrize("wire_row", rows, ids=[f"{row.file}: {row.name}" for row in rows])


@pytest.fixture(scope="session")
def wire_rows() -> list[WireRow]:
    return read_rows()
