"""Bytes of one network connection in, control packets out.

`Decoder.receive_data` takes bytes as they arrive, `Decoder.next_packet` gives one packet or
`NEED_DATA`, in the manner of h11. Nothing here knows a socket or the time.

How the bytes are held. `_buffer` is the chunk being read, `_offset` the position in it. Bytes that
arrive while a packet is incomplete wait in `_waiting`, and are joined once, when the packet is
whole: a large packet in small chunks costs linear time, and a chunk of whole packets is not copied
at all.
"""

from enum import Enum
from typing import Final

from ingest.protocol.bodies import connect_level, decode_body, packet_id_zero
from ingest.protocol.errors import RemoteProtocolError
from ingest.protocol.fixed_header import FIRST_BYTES, LEVEL_UNKNOWN, Role
from ingest.protocol.packets import Connect, Packet, Puback, Publish
from ingest.protocol.primitives import to_string
from ingest.protocol.properties import (
    ANY_NUMBER,
    NO_PROPERTIES,
    PropertyContext,
    decode_properties,
)
from ingest.protocol.violations import (
    PACKET_TOO_LARGE_FOR_CLIENT,
    PACKET_TOO_LARGE_FOR_SERVER,
    PUBLISH_TOPIC_WILDCARD,
    PUBLISH_WITHOUT_TOPIC,
    REMAINING_LENGTH_NOT_MINIMAL,
    REMAINING_LENGTH_TOO_LONG,
    RESERVED_FLAGS,
    SUBSCRIPTION_IDENTIFIER_FROM_CLIENT,
    TRUNCATED,
)


class NeedData(Enum):
    """The type of `NEED_DATA`."""

    NEED_DATA = "NEED_DATA"


NEED_DATA: Final = NeedData.NEED_DATA

# Of a CONNECT of 3.1.1 or 5.0, up to its protocol level.
LEVEL_BYTES: Final = 7

# The largest packet that MQTT can express: first byte, four bytes of length, 268,435,455 bytes.
MAX_PACKET_BYTES: Final = 268_435_460

_PINGREQ: Final = b"\xc0\x00"

# Looking a member of an enumeration up costs as much as reading a byte; here it is done once.
_IN_PUBLISH: Final = PropertyContext.PUBLISH

# Topic names already checked and decoded, shared by all decoders of the process: publishers repeat
# their topics, and one str per topic with its hash computed once serves the matching as well.
# Cleared when full; long names stay out, so it cannot hold more than about 10 MB.
_TOPIC_NAMES: Final[dict[bytes, str]] = {}
_TOPIC_NAMES_LIMIT: Final = 16_384
_TOPIC_NAME_BYTES_LIMIT: Final = 128


