"""Control packets in, bytes out. A packet that cannot be encoded is our bug: `LocalProtocolError`.

Fields that a version does not know, No Local at level 4 or any property below level 5, are left
out: the same packet goes to peers of all versions. A message to many subscribers goes through
`ingest.protocol.publish_template`.
"""

from collections.abc import Callable
from typing import Any, Final

from ingest.protocol.bodies import BRIDGE_BIT, PROTOCOL_NAMES
from ingest.protocol.errors import LocalProtocolError
from ingest.protocol.packets import (
    SHARE_PREFIX,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from ingest.protocol.primitives import (
    encode_binary_data,
    encode_two_byte_integer,
    encode_utf8_string,
    encode_variable_byte_integer,
)
from ingest.protocol.properties import Properties, PropertyContext, encode_properties
from ingest.protocol.reason_codes import RETURN_CODE_OF_REASON, ConnackReasonCode

PINGREQ: Final = b"\xc0\x00"
PINGRESP: Final = b"\xd0\x00"

# Looking a member of an enumeration up costs a tenth of encoding a PUBLISH; here it is done once.
_PUBLISH: Final = PacketType.PUBLISH << 4
_IN_PUBLISH: Final = PropertyContext.PUBLISH

# Topic names already checked and encoded: those that come are delivered again and again. Bounded as
# those of the decoder.
_TOPIC_NAMES: Final[dict[str, bytes]] = {}
_TOPIC_NAMES_LIMIT: Final = 16_384
_TOPIC_NAME_CHARACTERS_LIMIT: Final = 128

# The DISCONNECT of 3.x, and of 5.0 with reason code 0x00 and no properties.
NORMAL_DISCONNECT: Final = b"\xe0\x00"


def encode(packet: Packet, protocol_level: int) -> bytes:
    """Encode a packet for a connection of that protocol level (3, 4 or 5).

    Raises:
        LocalProtocolError: The packet does not exist at that level, or a field is out of range, too
            long, or not allowed there.
    """
    return _ENCODERS[type(packet)](packet, protocol_level)


def encode_puback(packet_id: int) -> bytes:
    """Encode a PUBACK of success, the same four bytes in all versions."""
    return b"\x40\x02" + _packet_id(packet_id)


def encode_pubrec(packet_id: int) -> bytes:
    """Encode a PUBREC of success, the same four bytes in all versions."""
    return b"\x50\x02" + _packet_id(packet_id)


def encode_pubrel(packet_id: int) -> bytes:
    """Encode a PUBREL of success, the same four bytes in all versions."""
    return b"\x62\x02" + _packet_id(packet_id)


def encode_pubcomp(packet_id: int) -> bytes:
    """Encode a PUBCOMP of success, the same four bytes in all versions."""
    return b"\x70\x02" + _packet_id(packet_id)


def publish_first_byte(*, qos: int, dup: bool, retain: bool) -> int:
    """Make the first byte of a PUBLISH [MQTT5-3.3.1-2] [MQTT5-3.3.1-4].

    DUP is never set with QoS 0. [MQTT5-4.3.1-1] [MQTT311-4.3.1-1]
    """
    if not 0 <= qos <= 2:
        raise LocalProtocolError(f"QoS is {qos}, expected 0, 1 or 2")
    if dup and not qos:
        raise LocalProtocolError("dup is set with QoS 0")
    return _PUBLISH | (8 if dup else 0) | qos << 1 | (1 if retain else 0)


def encode_topic_name(topic_name: str) -> bytes:
    """Encode a topic name, which holds no wildcard [MQTT5-3.3.2-2] [MQTT311-3.3.2-2]."""
    encoded = _TOPIC_NAMES.get(topic_name)
    if encoded is None:
        if "+" in topic_name or "#" in topic_name:
            raise LocalProtocolError("topic name holds a wildcard")
        encoded = encode_utf8_string(topic_name)
        if len(topic_name) <= _TOPIC_NAME_CHARACTERS_LIMIT:
            if len(_TOPIC_NAMES) >= _TOPIC_NAMES_LIMIT:
                _TOPIC_NAMES.clear()
            _TOPIC_NAMES[topic_name] = encoded
    return encoded


def _frame(first_byte: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return b"".join((first_byte.to_bytes(1, "big"), encode_variable_byte_integer(len(body)), body))


def _packet_id(packet_id: int) -> bytes:
    if not 0 < packet_id <= 0xFFFF:
        raise LocalProtocolError(f"packet identifier is {packet_id}, expected 1 to 65535")
    return packet_id.to_bytes(2, "big")


def _encode_connect(packet: Connect, level: int) -> bytes:
    if packet.protocol_level != level or level not in PROTOCOL_NAMES:
        message = f"CONNECT of level {packet.protocol_level} on a connection of level {level}"
        raise LocalProtocolError(message)
    if packet.bridge and level == 5:
        raise LocalProtocolError("the bridge bit belongs to 3.x")
    if level == 4 and packet.password is not None and packet.username is None:
        raise LocalProtocolError("password without a user name [MQTT311-3.1.2-22]")
    properties = packet.properties
    if "authentication_data" in properties and "authentication_method" not in properties:
        raise LocalProtocolError("authentication data without an authentication method")
    will = packet.will
    flags = 0x02 if packet.clean_start else 0
    parts = [encode_utf8_string(PROTOCOL_NAMES[level])]
    tail = [encode_utf8_string(packet.client_id)]
    if will is not None:
        flags |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
        tail.append(_encode_will(will, level))
    if packet.username is not None:
        flags |= 0x80
        tail.append(encode_utf8_string(packet.username))
    if packet.password is not None:
        flags |= 0x40
        tail.append(encode_binary_data(packet.password))
    parts.append(bytes((level | (BRIDGE_BIT if packet.bridge else 0), flags)))
    parts.append(encode_two_byte_integer(packet.keep_alive))
    parts.append(_properties(properties, PropertyContext.CONNECT, level))
    return _frame(0x10, *parts, *tail)


def _encode_will(will: Will, level: int) -> bytes:
    if not 0 <= will.qos <= 2:
        raise LocalProtocolError(f"will QoS is {will.qos}, expected 0, 1 or 2")
    if not will.topic_name:
        raise LocalProtocolError("will topic is empty, expected a character")
    return b"".join(
        (
            _properties(will.properties, PropertyContext.WILL, level),
            encode_topic_name(will.topic_name),
            encode_binary_data(will.payload),
        )
    )


def _encode_connack(packet: Connack, level: int) -> bytes:
    reason_code = packet.reason_code
    if packet.session_present and reason_code:
        raise LocalProtocolError("session present beside an error code [MQTT5-3.2.2-6]")
    flags = 1 if packet.session_present else 0  # [MQTT5-3.2.2-1] [MQTT311-3.2.2-4]
    if level == 5:
        properties = encode_properties(packet.properties, PropertyContext.CONNACK)
        return _frame(0x20, bytes((flags, reason_code)), properties)
    return_code = RETURN_CODE_OF_REASON[ConnackReasonCode(reason_code)]
    if return_code is None:
        message = f"reason code {reason_code.name} has no return code in 3.x [MQTT311-3.2.2-6]"
        raise LocalProtocolError(message)
    # 3.1 has no session present flag; its byte is reserved.
    return bytes((0x20, 2, flags if level == 4 else 0, return_code))


def _encode_publish(packet: Publish, level: int) -> bytes:
    first = publish_first_byte(qos=packet.qos, dup=packet.dup, retain=packet.retain)
    properties = packet.properties
    if not packet.topic_name and (level < 5 or "topic_alias" not in properties):
        raise LocalProtocolError("topic name is empty, expected a character")
    if not packet.qos and packet.packet_id:  # [MQTT311-2.3.1-5]
        raise LocalProtocolError("packet identifier with QoS 0 [MQTT5-2.2.1-2]")
    return _frame(
        first,
        encode_topic_name(packet.topic_name),
        _packet_id(packet.packet_id) if packet.qos else b"",
        _properties(properties, _IN_PUBLISH, level),
        packet.payload,
    )


def _encode_puback(packet: Puback, level: int) -> bytes:
    return _acknowledge(0x40, packet, PropertyContext.PUBACK, level)


def _encode_pubrec(packet: Pubrec, level: int) -> bytes:
    return _acknowledge(0x50, packet, PropertyContext.PUBREC, level)


def _encode_pubrel(packet: Pubrel, level: int) -> bytes:
    return _acknowledge(0x62, packet, PropertyContext.PUBREL, level)


def _encode_pubcomp(packet: Pubcomp, level: int) -> bytes:
    return _acknowledge(0x70, packet, PropertyContext.PUBCOMP, level)


def _acknowledge(
    first_byte: int,
    packet: Puback | Pubrec | Pubrel | Pubcomp,
    context: PropertyContext,
    level: int,
) -> bytes:
    """Leave out optional fields: the properties, then the reason code of success [MQTT5-3.4.2.1].

    The packet identifier is that of the PUBLISH. [MQTT5-2.2.1-5] [MQTT311-2.3.1-6]
    """
    packet_id = _packet_id(packet.packet_id)
    if level < 5 or (not packet.reason_code and not packet.properties):
        return b"".join((first_byte.to_bytes(1, "big"), b"\x02", packet_id))
    return _frame(
        first_byte,
        packet_id,
        packet.reason_code.to_bytes(1, "big"),
        encode_properties(packet.properties, context) if packet.properties else b"",
    )


def _encode_subscribe(packet: Subscribe, level: int) -> bytes:
    if not packet.subscriptions:
        raise LocalProtocolError("SUBSCRIBE holds no topic filter [MQTT5-3.8.3-2]")
    parts = [
        _packet_id(packet.packet_id),
        _properties(packet.properties, PropertyContext.SUBSCRIBE, level),
    ]
    for subscription in packet.subscriptions:
        parts.append(encode_utf8_string(subscription.topic_filter))
        parts.append(_subscription_options(subscription, level))
    return _frame(0x82, *parts)


def _subscription_options(subscription: Subscription, level: int) -> bytes:
    options = subscription.qos
    if not 0 <= options <= 2:
        raise LocalProtocolError(f"requested QoS is {options}, expected 0, 1 or 2")
    if level == 5:
        if subscription.no_local and subscription.topic_filter.startswith(SHARE_PREFIX):
            raise LocalProtocolError("no local on a shared subscription [MQTT5-3.8.3-4]")
        retain_handling = subscription.retain_handling
        if not 0 <= retain_handling <= 2:
            raise LocalProtocolError(f"retain handling is {retain_handling}, expected 0, 1 or 2")
        options |= 0x04 if subscription.no_local else 0
        options |= 0x08 if subscription.retain_as_published else 0
        options |= retain_handling << 4
    return options.to_bytes(1, "big")


def _encode_suback(packet: Suback, level: int) -> bytes:
    if not packet.reason_codes:
        raise LocalProtocolError("SUBACK holds no code, expected one per topic filter")
    codes: list[int] = list(packet.reason_codes)
    if level < 5:
        # 3.x has one word for failure. [MQTT311-3.9.3-2]
        codes = [code if code < 0x80 else 0x80 for code in codes]
    return _frame(
        0x90,
        _packet_id(packet.packet_id),
        _properties(packet.properties, PropertyContext.SUBACK, level),
        bytes(codes),
    )


def _encode_unsubscribe(packet: Unsubscribe, level: int) -> bytes:
    if not packet.topic_filters:
        raise LocalProtocolError("UNSUBSCRIBE holds no topic filter [MQTT5-3.10.3-2]")
    return _frame(
        0xA2,
        _packet_id(packet.packet_id),
        _properties(packet.properties, PropertyContext.UNSUBSCRIBE, level),
        *[encode_utf8_string(topic_filter) for topic_filter in packet.topic_filters],
    )


def _encode_unsuback(packet: Unsuback, level: int) -> bytes:
    packet_id = _packet_id(packet.packet_id)
    if level < 5:
        return b"\xb0\x02" + packet_id
    if not packet.reason_codes:
        raise LocalProtocolError("UNSUBACK holds no code, expected one per topic filter")
    return _frame(
        0xB0,
        packet_id,
        encode_properties(packet.properties, PropertyContext.UNSUBACK),
        bytes(packet.reason_codes),
    )


def _encode_pingreq(_packet: Pingreq, _level: int) -> bytes:
    return PINGREQ


def _encode_pingresp(_packet: Pingresp, _level: int) -> bytes:
    return PINGRESP


def _encode_disconnect(packet: Disconnect, level: int) -> bytes:
    if level < 5 or (not packet.reason_code and not packet.properties):
        return NORMAL_DISCONNECT
    return _code_and_properties(
        0xE0, packet.reason_code, packet.properties, PropertyContext.DISCONNECT
    )


def _encode_auth(packet: Auth, level: int) -> bytes:
    if level < 5:
        raise LocalProtocolError("AUTH exists in 5.0 only")
    if not packet.reason_code and not packet.properties:
        return b"\xf0\x00"
    if "authentication_method" not in packet.properties:
        raise LocalProtocolError("AUTH holds no authentication method [MQTT5-3.15.2.2.2]")
    return _code_and_properties(0xF0, packet.reason_code, packet.properties, PropertyContext.AUTH)


def _code_and_properties(
    first_byte: int, reason_code: int, properties: Properties, context: PropertyContext
) -> bytes:
    encoded = encode_properties(properties, context) if properties else b""
    return _frame(first_byte, reason_code.to_bytes(1, "big"), encoded)


def _properties(properties: Properties, context: PropertyContext, level: int) -> bytes:
    return encode_properties(properties, context) if level == 5 else b""


_ENCODERS: Final[dict[type[Any], Callable[[Any, int], bytes]]] = {
    Connect: _encode_connect,
    Connack: _encode_connack,
    Publish: _encode_publish,
    Puback: _encode_puback,
    Pubrec: _encode_pubrec,
    Pubrel: _encode_pubrel,
    Pubcomp: _encode_pubcomp,
    Subscribe: _encode_subscribe,
    Suback: _encode_suback,
    Unsubscribe: _encode_unsubscribe,
    Unsuback: _encode_unsuback,
    Pingreq: _encode_pingreq,
    Pingresp: _encode_pingresp,
    Disconnect: _encode_disconnect,
    Auth: _encode_auth,
}
