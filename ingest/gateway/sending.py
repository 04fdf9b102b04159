"""The messages that one client gets: sent, kept until it takes them, or dropped and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ingest.protocol.encoder import encode_pubrel
from ingest.protocol.packets import MQTT_5_0, Puback, Pubcomp, Pubrec, Pubrel
from ingest.protocol.reason_codes import PubrelReasonCode
from ingest.session.outgoing import Offer, OutgoingMessages

if TYPE_CHECKING:
    from ingest.gateway.connection import ClientConnection
    from ingest.gateway.outbound import OutboundMessage
    from ingest.session.subscriptions import Copy

FAILURE: Final = 0x80
"""Reason codes from here on are failures (5.0: 2.4)."""


class _Outgoing(NamedTuple):
    """A message to one client as it waits or is in flight."""

    message: OutboundMessage
    qos: int
    retain: bool
    identifiers: tuple[int, ...]


class Sender:
    """Sends messages to one client and takes its answers.

    A message waits when the client's window is used up or its socket takes no more. QoS 0 does not
    wait: it is dropped and counted.
    """

    __slots__ = ("_clock", "_connection", "_counters", "_level", "_max_packet_bytes", "_messages")

    def __init__(self, connection: ClientConnection) -> None:
        settings = connection.gateway.settings
        protocol = connection.protocol
        self._connection = connection
        self._counters = connection.gateway.counters
        self._clock = connection.gateway.clock
        self._level = protocol.protocol_level
        self._max_packet_bytes = protocol.client_maximum_packet_size
        self._messages: OutgoingMessages[_Outgoing] = OutgoingMessages(
            window=min(settings.max_inflight_messages, protocol.client_receive_maximum),
            max_queued=settings.max_queued_messages,
        )

    def deliver(self, message: OutboundMessage, copy: Copy[ClientConnection], now_ms: int) -> None:
        """Take a message that one of the client's subscriptions matches."""
        connection = self._connection
        if connection.is_closing:
            return
        qos = min(message.qos, copy.qos)  # [MQTT5-3.8.4-8] [MQTT311-3.8.4-6]
        retain = message.retain and copy.retain_as_published
        identifiers = copy.identifiers if self._level == MQTT_5_0 else ()
        if qos == 0:
            if not connection.is_writable:
                self._counters.dropped_slow_client += 1
                return
            data = message.template(self._level, now_ms).to_bytes(
                retain=retain, subscription_identifiers=identifiers
            )
            if self._fits(data):
                self._counters.messages_sent += 1
                connection.write(data)
            return
        outgoing = _Outgoing(message, qos, retain, identifiers)
        offered = self._messages.offer(outgoing, qos, writable=connection.is_writable)
        if offered is Offer.DROPPED:
            self._counters.dropped_queue_full += 1
        elif offered is not Offer.QUEUED:
            self._send(offered, outgoing, now_ms)

    def send_waiting(self) -> None:
        """Send what waits, as far as window and socket allow."""
        now_ms = 0
        while self._connection.is_writable and not self._connection.is_closing:
            ready = self._messages.take_ready()
            if ready is None:
                return
            now_ms = now_ms or self._clock.now_ms()
            packet_id, outgoing = ready
            if outgoing.message.is_expired(now_ms):
                self._counters.dropped_expired += 1
                self._messages.abandon(packet_id)
            else:
                self._send(packet_id, outgoing, now_ms)

    def process_puback(self, puback: Puback) -> None:
        if self._messages.receive_puback(puback.packet_id):
            self.send_waiting()

    def process_pubrec(self, pubrec: Pubrec) -> None:
        packet_id = pubrec.packet_id
        refused = pubrec.reason_code >= FAILURE
        known = self._messages.receive_pubrec(packet_id, refused=refused)
        if refused:
            if known:
                self.send_waiting()
        elif known or self._level < MQTT_5_0:
            self._connection.write(encode_pubrel(packet_id))
        else:
            reason_code = PubrelReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            self._connection.send(Pubrel(packet_id, reason_code))

    def process_pubcomp(self, pubcomp: Pubcomp) -> None:
        if self._messages.receive_pubcomp(pubcomp.packet_id):
            self.send_waiting()

    def _send(self, packet_id: int, outgoing: _Outgoing, now_ms: int) -> None:
        data = outgoing.message.template(self._level, now_ms).to_bytes(
            qos=outgoing.qos,
            retain=outgoing.retain,
            packet_id=packet_id,
            subscription_identifiers=outgoing.identifiers,
        )
        if self._fits(data):
            self._counters.messages_sent += 1
            self._connection.write(data)
        else:
            self._messages.abandon(packet_id)

    def _fits(self, data: bytes) -> bool:
        if self._max_packet_bytes is None or len(data) <= self._max_packet_bytes:
            return True
        self._counters.dropped_too_large += 1  # [MQTT5-3.1.2-24] [MQTT5-3.1.2-25]
        return False
