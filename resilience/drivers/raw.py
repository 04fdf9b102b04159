"""The raw driver: frames over a TCP socket, through mqlake's sans-IO codec.

The only module that needs `ingest.protocol`, which is standard library alone.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

from ingest.protocol.decoder import NEED_DATA, Decoder
from ingest.protocol.encoder import encode
from ingest.protocol.errors import ProtocolViolation
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
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
from ingest.protocol.properties import NO_PROPERTIES, Properties
from ingest.protocol.reason_codes import PubrelReasonCode
from resilience.drivers.frames import Addresses, ConnectOptions, Frame

_RESET: Final = struct.pack("ii", 1, 0)


def open_tcp(addresses: Addresses) -> Callable[..., Any]:
    """Return an opener for these nodes."""

    async def opener(
        options: ConnectOptions,
        on_frame: Callable[[Frame], None],
        on_end: Callable[[str], None],
    ) -> "TcpTransport":
        host, port = addresses[options.node]
        loop = asyncio.get_running_loop()
        _, transport = await loop.create_connection(
            lambda: TcpTransport(options.version, on_frame, on_end), host, port
        )
        return transport

    return opener


class TcpTransport(asyncio.Protocol):
    """One connection; also its own asyncio protocol."""

    def __init__(
        self, version: int, on_frame: Callable[[Frame], None], on_end: Callable[[str], None]
    ) -> None:
        self._version = version
        self._on_frame = on_frame
        self._on_end = on_end
        self._decoder = Decoder(version, role=Role.CLIENT)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._decoder.receive_data(data)
        try:
            while (packet := self._decoder.next_packet()) is not NEED_DATA:
                assert not isinstance(packet, type(NEED_DATA))
                self._on_frame(to_frame(packet))
        except ProtocolViolation as exc:
            self.abort()
            self._on_end(f"the broker broke the protocol: {exc}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_end(str(exc) if exc else "closed by the broker")

    def send(self, frame: Frame) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(to_packet(frame, self._version), self._version))

    def end(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            raw = self._transport.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._transport.abort()


def to_packet(frame: Frame, version: int) -> Packet:
    """Return the packet of a frame that a client sends."""
    kind = frame.kind
    if kind == "publish":
        return Publish(
            frame.topic,
            frame.payload,
            frame.qos,
            frame.retain,
            frame.dup,
            frame.packet_id,
            _expiry(frame, version),
        )
    if kind == "puback":
        return Puback(frame.packet_id)
    if kind == "pubrec":
        return Pubrec(frame.packet_id)
    if kind == "pubrel":
        # 3.x has no word for "packet identifier not found".
        code = PubrelReasonCode(frame.code if version == 5 else 0)
        return Pubrel(frame.packet_id, code)
    if kind == "pubcomp":
        return Pubcomp(frame.packet_id)
    if kind == "subscribe":
        subscription = Subscription(
            frame.topic,
            frame.qos,
            no_local=frame.fields.get("no_local", False),
            retain_handling=frame.fields.get("retain_handling", 0),
        )
        return Subscribe(frame.packet_id, [subscription])
    if kind == "unsubscribe":
        return Unsubscribe(frame.packet_id, [frame.topic])
    if kind == "connect":
        return _connect(frame)
    if kind == "pingreq":
        return Pingreq()
    return Disconnect()


def _expiry(frame: Frame, version: int) -> Properties:
    if version != 5 or "expiry" not in frame.fields:
        return NO_PROPERTIES
    return {"message_expiry_interval": frame.fields["expiry"]}


def _connect(frame: Frame) -> Connect:
    options: ConnectOptions = frame.fields["options"]
    is_5 = options.version == 5
    will = None
    if options.will is not None:
        delays = is_5 and options.will.delay
        will = Will(
            options.will.topic,
            frame.fields["will_payload"],
            options.will.qos,
            options.will.retain,
            {"will_delay_interval": options.will.delay} if delays else NO_PROPERTIES,
        )
    properties: Properties = {}
    if is_5:
        properties["session_expiry_interval"] = options.expiry
        if options.receive_maximum < 65_535:
            properties["receive_maximum"] = options.receive_maximum
    return Connect(
        options.client_id,
        options.version,
        options.clean,
        options.keep_alive,
        will,
        options.username,
        None if options.password is None else options.password.encode(),
        properties or NO_PROPERTIES,
    )


def to_frame(packet: Packet) -> Frame:
    """Return the frame of a packet that a broker sent."""
    kind = type(packet).__name__.lower()
    match packet:
        case Publish():
            return Frame(
                kind,
                packet.packet_id,
                packet.topic_name,
                packet.payload,
                packet.qos,
                packet.dup,
                packet.retain,
            )
        case Puback() | Pubrec() | Pubrel() | Pubcomp():
            return Frame(kind, packet.packet_id, code=int(packet.reason_code))
        case Suback():
            return Frame(kind, packet.packet_id, code=int(packet.reason_codes[0]))
        case Unsuback():
            code = int(packet.reason_codes[0]) if packet.reason_codes else 0
            return Frame(kind, packet.packet_id, code=code)
        case Connack():
            maximum = packet.properties.get("receive_maximum", 65_535)
            fields = {"session_present": packet.session_present, "receive_maximum": maximum}
            return Frame(kind, code=int(packet.reason_code), fields=fields)
        case _:
            return Frame(kind)
