"""A connection to a broker that is made again whenever it ends; packets wait in a bounded queue.

A `Link` is one MQTT client: the federator has one at its own broker, where it reads and delivers,
and one at each neighbour's, where it only publishes. Its will there tells the neighbour at once
when the process has died. Packets to a neighbour end with the connection, as the neighbours tell
each other afterwards of missing messages; deliveries at the own broker stay until they are
acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, cast

from ingest.federation.pauses import Pauses
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
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from ingest.protocol.properties import MAX_USER_PROPERTIES, NO_PROPERTIES, Properties
from ingest.protocol.reason_codes import ConnackReasonCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.federation.settings import BrokerSettings

_logger = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 10.0
SESSION_SECONDS: Final = 3600
"""How long the own broker keeps messages while the federator is away."""


class LinkOwner(Protocol):
    """Owner of links; gets their events."""

    def link_is_up(self, link: Link) -> None:
        """Connected and subscribed."""
        ...

    def link_is_down(self, link: Link) -> None:
        """It was up and is not any more."""
        ...

    def receive(self, link: Link, publish: Publish) -> None:
        """Take a message; one with a packet identifier is acknowledged by `Link.acknowledge`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """Limits of one link.

    Attributes:
        keep_alive_seconds: Keep Alive of the connection; a silent link sends a ping after half.
        max_queued: Packets that may wait; the link drops and counts further ones.
        max_inflight: Packets that may be unacknowledged.
        max_packet_bytes: Size of the largest packet that the link takes.
        max_pause_seconds: Longest pause between two tries to connect.
    """

    keep_alive_seconds: int
    max_queued: int
    max_inflight: int
    max_packet_bytes: int
    max_pause_seconds: float


