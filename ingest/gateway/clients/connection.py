"""One MQTT client on a socket: packets, keep alive, rates and credits, its end from our side."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, cast

from ingest.gateway.base.deadlines import UNWATCHED
from ingest.gateway.base.drops import DropReason
from ingest.gateway.clients.admission import Admission
from ingest.gateway.clients.client_socket import PAUSED_BY_SOCKET, ClientSocket
from ingest.gateway.clients.closing import DENIED, reason_properties
from ingest.gateway.clients.connecting import KEEP_ALIVE_FACTOR, connack_properties, keep_alive_of
from ingest.gateway.clients.receiving import Receiver
from ingest.gateway.clients.subscribing import SubscribeHandler
from ingest.gateway.limits.client_limits import ClientLimits
from ingest.protocol.connection import ServerConnection
from ingest.protocol.decoder import NEED_DATA
from ingest.protocol.encoder import PINGRESP
from ingest.protocol.errors import ProtocolViolation, RemoteProtocolError, UnsupportedProtocol
from ingest.protocol.packets import (
    MQTT_3_1_1,
    MQTT_5_0,
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from mqlake.logs import log_often

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.clients.connection_context import ConnectionContext
    from ingest.gateway.listeners.info import ListenerInfo
    from ingest.gateway.sending.sending import Sender
    from ingest.gateway.sessions.client_session import ClientSession
    from ingest.protocol.properties import Properties
    from mqlake.rights.compiled import ClientRights

logger = logging.getLogger(__name__)

PAUSED_BY_OVERLOAD: Final = "overload"
_BEFORE_CONNACK: Final = frozenset({Connect, Auth, Disconnect})
"""Packets of a client that has not been let in. [MQTT5-3.1.2-30]"""


class ClientConnection(asyncio.Protocol):
    """The protocol object of one TCP connection.

    Reading is paused while a SUBSCRIBE waits for the log, while the log is full, while a 3.x
    client has as many unacknowledged messages as it may and while a client leaves its answers
    unread; bytes that were read already wait in the decoder.

    Attributes:
        peer: Address of the client, for people.
        is_writable: False while the socket has enough to send.
        is_closing: True once nothing more is read or sent.
        slot: Slot of this connection in `Deadlines`.
        protocol: The protocol's state of this connection.
        client_id: Client identifier; empty before CONNECT.
        tenant: Tenant whose topics the client sees; final when the client has logged in.
        username: User name with which the client has logged in, or wants to; None: no user name.
            That of a user of another tenant than the gateway's own begins with the tenant.
        principal: User that it has proved to be; None: no login was asked for, or it has no name.
        rights: Rights of the client, once it has logged in; None: it may do everything.
        listener: Listener that took the socket.
        admission: Says whether the client comes in, and whether it may stay; until it has gone.
        session: Session of the client, from CONNECT to the end of the connection.

    Args:
        context: Parts of the gateway that all its connections share.
        listener: Listener that took the socket.
    """

    __slots__ = (
        "_asked_for_expiry",
        "_context",
        "_credited_at",
        "_credits",
        "_last_received",
        "_limits",
        "_number",
        "_receiver",
        "_sender",
        "_silence_limit",
        "_socket",
        "_subscriber",
        "admission",
        "client_id",
        "is_closing",
        "is_writable",
        "listener",
        "peer",
        "principal",
        "protocol",
        "rights",
        "session",
        "slot",
        "tenant",
        "username",
    )

    def __init__(self, context: ConnectionContext, listener: ListenerInfo) -> None:
        settings = context.settings
        self._context = context
        self._socket = ClientSocket(context.loop, context.counters)
        self.peer = ""
        self.is_writable = True
        self.is_closing = False
        self.slot = UNWATCHED
        self.protocol = ServerConnection(
            max_packet_bytes=settings.max_packet_bytes,
            receive_maximum=settings.receive_maximum,
            topic_alias_maximum=settings.topic_alias_maximum,
        )
        self.protocol.allowed_levels = listener.protocol_levels
        self.client_id = ""
        self.tenant = settings.tenant
        self.listener = listener
        self.username: str | None = None
        self.principal: str | None = None
        self.rights: ClientRights | None = None
        self._number = 0
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

    @property
    def transport(self) -> asyncio.Transport | None:
        """None before `connection_made`."""
        return self._socket.transport

    @property
    def address(self) -> str:
        """Return the address of the client, without its port; "" where there is none."""
        return self.peer.rpartition(":")[0]

    @property
    def connection_id(self) -> str:
        """Its name in logs, unlike those of all others, of other gateways and runs too."""
        return f"{self._context.incarnation:.8}-{self._number}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, not the base class.
        opened = self._socket.transport = cast("asyncio.Transport", transport)
        peer = opened.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        opened.set_write_buffer_limits(high=self._context.settings.max_write_buffer_bytes)
        self._last_received = self._context.loop.time()
        self._context.deadlines.set(self, self._silence_limit)
        connections, arrivals = self._context.connections, self._context.arrivals
        self._number = connections.opened(self)
        arrivals.enter(self, self.address, self.listener.name)
        if connections.is_full:  # this one gets an answer, unless a silent one makes room
            arrivals.end_one(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closing = True
        self._context.deadlines.forget(self)
        self._context.arrivals.leave(self)
        self._socket.lost()
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
        if not self._socket.pauses:
            self._process_packets()
        elif self._socket.hears:
            self._hear()

    def _pause_if_overfull(self) -> None:
        """Read no more from a client that sends, but does not read its answers.

        Messages stop at `max_write_buffer_bytes`; answers may take as much again, so that a
        subscriber that is merely slow is still heard.
        """
        assert self.transport is not None
        most = 2 * self._context.settings.max_write_buffer_bytes
        if self.transport.get_write_buffer_size() > most:
            self.pause_reading(PAUSED_BY_SOCKET)

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self.resume_reading(PAUSED_BY_SOCKET)
        if self.session is not None:
            self._sender.send_waiting()

    def pause_reading(self, why: str) -> None:
        """Read no more until `resume_reading` for the same reason.

        One that is closing reads on: nothing else tells that the client has closed it, too.
        """
        if not self.is_closing:
            self._socket.pause(why)

    def resume_reading(self, why: str) -> None:
        """Undo `pause_reading`; nothing happens when this was not a reason for the pause."""
        is_last = self._socket.resume(why)
        if not self.is_closing and self._socket.transport is not None:
            self._socket.read_or_not()
            if is_last:
                self._process_packets()

    def hear_in(self, *pauses: str) -> None:
        """Read while these are the reasons of a pause and no others: see `_hear`."""
        self._socket.hear_in(pauses)
        if self._socket.hears:
            self._hear()

    @property
    def is_answered(self) -> bool:
        """Tell whether the log has reported on all that a client that was let in has sent."""
        return self._receiver.is_answered

    def _heard(self) -> None:
        """Take it that the client was not silent while it was not read."""
        self._last_received = self._context.loop.time()

    def deadline_passed(self) -> None:
        """Look whether the client was silent too long, or took too long to close."""
        if self.is_closing:
            self._socket.abort()
            return
        pauses, deadlines, limit = self._socket.pauses, self._context.deadlines, self._silence_limit
        silent = self._context.loop.time() - self._last_received
        if pauses and PAUSED_BY_SOCKET not in pauses:
            deadlines.set(self, limit)  # while we do not read, the client's silence is ours
        elif silent < limit:
            deadlines.set(self, limit - silent)
        elif self.protocol.is_connected:
            reason = f"silent for {silent:.1f} s"
            self.close(DisconnectReasonCode.KEEP_ALIVE_TIMEOUT, log_reason=reason)
        else:
            self._turn_away(b"", f"no {self.admission.awaited} in time")

    # Packets

    def write(self, data: bytes) -> None:
        """Send bytes at the end of this turn of the loop."""
        self._socket.write(data)

    def send(self, packet: Packet) -> None:
        """Send a packet, unless the connection is closing."""
        if self.is_closing:
            return
        data = self.protocol.encode(packet)
        if data:
            self.write(data)
        else:
            name = type(packet).__name__.upper()
            self.close(
                DisconnectReasonCode.PACKET_TOO_LARGE,
                log_reason=f"{name} would be larger than the client's maximum packet size",
            )

    def _process_packets(self) -> None:
        socket = self._socket
        try:
            while not socket.pauses and not self.is_closing:
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
        """Take the session: from now on it must hear when the connection ends."""
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
        context, settings = self._context, self._context.settings.limits
        return ClientLimits(settings, self, context.loop, context.counters, self._heard)

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
        waiting = self.protocol.buffered_bytes + self._socket.waiting_bytes
        if self.session is not None:
            waiting += self._sender.outbox.queued_bytes
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
            self._turn_away(b"", "the client gave up its login")
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

    def close(
        self, reason_code: DisconnectReasonCode, *, log_reason: str, lingers: bool = False
    ) -> None:
        """End the connection from our side; a 5.0 client gets the reason in a DISCONNECT.

        Nothing is sent after that. [MQTT5-3.14.4-1] [MQTT5-3.14.4-2]

        Args:
            reason_code: Reason code for the client.
            log_reason: Reason for the log, and the client's Reason String.
            lingers: True if the client is probably sending just now.
        """
        if self.is_closing:
            return
        self._log("connection closed", reason=log_reason)
        reference = self._context.draining.server_reference
        properties = reason_properties(reason_code, log_reason, reference)
        last_words = self.protocol.close(reason_code, properties)
        self._finish(last_words, log_reason, lingers=lingers)

    def refuse(
        self, reason_code: ConnackReasonCode, reason: str, server_reference: str = ""
    ) -> None:
        """Answer CONNECT by a failure.

        Args:
            reason_code: Reason code for the client.
            reason: Reason for the log, and the client's Reason String.
            server_reference: Server for it to use instead; "": the one of draining or settings.
        """
        if reason_code in DENIED:
            self._context.denials.add(self, "connect", reason)
            if reason_code is ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD:
                self._context.bans.offences.note_failed_login(self.address)
        reference = server_reference or self._context.draining.server_reference
        properties = reason_properties(reason_code, reason, reference)
        self._turn_away(self.protocol.refuse(reason_code, properties), reason)

    def cut(self, reason: str) -> None:
        """Close without CONNACK: its session, or its will, may be there although it is not let in.

        A client that gets a refusal may take it that its CONNECT had no effect.
        """
        self._turn_away(b"", reason)

    def give_way(self, reason: str) -> None:
        """Cut the connection of a client that has not logged in, to make room for others."""
        self._context.counters.connections_refused += 1
        self._log("connection refused", reason=reason)
        self.is_closing = True
        self._socket.abort()

    def _turn_away(self, last_words: bytes, reason: str) -> None:
        """Close before the client was let in; packets behind its CONNECT are not read.

        [MQTT5-3.1.4-6] [MQTT5-3.2.2-7] [MQTT5-4.13.2-1] [MQTT311-3.1.4-5] [MQTT311-3.2.2-5]
        """
        self._context.counters.connections_refused += 1
        self._log("connection refused", reason=reason)
        self._finish(last_words, reason, lingers=True)

    def _process_violation(self, error: RemoteProtocolError) -> None:
        """End the connection of a client that broke the protocol, as its version has it.

        [MQTT5-4.13.1-1] [MQTT311-4.8.0-1] A malformed CONNECT: a 5.0 client gets the reason
        [MQTT5-3.1.4-1], a 3.x client gets no answer [MQTT311-3.1.4-1].
        """
        if self.is_closing:
            return
        about = {"clause": error.clause, "reason": str(error)}
        logger.debug("protocol violation", extra={"fields": self._names() | about})
        if self.protocol.is_connected:
            code = DisconnectReasonCode(error.reason_code)
            self.close(code, log_reason=str(error), lingers=True)
        elif isinstance(error, UnsupportedProtocol):
            level = MQTT_3_1_1 if error.protocol_level < MQTT_5_0 else MQTT_5_0
            self.protocol.protocol_level = level
            self.refuse(ConnackReasonCode.UNSUPPORTED_PROTOCOL_VERSION, str(error))
        elif self.protocol.protocol_level:
            self.refuse(ConnackReasonCode(error.reason_code), str(error))
        else:
            self._turn_away(b"", str(error))

    def _names(self) -> dict[str, Any]:
        """Return the names of client and connection for the log."""
        known = {"client_id": self.client_id, "peer": self.peer}
        return known | {"connection_id": self.connection_id}

    def _log(self, event: str, **values: Any) -> None:
        if logger.isEnabledFor(logging.INFO):
            log_often(logger, event, self._names() | values)

    def _finish(self, last_words: bytes, reason: str, *, lingers: bool = False) -> None:
        """Send the rest and close; the session lets go of the connection at once.

        Bytes that the client still sends are thrown away.
        """
        self.is_closing = True
        self._socket.end(last_words)
        self._detach(reason)
        cut_after = self._socket.close(lingers=lingers and last_words != b"")
        if cut_after is not None:
            self._context.deadlines.set(self, cut_after)

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
