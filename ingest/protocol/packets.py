"""The control packets of MQTT 3.1, 3.1.1 and 5.0 in one model.

A packet is the content of one frame on the wire, without the connection it came from. Fields that
a version does not know keep their default. Packets are not frozen, because making a frozen one
costs three times as much on the PUBLISH path; treat them as values all the same.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ingest.protocol.properties import (
    NO_PROPERTIES,
    Properties,
    PropertyContext,
    encode_property_values,
)
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

MQTT_3_1: Final = 3
MQTT_3_1_1: Final = 4
MQTT_5_0: Final = 5
SHARE_PREFIX: Final = "$share/"
"""Begins the topic filter of a shared subscription [MQTT5-4.8.2-1]."""


class PacketType(IntEnum):
    """Bits 7 to 4 of a packet's first byte [MQTT5-2.1.2]."""

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
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


@dataclass(slots=True)
class Will:
    """The will message that a CONNECT leaves with the server [MQTT5-3.1.2-7] [MQTT311-3.1.2-8]."""

    topic_name: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES

    @property
    def size(self) -> int:
        """How many bytes a server keeps of it: topic name, payload and properties."""
        size = len(self.topic_name.encode()) + len(self.payload)
        if self.properties:
            size += len(encode_property_values(self.properties, PropertyContext.WILL))
        return size


@dataclass(slots=True)
class Connect:
    """CONNECT, client to server."""

    client_id: str
    protocol_level: int = MQTT_5_0  # 3, 4 or 5; without the bridge bit
    clean_start: bool = True  # 3.x calls it clean session
    keep_alive: int = 0  # seconds; 0 turns the mechanism off
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None
    properties: Properties = NO_PROPERTIES
    bridge: bool = False  # bit 7 of the protocol level, set by bridging brokers, 3.x only


@dataclass(slots=True)
class Connack:
    """CONNACK, server to client; a 3.x return code is held as the 5.0 code of its meaning."""

    session_present: bool = False
    reason_code: ConnackReasonCode = ConnackReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Publish:
    """PUBLISH, both ways."""

    topic_name: str  # empty only with the property topic_alias
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0  # 1 to 65,535 for QoS 1 and 2, 0 for QoS 0
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Puback:
    """PUBACK, both ways: the answer to a QoS 1 PUBLISH."""

    packet_id: int
    reason_code: PubackReasonCode = PubackReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pubrec:
    """PUBREC, both ways: the first answer to a QoS 2 PUBLISH."""

    packet_id: int
    reason_code: PubrecReasonCode = PubrecReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pubrel:
    """PUBREL, both ways: the answer to PUBREC."""

    packet_id: int
    reason_code: PubrelReasonCode = PubrelReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pubcomp:
    """PUBCOMP, both ways: the answer to PUBREL, the last packet of a QoS 2 exchange."""

    packet_id: int
    reason_code: PubcompReasonCode = PubcompReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Subscription:
    """One topic filter of a SUBSCRIBE with its options; 3.x has the QoS alone."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0  # 0 send retained messages, 1 only to a new subscription, 2 never


@dataclass(slots=True)
class Subscribe:
    """SUBSCRIBE, client to server; at least one subscription [MQTT5-3.8.3-2]."""

    packet_id: int
    subscriptions: list[Subscription]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Suback:
    """SUBACK, server to client: one reason code per subscription, in order [MQTT5-3.9.3-1]."""

    packet_id: int
    reason_codes: list[SubackReasonCode]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Unsubscribe:
    """UNSUBSCRIBE, client to server; at least one topic filter [MQTT5-3.10.3-2]."""

    packet_id: int
    topic_filters: list[str]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Unsuback:
    """UNSUBACK, server to client: one reason code per topic filter in 5.0, none in 3.x."""

    packet_id: int
    reason_codes: list[UnsubackReasonCode]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pingreq:
    """PINGREQ, client to server."""


@dataclass(slots=True)
class Pingresp:
    """PINGRESP, server to client."""


@dataclass(slots=True)
class Disconnect:
    """DISCONNECT, client to server; in 5.0 both ways."""

    reason_code: DisconnectReasonCode = DisconnectReasonCode.NORMAL_DISCONNECTION
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Auth:
    """AUTH, both ways, 5.0 only."""

    reason_code: AuthReasonCode = AuthReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
