"""The 5.0 property table as data, and the codec that reads nothing but the table [MQTT5-2.2.2.2].

Decoded properties are a plain dict with the specification's names in snake_case, typed as
`Properties`: `properties.get("topic_alias")` is `int | None` to a type checker. A packet without
properties holds the shared, read-only `NO_PROPERTIES`, so it costs nothing. Making and reading one
property: dict 0.11 µs, slots dataclass of all 27 fields 0.31 µs.

`user_property` is the list of (name, value) in the order of the wire. [MQTT5-3.3.2-18]
[MQTT5-3.1.3-10]
`subscription_identifier` is a list as well, because a PUBLISH can carry several.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NoReturn, TypedDict, cast

from ingest.protocol.errors import LocalProtocolError, RemoteProtocolError
from ingest.protocol.primitives import (
    MAX_FOUR_BYTE_INTEGER,
    MAX_TWO_BYTE_INTEGER,
    MAX_VARIABLE_BYTE_INTEGER,
    encode_binary_data,
    encode_utf8_string,
    encode_variable_byte_integer,
    read_binary_data,
    read_byte,
    read_four_byte_integer,
    read_string_pair,
    read_two_byte_integer,
    read_utf8_string,
    read_variable_byte_integer,
)
from ingest.protocol.violations import (
    MALFORMED,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    RESPONSE_TOPIC_WILDCARD,
    TOPIC_ALIAS_INVALID,
    TOPIC_NAME_EMPTY,
    TRUNCATED,
    make_error,
)

MAX_USER_PROPERTIES: Final = 1_000
"""Most user properties of a packet after login, and of a message through the REST API. A pair of
two empty strings is 5 bytes on the wire and 80 in memory: a packet of 1 MiB would have 209,000."""

MAX_USER_PROPERTIES_BEFORE_LOGIN: Final = 100
"""Most user properties of a packet before login, and of the will in it."""

ANY_NUMBER: Final = MAX_VARIABLE_BYTE_INTEGER
"""More properties than fit into a packet."""


class Properties(TypedDict, total=False):
    """The properties of one packet, or of a will."""

    payload_format_indicator: int
    message_expiry_interval: int
    content_type: str
    response_topic: str
    correlation_data: bytes
    subscription_identifier: list[int]
    session_expiry_interval: int
    assigned_client_identifier: str
    server_keep_alive: int
    authentication_method: str
    authentication_data: bytes
    request_problem_information: int
    will_delay_interval: int
    request_response_information: int
    response_information: str
    server_reference: str
    reason_string: str
    receive_maximum: int
    topic_alias_maximum: int
    topic_alias: int
    maximum_qos: int
    retain_available: int
    user_property: list[tuple[str, str]]
    maximum_packet_size: int
    wildcard_subscription_available: int
    subscription_identifier_available: int
    shared_subscription_available: int


_SHARED: Final = "the properties of a packet without properties are shared; make a new dict"


class _NoProperties(dict[str, Any]):
    """An empty dict that stays empty; shared by all packets without properties."""

    # Constant, hence hashable, hence fit for the default of a dataclass field.
    def __hash__(self) -> int:  # type: ignore[override]
        return 0

    def __setitem__(self, name: str, value: Any) -> NoReturn:
        raise TypeError(_SHARED)

    def __ior__(self, other: Any) -> NoReturn:  # type: ignore[misc]
        raise TypeError(_SHARED)

    def setdefault(self, name: str, default: Any = None) -> NoReturn:
        raise TypeError(_SHARED)

    def update(self, *others: Any, **named: Any) -> NoReturn:
        raise TypeError(_SHARED)


NO_PROPERTIES: Final = cast("Properties", _NoProperties())


class PropertyType(IntEnum):
    """The data types a property can have."""

    BYTE = 1
    TWO_BYTE_INTEGER = 2
    FOUR_BYTE_INTEGER = 3
    VARIABLE_BYTE_INTEGER = 4
    UTF8_STRING = 5
    BINARY_DATA = 6
    UTF8_STRING_PAIR = 7


class PropertyContext(IntEnum):
    """Place of properties: the packet's type, or the will inside a CONNECT."""

    WILL = 0
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    DISCONNECT = 14
    AUTH = 15


