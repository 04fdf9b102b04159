"""One MQTT client on a socket: what it sends becomes calls, what it is owed becomes bytes."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from ingest.gateway.publishing import client_headers
from ingest.log.contract import LogFull
from ingest.protocol.decoder import NEED_DATA
from ingest.protocol.encoder import encode_puback, encode_pubcomp, encode_pubrec, encode_pubrel
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
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from ingest.protocol.reason_codes import (
    ConnackReasonCode,
    DisconnectReasonCode,
    PubackReasonCode,
    PubcompReasonCode,
    PubrecReasonCode,
    PubrelReasonCode,
    SubackReasonCode,
    UnsubackReasonCode,
)
from ingest.session.incoming import Arrival, IncomingMessages
from ingest.session.outgoing import Offer, OutgoingMessages
from ingest.session.subscriptions import ClientSubscription
from mqlake.errors import InvalidTopic, LogError
from mqlake.records import Headers, Route
from mqlake.topics import validate_topic_filter, validate_topic_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.outbound import OutboundMessage
    from ingest.gateway.server import Gateway
    from ingest.protocol.properties import Properties
    from ingest.session.subscriptions import Copy

logger = logging.getLogger(__name__)

KEEP_ALIVE_FACTOR: Final = 1.5
"""A client may be silent for so many keep alive intervals. [MQTT5-3.1.2-22] [MQTT311-3.1.2-24]"""

CLOSE_TIMEOUT_SECONDS: Final = 5.0
"""How long a closing socket may take to send what is left before it is cut."""

PINGRESP: Final = b"\xd0\x00"
SYSTEM_TOPICS: Final = "$SYS/"

_REFUSED: Final = 0x80
"""Reason codes from here on are failures. [MQTT5-4.13]"""


class Outgoing(NamedTuple):
    """A message to one client as it waits or is in flight."""

    message: OutboundMessage
    qos: int
    retain: bool
    identifiers: tuple[int, ...]


class _PendingPublish:
    """A QoS 1 or 2 message of a client until the log has it; called with what became of it."""

    __slots__ = ("_connection", "_packet_id", "_qos")

    def __init__(self, connection: ClientConnection, packet_id: int, qos: int) -> None:
        self._connection = connection
        self._packet_id = packet_id
        self._qos = qos

    def __call__(self, partition: int, offset: int, error: LogError | None) -> None:
        self._connection.stored(self._packet_id, self._qos, partition, offset, error)


class _PendingSubscribe:
    """A SUBSCRIBE until the router has its routes. Implements `ingest.gateway.routes.Waiter`."""

    __slots__ = ("_connection", "_filters", "_granted", "_packet_id", "_subscriptions")

    def __init__(
        self,
        connection: ClientConnection,
        subscribe: Subscribe,
        subscriptions: list[ClientSubscription[ClientConnection]],
    ) -> None:
        self._connection = connection
        self._packet_id = subscribe.packet_id
        self._filters = [asked.topic_filter for asked in subscribe.subscriptions]
        self._granted = [SubackReasonCode(asked.qos) for asked in subscribe.subscriptions]
        self._subscriptions = subscriptions

    def counted(self, starts: list[int]) -> None:
        self._connection.subscribed(self._subscriptions, starts)

    def routed(self) -> None:
        self._connection.send(Suback(self._packet_id, self._granted))

    def failed(self, error: LogError) -> None:
        # Filters that the client had before are in force with their new options.
        failed = {subscription.topic_filter for subscription in self._subscriptions}
        reason_codes = [
            SubackReasonCode.UNSPECIFIED_ERROR if topic_filter in failed else granted
            for topic_filter, granted in zip(self._filters, self._granted, strict=True)
        ]
        self._connection.subscription_failed(self._packet_id, reason_codes, error)


class ClientConnection(asyncio.Protocol):
    """The protocol object of one TCP connection.

    Reading stops ("held") while a SUBSCRIBE waits for the log, while the log is full and while a
    3.x client has as many unacknowledged messages as it may; what has been read already waits in
    the decoder. Writing is collected and leaves once per turn of the event loop.
    """

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self._gateway = gateway
        self._publisher = gateway.publisher
        self._counters = gateway.counters
        self._loop = gateway.loop
        self._protocol = gateway.new_protocol()
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._buffer: list[bytes] = []
        self._is_writable = True
        self._is_closing = False
        self._is_attached = False
        self._held: set[str] = set()
        self._deferred: Publish | None = None  # waits for room in the log
        self._last_received = 0.0
        self._keep_alive_seconds = settings.connect_timeout_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._wants_reasons = True
        self._will: Publish | None = None
        self._headers: Headers = []
        self._key_prefix = settings.tenant + "/"
        self._incoming = IncomingMessages()
        self._outgoing: OutgoingMessages[Outgoing] = OutgoingMessages(window=1, max_queued=0)
        self.client_id = ""
        self.tenant = settings.tenant
        self.protocol_level = 0
        self.subscriptions: dict[str, ClientSubscription[ClientConnection]] = {}

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, not the base class.
        self._transport = transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        transport.set_write_buffer_limits(high=self._gateway.settings.max_write_buffer_bytes)
        self._last_received = self._loop.time()
        self._timer = self._loop.call_later(self._keep_alive_seconds, self._check_silence)
        self._gateway.connection_opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._buffer.clear()
        self._detach()
        self._gateway.connection_closed(self)

    def data_received(self, data: bytes) -> None:
        self._last_received = self._loop.time()
        if self._is_closing:
            return
        self._protocol.receive_data(data)
        if not self._held:
            self._process_packets()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._send_waiting()

    def write(self, data: bytes) -> None:
        """Send bytes at the end of this turn of the loop."""
        if not self._buffer:
            self._loop.call_soon(self._flush)
        self._buffer.append(data)

    def send(self, packet: Packet) -> None:
        """Send a packet, unless the connection is closing or the client takes none so large."""
        if self._is_closing:
            return
        self.write(self._protocol.encode(packet))

    def close(self, reason_code: DisconnectReasonCode, *, log_reason: str) -> None:
        """End the connection from our side; a 5.0 client is told why."""
        if self._is_closing:
            return
        logger.info(
            "connection closed",
            extra={"fields": {**self._log_fields(), "reason": log_reason}},
        )
        self._finish(self._protocol.close(reason_code))

    def _finish(self, last_words: bytes) -> None:
        """Send what is left and close; the client's state goes at once."""
        if last_words:
            self.write(last_words)
        self._is_closing = True
        self._flush()
        self._detach()
        transport = self._transport
        if transport is not None:
            transport.close()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(CLOSE_TIMEOUT_SECONDS, transport.abort)

    def _flush(self) -> None:
        if self._buffer and self._transport is not None:
            buffer = self._buffer
            self._buffer = []
            self._transport.write(buffer[0] if len(buffer) == 1 else b"".join(buffer))

    def _hold(self, why: str) -> None:
        """Read no more until released for the same reason."""
        if not self._held and self._transport is not None:
            self._transport.pause_reading()
        self._held.add(why)

    def _release(self, why: str) -> None:
        if why not in self._held:
            return
        self._held.discard(why)
        if not self._held and not self._is_closing and self._transport is not None:
            self._transport.resume_reading()
            self._process_packets()

    def _check_silence(self) -> None:
        limit = self._keep_alive_seconds
        if not limit or self._is_closing:
            return
        silent = self._loop.time() - self._last_received
        if silent < limit or self._held:
            # While we do not read, the client's silence is ours.
            again = max(limit - silent, limit / 4)
            self._timer = self._loop.call_later(again, self._check_silence)
        elif self._protocol.is_connected:
            self.close(
                DisconnectReasonCode.KEEP_ALIVE_TIMEOUT, log_reason=f"silent for {silent:.1f} s"
            )
        else:
            self._gateway.counters.connections_refused += 1
            self.close(DisconnectReasonCode.KEEP_ALIVE_TIMEOUT, log_reason="no CONNECT in time")

    # Packets in

    def _process_packets(self) -> None:
        try:
            while not self._held and not self._is_closing:
                packet = self._protocol.next_packet()
                if packet is NEED_DATA:
                    return
                _HANDLERS[type(packet)](self, packet)
        except RemoteProtocolError as error:
            self._process_violation(error)

    def _process_violation(self, error: RemoteProtocolError) -> None:
        if self._is_closing:
            return
        logger.debug(
            "protocol violation",
            extra={"fields": {**self._log_fields(), "clause": error.clause, "reason": str(error)}},
        )
        if self._protocol.is_connected:
            self.close(DisconnectReasonCode(error.reason_code), log_reason=str(error))
            return
        self._gateway.counters.connections_refused += 1
        logger.info(
            "connection refused", extra={"fields": {**self._log_fields(), "reason": str(error)}}
        )
        self._finish(self._refusal_of(error))

    def _refusal_of(self, error: RemoteProtocolError) -> bytes:
        """Return the CONNACK for a CONNECT that cannot be accepted, b"" where none may be sent."""
        if isinstance(error, UnsupportedProtocol):
            level = MQTT_3_1_1 if error.protocol_level < MQTT_5_0 else MQTT_5_0
            self._protocol.protocol_level = level
            return self._protocol.refuse(ConnackReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
        if self.protocol_level == MQTT_5_0:
            return self._protocol.refuse(ConnackReasonCode(error.reason_code))
        return b""

    def _refuse(self, reason_code: ConnackReasonCode, log_reason: str) -> None:
        self._gateway.counters.connections_refused += 1
        logger.info(
            "connection refused", extra={"fields": {**self._log_fields(), "reason": log_reason}}
        )
        self._finish(self._protocol.refuse(reason_code))

    def _process_connect(self, connect: Connect) -> None:
        settings = self._gateway.settings
        level = self.protocol_level = connect.protocol_level
        properties: Properties = {}
        self.client_id = connect.client_id
        if self._gateway.is_full:
            self._refuse(ConnackReasonCode.SERVER_BUSY, "too many connections")
            return
        if "authentication_method" in connect.properties:
            self._refuse(ConnackReasonCode.BAD_AUTHENTICATION_METHOD, "no such method")
            return
        if not connect.client_id:
            if level < MQTT_3_1_1 or (level == MQTT_3_1_1 and not connect.clean_start):
                # [MQTT311-3.1.3-8]; 3.1 asks for at least one character.
                self._refuse(ConnackReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "empty client id")
                return
            self.client_id = self._gateway.assign_client_id()
            properties["assigned_client_identifier"] = self.client_id  # [MQTT5-3.1.3-7]
        will = connect.will
        if will is not None:
            if will.retain and level == MQTT_5_0:
                self._refuse(ConnackReasonCode.RETAIN_NOT_SUPPORTED, "retained will")
                return
            will_properties: Properties = will.properties
            if "will_delay_interval" in will_properties:
                # The session ends with the connection, so the will is not delayed beyond it.
                will_properties = will_properties.copy()
                del will_properties["will_delay_interval"]
            self._will = Publish(
                will.topic_name,
                will.payload,
                qos=will.qos,
                retain=will.retain,
                properties=will_properties,
            )
            try:
                self._check_topic_name(will.topic_name)
            except ProtocolViolation as error:
                self._refuse(ConnackReasonCode.TOPIC_NAME_INVALID, str(error))
                return
        self._outgoing = OutgoingMessages(
            window=min(settings.max_inflight_messages, self._protocol.client_receive_maximum),
            max_queued=settings.max_queued_messages,
        )
        self._headers = client_headers(self.client_id, self._gateway.origin, connect.username)
        if level == MQTT_5_0:
            # [MQTT5-3.1.2-29]
            self._wants_reasons = connect.properties.get("request_problem_information", 1) != 0
            properties["receive_maximum"] = settings.receive_maximum
            properties["maximum_packet_size"] = settings.max_packet_bytes
            properties["topic_alias_maximum"] = settings.topic_alias_maximum
            properties["retain_available"] = 0
            if connect.properties.get("session_expiry_interval"):
                properties["session_expiry_interval"] = 0  # sessions end with their connection
        self._gateway.attach(self)
        self._is_attached = True
        self._keep_alive_seconds = connect.keep_alive * KEEP_ALIVE_FACTOR
        if self._timer is not None:
            self._timer.cancel()
        if self._keep_alive_seconds:
            self._timer = self._loop.call_later(self._keep_alive_seconds, self._check_silence)
        self.write(self._protocol.accept(session_present=False, properties=properties))
        logger.info("client connected", extra={"fields": self._log_fields()})

    def _process_publish(self, publish: Publish) -> None:
        """Hand a message to the log; the answer waits for it."""
        self._check_publish(publish)
        self._counters.messages_received += 1
        qos = publish.qos
        if qos == 2:
            arrival = self._incoming.receive_publish(publish.packet_id)
            if arrival is not Arrival.NEW:
                self._protocol.unacknowledged -= 1
                if arrival is Arrival.STORED:
                    self.write(encode_pubrec(publish.packet_id))
                return
        self._store(publish)
        if (
            qos
            and self.protocol_level < MQTT_5_0
            and self._protocol.unacknowledged >= self._gateway.settings.receive_maximum
        ):
            self._hold("window")

    def _check_publish(self, publish: Publish) -> None:
        self._check_topic_name(publish.topic_name)
        if publish.retain and self.protocol_level == MQTT_5_0:
            raise ProtocolViolation(
                DisconnectReasonCode.RETAIN_NOT_SUPPORTED,
                "RETAIN is set, the server told that it does not retain",
                "MQTT5-3.2.2-14",
            )

    def _check_topic_name(self, topic_name: str) -> None:
        try:
            validate_topic_name(topic_name)
        except InvalidTopic as exc:
            raise ProtocolViolation(
                DisconnectReasonCode.TOPIC_NAME_INVALID, str(exc), exc.clause
            ) from exc
        if topic_name.startswith(SYSTEM_TOPICS):
            raise ProtocolViolation(
                DisconnectReasonCode.NOT_AUTHORIZED,
                f"topics below {SYSTEM_TOPICS} are the server's",
                "MQTT5-4.7.2-1",
            )

    def _store(self, publish: Publish) -> None:
        packet_id, qos = publish.packet_id, publish.qos
        if self._publisher.is_refusing:
            self._refuse_publish(packet_id, qos, self._publisher.is_refusing)
            return
        try:
            self._publisher.publish(
                self._key_prefix,
                publish,
                self.protocol_level,
                self._headers,
                _PendingPublish(self, packet_id, qos) if qos else self._publisher.count_appended,
            )
        except LogFull:
            self._deferred = publish
            self._hold("log")
            self._gateway.wait_for_log(self)
        except LogError as error:
            self._refuse_publish(packet_id, qos, str(error))

    def log_has_room(self) -> None:
        """Go on after the log was full."""
        publish, self._deferred = self._deferred, None
        if publish is not None and not self._is_closing:
            self._store(publish)
        if self._deferred is None:
            self._release("log")

    def stored(
        self, packet_id: int, qos: int, partition: int, offset: int, error: LogError | None
    ) -> None:
        """Answer a QoS 1 or 2 message: the log has it, or could not take it."""
        if error is not None:
            self._refuse_publish(packet_id, qos, str(error))
            return
        self._publisher.acked[partition] = offset
        self._counters.messages_stored += 1
        if self._is_closing:
            return
        if qos == 1:
            self._protocol.unacknowledged -= 1
            self.write(encode_puback(packet_id))
            self._reopen_window()
        else:
            self._incoming.stored(packet_id)
            self.write(encode_pubrec(packet_id))

    def _reopen_window(self) -> None:
        # At half the window, so that reading is not switched with every message.
        if (
            "window" in self._held
            and self._protocol.unacknowledged <= self._gateway.settings.receive_maximum // 2
        ):
            self._release("window")

    def _refuse_publish(self, packet_id: int, qos: int, reason: str) -> None:
        """Tell the publisher that its message is not stored, as far as its version has words.

        3.x has none: the connection is closed, and the client sends the message again.
        [MQTT311-3.3.5-2]
        """
        self._counters.messages_refused += 1
        if self._is_closing:
            return
        if qos == 0:
            return
        if self.protocol_level < MQTT_5_0:
            self.close(DisconnectReasonCode.QUOTA_EXCEEDED, log_reason=reason)
            return
        self._protocol.unacknowledged -= 1
        properties: Properties = {"reason_string": reason} if self._wants_reasons else {}
        if qos == 1:
            self.send(Puback(packet_id, PubackReasonCode.QUOTA_EXCEEDED, properties))
        else:
            self._incoming.refused(packet_id)
            self.send(Pubrec(packet_id, PubrecReasonCode.QUOTA_EXCEEDED, properties))

    def _process_pubrel(self, pubrel: Pubrel) -> None:
        packet_id = pubrel.packet_id
        if self._incoming.receive_pubrel(packet_id):
            self._protocol.unacknowledged -= 1
            self.write(encode_pubcomp(packet_id))
            self._reopen_window()
        elif self.protocol_level == MQTT_5_0:
            self.send(Pubcomp(packet_id, PubcompReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
        else:
            self.write(encode_pubcomp(packet_id))  # [MQTT311-4.3.3-2]

    def _process_puback(self, puback: Puback) -> None:
        if self._outgoing.receive_puback(puback.packet_id):
            self._send_waiting()

    def _process_pubrec(self, pubrec: Pubrec) -> None:
        packet_id = pubrec.packet_id
        refused = pubrec.reason_code >= _REFUSED
        if self._outgoing.receive_pubrec(packet_id, refused=refused):
            if refused:
                self._send_waiting()
            else:
                self.write(encode_pubrel(packet_id))
        elif self.protocol_level == MQTT_5_0 and not refused:
            self.send(Pubrel(packet_id, PubrelReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
        elif not refused:
            self.write(encode_pubrel(packet_id))

    def _process_pubcomp(self, pubcomp: Pubcomp) -> None:
        if self._outgoing.receive_pubcomp(pubcomp.packet_id):
            self._send_waiting()

    def _process_subscribe(self, subscribe: Subscribe) -> None:
        identifiers = subscribe.properties.get("subscription_identifier")
        identifier = identifiers[0] if identifiers else None
        new: dict[str, ClientSubscription[ClientConnection]] = {}
        for asked in subscribe.subscriptions:
            _check_topic_filter(asked.topic_filter)
            subscription = self._subscription(asked, identifier)
            existing = self.subscriptions.get(asked.topic_filter)
            if existing is None:
                new[asked.topic_filter] = subscription
            else:
                # Replaced without a gap; it counts from where the old one did. [MQTT5-3.8.4-3]
                subscription.starts = existing.starts
                self._gateway.subscriptions.remove(self.tenant, existing)
                self._gateway.subscriptions.add(self.tenant, subscription)
                self.subscriptions[asked.topic_filter] = subscription
        routes = [self._route(topic_filter) for topic_filter in new]
        pending = _PendingSubscribe(self, subscribe, list(new.values()))
        # What follows on this connection counts for the new subscriptions: it waits for the log to
        # have their barriers, not for the router.
        self._hold("subscribe")
        if self._gateway.routes.subscribe(routes, pending):
            pending.counted([offset + 1 for offset in self._publisher.acked])
            pending.routed()

    def subscribed(
        self, subscriptions: list[ClientSubscription[ClientConnection]], starts: list[int]
    ) -> None:
        """Take subscriptions up that count from the given offsets, by partition."""
        for subscription in subscriptions:
            if self._is_closing:
                self._gateway.routes.unsubscribe(self._route(subscription.topic_filter))
                continue
            subscription.starts = starts
            self._gateway.subscriptions.add(self.tenant, subscription)
            self.subscriptions[subscription.topic_filter] = subscription
        self._loop.call_soon(self._release, "subscribe")

    def subscription_failed(
        self, packet_id: int, reason_codes: list[SubackReasonCode], error: LogError
    ) -> None:
        """Answer a SUBSCRIBE of which the log did not take all routes."""
        logger.warning(
            "subscriptions failed",
            extra={"fields": {**self._log_fields(), "reason": str(error)}},
        )
        self.send(Suback(packet_id, reason_codes))
        self._release("subscribe")

    def _process_unsubscribe(self, unsubscribe: Unsubscribe) -> None:
        reason_codes = []
        for topic_filter in unsubscribe.topic_filters:
            _check_topic_filter(topic_filter)
            if topic_filter in self.subscriptions:
                self._unsubscribe(topic_filter)
                reason_codes.append(UnsubackReasonCode.SUCCESS)
            else:
                reason_codes.append(UnsubackReasonCode.NO_SUBSCRIPTION_EXISTED)
        self.send(Unsuback(unsubscribe.packet_id, reason_codes))

    def _process_pingreq(self, _pingreq: Pingreq) -> None:
        self.write(PINGRESP)

    def _process_disconnect(self, disconnect: Disconnect) -> None:
        if disconnect.reason_code is not DisconnectReasonCode.DISCONNECT_WITH_WILL_MESSAGE:
            self._will = None  # [MQTT5-3.14.4-3] [MQTT311-3.14.4-3]
        if disconnect.properties.get("session_expiry_interval"):
            self._process_violation(
                ProtocolViolation(
                    DisconnectReasonCode.PROTOCOL_ERROR,
                    "session expiry interval set on DISCONNECT, the session had none",
                    "MQTT5-3.14.2.2.2",
                )
            )
            return
        logger.info("client disconnected", extra={"fields": self._log_fields()})
        self._finish(b"")

    def _process_auth(self, _auth: Auth) -> None:
        raise ProtocolViolation(
            DisconnectReasonCode.PROTOCOL_ERROR,
            "AUTH without an authentication method in CONNECT",
            "MQTT5-4.12.0-7",
        )

    # Messages out

    def deliver(self, message: OutboundMessage, copy: Copy[ClientConnection], now_ms: int) -> None:
        """Send a message, or keep it until the client takes it, or drop and count it."""
        if self._is_closing:
            return
        qos = min(message.qos, copy.qos)
        retain = message.retain and copy.retain_as_published
        identifiers = copy.identifiers if self.protocol_level == MQTT_5_0 else ()
        if qos == 0:
            if not self._is_writable:
                self._counters.dropped_slow_client += 1
                return
            data = message.template(self.protocol_level, now_ms).to_bytes(
                retain=retain, subscription_identifiers=identifiers
            )
            if self._fits(data):
                self._counters.messages_sent += 1
                self.write(data)
            return
        outgoing = Outgoing(message, qos, retain, identifiers)
        offered = self._outgoing.offer(outgoing, qos, writable=self._is_writable)
        if offered is Offer.DROPPED:
            self._counters.dropped_queue_full += 1
        elif offered is not Offer.QUEUED:
            self._send_message(offered, outgoing, now_ms)

    def _send_waiting(self) -> None:
        now_ms = 0
        while self._is_writable and not self._is_closing:
            ready = self._outgoing.take_ready()
            if ready is None:
                return
            now_ms = now_ms or self._gateway.clock.now_ms()
            packet_id, outgoing = ready
            expires_at_ms = outgoing.message.expires_at_ms
            if expires_at_ms is not None and expires_at_ms <= now_ms:
                self._counters.dropped_expired += 1
                self._outgoing.abandon(packet_id)
                continue
            self._send_message(packet_id, outgoing, now_ms)

    def _send_message(self, packet_id: int, outgoing: Outgoing, now_ms: int) -> None:
        data = outgoing.message.template(self.protocol_level, now_ms).to_bytes(
            qos=outgoing.qos,
            retain=outgoing.retain,
            packet_id=packet_id,
            subscription_identifiers=outgoing.identifiers,
        )
        if self._fits(data):
            self._counters.messages_sent += 1
            self.write(data)
        else:
            self._outgoing.abandon(packet_id)

    def _fits(self, data: bytes) -> bool:
        limit = self._protocol.client_maximum_packet_size
        if limit is None or len(data) <= limit:
            return True
        self._counters.dropped_too_large += 1  # [MQTT5-3.1.2-24] [MQTT5-3.1.2-25]
        return False

    # The client's state

    def _detach(self) -> None:
        """Let go of everything that the client has in the gateway; its will is published."""
        if not self._is_attached:
            return
        self._is_attached = False
        for topic_filter in list(self.subscriptions):
            self._unsubscribe(topic_filter)
        self._gateway.detach(self)
        if self._will is not None:
            will, self._will = self._will, None
            self._counters.messages_received += 1
            self._publisher.publish_will(self._key_prefix, will, self.protocol_level, self._headers)

    def _unsubscribe(self, topic_filter: str) -> None:
        subscription = self.subscriptions.pop(topic_filter)
        self._gateway.subscriptions.remove(self.tenant, subscription)
        self._gateway.routes.unsubscribe(self._route(topic_filter))

    def _subscription(
        self, asked: Subscription, identifier: int | None
    ) -> ClientSubscription[ClientConnection]:
        return ClientSubscription(
            self,
            asked.topic_filter,
            asked.qos,
            no_local=asked.no_local,
            retain_as_published=asked.retain_as_published,
            identifier=identifier,
        )

    def _route(self, topic_filter: str) -> Route:
        return Route(self._gateway.settings.name, self.tenant, topic_filter)

    def _log_fields(self) -> dict[str, Any]:
        return {
            "client_id": self.client_id,
            "peer": self._peer,
            "protocol_level": self.protocol_level,
        }


def _check_topic_filter(topic_filter: str) -> None:
    try:
        validate_topic_filter(topic_filter)
    except InvalidTopic as exc:
        raise ProtocolViolation(
            DisconnectReasonCode.TOPIC_FILTER_INVALID, str(exc), exc.clause
        ) from exc


_HANDLERS: Final[dict[type, Callable[[ClientConnection, Any], None]]] = {
    Connect: ClientConnection._process_connect,
    Publish: ClientConnection._process_publish,
    Puback: ClientConnection._process_puback,
    Pubrec: ClientConnection._process_pubrec,
    Pubrel: ClientConnection._process_pubrel,
    Pubcomp: ClientConnection._process_pubcomp,
    Subscribe: ClientConnection._process_subscribe,
    Unsubscribe: ClientConnection._process_unsubscribe,
    Pingreq: ClientConnection._process_pingreq,
    Disconnect: ClientConnection._process_disconnect,
    Auth: ClientConnection._process_auth,
}
