"""The server's end of one MQTT connection, without its socket.

Bytes come in by `receive_data`, packets come out by `next_packet`, packets to send come back as
bytes. That the first packet is CONNECT and the only one is the decoder's fact; here live those that
belong to a connection and not to a packet: the handshake, topic aliases, the client's and the
server's Receive Maximum, the client's Maximum Packet Size.
"""

from dataclasses import replace
from enum import Enum, auto
from typing import Any, Final

from ingest.protocol.decoder import NEED_DATA, Decoder, NeedData
from ingest.protocol.encoder import encode
from ingest.protocol.errors import ProtocolViolation, RemoteProtocolError, UnsupportedProtocol
from ingest.protocol.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5_0,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
)
from ingest.protocol.properties import (
    MAX_USER_PROPERTIES,
    MAX_USER_PROPERTIES_BEFORE_LOGIN,
    NO_PROPERTIES,
    Properties,
)
from ingest.protocol.reason_codes import (
    RETURN_CODE_OF_REASON,
    ConnackReasonCode,
    DisconnectReasonCode,
)

ALL_LEVELS: Final = frozenset({MQTT_3_1, MQTT_3_1_1, MQTT_5_0})

MAX_RECEIVE_MAXIMUM: Final = 65_535
"""Receive Maximum of a client without the property (5.0: 3.1.2.11.3)."""

MAX_PACKET_BYTES_BEFORE_LOGIN: Final = 64 * 1024
"""Largest packet before login: CONNECT with a will, a token and a chain of certificates in it fits.
It is what a stranger may make the server keep, and read, at no cost."""

_FOR_PEOPLE: Final = frozenset({"reason_string", "user_property"})


class ConnectionState(Enum):
    AWAITING_CONNECT = auto()
    CONNECTING = auto()
    """CONNECT received, CONNACK not sent."""
    CONNECTED = auto()
    CLOSED = auto()