_INTEGER_BYTES: Final = {
    PropertyType.BYTE: 1,
    PropertyType.TWO_BYTE_INTEGER: 2,
    PropertyType.FOUR_BYTE_INTEGER: 4,
}

_MAXIMA: Final = {
    PropertyType.BYTE: 0xFF,
    PropertyType.TWO_BYTE_INTEGER: MAX_TWO_BYTE_INTEGER,
    PropertyType.FOUR_BYTE_INTEGER: MAX_FOUR_BYTE_INTEGER,
    PropertyType.VARIABLE_BYTE_INTEGER: MAX_VARIABLE_BYTE_INTEGER,
}


@dataclass(frozen=True, slots=True)
class PropertyDefinition:
    """One row of the table."""

    identifier: int  # below 128: one byte on the wire
    name: str
    type: PropertyType
    sections: dict[PropertyContext, str]  # where it may appear -> the section that says so
    minimum: int = 0
    maximum: int | None = None  # None: all that the type can hold
    repeatable_in: frozenset[PropertyContext] = frozenset()
    listed: bool = False  # decoded as a list
    checked: bool = False  # holds less than its type can: a range, or a topic name
    out_of_range: int = PROTOCOL_ERROR
    range_clause: str = ""  # where the range is a numbered statement, not just the section


_C: Final = PropertyContext

_USER_PROPERTY_SECTIONS: Final = {
    _C.WILL: "3.1.3.2.8",
    _C.CONNECT: "3.1.2.11.8",
    _C.CONNACK: "3.2.2.3.10",
    _C.PUBLISH: "3.3.2.3.7",
    _C.PUBACK: "3.4.2.2.3",
    _C.PUBREC: "3.5.2.2.3",
    _C.PUBREL: "3.6.2.2.3",
    _C.PUBCOMP: "3.7.2.2.3",
    _C.SUBSCRIBE: "3.8.2.1.3",
    _C.SUBACK: "3.9.2.1.3",
    _C.UNSUBSCRIBE: "3.10.2.1.2",
    _C.UNSUBACK: "3.11.2.1.3",
    _C.DISCONNECT: "3.14.2.2.4",
    _C.AUTH: "3.15.2.2.5",
}

