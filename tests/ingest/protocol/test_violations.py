from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ingest.protocol import violations
from ingest.protocol.properties import PROPERTIES
from ingest.protocol.violations import Violation

if TYPE_CHECKING:
    from tests.ingest.wire import WireRow

TABLE = {name: item for name, item in vars(violations).items() if isinstance(item, Violation)}
LEVELS = {3: "mqtt31", 4: "mqtt311", 5: "mqtt5"}


def test_clauses_look_like_statements_or_sections() -> None:
    for violation in TABLE.values():
        assert re.fullmatch(r"|A|\d+(\.\d+)+", violation.mqtt31)
        assert re.fullmatch(r"|\d+(\.\d+)+(-\d+)?", violation.mqtt311)
        assert re.fullmatch(r"|\d+(\.\d+)+(-\d+)?", violation.mqtt5)


def test_every_rule_has_a_row_in_each_version_that_knows_it(wire_rows: list[WireRow]) -> None:
    proven = {(row.protocol_level, row.clause) for row in wire_rows}
    # Rules about the stream, not about one packet: proven in test_decoder.py.
    stream = {"PACKET_TOO_LARGE_FOR_SERVER", "PACKET_TOO_LARGE_FOR_CLIENT", "CONNECT_TWICE"}
    # Without a level there is no version yet: told in the words of 5.0.
    unversioned = {"CONNECT_NOT_FIRST", "PROTOCOL_NAME"}
    missing = [
        (name, level)
        for name, violation in TABLE.items()
        for level, field in LEVELS.items()
        if getattr(violation, field)
        and name not in stream
        and not (name in unversioned and level < 5)
        and (level, violation.clause(level)) not in proven
    ]
    assert missing == []


def test_every_property_has_rows_in_each_packet_that_carries_it(wire_rows: list[WireRow]) -> None:
    names = {row.name.partition(" ")[0] for row in wire_rows}
    for item in PROPERTIES:
        for section in item.sections.values():
            assert f"MQTT5-{section}" in names, (item.name, section)


def test_every_row_is_named_by_its_clause_and_errors_tell_one(wire_rows: list[WireRow]) -> None:
    assert len(wire_rows) >= 500
    for row in wire_rows:
        assert re.match(r"MQTT(31|311|5)-\S+ \S", row.name), row.name
        assert (row.packet is None) == bool(row.clause), row.name
