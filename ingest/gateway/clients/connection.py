"""One MQTT client on a socket: packets in, keep alive, rates and credits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.base.drops import DropReason
from ingest.gateway.clients.admission import Admission
from ingest.gateway.clients.client_socket import PAUSED_BY_SOCKET
from ingest.gateway.clients.closing import ClosableConnection
from ingest.gateway.clients.connecting import connack_properties, keep_alive_of
from ingest.gateway.clients.receiving import Receiver
from ingest.gateway.clients.subscribing import SubscribeHandler
from ingest.gateway.limits.client_limits import ClientLimits
from ingest.protocol.decoder import NEED_DATA
from ingest.protocol.encoder import PINGRESP
from ingest.protocol.errors import ProtocolViolation, RemoteProtocolError
from ingest.protocol.packets import (
    MQTT_5_0,
    Auth,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from ingest.protocol.reason_codes import DisconnectReasonCode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ingest.gateway.clients.connection_context import ConnectionContext
    from ingest.gateway.listeners.info import ListenerInfo
    from ingest.gateway.sending.sending import Sender
    from ingest.gateway.sessions.client_session import ClientSession
    from ingest.protocol.properties import Properties

PAUSED_BY_OVERLOAD: Final = "overload"
QUEUED_BYTES: Final = 1024
"""Memory of a message that waits for a client, about; payloads are shared with other clients."""

KEEP_ALIVE_FACTOR: Final = 1.5
"""A client may be silent for so many keep alive intervals. [MQTT5-3.1.2-22] [MQTT311-3.1.2-24]"""

_BEFORE_CONNACK: Final = frozenset({Connect, Auth, Disconnect})
"""Packets of a client that has not been let in. [MQTT5-3.1.2-30]"""


class ClientConnection(ClosableConnection):
    """The protocol object of one TCP connection.

    Reading is paused while a SUBSCRIBE waits for the log, while the log is full, while a 3.x
    client has as many unacknowledged messages as it may and while a client leaves its answers
    unread; bytes that were read already wait in the decoder.

    Attributes:
        admission: Says whether the client comes in, and whether it may stay; until it has gone.
        session: From CONNECT to the end of the connection.

    Args:
        context: Of all connections.
        listener: Took the socket.
    """

    __slots__ = (
        "_asked_for_expiry",
        "_credited_at",
        "_credits",
        "_last_received",
        "_limits",
        "_receiver",
        "_sender",
        "_silence_limit",
        "_subscriber",
        "admission",
        "session",
    )

    def __init__(self, context: ConnectionContext, listener: ListenerInfo) -> None:
        super().__init__(context, listener)
        settings = context.settings
        self.admission = Admission(context, self)
        self.session: ClientSession | None = None
        self._sender: Sender  # these three from CONNECT on
        self._receiver: Receiver
        self._subscriber: SubscribeHandler
        self._asked_for_expiry = False
        self._last_received = 0.0
        self._credits = 0
        self._credited_at = 0.0
        self._limits = self._make_limits() if settings.limits.has_rates else None
        self._silence_limit = settings.connect_timeout_seconds

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._last_received = self._context.loop.time()
        self._context.deadlines.set(self, self._silence_limit)
        connections, arrivals = self._context.connections, self._context.arrivals
        self._number = connections.opened(self)
        arrivals.enter(self, self.address, self.listener.name)
        if connections.is_full:  # this one too many is told, unless a silent one makes room
            arrivals.end_one(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closing = True
        self._context.deadlines.forget(self)
        self._context.arrivals.leave(self)
        self._buffer.clear()
        if self._credits < 0:
            self._context.overload.leave(self)
        self.admission.leave()
        del self.admission  # it knows this connection
        if self._limits is not None:
            self._limits.close()
            self._limits = None  # it knows this connection
        if self.session is not None:
            reason = "the client closed it" if exc is None else str(exc)
            self._log("connection lost", reason=reason)
            self._detach(reason)
        else:
            self._detach("")
        self._context.connections.closed(self)

    def data_received(self, data: bytes) -> None:
        if self.is_closing:
            return
        if self.session is not None:  # until then bytes do not extend the time for CONNECT
            self._last_received = self._context.loop.time()
        self._context.counters.bytes_received += len(data)
        if self._limits is not None:
            self._limits.received(len(data))
            if self.is_closing:
                return
        if not self.is_writable:
            self._pause_if_overfull()
        self.protocol.receive_data(data)
        if self.session is None:
            self._context.arrivals.hold(self, self.protocol.buffered_bytes)
        if not self._pauses:
            self._process_packets()
        elif self._pauses == self._hears_in:
            self._hear()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.session is not None:
            self._sender.send_waiting()

    @property
    def is_answered(self) -> bool:
        """Whether the log has reported on all that a client that was let in has sent."""
        return self._receiver.is_answered

    def _heard(self) -> None:
        """Take it that the client was not silent while it was not read."""
        self._last_received = self._context.loop.time()

    def deadline_passed(self) -> None:
        """Look whether the client was silent too long, or took too long to close."""
        if self.is_closing:
            self._abort()
            return
        deadlines, limit = self._context.deadlines, self._silence_limit
        silent = self._context.loop.time() - self._last_received
        if self._pauses and PAUSED_BY_SOCKET not in self._pauses:
            deadlines.set(self, limit)  # while we do not read, the client's silence is ours
        elif silent < limit:
            deadlines.set(self, limit - silent)
        elif self.protocol.is_connected:
            reason = f"silent for {silent:.1f} s"
            self.close(DisconnectReasonCode.KEEP_ALIVE_TIMEOUT, log_reason=reason)
        else:
            self._turn_away(b"", f"no {self.admission.awaited} in time")

    # Packets in

    def _process_packets(self) -> None:
        try:
            while not self._pauses and not self.is_closing:
                packet = self.protocol.next_packet()
                if packet is NEED_DATA:
                    return
                self._context.counters.packets_received += 1
                if self.session is None and type(packet) not in _BEFORE_CONNACK:
                    raise ProtocolViolation(
                        DisconnectReasonCode.PROTOCOL_ERROR,
                        f"{type(packet).__name__.upper()} before CONNACK",
                        "MQTT5-3.1.2-30",
                    )
                _HANDLERS[type(packet)](self, packet)
        except RemoteProtocolError as error:
            self._process_violation(error)

    def _hear(self) -> None:
        """Answer pings of a client whose session is on its way back.

        Anything else waits for the session, and what comes behind it stays in the socket, the
        client's end above all: it means something else after DISCONNECT.
        """
        while self.protocol.has_pingreq:
            self.protocol.next_packet()
            self._context.counters.packets_received += 1
            self.write(PINGRESP)
        if self.protocol.buffered_bytes:
            self.hear_in()

    def adopt(self, session: ClientSession, connect: Connect) -> None:
        """Take the session: from now on its end is to be told when the connection ends."""
        # [MQTT5-3.1.2-29]
        wants_reasons = connect.properties.get("request_problem_information", 1) != 0
        self.session = session
        self._sender = session.sender
        self._sender.rights = self.rights  # others may have been applied meanwhile
        self._receiver = Receiver(
            self._context.receivers, self, session, wants_reasons=wants_reasons
        )
        self._subscriber = SubscribeHandler(self._context.subscribers, self, session)

    def welcome(self, connect: Connect, extra: Properties, *, session_present: bool) -> None:
        """Send CONNACK to a client that has its session: the first packet that it gets.

        [MQTT5-3.2.0-1] [MQTT311-3.2.0-1]
        """
        context, protocol, session = self._context, self.protocol, self.session
        assert session is not None
        self._asked_for_expiry = bool(connect.properties.get("session_expiry_interval"))
        keep_alive = keep_alive_of(connect, context.settings)
        self._last_received = context.loop.time()
        self._silence_limit = keep_alive * KEEP_ALIVE_FACTOR
        if self._silence_limit:
            context.deadlines.set(self, self._silence_limit)
        else:
            context.deadlines.forget(self)
        properties: Properties = {}
        if protocol.protocol_level == MQTT_5_0:
            properties = connack_properties(
                connect, self.client_id, session.expiry_interval, keep_alive, context.settings
            )
            properties.update(extra)
        self._log("client connected", protocol_level=connect.protocol_level)
        accepted = protocol.accept(session_present=session_present, properties=properties)
        if not accepted:
            self.close(
                DisconnectReasonCode.PACKET_TOO_LARGE,
                log_reason="CONNACK would be larger than the client's maximum packet size",
            )
            return
        self.write(accepted)

    def _make_limits(self) -> ClientLimits:
        context = self._context
        settings, loop, counters = context.settings.limits, context.loop, context.counters
        return ClientLimits(settings, self, loop, counters, self._heard)

    def share_limits(self) -> None:
        """Take from the limits that it now shares with others."""
        shared = self._context.shared_limits.of(self.tenant, self.principal, self.listener)
        if shared and self._limits is None:
            self._limits = self._make_limits()
        if self._limits is not None:
            self._limits.shared = shared
            self._context.shared_limits.clients[self.tenant, self.client_id] = self._limits

    def _process_publish(self, publish: Publish) -> None:
        if self._limits is not None:
            self._limits.published()
            if self._limits.counts_deliveries:
                reach = self._context.shared_limits.reach(self.tenant, publish.topic_name)
                self._limits.delivers(1 + reach)
            if self.is_closing:
                topic_name, qos = publish.topic_name, publish.qos
                drops = self._context.drops
                drops.add(DropReason.TOO_FAST, self.tenant, self.client_id, topic_name, qos)
                return
        self._credits -= 1
        if self._credits < 0:
            self._pay()
        self._receiver.process_publish(publish)

    def _pay(self) -> None:
        """Get credits for the message at hand and further ones, or be read no further after it."""
        credits, self._credited_at = self._context.overload.ask(self, self._credited_at)
        self._credits += credits
        if not credits:
            self.pause_reading(PAUSED_BY_OVERLOAD)

    def regain(self, credits: int, now: float) -> None:
        """Go on: there are credits again."""
        self._credits += credits
        self._credited_at = now
        self._heard()
        self.resume_reading(PAUSED_BY_OVERLOAD)

    @property
    def held_bytes(self) -> int:
        """About how much memory messages to and from the client take."""
        waiting = self.protocol.buffered_bytes + self._buffered_bytes
        if self.transport is not None:
            waiting += self.transport.get_write_buffer_size()
        if self.session is not None:
            waiting += self._sender.outbox.queued_count * QUEUED_BYTES
        return waiting

    def _process_subscribe(self, subscribe: Subscribe) -> None:
        if self._limits is not None:
            self._limits.named(len(subscribe.subscriptions))
            if self.is_closing:
                return
        self._subscriber.process_subscribe(subscribe)

    def _process_unsubscribe(self, unsubscribe: Unsubscribe) -> None:
        if self._limits is not None:
            self._limits.named(len(unsubscribe.topic_filters))
            if self.is_closing:
                return
        self._subscriber.process_unsubscribe(unsubscribe)

    def _process_pingreq(self, _pingreq: Pingreq) -> None:
        self.write(PINGRESP)  # [MQTT5-3.12.4-1] [MQTT311-3.12.4-1]

    def _process_disconnect(self, disconnect: Disconnect) -> None:
        expiry = disconnect.properties.get("session_expiry_interval")
        if expiry and not self._asked_for_expiry:
            raise ProtocolViolation(
                DisconnectReasonCode.PROTOCOL_ERROR,
                "session expiry interval set on DISCONNECT, CONNECT had none",
                "MQTT5-3.14.2.2.2",
            )
        session = self.session
        if session is None:
            self._turn_away(b"", "the client has given its login up")
            return
        if expiry is not None:
            most = self._context.settings.max_session_expiry_interval
            session.expiry_interval = min(expiry, most)
        if disconnect.reason_code is not DisconnectReasonCode.DISCONNECT_WITH_WILL_MESSAGE:
            # [MQTT5-3.1.2-10] [MQTT5-3.14.4-3] [MQTT311-3.1.2-10] [MQTT311-3.14.4-3]
            session.will = None
        self._log("client disconnected", reason_code=int(disconnect.reason_code))
        self._finish(b"", "the client disconnected")

    # The end

    def _detach(self, reason: str) -> None:
        """Let the session go on without this connection."""
        session, self.session = self.session, None
        if session is not None:
            self._receiver.close()
            # They know this object: a circle would wait for the collector of garbage.
            del self._sender, self._receiver, self._subscriber
            self._context.sessions.connection_lost(session, reason)
        elif self.client_id:
            self._context.sessions.connection_gone(self)


_HANDLERS: Final[dict[type, Callable[[ClientConnection, Any], None]]] = {
    Connect: lambda connection, packet: connection.admission.process_connect(packet),
    Publish: ClientConnection._process_publish,
    Puback: lambda connection, packet: connection._sender.process_puback(packet),
    Pubrec: lambda connection, packet: connection._sender.process_pubrec(packet),
    Pubrel: lambda connection, packet: connection._receiver.process_pubrel(packet),
    Pubcomp: lambda connection, packet: connection._sender.process_pubcomp(packet),
    Subscribe: ClientConnection._process_subscribe,
    Unsubscribe: ClientConnection._process_unsubscribe,
    Pingreq: ClientConnection._process_pingreq,
    Disconnect: ClientConnection._process_disconnect,
    Auth: lambda connection, packet: connection.admission.process_auth(packet),
}