PROPERTIES: Final = (
    PropertyDefinition(
        0x01,
        "payload_format_indicator",
        PropertyType.BYTE,
        {_C.PUBLISH: "3.3.2.3.2", _C.WILL: "3.1.3.2.3"},
        maximum=1,
        checked=True,
    ),
    PropertyDefinition(
        0x02,
        "message_expiry_interval",
        PropertyType.FOUR_BYTE_INTEGER,
        {_C.PUBLISH: "3.3.2.3.3", _C.WILL: "3.1.3.2.4"},
    ),
    PropertyDefinition(
        0x03,
        "content_type",
        PropertyType.UTF8_STRING,
        {_C.PUBLISH: "3.3.2.3.9", _C.WILL: "3.1.3.2.5"},  # [MQTT5-3.3.2-19]
    ),
    PropertyDefinition(
        0x08,
        "response_topic",
        PropertyType.UTF8_STRING,
        {_C.PUBLISH: "3.3.2.3.5", _C.WILL: "3.1.3.2.6"},
        checked=True,  # [MQTT5-3.3.2-13] [MQTT5-3.3.2-14]
    ),
    PropertyDefinition(
        0x09,
        "correlation_data",
        PropertyType.BINARY_DATA,
        {_C.PUBLISH: "3.3.2.3.6", _C.WILL: "3.1.3.2.7"},
    ),
    PropertyDefinition(
        0x0B,
        "subscription_identifier",
        PropertyType.VARIABLE_BYTE_INTEGER,
        {_C.PUBLISH: "3.3.2.3.8", _C.SUBSCRIBE: "3.8.2.1.2"},
        minimum=1,
        checked=True,
        repeatable_in=frozenset({_C.PUBLISH}),
        listed=True,
    ),
    PropertyDefinition(
        0x11,
        "session_expiry_interval",
        PropertyType.FOUR_BYTE_INTEGER,
        {_C.CONNECT: "3.1.2.11.2", _C.CONNACK: "3.2.2.3.2", _C.DISCONNECT: "3.14.2.2.2"},
    ),
    PropertyDefinition(
        0x12, "assigned_client_identifier", PropertyType.UTF8_STRING, {_C.CONNACK: "3.2.2.3.7"}
    ),
    PropertyDefinition(
        0x13, "server_keep_alive", PropertyType.TWO_BYTE_INTEGER, {_C.CONNACK: "3.2.2.3.14"}
    ),
    PropertyDefinition(
        0x15,
        "authentication_method",
        PropertyType.UTF8_STRING,
        {_C.CONNECT: "3.1.2.11.9", _C.CONNACK: "3.2.2.3.17", _C.AUTH: "3.15.2.2.2"},
    ),
    PropertyDefinition(
        0x16,
        "authentication_data",
        PropertyType.BINARY_DATA,
        {_C.CONNECT: "3.1.2.11.10", _C.CONNACK: "3.2.2.3.18", _C.AUTH: "3.15.2.2.3"},
    ),
    PropertyDefinition(
        0x17,
        "request_problem_information",
        PropertyType.BYTE,
        {_C.CONNECT: "3.1.2.11.7"},
        maximum=1,
        checked=True,
    ),
    PropertyDefinition(
        0x18, "will_delay_interval", PropertyType.FOUR_BYTE_INTEGER, {_C.WILL: "3.1.3.2.2"}
    ),
    PropertyDefinition(
        0x19,
        "request_response_information",
        PropertyType.BYTE,
        {_C.CONNECT: "3.1.2.11.6"},
        maximum=1,
        checked=True,
    ),
    PropertyDefinition(
        0x1A, "response_information", PropertyType.UTF8_STRING, {_C.CONNACK: "3.2.2.3.15"}
    ),
    PropertyDefinition(
        0x1C,
        "server_reference",
        PropertyType.UTF8_STRING,
        {_C.CONNACK: "3.2.2.3.16", _C.DISCONNECT: "3.14.2.2.5"},
    ),
    PropertyDefinition(
        0x1F,
        "reason_string",
        PropertyType.UTF8_STRING,
        {
            _C.CONNACK: "3.2.2.3.9",
            _C.PUBACK: "3.4.2.2.2",
            _C.PUBREC: "3.5.2.2.2",
            _C.PUBREL: "3.6.2.2.2",
            _C.PUBCOMP: "3.7.2.2.2",
            _C.SUBACK: "3.9.2.1.2",
            _C.UNSUBACK: "3.11.2.1.2",
            _C.DISCONNECT: "3.14.2.2.3",
            _C.AUTH: "3.15.2.2.4",
        },
    ),
    PropertyDefinition(
        0x21,
        "receive_maximum",
        PropertyType.TWO_BYTE_INTEGER,
        {_C.CONNECT: "3.1.2.11.3", _C.CONNACK: "3.2.2.3.3"},
        minimum=1,
        checked=True,
    ),
    PropertyDefinition(
        0x22,
        "topic_alias_maximum",
        PropertyType.TWO_BYTE_INTEGER,
        {_C.CONNECT: "3.1.2.11.5", _C.CONNACK: "3.2.2.3.8"},
    ),
    PropertyDefinition(
        0x23,
        "topic_alias",
        PropertyType.TWO_BYTE_INTEGER,
        {_C.PUBLISH: "3.3.2.3.4"},
        minimum=1,
        checked=True,
        out_of_range=TOPIC_ALIAS_INVALID,
        range_clause="3.3.2-8",  # [MQTT5-3.3.2-8]
    ),
    PropertyDefinition(
        0x24, "maximum_qos", PropertyType.BYTE, {_C.CONNACK: "3.2.2.3.4"}, maximum=1, checked=True
    ),
    PropertyDefinition(
        0x25,
        "retain_available",
        PropertyType.BYTE,
        {_C.CONNACK: "3.2.2.3.5"},
        maximum=1,
        checked=True,
    ),
    PropertyDefinition(
        0x26,
        "user_property",
        PropertyType.UTF8_STRING_PAIR,
        _USER_PROPERTY_SECTIONS,
        repeatable_in=frozenset(_USER_PROPERTY_SECTIONS),
        listed=True,
    ),
    PropertyDefinition(
        0x27,
        "maximum_packet_size",
        PropertyType.FOUR_BYTE_INTEGER,
        {_C.CONNECT: "3.1.2.11.4", _C.CONNACK: "3.2.2.3.6"},
        minimum=1,
        checked=True,
    ),
    PropertyDefinition(
        0x28,
        "wildcard_subscription_available",
        PropertyType.BYTE,
        {_C.CONNACK: "3.2.2.3.11"},
        maximum=1,
        checked=True,
    ),
    PropertyDefinition(
        0x29,
        "subscription_identifier_available",
        PropertyType.BYTE,
        {_C.CONNACK: "3.2.2.3.12"},
        maximum=1,
        checked=True,
    ),
    PropertyDefinition(
        0x2A,
        "shared_subscription_available",
        PropertyType.BYTE,
        {_C.CONNACK: "3.2.2.3.13"},
        maximum=1,
        checked=True,
    ),
)