class Decoder:
    """Split a stream of bytes into packets.

    Args:
        protocol_level: 3, 4 or 5, or None for a server that waits for the CONNECT, from which the
            decoder learns the level by itself.
        max_packet_bytes: Largest packet accepted, fixed header included, as 5.0 counts Maximum
            Packet Size. [MQTT5-3.1.2-24] [MQTT5-3.2.2-15]
        max_user_properties: Bound for one packet, and the same for its will.
        role: Which side we are; it decides which packets may come.
    """

    __slots__ = (
        "_buffer",
        "_error",
        "_first_bytes",
        "_offset",
        "_protocol_level",
        "_role",
        "_waiting",
        "max_packet_bytes",
        "max_user_properties",
    )

    def __init__(
        self,
        protocol_level: int | None = None,
        max_packet_bytes: int = MAX_PACKET_BYTES,
        *,
        max_user_properties: int = ANY_NUMBER,
        role: Role = Role.SERVER,
    ) -> None:
        if protocol_level is None and role is Role.CLIENT:
            raise ValueError("a client knows the protocol level that it asked for")
        self.max_packet_bytes = max_packet_bytes
        self.max_user_properties = max_user_properties
        self._role = role
        self._protocol_level: int = protocol_level or LEVEL_UNKNOWN
        self._first_bytes = FIRST_BYTES[role, self._protocol_level]
        self._buffer: bytes = b""
        self._offset: int = 0
        self._waiting = bytearray()
        self._error: RemoteProtocolError | None = None

    @property
    def protocol_level(self) -> int | None:
        """3, 4 or 5; None before the CONNECT. A malformed one tells it if that much can be read."""
        return self._protocol_level or None

    @property
    def buffered_bytes(self) -> int:
        """How many bytes were received and not yet decoded."""
        return len(self._buffer) - self._offset + len(self._waiting)

    @property
    def has_pingreq(self) -> bool:
        """Tell whether the next packet is PINGREQ, and whole."""
        ahead = self._buffer[self._offset : self._offset + len(_PINGREQ)]
        return ahead + self._waiting[: len(_PINGREQ) - len(ahead)] == _PINGREQ

    def receive_data(self, data: bytes) -> None:
        """Take bytes as they came; after an error they are thrown away."""
        if self._offset == len(self._buffer) and not self._waiting and self._error is None:
            self._buffer = data
            self._offset = 0
        elif self._error is None:
            self._waiting += data

    def next_packet(self) -> Packet | NeedData:
        """Give the next packet, or `NEED_DATA`.

        Raises:
            RemoteProtocolError: The peer broke the protocol. The decoder is finished then, and
                raises the same error again when asked again.

        Cost: PUBLISH of 64 bytes about 1 µs, acknowledgements about 0.5 µs.
        """
        buffer = self._buffer
        offset = self._offset
        size = len(buffer)
        if offset + 2 > size:
            return self._join_and_retry(2)
        first = buffer[offset]
        start = offset + 2
        remaining = buffer[offset + 1]
        if remaining > 0x7F:
            remaining, start = self._read_remaining_length(buffer, offset)
            if not start:
                return self._join_and_retry(size - offset + 1)
        end = start + remaining
        violation = self._first_bytes[first]
        if violation is not None or end - offset > self.max_packet_bytes:
            if violation is None and self._protocol_level == LEVEL_UNKNOWN:
                if start + LEVEL_BYTES > size:
                    return self._join_and_retry(start - offset + LEVEL_BYTES)
                self._protocol_level = connect_level(buffer[start : start + LEVEL_BYTES])
            raise self._fail(self._header_error(first, end - offset))
        if end > size:
            return self._join_and_retry(end - offset)
        self._offset = end
        try:
            if first >> 4 == 3:
                most = self.max_user_properties
                level = self._protocol_level
                return decode_publish(buffer, first, start, end, level, self._role, most)
            if first == 0x40 and remaining == 2:
                packet_id = buffer[start] << 8 | buffer[start + 1]
                if packet_id:
                    return Puback(packet_id)
            body = buffer[start:end]
            level, most = self._protocol_level, self.max_user_properties
            packet = decode_body(first >> 4, body, level, self._role, most)
        except RemoteProtocolError as error:
            if self._protocol_level == LEVEL_UNKNOWN:
                self._protocol_level = connect_level(body)
            self._fail(error)
            raise
        if type(packet) is Connect:
            self._learn_level(packet, buffer, offset, start)
        return packet

    def _join_and_retry(self, needed: int) -> Packet | NeedData:
        """Join waiting bytes once there are `needed` from the offset on, else ask for data."""
        if self._error is not None:
            raise self._error
        if not self._waiting or self.buffered_bytes < needed:
            return NEED_DATA
        self._buffer = b"".join((self._buffer[self._offset :], self._waiting))
        self._offset = 0
        self._waiting = bytearray()
        return self.next_packet()

    def _read_remaining_length(self, buffer: bytes, offset: int) -> tuple[int, int]:
        """Read a Remaining Length of more than one byte; (0, 0) when it is not complete yet."""
        value = 0
        shift = 0
        position = offset + 1
        size = len(buffer)
        while position < size:
            byte = buffer[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and self._protocol_level == 5:
                    message = f"remaining length {value} is not in its shortest form"
                    raise self._fail(REMAINING_LENGTH_NOT_MINIMAL.error(5, message))
                return value, position
            shift += 7
            if shift == 28:
                message = "remaining length has more than 4 bytes"
                error = REMAINING_LENGTH_TOO_LONG.error(self._protocol_level, message)
                raise self._fail(error)
        return 0, 0

    def _header_error(self, first: int, packet_bytes: int) -> RemoteProtocolError:
        violation = self._first_bytes[first]
        if violation is not None:
            message = f"first byte is 0x{first:02x}, not allowed here"
            return violation.error(self._protocol_level, message)
        message = f"packet has {packet_bytes} bytes, expected at most {self.max_packet_bytes}"
        if self._role is Role.SERVER:
            return PACKET_TOO_LARGE_FOR_SERVER.error(self._protocol_level, message)
        return PACKET_TOO_LARGE_FOR_CLIENT.error(self._protocol_level, message)

    def _learn_level(self, connect: Connect, buffer: bytes, offset: int, start: int) -> None:
        self._protocol_level = connect.protocol_level
        if connect.protocol_level > 3 and buffer[offset] & 0x0F:
            message = f"first byte is 0x{buffer[offset]:02x}, not allowed here"
            raise self._fail(RESERVED_FLAGS.error(connect.protocol_level, message))
        if connect.protocol_level == 5 and start > offset + 2 and buffer[start - 1] == 0:
            message = "remaining length is not in its shortest form"
            raise self._fail(REMAINING_LENGTH_NOT_MINIMAL.error(5, message))
        self._first_bytes = FIRST_BYTES[self._role, connect.protocol_level]

    def _fail(self, error: RemoteProtocolError) -> RemoteProtocolError:
        """Finish the decoder: bytes after a broken packet have no meaning."""
        self._error = error
        self._buffer = b""
        self._offset = 0
        self._waiting = bytearray()
        return error


def decode_publish(
    buffer: bytes,
    first: int,
    start: int,
    end: int,
    protocol_level: int,
    role: Role,
    max_user_properties: int,
) -> Publish:
    """Decode the PUBLISH whose first byte is `first` and whose body is `buffer[start:end]`.

    The first byte is checked already. Reads from the buffer directly: the payload is the only copy.
    The topic name comes first. [MQTT5-3.3.2-1] [MQTT311-3.3.2-1]
    """
    offset = start + 2
    if offset > end:
        raise TRUNCATED.error(protocol_level, f"read {end - start} bytes, expected 2")
    topic_start = offset
    offset += buffer[start] << 8 | buffer[start + 1]
    if offset > end:
        message = f"read {end - topic_start} bytes of topic name, expected {offset - topic_start}"
        raise TRUNCATED.error(protocol_level, message)
    topic_bytes = buffer[topic_start:offset]
    topic_name = _TOPIC_NAMES.get(topic_bytes)
    if topic_name is None:
        topic_name = _check_topic_name(topic_bytes, protocol_level)
    qos = first >> 1 & 3
    packet_id = 0
    if qos:
        if offset + 2 > end:
            raise TRUNCATED.error(protocol_level, f"read {end - offset} bytes, expected 2")
        packet_id = buffer[offset] << 8 | buffer[offset + 1]
        if not packet_id:
            raise packet_id_zero(protocol_level, role)
        offset += 2
    properties = NO_PROPERTIES
    if protocol_level == 5:
        if offset < end and not buffer[offset]:
            offset += 1
        else:
            # Cut the body out, so that the properties cannot read into the next packet.
            body = buffer[start:end]
            properties, offset = decode_properties(
                body, offset - start, _IN_PUBLISH, max_user_properties
            )
            offset += start
            if role is Role.SERVER and "subscription_identifier" in properties:
                message = "PUBLISH of a client holds a subscription identifier"
                raise SUBSCRIPTION_IDENTIFIER_FROM_CLIENT.error(5, message)
    if not topic_name and "topic_alias" not in properties:
        message = "topic name is empty, expected a character"
        raise PUBLISH_WITHOUT_TOPIC.error(protocol_level, message)
    return Publish(
        topic_name,
        buffer[offset:end],
        qos,
        first & 0x01 != 0,
        first & 0x08 != 0 and qos != 0,
        packet_id,
        properties,
    )


def _check_topic_name(topic_bytes: bytes, protocol_level: int) -> str:
    topic_name = to_string(topic_bytes, protocol_level)
    if "+" in topic_name or "#" in topic_name:
        message = "topic name of a PUBLISH holds a wildcard"
        raise PUBLISH_TOPIC_WILDCARD.error(protocol_level, message)
    if len(topic_bytes) <= _TOPIC_NAME_BYTES_LIMIT:
        if len(_TOPIC_NAMES) >= _TOPIC_NAMES_LIMIT:
            _TOPIC_NAMES.clear()
        _TOPIC_NAMES[topic_bytes] = topic_name
    return topic_name
