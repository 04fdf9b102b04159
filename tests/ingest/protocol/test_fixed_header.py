from __future__ import annotations

from ingest.protocol.fixed_header import FIRST_BYTES, SENT_FROM_LEVEL, Role, first_byte_violation
from ingest.protocol.packets import PacketType

# What a server accepts from a 3.1.1 client and from a 5.0 client, byte by byte.
PUBLISH_BYTES = {0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x3A, 0x3B, 0x3C, 0x3D}
FROM_CLIENT = PUBLISH_BYTES | {0x40, 0x50, 0x62, 0x70, 0x82, 0xA2, 0xC0, 0xE0}
FROM_SERVER = PUBLISH_BYTES | {0x20, 0x40, 0x50, 0x62, 0x70, 0x90, 0xB0, 0xD0}


def accepted(role: Role, level: int) -> set[int]:
    return {byte for byte, violation in enumerate(FIRST_BYTES[role, level]) if violation is None}


def test_each_side_accepts_exactly_the_first_bytes_of_the_other() -> None:
    assert accepted(Role.SERVER, 0) == {*range(0x10, 0x20)}  # the level decides
    assert accepted(Role.SERVER, 4) == FROM_CLIENT
    assert accepted(Role.SERVER, 5) == FROM_CLIENT | {0xF0}
    assert accepted(Role.CLIENT, 4) == FROM_SERVER
    assert accepted(Role.CLIENT, 5) == FROM_SERVER | {0xE0, 0xF0}


def test_level_3_ignores_flags_that_it_does_not_use() -> None:
    assert {0x38, 0x39, 0x4F, 0x6A, 0x8A, 0xAB, 0xC1, 0xE8} <= accepted(Role.SERVER, 3)
    assert accepted(Role.SERVER, 3) >= FROM_CLIENT
    assert not accepted(Role.SERVER, 3) & {0x36, 0x60, 0x80, 0xA4, 0xF0}


def test_the_table_is_the_function_spread_out() -> None:
    for (role, level), violations in FIRST_BYTES.items():
        for byte in range(256):
            assert violations[byte] is first_byte_violation(byte, role, level)


def test_every_packet_type_has_a_direction() -> None:
    assert set(SENT_FROM_LEVEL) == set(PacketType)