_READERS: Final[dict[PropertyType, Callable[[bytes, int, int], tuple[Any, int]]]] = {
    PropertyType.BYTE: read_byte,
    PropertyType.TWO_BYTE_INTEGER: read_two_byte_integer,
    PropertyType.FOUR_BYTE_INTEGER: read_four_byte_integer,
    PropertyType.VARIABLE_BYTE_INTEGER: read_variable_byte_integer,
    PropertyType.UTF8_STRING: read_utf8_string,
    PropertyType.BINARY_DATA: read_binary_data,
    PropertyType.UTF8_STRING_PAIR: read_string_pair,
}

_BY_IDENTIFIER: Final = {
    context: {
        definition.identifier: (definition, _READERS[definition.type])
        for definition in PROPERTIES
        if context in definition.sections
    }
    for context in PropertyContext
}


def decode_properties(
    body: bytes, offset: int, context: PropertyContext, most: int = ANY_NUMBER
) -> tuple[Properties, int]:
    """Read the property length and the properties at `offset`; return them and the offset behind.

    Args:
        body: Body of the packet.
        offset: Offset of the property length.
        context: The packet's type, or the will.
        most: How often a property may stand that may stand more than once.

    Raises:
        MalformedPacket: An identifier that is unknown or not allowed in this packet, or a value
            that does not end inside the properties. [MQTT5-2.2.2.2]
        ProtocolViolation: A property twice that may stand once, more than `most` times, or a value
            out of its range.
    """
    if offset < len(body) and body[offset] < 0x80:  # as nearly always
        length = body[offset]
        offset += 1
    else:
        length, offset = read_variable_byte_integer(body, offset, 5)
    if not length:
        return NO_PROPERTIES, offset
    end = offset + length
    if end > len(body):
        message = f"read {len(body) - offset} bytes of properties, expected {length}"
        raise TRUNCATED.error(5, message)
    # Cut at the end, so that no value reads beyond the property length.
    area = body if end == len(body) else body[:end]
    known = _BY_IDENTIFIER[context]
    values: dict[str, Any] = {}
    while offset < end:
        # An identifier is a variable byte integer, but all that exist fit into one byte.
        row = known.get(area[offset])
        if row is None:
            message = f"property 0x{area[offset]:02x} is not allowed in {context.name}"
            raise make_error(MALFORMED, message, "MQTT5-2.2.2.2")
        definition, read = row
        name = definition.name
        before = values.get(name)
        # What is too much is not read.
        if before is not None and (context not in definition.repeatable_in or len(before) >= most):
            raise _repetition_error(definition, context, most)
        value, offset = read(area, offset + 1, 5)
        if definition.checked:
            _check_value(definition, context, value)
        if before is not None:
            before.append(value)
        else:
            values[name] = [value] if definition.listed else value
    return cast("Properties", values), end


