"""Decode the body, variable header and payload, of every control packet but PUBLISH.

A body is exactly the bytes that Remaining Length counts. Rules that one packet alone can break are
checked here; rules that need the connection or the session are not.
"""

from collections.abc import Callable
from typing import Final

from ingest.protocol.errors import RemoteProtocolError
from ingest.protocol.fixed_header import Role
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
    read_binary_data,
    read_byte,
    read_two_byte_integer,
    read_utf8_string,
)
from ingest.protocol.properties import (
    NO_PROPERTIES,
    Properties,
    PropertyContext,
    decode_properties,
)
from ingest.protocol.reason_codes import (
    REASON_OF_RETURN_CODE,
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
from ingest.protocol.violations import (
    AUTH_CODE,
    AUTHENTICATION_DATA_ALONE,
    AUTHENTICATION_METHOD_MISSING,
    CONNACK_CODE,
    CONNACK_FLAGS,
    CONNECT_RESERVED_FLAG,
    DISCONNECT_CODE,
    NO_LOCAL_ON_SHARED,
    PACKET_ID_ZERO_FROM_CLIENT,
    PACKET_ID_ZERO_FROM_SERVER,
    PASSWORD_WITHOUT_USERNAME,
    PROTOCOL_LEVEL,
    PROTOCOL_NAME,
    PUBACK_CODE,
    PUBCOMP_CODE,
    PUBREC_CODE,
    PUBREL_CODE,
    RETAIN_HANDLING_THREE,
    SESSION_EXPIRY_FROM_SERVER,
    SESSION_PRESENT_ON_ERROR,
    SUBACK_CODE,
    SUBACK_EMPTY,
    SUBSCRIBE_EMPTY,
    SUBSCRIPTION_QOS_THREE,
    SUBSCRIPTION_RESERVED_BITS,
    TOPIC_NAME_EMPTY,
    TOPIC_NAME_WILDCARD,
    TRAILING_BYTES,
    UNSUBACK_CODE,
    UNSUBACK_EMPTY,
    UNSUBSCRIBE_EMPTY,
    WILL_QOS_THREE,
    WILL_QOS_WITHOUT_WILL,
    WILL_RETAIN_WITHOUT_WILL,
    Violation,
    unsupported_protocol,
)

# Protocol level -> the protocol name that goes with it.
PROTOCOL_NAMES: Final = {3: "MQIsdp", 4: "MQTT", 5: "MQTT"}

BRIDGE_BIT: Final = 0x80

# Look-ups instead of `PubackReasonCode(value)`, which costs five times as much.
_CONNACK_CODES: Final = {int(code): code for code in ConnackReasonCode}
_RETURN_CODES: Final = {int(code): reason for code, reason in REASON_OF_RETURN_CODE.items()}
_PUBACK_CODES: Final = {int(code): code for code in PubackReasonCode}
_PUBREC_CODES: Final = {int(code): code for code in PubrecReasonCode}
_PUBREL_CODES: Final = {int(code): code for code in PubrelReasonCode}
_PUBCOMP_CODES: Final = {int(code): code for code in PubcompReasonCode}
_SUBACK_CODES: Final = {int(code): code for code in SubackReasonCode}
_UNSUBACK_CODES: Final = {int(code): code for code in UnsubackReasonCode}
_DISCONNECT_CODES: Final = {int(code): code for code in DisconnectReasonCode}
_AUTH_CODES: Final = {int(code): code for code in AuthReasonCode}

# 3.1 has granted QoS only, yet servers say 0x80 there too; 3.1.1 added it. [MQTT311-3.9.3-2]
_SUBACK_CODES_3: Final = {code: _SUBACK_CODES[code] for code in (0x00, 0x01, 0x02, 0x80)}


def decode_body(
    packet_type: int, body: bytes, protocol_level: int, role: Role, max_user_properties: int
) -> Packet:
    """Decode one body; `protocol_level` is 0 for a CONNECT, which brings its own."""
    return _DECODERS[packet_type](body, protocol_level, role, max_user_properties)


def connect_level(body: bytes) -> int:
    """Return the protocol level of a CONNECT that cannot be decoded, 0 when it does not say one."""
    try:
        return _read_protocol(body)[0]
    except RemoteProtocolError:
        return 0


def _decode_connect(body: bytes, _level: int, _role: Role, most: int) -> Connect:
    """Read the fields in their order, each of them if its flag is set and only then.

    Order: [MQTT5-3.1.3-1] [MQTT5-3.1.3-3] [MQTT311-3.1.3-1] [MQTT311-3.1.3-3]. Client identifier,
    will topic and user name are UTF-8 strings: [MQTT5-3.1.3-4] [MQTT5-3.1.3-11] [MQTT5-3.1.3-12]
    [MQTT311-3.1.3-4] [MQTT311-3.1.3-10] [MQTT311-3.1.3-11].
    """
    level, bridge, offset = _read_protocol(body)
    flags, offset = read_byte(body, offset, level)
    _check_connect_flags(flags, level)
    keep_alive, offset = read_two_byte_integer(body, offset, level)
    properties = NO_PROPERTIES
    if level == 5:
        properties, offset = decode_properties(body, offset, PropertyContext.CONNECT, most)
        if "authentication_data" in properties and "authentication_method" not in properties:
            message = "authentication data without an authentication method"
            raise AUTHENTICATION_DATA_ALONE.error(level, message)
    client_id, offset = read_utf8_string(body, offset, level)
    will: Will | None = None
    if flags & 0x04:  # [MQTT5-3.1.2-9] [MQTT311-3.1.2-9] [MQTT311-3.1.2-11]
        will, offset = _read_will(body, offset, flags, level, most)
    username: str | None = None
    password: bytes | None = None
    # [MQTT5-3.1.2-16] [MQTT5-3.1.2-17] [MQTT5-3.1.2-18] [MQTT5-3.1.2-19]
    # [MQTT311-3.1.2-18] [MQTT311-3.1.2-19] [MQTT311-3.1.2-20] [MQTT311-3.1.2-21]
    # 3.1: "the Remaining Length field from the fixed header takes precedence over the User Name
    # flag": a string that is announced but missing at the end is no error there. [MQTT31-3.1]
    end = len(body) if level == 3 else -1
    if flags & 0x80 and offset != end:
        username, offset = read_utf8_string(body, offset, level)
    if flags & 0x40 and offset != end:
        password, offset = read_binary_data(body, offset, level)
    _check_end(body, offset, level)
    return Connect(
        client_id,
        level,
        flags & 0x02 != 0,
        keep_alive,
        will,
        username,
        password,
        properties,
        bridge,
    )


def _read_protocol(body: bytes) -> tuple[int, bool, int]:
    """Read protocol name and level; return the level, the bridge bit and the offset behind."""
    name, offset = read_binary_data(body, 0, 0)
    level, offset = read_byte(body, offset, 0)
    bridge = level == BRIDGE_BIT | 3 or level == BRIDGE_BIT | 4
    plain_level = level & ~BRIDGE_BIT if bridge else level
    text = name.decode("utf-8", "replace")
    if text not in ("MQTT", "MQIsdp"):
        message = f"protocol name is {text[:16]!r}, expected 'MQTT' or 'MQIsdp'"
        raise unsupported_protocol(PROTOCOL_NAME, message, text, level)
    if PROTOCOL_NAMES.get(plain_level) != text:
        message = f"protocol level of {text} is {level}, expected 3 (MQIsdp), 4 or 5 (MQTT)"
        raise unsupported_protocol(PROTOCOL_LEVEL, message, text, level)
    return plain_level, bridge, offset


def _check_connect_flags(flags: int, level: int) -> None:
    if flags & 0x18 == 0x18 and (flags & 0x04 or level > 3):
        raise WILL_QOS_THREE.error(level, "will QoS is 3, expected 0, 1 or 2")
    if level == 3:
        # Bit 0 and, without a will, the will's QoS and retain flag have no meaning in 3.1.
        return
    if flags & 0x01:
        raise CONNECT_RESERVED_FLAG.error(level, "reserved connect flag is 1, expected 0")
    if not flags & 0x04:
        if flags & 0x18:
            raise WILL_QOS_WITHOUT_WILL.error(level, "will QoS is not 0 without a will")
        if flags & 0x20:
            raise WILL_RETAIN_WITHOUT_WILL.error(level, "will retain is 1 without a will")
    if level == 4 and flags & 0xC0 == 0x40:
        raise PASSWORD_WITHOUT_USERNAME.error(level, "password flag is 1 without a user name")


def _read_will(body: bytes, offset: int, flags: int, level: int, most: int) -> tuple[Will, int]:
    properties = NO_PROPERTIES
    if level == 5:
        properties, offset = decode_properties(body, offset, PropertyContext.WILL, most)
    topic_name, offset = read_utf8_string(body, offset, level)
    if not topic_name:
        raise TOPIC_NAME_EMPTY.error(level, "will topic is empty, expected a character")
    if "+" in topic_name or "#" in topic_name:
        raise TOPIC_NAME_WILDCARD.error(level, "will topic holds a wildcard")
    payload, offset = read_binary_data(body, offset, level)
    return Will(topic_name, payload, flags >> 3 & 3, flags & 0x20 != 0, properties), offset


def _decode_connack(body: bytes, level: int, _role: Role, most: int) -> Connack:
    flags, offset = read_byte(body, 0, level)
    value, offset = read_byte(body, offset, level)
    if level == 3:
        flags = 0  # "reserved values, not used"
    if flags & 0xFE:
        raise CONNACK_FLAGS.error(level, f"connect acknowledge flags are 0x{flags:02x}")
    codes = _CONNACK_CODES if level == 5 else _RETURN_CODES
    reason_code = codes.get(value)
    if reason_code is None:
        raise CONNACK_CODE.error(level, f"CONNACK code 0x{value:02x} is not defined")
    if flags and value:
        raise SESSION_PRESENT_ON_ERROR.error(level, "session present is 1 beside an error code")
    properties = NO_PROPERTIES
    if level == 5:
        properties, offset = decode_properties(body, offset, PropertyContext.CONNACK, most)
    _check_end(body, offset, level)
    return Connack(flags != 0, reason_code, properties)


def _decode_puback(body: bytes, level: int, role: Role, most: int) -> Puback:
    packet_id, code, properties = _read_acknowledgement(
        body, level, role, PropertyContext.PUBACK, most
    )
    reason_code = _PUBACK_CODES.get(code)
    if reason_code is None:
        raise _undefined_code(PUBACK_CODE, code)
    return Puback(packet_id, reason_code, properties)


def _decode_pubrec(body: bytes, level: int, role: Role, most: int) -> Pubrec:
    packet_id, code, properties = _read_acknowledgement(
        body, level, role, PropertyContext.PUBREC, most
    )
    reason_code = _PUBREC_CODES.get(code)
    if reason_code is None:
        raise _undefined_code(PUBREC_CODE, code)
    return Pubrec(packet_id, reason_code, properties)


def _decode_pubrel(body: bytes, level: int, role: Role, most: int) -> Pubrel:
    packet_id, code, properties = _read_acknowledgement(
        body, level, role, PropertyContext.PUBREL, most
    )
    reason_code = _PUBREL_CODES.get(code)
    if reason_code is None:
        raise _undefined_code(PUBREL_CODE, code)
    return Pubrel(packet_id, reason_code, properties)


def _decode_pubcomp(body: bytes, level: int, role: Role, most: int) -> Pubcomp:
    packet_id, code, properties = _read_acknowledgement(
        body, level, role, PropertyContext.PUBCOMP, most
    )
    reason_code = _PUBCOMP_CODES.get(code)
    if reason_code is None:
        raise _undefined_code(PUBCOMP_CODE, code)
    return Pubcomp(packet_id, reason_code, properties)


def _read_acknowledgement(
    body: bytes, level: int, role: Role, context: PropertyContext, most: int
) -> tuple[int, int, Properties]:
    """Read packet identifier, reason code and properties; the last two may be left out in 5.0."""
    packet_id, offset = _read_packet_id(body, level, role)
    code = 0
    properties = NO_PROPERTIES
    if level == 5 and offset < len(body):
        code, offset = read_byte(body, offset, level)
        if offset < len(body):
            properties, offset = decode_properties(body, offset, context, most)
    _check_end(body, offset, level)
    return packet_id, code, properties


def _decode_subscribe(body: bytes, level: int, role: Role, most: int) -> Subscribe:
    packet_id, offset = _read_packet_id(body, level, role)
    properties = NO_PROPERTIES
    if level == 5:
        properties, offset = decode_properties(body, offset, PropertyContext.SUBSCRIBE, most)
    subscriptions: list[Subscription] = []
    end = len(body)
    while offset < end:
        # [MQTT5-3.8.3-1] [MQTT311-3.8.3-1]
        topic_filter, offset = read_utf8_string(body, offset, level)
        options, offset = read_byte(body, offset, level)
        subscriptions.append(_to_subscription(topic_filter, options, level))
    if not subscriptions:
        raise SUBSCRIBE_EMPTY.error(level, "SUBSCRIBE holds no topic filter, expected at least 1")
    return Subscribe(packet_id, subscriptions, properties)


def _to_subscription(topic_filter: str, options: int, level: int) -> Subscription:
    qos = options & 0x03
    reserved = {3: 0x00, 4: 0xFC, 5: 0xC0}[level]  # 3.1: "not used", hence ignored
    if options & reserved:
        message = f"reserved bits of the subscription options 0x{options:02x} are not 0"
        raise SUBSCRIPTION_RESERVED_BITS.error(level, message)
    if qos == 3:
        raise SUBSCRIPTION_QOS_THREE.error(level, "requested QoS is 3, expected 0, 1 or 2")
    if level < 5:
        return Subscription(topic_filter, qos)
    retain_handling = options >> 4 & 3
    if retain_handling == 3:
        raise RETAIN_HANDLING_THREE.error(level, "retain handling is 3, expected 0, 1 or 2")
    no_local = options & 0x04 != 0
    if no_local and topic_filter.startswith(SHARE_PREFIX):
        raise NO_LOCAL_ON_SHARED.error(level, "no local is 1 on a shared subscription")
    return Subscription(topic_filter, qos, no_local, options & 0x08 != 0, retain_handling)


def _decode_suback(body: bytes, level: int, role: Role, most: int) -> Suback:
    packet_id, offset = _read_packet_id(body, level, role)
    properties = NO_PROPERTIES
    if level == 5:
        properties, offset = decode_properties(body, offset, PropertyContext.SUBACK, most)
    codes = _SUBACK_CODES if level == 5 else _SUBACK_CODES_3
    reason_codes: list[SubackReasonCode] = []
    for value in body[offset:]:
        reason_code = codes.get(value)
        if reason_code is None:
            raise SUBACK_CODE.error(level, f"SUBACK code 0x{value:02x} is not defined")
        reason_codes.append(reason_code)
    if not reason_codes:
        raise SUBACK_EMPTY.error(level, "SUBACK holds no code, expected one per topic filter")
    return Suback(packet_id, reason_codes, properties)


def _decode_unsubscribe(body: bytes, level: int, role: Role, most: int) -> Unsubscribe:
    packet_id, offset = _read_packet_id(body, level, role)
    properties = NO_PROPERTIES
    if level == 5:
        properties, offset = decode_properties(body, offset, PropertyContext.UNSUBSCRIBE, most)
    topic_filters: list[str] = []
    end = len(body)
    while offset < end:
        # [MQTT5-3.10.3-1] [MQTT311-3.10.3-1]
        topic_filter, offset = read_utf8_string(body, offset, level)
        topic_filters.append(topic_filter)
    if not topic_filters:
        message = "UNSUBSCRIBE holds no topic filter, expected at least 1"
        raise UNSUBSCRIBE_EMPTY.error(level, message)
    return Unsubscribe(packet_id, topic_filters, properties)


def _decode_unsuback(body: bytes, level: int, role: Role, most: int) -> Unsuback:
    packet_id, offset = _read_packet_id(body, level, role)
    if level < 5:
        _check_end(body, offset, level)
        return Unsuback(packet_id, [])
    properties, offset = decode_properties(body, offset, PropertyContext.UNSUBACK, most)
    reason_codes: list[UnsubackReasonCode] = []
    for value in body[offset:]:
        reason_code = _UNSUBACK_CODES.get(value)
        if reason_code is None:
            raise _undefined_code(UNSUBACK_CODE, value)
        reason_codes.append(reason_code)
    if not reason_codes:
        raise UNSUBACK_EMPTY.error(level, "UNSUBACK holds no code, expected one per topic filter")
    return Unsuback(packet_id, reason_codes, properties)


def _decode_pingreq(body: bytes, level: int, _role: Role, _most: int) -> Pingreq:
    _check_end(body, 0, level)
    return Pingreq()


def _decode_pingresp(body: bytes, level: int, _role: Role, _most: int) -> Pingresp:
    _check_end(body, 0, level)
    return Pingresp()


def _decode_disconnect(body: bytes, level: int, role: Role, most: int) -> Disconnect:
    if level < 5:
        _check_end(body, 0, level)
        return Disconnect()
    value, properties = _read_code_and_properties(body, PropertyContext.DISCONNECT, most)
    reason_code = _DISCONNECT_CODES.get(value)
    if reason_code is None:
        raise _undefined_code(DISCONNECT_CODE, value)
    if role is Role.CLIENT and "session_expiry_interval" in properties:
        message = "DISCONNECT of a server holds a session expiry interval"
        raise SESSION_EXPIRY_FROM_SERVER.error(level, message)
    return Disconnect(reason_code, properties)


def _decode_auth(body: bytes, level: int, role: Role, most: int) -> Auth:
    value, properties = _read_code_and_properties(body, PropertyContext.AUTH, most)
    reason_code = _AUTH_CODES.get(value)
    if reason_code is None:
        raise _undefined_code(AUTH_CODE, value)
    # Only the server says that it succeeded, only the client asks for another round.
    foreign = AuthReasonCode.SUCCESS if role is Role.SERVER else AuthReasonCode.RE_AUTHENTICATE
    if reason_code is foreign:
        raise AUTH_CODE.error(level, f"AUTH {reason_code.name} comes from the wrong side")
    if "authentication_method" not in properties and len(body) > 0:
        message = "AUTH holds no authentication method"
        raise AUTHENTICATION_METHOD_MISSING.error(level, message)
    return Auth(reason_code, properties)


def _read_code_and_properties(
    body: bytes, context: PropertyContext, most: int
) -> tuple[int, Properties]:
    """Read reason code and properties of a 5.0 packet in which both may be left out."""
    code = 0
    offset = 0
    properties = NO_PROPERTIES
    if body:
        code, offset = read_byte(body, offset, 5)
        if offset < len(body):
            properties, offset = decode_properties(body, offset, context, most)
    _check_end(body, offset, 5)
    return code, properties


def _read_packet_id(body: bytes, level: int, role: Role) -> tuple[int, int]:
    packet_id, offset = read_two_byte_integer(body, 0, level)
    if not packet_id:
        raise packet_id_zero(level, role)
    return packet_id, offset


def packet_id_zero(level: int, role: Role) -> Exception:
    """Make the error for a packet identifier of 0 [MQTT5-2.2.1-3] [MQTT5-2.2.1-4]."""
    violation = PACKET_ID_ZERO_FROM_CLIENT if role is Role.SERVER else PACKET_ID_ZERO_FROM_SERVER
    return violation.error(level, "packet identifier is 0, expected 1 to 65535")


def _undefined_code(violation: Violation, value: int) -> Exception:
    return violation.error(5, f"reason code 0x{value:02x} is not defined for this packet")


def _check_end(body: bytes, offset: int, level: int) -> None:
    if offset != len(body):
        message = f"packet has {len(body) - offset} bytes behind its last field, expected 0"
        raise TRAILING_BYTES.error(level, message)


_DECODERS: Final[dict[int, Callable[[bytes, int, Role, int], Packet]]] = {
    PacketType.CONNECT: _decode_connect,
    PacketType.CONNACK: _decode_connack,
    PacketType.PUBACK: _decode_puback,
    PacketType.PUBREC: _decode_pubrec,
    PacketType.PUBREL: _decode_pubrel,
    PacketType.PUBCOMP: _decode_pubcomp,
    PacketType.SUBSCRIBE: _decode_subscribe,
    PacketType.SUBACK: _decode_suback,
    PacketType.UNSUBSCRIBE: _decode_unsubscribe,
    PacketType.UNSUBACK: _decode_unsuback,
    PacketType.PINGREQ: _decode_pingreq,
    PacketType.PINGRESP: _decode_pingresp,
    PacketType.DISCONNECT: _decode_disconnect,
    PacketType.AUTH: _decode_auth,
}
