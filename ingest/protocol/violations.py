"""Everything a single packet can do wrong, as data: reason code and clause in each version.

The specification numbers most rules; where it does not, the clause is the section number. 3.1 has
sections alone. Property rules are not here: `properties.py` derives them from its own table.

Which of the two general reason codes applies follows 5.0, chapter 1.2: 0x81 when the packet cannot
be read, 0x82 when it can and breaks a rule. 3.x has no such codes; there the number
serves logs and metrics.
"""

from dataclasses import dataclass
from typing import Final

from ingest.protocol.errors import (
    MalformedPacket,
    PacketTooLarge,
    ProtocolViolation,
    RemoteProtocolError,
    UnsupportedProtocol,
)

MALFORMED: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
UNSUPPORTED: Final = 0x84
TOPIC_ALIAS_INVALID: Final = 0x94
TOO_LARGE: Final = 0x95
QUOTA_EXCEEDED: Final = 0x97


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule, and its statement or section in each version; empty where there is no such rule."""

    reason_code: int
    mqtt31: str
    mqtt311: str
    mqtt5: str

    def clause(self, protocol_level: int) -> str:
        """Name the clause in that version; level 0 (no CONNECT yet) reads as 5.0."""
        if protocol_level == 4:
            return f"MQTT311-{self.mqtt311}"
        if protocol_level == 3:
            return f"MQTT31-{self.mqtt31}"
        return f"MQTT5-{self.mqtt5}"

    def error(self, protocol_level: int, message: str) -> RemoteProtocolError:
        """Make the exception to raise."""
        return make_error(self.reason_code, message, self.clause(protocol_level))


def make_error(reason_code: int, message: str, clause: str) -> RemoteProtocolError:
    """Choose the exception class by reason code."""
    if reason_code == MALFORMED:
        return MalformedPacket(reason_code, message, clause)
    if reason_code == TOO_LARGE:
        return PacketTooLarge(reason_code, message, clause)
    return ProtocolViolation(reason_code, message, clause)


def unsupported_protocol(
    violation: Violation, message: str, protocol_name: str, protocol_level: int
) -> UnsupportedProtocol:
    """Make the error for a foreign CONNECT; its level says in whose words the server answers."""
    clause = violation.clause(protocol_level if protocol_level in (3, 4) else 5)
    return UnsupportedProtocol(
        violation.reason_code,
        message,
        clause,
        protocol_name=protocol_name,
        protocol_level=protocol_level,
    )


# Fixed header and framing.
RESERVED_PACKET_TYPE: Final = Violation(MALFORMED, "2.1", "2.2.1", "2.1.2")
WRONG_DIRECTION: Final = Violation(PROTOCOL_ERROR, "2.1", "2.2.1", "2.1.2")
RESERVED_FLAGS: Final = Violation(MALFORMED, "2.1", "2.2.2-2", "2.1.3-1")
PUBREL_FLAGS: Final = Violation(MALFORMED, "3.6", "3.6.1-1", "3.6.1-1")
SUBSCRIBE_FLAGS: Final = Violation(MALFORMED, "3.8", "3.8.1-1", "3.8.1-1")
UNSUBSCRIBE_FLAGS: Final = Violation(MALFORMED, "3.10", "3.10.1-1", "3.10.1-1")
DISCONNECT_FLAGS: Final = Violation(MALFORMED, "", "3.14.1-1", "3.14.1-1")
AUTH_FLAGS: Final = Violation(MALFORMED, "", "", "3.15.1-1")
REMAINING_LENGTH_TOO_LONG: Final = Violation(MALFORMED, "2.1", "2.2.3", "2.1.4")
REMAINING_LENGTH_NOT_MINIMAL: Final = Violation(MALFORMED, "", "", "1.5.5-1")
PACKET_TOO_LARGE_FOR_SERVER: Final = Violation(TOO_LARGE, "2.1", "2.2.3", "3.2.2-15")
PACKET_TOO_LARGE_FOR_CLIENT: Final = Violation(TOO_LARGE, "2.1", "2.2.3", "3.1.2-24")
TRUNCATED: Final = Violation(MALFORMED, "2.1", "2.2.3", "2.1.4")
TRAILING_BYTES: Final = Violation(MALFORMED, "2.1", "2.2.3", "2.1.4")

# Data types.
STRING_NOT_UTF8: Final = Violation(MALFORMED, "2.5", "1.5.3-1", "1.5.4-1")
STRING_HAS_NULL: Final = Violation(MALFORMED, "2.5", "1.5.3-2", "1.5.4-2")
VARIABLE_BYTE_INTEGER_TOO_LONG: Final = Violation(MALFORMED, "", "", "1.5.5")
VARIABLE_BYTE_INTEGER_NOT_MINIMAL: Final = Violation(MALFORMED, "", "", "1.5.5-1")
PACKET_ID_ZERO_FROM_CLIENT: Final = Violation(PROTOCOL_ERROR, "2.4", "2.3.1-1", "2.2.1-3")
PACKET_ID_ZERO_FROM_SERVER: Final = Violation(PROTOCOL_ERROR, "2.4", "2.3.1-1", "2.2.1-4")

# CONNECT and CONNACK.
CONNECT_NOT_FIRST: Final = Violation(PROTOCOL_ERROR, "3.1", "3.1.0-1", "3.1.0-1")
CONNECT_TWICE: Final = Violation(PROTOCOL_ERROR, "3.1", "3.1.0-2", "3.1.0-2")
PROTOCOL_NAME: Final = Violation(UNSUPPORTED, "3.1", "3.1.2-1", "3.1.2-1")
PROTOCOL_LEVEL: Final = Violation(UNSUPPORTED, "3.1", "3.1.2-2", "3.1.2-2")
CONNECT_RESERVED_FLAG: Final = Violation(MALFORMED, "", "3.1.2-3", "3.1.2-3")
WILL_QOS_WITHOUT_WILL: Final = Violation(MALFORMED, "", "3.1.2-13", "3.1.2-11")
WILL_QOS_THREE: Final = Violation(MALFORMED, "3.1", "3.1.2-14", "3.1.2-12")
WILL_RETAIN_WITHOUT_WILL: Final = Violation(MALFORMED, "", "3.1.2-15", "3.1.2-13")
PASSWORD_WITHOUT_USERNAME: Final = Violation(MALFORMED, "", "3.1.2-22", "")
AUTHENTICATION_DATA_ALONE: Final = Violation(PROTOCOL_ERROR, "", "", "3.1.2.11.10")
CONNACK_FLAGS: Final = Violation(MALFORMED, "", "3.2.2", "3.2.2-1")
SESSION_PRESENT_ON_ERROR: Final = Violation(PROTOCOL_ERROR, "", "3.2.2-4", "3.2.2-6")
CONNACK_CODE: Final = Violation(PROTOCOL_ERROR, "3.2", "3.2.2.3", "3.2.2-8")

# Topic names; a topic filter is checked where its answer is made (`mqlake.topics.names`).
PUBLISH_TOPIC_WILDCARD: Final = Violation(MALFORMED, "3.3", "3.3.2-2", "3.3.2-2")
TOPIC_NAME_WILDCARD: Final = Violation(MALFORMED, "A", "4.7.1-1", "4.7.0-1")
TOPIC_NAME_EMPTY: Final = Violation(PROTOCOL_ERROR, "A", "4.7.3-1", "4.7.3-1")
PUBLISH_WITHOUT_TOPIC: Final = Violation(PROTOCOL_ERROR, "A", "4.7.3-1", "3.3.2.1")
RESPONSE_TOPIC_WILDCARD: Final = Violation(PROTOCOL_ERROR, "", "", "3.3.2-14")

# PUBLISH and its acknowledgements.
QOS_THREE: Final = Violation(MALFORMED, "2.1", "3.3.1-4", "3.3.1-4")
DUP_WITH_QOS_0: Final = Violation(MALFORMED, "2.1", "3.3.1-2", "3.3.1-2")
SUBSCRIPTION_IDENTIFIER_FROM_CLIENT: Final = Violation(PROTOCOL_ERROR, "", "", "3.3.4-6")
PUBACK_CODE: Final = Violation(PROTOCOL_ERROR, "", "", "3.4.2-1")
PUBREC_CODE: Final = Violation(PROTOCOL_ERROR, "", "", "3.5.2-1")
PUBREL_CODE: Final = Violation(PROTOCOL_ERROR, "", "", "3.6.2-1")
PUBCOMP_CODE: Final = Violation(PROTOCOL_ERROR, "", "", "3.7.2-1")

# SUBSCRIBE, UNSUBSCRIBE and their acknowledgements.
SUBSCRIBE_EMPTY: Final = Violation(PROTOCOL_ERROR, "3.8", "3.8.3-3", "3.8.3-2")
SUBSCRIPTION_RESERVED_BITS: Final = Violation(MALFORMED, "3.8", "3.8.3-4", "3.8.3-5")
SUBSCRIPTION_QOS_THREE: Final = Violation(PROTOCOL_ERROR, "3.8", "3.8.3-4", "3.8.3.1")
RETAIN_HANDLING_THREE: Final = Violation(PROTOCOL_ERROR, "", "", "3.8.3.1")
NO_LOCAL_ON_SHARED: Final = Violation(PROTOCOL_ERROR, "", "", "3.8.3-4")
SUBACK_CODE: Final = Violation(PROTOCOL_ERROR, "3.9", "3.9.3-2", "3.9.3-2")
SUBACK_EMPTY: Final = Violation(PROTOCOL_ERROR, "3.9", "3.8.4-5", "3.8.4-6")
UNSUBSCRIBE_EMPTY: Final = Violation(PROTOCOL_ERROR, "3.10", "3.10.3-2", "3.10.3-2")
UNSUBACK_CODE: Final = Violation(PROTOCOL_ERROR, "", "", "3.11.3-2")
UNSUBACK_EMPTY: Final = Violation(PROTOCOL_ERROR, "", "", "3.11.3-1")

# DISCONNECT and AUTH.
DISCONNECT_CODE: Final = Violation(PROTOCOL_ERROR, "", "", "3.14.2-1")
SESSION_EXPIRY_FROM_SERVER: Final = Violation(PROTOCOL_ERROR, "", "", "3.14.2-2")
AUTH_CODE: Final = Violation(PROTOCOL_ERROR, "", "", "3.15.2-1")
AUTHENTICATION_METHOD_MISSING: Final = Violation(PROTOCOL_ERROR, "", "", "3.15.2.2.2")