def encode_properties(properties: Properties, context: PropertyContext) -> bytes:
    """Encode the property length and the properties, in the order of the dict.

    The length is there also when it is 0. [MQTT5-2.2.2-1]

    Raises:
        LocalProtocolError: A property that is unknown, not allowed in this packet, repeated where
            it may stand once, or out of range.
    """
    if not properties:
        return b"\0"
    encoded = encode_property_values(properties, context)
    return encode_variable_byte_integer(len(encoded)) + encoded


def encode_property_values(properties: Properties, context: PropertyContext) -> bytes:
    """Encode the properties without the length before them; else like `encode_properties`."""
    parts: list[bytes] = []
    known = _BY_NAME[context]
    for name, value in cast("dict[str, Any]", properties).items():
        row = known.get(name)
        if row is None:
            raise LocalProtocolError(f"property {name} is not allowed in {context.name}")
        definition, identifier, encode_value = row
        if not definition.listed:
            parts += (identifier, encode_value(definition, value))
            continue
        if len(value) > 1 and context not in definition.repeatable_in:
            raise LocalProtocolError(f"property {name} may stand once in {context.name}")
        for item in value:
            parts += (identifier, encode_value(definition, item))
    return b"".join(parts)


def _repetition_error(
    definition: PropertyDefinition, context: PropertyContext, most: int
) -> RemoteProtocolError:
    name, clause = definition.name, f"MQTT5-{definition.sections[context]}"
    if context not in definition.repeatable_in:
        message = f"property {name} appears twice in {context.name}"
        return make_error(PROTOCOL_ERROR, message, clause)
    message = f"property {name} appears more than {most} times in {context.name}"
    return make_error(QUOTA_EXCEEDED, message, clause)


def _check_value(definition: PropertyDefinition, context: PropertyContext, value: Any) -> None:
    if definition.type == PropertyType.UTF8_STRING:
        if "+" in value or "#" in value:
            raise RESPONSE_TOPIC_WILDCARD.error(5, "response topic holds a wildcard")
        if not value:
            raise TOPIC_NAME_EMPTY.error(5, "response topic is empty, expected a character")
    elif not definition.minimum <= value <= _maximum(definition):
        message = f"property {definition.name} is {value}, expected {_range_text(definition)}"
        clause = definition.range_clause or definition.sections[context]
        raise make_error(definition.out_of_range, message, f"MQTT5-{clause}")


def _encode_string_pair(_definition: PropertyDefinition, value: tuple[str, str]) -> bytes:
    name, text = value
    return encode_utf8_string(name) + encode_utf8_string(text)


def _encode_integer(definition: PropertyDefinition, value: int) -> bytes:
    if not definition.minimum <= value <= _maximum(definition):
        message = f"property {definition.name} is {value}, expected {_range_text(definition)}"
        raise LocalProtocolError(message)
    kind = definition.type
    if kind == PropertyType.VARIABLE_BYTE_INTEGER:
        return encode_variable_byte_integer(value)
    return int(value).to_bytes(_INTEGER_BYTES[kind], "big")


def _maximum(definition: PropertyDefinition) -> int:
    return _MAXIMA[definition.type] if definition.maximum is None else definition.maximum


def _range_text(definition: PropertyDefinition) -> str:
    return f"{definition.minimum} to {_maximum(definition)}"


_ENCODERS: Final[dict[PropertyType, Callable[[PropertyDefinition, Any], bytes]]] = {
    PropertyType.BYTE: _encode_integer,
    PropertyType.TWO_BYTE_INTEGER: _encode_integer,
    PropertyType.FOUR_BYTE_INTEGER: _encode_integer,
    PropertyType.VARIABLE_BYTE_INTEGER: _encode_integer,
    PropertyType.UTF8_STRING: lambda _definition, value: encode_utf8_string(value),
    PropertyType.BINARY_DATA: lambda _definition, value: encode_binary_data(value),
    PropertyType.UTF8_STRING_PAIR: _encode_string_pair,
}

_BY_NAME: Final = {
    context: {
        definition.name: (
            definition,
            definition.identifier.to_bytes(1, "big"),
            _ENCODERS[definition.type],
        )
        for definition in PROPERTIES
        if context in definition.sections
    }
    for context in PropertyContext
}