class ServerConnection:
    """Reads the packets of one client and encodes those to it.

    Its topic aliases end with it [MQTT5-3.3.2-7]; all up to the maximum are taken [MQTT5-3.3.2-12].

    Args:
        max_packet_bytes: Larger packets are refused before their body is read; until the client
            is let in, those larger than `MAX_PACKET_BYTES_BEFORE_LOGIN`.
        receive_maximum: QoS 1 and 2 messages a 5.0 client may have unacknowledged.
        topic_alias_maximum: The highest topic alias a 5.0 client may use.

    Attributes:
        allowed_levels: Protocol levels that a CONNECT may ask for, among 3, 4 and 5.
    """

    __slots__ = (
        "_aliases",
        "_decoder",
        "_max_packet_bytes",
        "_receive_maximum",
        "_topic_alias_maximum",
        "allowed_levels",
        "client_maximum_packet_size",
        "client_receive_maximum",
        "client_topic_alias_maximum",
        "protocol_level",
        "state",
        "unacknowledged",
    )

    def __init__(
        self, *, max_packet_bytes: int, receive_maximum: int, topic_alias_maximum: int
    ) -> None:
        self._decoder = Decoder(
            None,
            min(max_packet_bytes, MAX_PACKET_BYTES_BEFORE_LOGIN),
            max_user_properties=MAX_USER_PROPERTIES_BEFORE_LOGIN,
        )
        self._max_packet_bytes = max_packet_bytes
        self._receive_maximum = receive_maximum
        self._topic_alias_maximum = topic_alias_maximum
        self._aliases: dict[int, str] = {}
        self.allowed_levels = ALL_LEVELS
        self.state = ConnectionState.AWAITING_CONNECT
        self.protocol_level = 0
        """3, 4 or 5 once CONNECT was read, or enough of a malformed one."""
        self.client_receive_maximum = MAX_RECEIVE_MAXIMUM
        self.client_topic_alias_maximum = 0
        self.client_maximum_packet_size: int | None = None
        self.unacknowledged = 0
        """QoS 1 and 2 messages of the client that it has no final answer for."""

    @property
    def is_connected(self) -> bool:
        return self.state is ConnectionState.CONNECTED

    @property
    def buffered_bytes(self) -> int:
        """How many bytes were received and are not packets yet."""
        return self._decoder.buffered_bytes

    @property
    def has_pingreq(self) -> bool:
        """Tell whether the next packet is PINGREQ."""
        return self._decoder.has_pingreq

    def receive_data(self, data: bytes) -> None:
        """Take bytes as they come from the network, cut anywhere."""
        self._decoder.receive_data(data)

    def next_packet(self) -> Packet | NeedData:
        """Return the next packet, or NEED_DATA; a PUBLISH comes with its topic name filled in.

        Raises:
            RemoteProtocolError: The client broke the protocol; nothing more can be read.
        """
        try:
            packet = self._decoder.next_packet()
        except RemoteProtocolError:
            self.protocol_level = self._decoder.protocol_level or 0
            raise
        if packet is NEED_DATA:
            return packet
        if type(packet) is Publish:
            if packet.qos:
                self.unacknowledged += 1
            if self.protocol_level == MQTT_5_0:
                self._process_publish(packet)
        elif type(packet) is Connect:
            self._process_connect(packet)
        return packet

    def accept(self, *, session_present: bool, properties: Properties) -> bytes:
        """Return the CONNACK that lets the client in; the properties are for 5.0 only.

        [MQTT5-3.1.4-5] [MQTT311-3.1.4-4] Once: there is one CONNECT. [MQTT5-3.2.0-2]
        """
        self.state = ConnectionState.CONNECTED
        self._decoder.max_packet_bytes = self._max_packet_bytes
        self._decoder.max_user_properties = MAX_USER_PROPERTIES
        return self.encode(Connack(session_present, ConnackReasonCode.SUCCESS, properties))

    def refuse(
        self, reason_code: ConnackReasonCode, properties: Properties = NO_PROPERTIES
    ) -> bytes:
        """Return the CONNACK that turns the client away, b"" where its version has no word."""
        self.state = ConnectionState.CLOSED
        if self.protocol_level < MQTT_5_0 and RETURN_CODE_OF_REASON[reason_code] is None:
            return b""
        return self.encode(Connack(reason_code=reason_code, properties=properties))

    def close(
        self, reason_code: DisconnectReasonCode, properties: Properties = NO_PROPERTIES
    ) -> bytes:
        """Return the bytes to send before the server closes: DISCONNECT in 5.0, none in 3.x.

        Nor is there a DISCONNECT before the client was let in. [MQTT5-3.14.0-1]
        """
        was_connected = self.is_connected
        self.state = ConnectionState.CLOSED
        if self.protocol_level < MQTT_5_0 or not was_connected:
            return b""
        return self.encode(Disconnect(reason_code, properties))

    def encode(self, packet: Packet) -> bytes:
        """Encode a packet in the version of this connection.

        A packet larger than the client's Maximum Packet Size goes without its reason string and
        user properties; b"" when it is too large all the same: it must not be sent.
        [MQTT5-3.1.2-24] [MQTT5-3.2.2-19] [MQTT5-3.2.2-20] [MQTT5-3.4.2-2] [MQTT5-3.4.2-3]
        [MQTT5-3.5.2-2] [MQTT5-3.5.2-3] [MQTT5-3.6.2-2] [MQTT5-3.6.2-3] [MQTT5-3.7.2-2]
        [MQTT5-3.7.2-3] [MQTT5-3.9.2-1] [MQTT5-3.9.2-2] [MQTT5-3.11.2-1] [MQTT5-3.11.2-2]
        [MQTT5-3.14.2-3] [MQTT5-3.14.2-4] [MQTT5-3.15.2-2] [MQTT5-3.15.2-3]
        """
        data = encode(packet, self.protocol_level)
        most = self.client_maximum_packet_size
        if most is None or len(data) <= most:
            return data
        properties = getattr(packet, "properties", None)
        if properties:
            kept: Any = {name: properties[name] for name in properties if name not in _FOR_PEOPLE}
            if len(kept) < len(properties):
                data = encode(replace(packet, properties=kept), self.protocol_level)
        return data if len(data) <= most else b""

    def _process_connect(self, connect: Connect) -> None:
        level = connect.protocol_level
        if level not in self.allowed_levels:
            raise UnsupportedProtocol(
                ConnackReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
                f"protocol level is {level}, expected one of {sorted(self.allowed_levels)}",
                "MQTT5-3.1.2-2" if level == MQTT_5_0 else "MQTT311-3.1.2-2",
                protocol_level=level,
            )
        self.state = ConnectionState.CONNECTING
        self.protocol_level = level
        properties = connect.properties
        self.client_receive_maximum = properties.get("receive_maximum", MAX_RECEIVE_MAXIMUM)
        self.client_maximum_packet_size = properties.get("maximum_packet_size")
        self.client_topic_alias_maximum = properties.get("topic_alias_maximum", 0)

    def _process_publish(self, publish: Publish) -> None:
        if self.unacknowledged > self._receive_maximum:
            raise ProtocolViolation(
                DisconnectReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
                f"{self.unacknowledged} messages unacknowledged, expected {self._receive_maximum}"
                " at most",
                "MQTT5-3.3.4-7",
            )
        properties = publish.properties
        if not properties:
            return
        alias = properties.get("topic_alias")
        if alias is not None:
            if alias > self._topic_alias_maximum:
                raise ProtocolViolation(
                    DisconnectReasonCode.TOPIC_ALIAS_INVALID,
                    f"topic alias is {alias}, expected {self._topic_alias_maximum} at most",
                    "MQTT5-3.3.2-9",
                )
            if publish.topic_name:
                self._aliases[alias] = publish.topic_name
            else:
                topic_name = self._aliases.get(alias)
                if topic_name is None:
                    raise ProtocolViolation(
                        DisconnectReasonCode.PROTOCOL_ERROR,
                        f"topic alias {alias} stands for no topic name yet",
                        "MQTT5-3.3.2.3.4",
                    )
                publish.topic_name = topic_name
            del properties["topic_alias"]