class Link(asyncio.Protocol):
    """One client at one broker.

    Args:
        broker: Address and credentials of the broker.
        client_id: Client identifier of the connection.
        owner: Gets the events of the link.
        subscriptions: Subscriptions that the link makes at the own broker; none at a neighbour's.
        will: Message that the broker publishes when the connection breaks.
        limits: Limits of the link: its queue, packets, keep-alive and pauses.
    """

    def __init__(
        self,
        broker: BrokerSettings,
        client_id: str,
        owner: LinkOwner,
        *,
        subscriptions: Sequence[Subscription] = (),
        will: Will | None = None,
        limits: LinkLimits,
    ) -> None:
        self.broker = broker
        self.is_up = False
        self.dropped = 0
        """Packets that found the queue full, or had more in them than the broker takes."""
        self.connections = 0
        self.reason = "not connected yet"
        """Why the link is down."""
        self._level = broker.protocol_level
        self._client_id = client_id
        self._owner = owner
        self._subscriptions = list(subscriptions)
        self._will = will
        self._keep_alive = limits.keep_alive_seconds
        self._max_queued = limits.max_queued
        self._max_inflight = limits.max_inflight
        self._max_packet_bytes = limits.max_packet_bytes
        self._max_pause = limits.max_pause_seconds
        self._loop = asyncio.get_running_loop()
        self._keeps = bool(subscriptions)
        self._queue: deque[Publish] = deque()
        self._inflight: dict[int, Publish] = {}
        self._window = limits.max_inflight
        self._largest: int | None = None
        self._packet_id = 0
        self._given = 0
        self._done = 0
        self._settled: list[tuple[int, asyncio.Future[None]]] = []
        self._transport: asyncio.Transport | None = None
        self._decoder = Decoder(self._level, limits.max_packet_bytes, role=Role.CLIENT)
        self._answer: asyncio.Future[Packet] | None = None
        self._lost: asyncio.Future[None] | None = None
        self._heard_at = 0.0
        self._said_at = 0.0
        self._is_paused = False
        self._is_closed = False

    # For the owner.

    @property
    def waiting(self) -> int:
        """Packets that the broker has not acknowledged."""
        return len(self._queue) + len(self._inflight)

    def publish(self, publish: Publish) -> None:
        """Send a message as soon as may be, in order; drop it when too many wait.

        At a neighbour nothing waits for a connection.
        """
        if not self.is_up and not self._keeps:
            return
        if len(self._queue) >= self._max_queued:
            self.dropped += 1
            return
        if publish.qos:
            self._given += 1
        self._queue.append(publish)
        if self.is_up:
            self._send_queue()

    def acknowledge(self, packet_ids: Sequence[int]) -> None:
        """Acknowledge messages of this connection."""
        if self._transport is not None and self.is_up:
            self._write(b"".join(encode_puback(one) for one in packet_ids))

    async def settled(self) -> None:
        """Wait until all that was given so far is acknowledged, even if the link breaks."""
        if self._done < self._given:
            future = self._loop.create_future()
            self._settled.append((self._given, future))
            await future

    async def run(self) -> None:
        """Connect again and again; ends when it is cancelled."""
        pauses = Pauses(self._max_pause)
        while True:
            try:
                await self._connect()
                pauses.reset()
                assert self._lost is not None
                await self._watch(self._lost)
            except (OSError, TimeoutError, RemoteProtocolError, ssl.SSLError) as exc:
                self._note_down(str(exc) or type(exc).__name__)
            finally:
                self._end()
            await pauses.wait()

    def close(self) -> None:
        """Say goodbye, so that no will is published: the neighbours learn of it otherwise."""
        self._is_closed = True
        if self._transport is not None:
            self._write(encode(Disconnect(), self._level))
            self._transport.close()
            self._transport = None

    # One connection.

    async def _connect(self) -> None:
        async with asyncio.timeout(CONNECT_SECONDS):
            self._decoder = Decoder(self._level, self._max_packet_bytes, role=Role.CLIENT)
            self._lost = self._loop.create_future()
            self._is_paused = False
            host, port = self.broker.address
            context = self.broker.tls_context()
            await self._loop.create_connection(lambda: self, host, port, ssl=context)
            connack = await self._ask(self._connect_packet())
            if not isinstance(connack, Connack):
                raise ConnectionError(f"expected CONNACK, got {type(connack).__name__}")
            if connack.reason_code is not ConnackReasonCode.SUCCESS:
                raise ConnectionError(f"broker refuses: {connack.reason_code.name}")
            self._accept(connack)
            if self._subscriptions:
                suback = await self._ask(Subscribe(1, self._subscriptions))
                if not isinstance(suback, Suback) or any(c >= 0x80 for c in suback.reason_codes):
                    raise ConnectionError("broker refuses the subscription")
        self.is_up = True
        self.connections += 1
        self.reason = ""
        fields = {"broker": self.broker.uri, "site": self.broker.id}
        _logger.info("a link is up", extra={"fields": fields})
        self._owner.link_is_up(self)
        self._send_queue()

    def _connect_packet(self) -> Connect:
        properties: Properties = {}
        if self._level == MQTT_5_0:
            properties = {
                "receive_maximum": self._max_inflight,
                "maximum_packet_size": self._max_packet_bytes,
            }
            if self._keeps:
                properties["session_expiry_interval"] = SESSION_SECONDS
        password = self.broker.password.get_secret_value().encode()
        return Connect(
            self._client_id,
            self._level,
            clean_start=not self._keeps,
            keep_alive=self._keep_alive,
            will=self._will,
            username=self.broker.username or None,
            password=password or None,
            properties=properties or NO_PROPERTIES,
        )

    def _accept(self, connack: Connack) -> None:
        """Take the broker's limits, and send again messages that a former connection left."""
        properties = connack.properties
        self._window = min(self._max_inflight, properties.get("receive_maximum", 65_535))
        self._largest = properties.get("maximum_packet_size")
        left, self._inflight = self._inflight, {}
        # With the session the broker knows the identifiers; without, these are new messages.
        if not connack.session_present:
            self._queue.extendleft(reversed([replace(p, packet_id=0) for p in left.values()]))
            return
        for packet_id, publish in left.items():
            self._inflight[packet_id] = replace(publish, dup=True)
            self._write(encode(self._inflight[packet_id], self._level))

    async def _ask(self, packet: Packet) -> Packet:
        self._answer = self._loop.create_future()
        self._write(encode(packet, self._level))
        return await self._answer

    async def _watch(self, lost: asyncio.Future[None]) -> None:
        """Probe a connection that is silent, until it is lost."""
        interval = self._keep_alive / 2
        while True:
            done, _ = await asyncio.wait((lost,), timeout=interval)
            if done:
                await lost
                raise ConnectionError("broker closed the connection")
            now = self._loop.time()
            if now - self._heard_at > 1.5 * self._keep_alive:
                raise ConnectionError(f"broker is silent for {now - self._heard_at:.1f} s")
            if now - self._said_at >= interval or now - self._heard_at >= interval:
                self._write(encode(Pingreq(), self._level))

    def _end(self) -> None:
        was_up, self.is_up = self.is_up, False
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        if not self._keeps:
            self._queue.clear()
            self._inflight.clear()
        if was_up and not self._is_closed:
            fields = {"broker": self.broker.uri, "site": self.broker.id, "reason": self.reason}
            _logger.warning("a link is down", extra={"fields": fields})
            self._owner.link_is_down(self)

    def _note_down(self, reason: str) -> None:
        if not self.is_up and self.reason != reason:
            fields = {"broker": self.broker.uri, "site": self.broker.id, "reason": reason}
            _logger.warning("a broker cannot be reached", extra={"fields": fields})
        self.reason = reason

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not one by class
        self._heard_at = self._said_at = self._loop.time()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._decoder.receive_data(data)
        try:
            while (packet := self._decoder.next_packet()) is not NEED_DATA:
                self._receive(packet)
        except RemoteProtocolError as exc:
            self._lose(exc)
            return
        if self._queue and self.is_up:
            self._send_queue()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(exc if isinstance(exc, OSError) else ConnectionError("connection lost"))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if self.is_up:
            self._send_queue()

    def _lose(self, exc: Exception) -> None:
        for future in (self._answer, self._lost):
            if future is not None and not future.done():
                future.set_exception(exc)
                future.exception()  # a caller that waits gets it; none need

    def _receive(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self._owner.receive(self, packet)
        elif isinstance(packet, Puback):
            if self._inflight.pop(packet.packet_id, None) is not None:
                self._finish(1)
        elif isinstance(packet, Disconnect):
            self._lose(ConnectionError(f"broker disconnects: {packet.reason_code.name}"))
        elif isinstance(packet, Pingresp):
            pass  # that something came is all it says
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(packet)

    def _finish(self, count: int) -> None:
        self._done += count
        while self._settled and self._settled[0][0] <= self._done:
            _, future = self._settled.pop(0)
            if not future.done():
                future.set_result(None)

    def _send_queue(self) -> None:
        parts: list[bytes] = []
        while self._queue and not self._is_paused:
            publish = self._queue[0]
            if publish.qos and len(self._inflight) >= self._window:
                break
            self._queue.popleft()
            data = self._encode(publish)
            if data:
                parts.append(data)
        if parts:
            self._write(b"".join(parts))

    def _encode(self, publish: Publish) -> bytes:
        packet_id = 0
        if publish.qos:
            packet_id = self._next_packet_id()
            publish = replace(publish, packet_id=packet_id)
        try:
            data = encode(publish, self._level)
        except LocalProtocolError:
            data = b""
        # Brokers that are gateways end a link with more user properties, and would again and again.
        pairs = publish.properties.get("user_property", ())
        is_too_large = self._largest is not None and len(data) > self._largest
        if not data or is_too_large or len(pairs) > MAX_USER_PROPERTIES:
            self.dropped += 1
            self._finish(1 if publish.qos else 0)
            return b""
        if publish.qos:
            self._inflight[packet_id] = publish
        return data

    def _next_packet_id(self) -> int:
        while True:
            self._packet_id = self._packet_id % 65_535 + 1
            if self._packet_id not in self._inflight:
                return self._packet_id

    def _write(self, data: bytes) -> None:
        # One that has just broken takes nothing more, and says so only in the loop's next turn.
        if self._transport is not None and data and not self._transport.is_closing():
            self._said_at = self._loop.time()
            self._transport.write(data)
