"""First bytes that a receiver accepts: packet type, direction and flags, as data [MQTT5-2.1].

The first byte alone decides whether a packet may come at all, so the tables are spread out over its
256 values once, and the decoder asks with one look-up.
"""

from enum import Enum
from typing import Final

from ingest.protocol.packets import PacketType
from ingest.protocol.violations import (
    AUTH_FLAGS,
    CONNECT_NOT_FIRST,
    CONNECT_TWICE,
    DISCONNECT_FLAGS,
    DUP_WITH_QOS_0,
    PUBREL_FLAGS,
    QOS_THREE,
    RESERVED_FLAGS,
    RESERVED_PACKET_TYPE,
    SUBSCRIBE_FLAGS,
    UNSUBSCRIBE_FLAGS,
    WRONG_DIRECTION,
    Violation,
)


class Role(Enum):
    """Our role on this network connection; the packets decoded are those of the other side."""

    SERVER = "server"
    CLIENT = "client"

    __hash__ = object.__hash__  # by identity: that of `Enum` is a call for each look-up


LEVEL_UNKNOWN: Final = 0  # before the CONNECT
NEVER: Final = 99

# Packet type -> the lowest protocol level at which a client, and a server, may send it.
SENT_FROM_LEVEL: Final[dict[PacketType, tuple[int, int]]] = {
    PacketType.CONNECT: (3, NEVER),
    PacketType.CONNACK: (NEVER, 3),
    PacketType.PUBLISH: (3, 3),
    PacketType.PUBACK: (3, 3),
    PacketType.PUBREC: (3, 3),
    PacketType.PUBREL: (3, 3),
    PacketType.PUBCOMP: (3, 3),
    PacketType.SUBSCRIBE: (3, NEVER),
    PacketType.SUBACK: (NEVER, 3),
    PacketType.UNSUBSCRIBE: (3, NEVER),
    PacketType.UNSUBACK: (NEVER, 3),
    PacketType.PINGREQ: (3, NEVER),
    PacketType.PINGRESP: (NEVER, 3),
    PacketType.DISCONNECT: (3, 5),
    PacketType.AUTH: (5, 5),
}

# Packet type -> the flags (bits 3 to 0) it must have, and the rule that says so. PUBLISH has flags
# of its own; types not listed must have none. [MQTT5-2.1.3-1] [MQTT311-2.2.2-1]
REQUIRED_FLAGS: Final[dict[PacketType, tuple[int, Violation]]] = {
    PacketType.PUBREL: (0b0010, PUBREL_FLAGS),
    PacketType.SUBSCRIBE: (0b0010, SUBSCRIBE_FLAGS),
    PacketType.UNSUBSCRIBE: (0b0010, UNSUBSCRIBE_FLAGS),
    PacketType.DISCONNECT: (0b0000, DISCONNECT_FLAGS),
    PacketType.AUTH: (0b0000, AUTH_FLAGS),
}


def first_byte_violation(first_byte: int, role: Role, protocol_level: int) -> Violation | None:
    """Judge a packet's first byte; the decoder uses the spread-out `FIRST_BYTES` instead."""
    kind, flags = first_byte >> 4, first_byte & 0x0F
    if protocol_level == LEVEL_UNKNOWN:
        # Of the flags of CONNECT its own level decides: 3.1 does not use them.
        return None if kind == PacketType.CONNECT else CONNECT_NOT_FIRST
    if kind == 0 or (kind == PacketType.AUTH and protocol_level < 5):
        return RESERVED_PACKET_TYPE
    packet_type = PacketType(kind)
    from_client, from_server = SENT_FROM_LEVEL[packet_type]
    if protocol_level < (from_client if role is Role.SERVER else from_server):
        return WRONG_DIRECTION
    if packet_type == PacketType.CONNECT:
        return CONNECT_TWICE
    if packet_type == PacketType.PUBLISH:
        return _publish_flags_violation(flags, protocol_level)
    required, violation = REQUIRED_FLAGS.get(packet_type, (0, RESERVED_FLAGS))
    if protocol_level == 3:
        # 3.1 calls the flags of other packets unused, and sets DUP on the ones it sends again; only
        # the QoS of those that need an answer is fixed, at 1.
        return violation if required and flags & 0b0110 != required else None
    return violation if flags != required else None


def _publish_flags_violation(flags: int, protocol_level: int) -> Violation | None:
    qos = flags >> 1 & 3
    if qos == 3:
        return QOS_THREE
    if qos == 0 and flags & 0b1000 and protocol_level > 3:
        return DUP_WITH_QOS_0
    return None


# (role, protocol level) -> for each first byte the rule it breaks, or None.
FIRST_BYTES: Final[dict[tuple[Role, int], tuple[Violation | None, ...]]] = {
    (role, level): tuple(first_byte_violation(byte, role, level) for byte in range(256))
    for role in Role
    for level in (LEVEL_UNKNOWN, 3, 4, 5)
}
