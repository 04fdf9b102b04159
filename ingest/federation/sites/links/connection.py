"""The wire between two federators: one MQTT 5.0 connection that carries messages both ways.

The side that connects is the client, the other one the server; they differ in nothing else. Each
says its interest at once, in PUBLISHes with QoS 0 to `<prefix>/control/<site>` (`words`); messages
follow with QoS 1.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from ingest.protocol.connection import MAX_PACKET_BYTES_BEFORE_LOGIN
from ingest.protocol.decoder import NEED_DATA, Decoder
from ingest.protocol.encoder import encode, encode_puback
from ingest.protocol.errors import LocalProtocolError, RemoteProtocolError
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import (
    MQTT_5_0,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
)
from ingest.protocol.properties import ANY_NUMBER, MAX_USER_PROPERTIES_BEFORE_LOGIN
from ingest.protocol.reason_codes import ConnackReasonCode, PubackReasonCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ingest.gateway.listeners.arrivals import Arrivals

CONNECT_SECONDS: Final = 10.0
LISTENER: Final = "neighbours"


class ConnectionOwner(Protocol):
    """Owner of connections; gets their events."""

    def authenticate(self, connect: Connect) -> int | None:
        """Return which site a client is; None: none that may connect."""
        ...

    def is_made(self, connection: SiteConnection) -> None:
        """The other side is reached; from here on `is_closed` follows."""
        ...

    def is_open(self, connection: SiteConnection) -> None:
        """Both sides have agreed: say hello."""
        ...

    def receive(self, connection: SiteConnection, publish: Publish) -> None:
        """Take a PUBLISH of the other side."""
        ...

    def acknowledged(self, connection: SiteConnection, packet_id: int) -> None:
        """Hear that the other side has a message."""
        ...

    def returned(self, connection: SiteConnection, packet_id: int) -> None:
        """Hear that the other side has no member for a message of a share group."""
        ...

    def is_closed(self, connection: SiteConnection) -> None:
        """It has ended, whether it was open or not."""
        ...


class SiteConnection(asyncio.Protocol):
    """One connection between two sites.

    Args:
        owner: Gets its events.
        connect: The packet of a client; None for a server.
        site: To which a client connects; a server learns the other side's.
        window: Messages that the other side may have unacknowledged.
        max_packet_bytes: Largest packet taken; until both sides have agreed no more than
            `MAX_PACKET_BYTES_BEFORE_LOGIN`.
        keep_alive_seconds: Between signs of life.
        arrivals: Has the connections of others until they have logged in.

    Attributes:
        was_open: Both sides had agreed.
        reason: Why it ended.
        is_paused: The socket takes no more for now.
        on_writable: Called when it does again.
        ended: Set when it has.
        sent_bytes: To the other side, of all packets.
    """

    def __init__(
        self,
        owner: ConnectionOwner,
        connect: Connect | None,
        site: int | None,
        *,
        window: int,
        max_packet_bytes: int,
        keep_alive_seconds: int,
        arrivals: Arrivals,
    ) -> None:
        self.site = site
        self.was_open = False
        self._connect = connect
        self.is_client = connect is not None
        self.is_open = False
        self.is_paused = False
        self.reason = ""
        self.window = window
        """Messages that may be sent unacknowledged."""
        self.on_writable: Callable[[], None] | None = None
        self.ended = asyncio.Event()
        self.sent_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._own_window = window
        self._max_packet_bytes = max_packet_bytes
        self._largest: int | None = None
        self._keep_alive = keep_alive_seconds
        role = Role.CLIENT if self.is_client else Role.SERVER
        self._arrivals = arrivals
        self._decoder = Decoder(
            MQTT_5_0 if self.is_client else None,
            min(max_packet_bytes, MAX_PACKET_BYTES_BEFORE_LOGIN),
            max_user_properties=MAX_USER_PROPERTIES_BEFORE_LOGIN,
            role=role,
        )
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = self._loop.time()

    # For the owner.

    def publish(self, publishes: Iterable[Publish]) -> list[int]:
        """Send messages; return the identifiers of those that the other side never takes."""
        parts: list[bytes] = []
        too_large: list[int] = []
        for publish in publishes:
            try:
                data = encode(publish, MQTT_5_0)
            except LocalProtocolError:
                data = b""
            if not data or (self._largest is not None and len(data) > self._largest):
                too_large.append(publish.packet_id)
            else:
                parts.append(data)
        self._write(b"".join(parts))
        return too_large

    def acknowledge(self, packet_id: int) -> None:
        """Tell the other side that a message is durable here."""
        if self.is_open:
            self._write(encode_puback(packet_id))

    def give_back(self, packet_id: int) -> None:
        """Tell the other side that there is no member here for a message of a share group."""
        if self.is_open:
            puback = Puback(packet_id, PubackReasonCode.NO_MATCHING_SUBSCRIBERS)
            self._write(encode(puback, MQTT_5_0))

    def close(self, reason: str) -> None:
        """End it."""
        if not self.reason:
            self.reason = reason
        if self._transport is not None:
            if self.is_open:
                self._write(encode(Disconnect(), MQTT_5_0))
            self._transport.close()

    def give_way(self, reason: str) -> None:
        """End it at once, as strangers take too much."""
        self.reason = self.reason or reason
        self.abort()

    def abort(self) -> None:
        """End it at once, if it has not ended."""
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not one by class
        self._owner.is_made(self)
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(CONNECT_SECONDS, self._give_up)
        if self._connect is None:
            peer = transport.get_extra_info("peername")
            address = str(peer[0]) if isinstance(peer, tuple) else ""
            self._arrivals.enter(self, address, LISTENER)
        else:
            self._write(encode(self._connect, MQTT_5_0))

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._decoder.receive_data(data)
        try:
            while (packet := self._decoder.next_packet()) is not NEED_DATA:
                self._process(packet)
                if self.reason:
                    return
        except RemoteProtocolError as exc:
            self.close(str(exc))
        if not self.is_open:
            self._arrivals.hold(self, self._decoder.buffered_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrivals.leave(self)
        if not self.reason:
            self.reason = str(exc) if exc is not None else "the neighbour closed the connection"
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self.is_open = False
        self.ended.set()
        self._owner.is_closed(self)

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        if self.on_writable is not None:
            self.on_writable()

    # Packets.

    def _process(self, packet: Packet) -> None:
        if not self.is_open:
            self._open(packet)
        elif isinstance(packet, Publish):
            self._owner.receive(self, packet)
        elif isinstance(packet, Puback):
            if packet.reason_code is PubackReasonCode.NO_MATCHING_SUBSCRIBERS:
                self._owner.returned(self, packet.packet_id)
            else:
                self._owner.acknowledged(self, packet.packet_id)
        elif isinstance(packet, Pingreq):
            self._write(encode(Pingresp(), MQTT_5_0))
        elif isinstance(packet, Disconnect):
            self.close(f"the neighbour disconnects: {packet.reason_code.name}")
        elif not isinstance(packet, Pingresp):
            self.close(f"unexpected {type(packet).__name__}")

    def _open(self, packet: Packet) -> None:
        if isinstance(packet, Connack) and self.is_client:
            if packet.reason_code is not ConnackReasonCode.SUCCESS:
                self.close(f"the neighbour refuses: {packet.reason_code.name}")
                return
            self._agree(packet.properties)
        elif isinstance(packet, Connect) and not self.is_client:
            self.site = self._owner.authenticate(packet)
            code = ConnackReasonCode.SUCCESS
            if self.site is None:
                code = ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD
            if packet.protocol_level != MQTT_5_0:
                code = ConnackReasonCode.UNSUPPORTED_PROTOCOL_VERSION
            properties: dict[str, Any] = {}
            if code is ConnackReasonCode.SUCCESS:
                properties = {
                    "receive_maximum": self._own_window,
                    "maximum_packet_size": self._max_packet_bytes,
                }
            connack = Connack(reason_code=code, properties=cast("Any", properties))
            self._write(encode(connack, packet.protocol_level))
            if code is not ConnackReasonCode.SUCCESS:
                self.close(f"refused: {code.name}")
                return
            self._agree(packet.properties)
        else:
            self.close(f"unexpected {type(packet).__name__}")
            return
        self._arrivals.leave(self)
        self._decoder.max_packet_bytes = self._max_packet_bytes
        self._decoder.max_user_properties = ANY_NUMBER
        self.is_open = self.was_open = True
        self._owner.is_open(self)
        self._watch()

    def _agree(self, properties: Any) -> None:
        self.window = min(self._own_window, properties.get("receive_maximum", 65_535))
        self._largest = properties.get("maximum_packet_size")

    def _watch(self) -> None:
        """Ping, and end a connection that is silent; both sides do."""
        if self._timer is not None:
            self._timer.cancel()
        silent = self._loop.time() - self._heard_at
        if silent > 1.5 * self._keep_alive:
            self.close(f"the neighbour is silent for {silent:.1f} s")
            return
        if self.is_client:
            self._write(encode(Pingreq(), MQTT_5_0))
        self._timer = self._loop.call_later(self._keep_alive / 2, self._watch)

    def _give_up(self) -> None:
        if not self.is_open:
            self.close(f"no answer for {CONNECT_SECONDS:g} s")

    def _write(self, data: bytes) -> None:
        if self._transport is not None and data and not self._transport.is_closing():
            self.sent_bytes += len(data)
            self._transport.write(data)
