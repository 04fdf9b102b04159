"""The messages that one session gets: sent, kept until the client takes them, or dropped.

A sender lives as long as its session is at this gateway and has a connection at most of the time.

QoS 2 to a session that outlives its connection: each step is in the log before the packet that
depends on it leaves, so that neither a crash nor another gateway begins an exchange anew that the
client has finished. What follows such a packet waits behind it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ingest.gateway.delivery_events import ACKED, DELIVERED
from ingest.gateway.drops import DropReason
from ingest.gateway.group_step import GroupStep, SavedGroups
from ingest.gateway.outbound import LOCAL, OutboundMessage
from ingest.gateway.retained_scans import RETAINED_PAGE, RetainedScans, RetainedSources
from ingest.protocol.encoder import encode_pubrel
from ingest.protocol.errors import ProtocolViolation
from ingest.protocol.packets import MQTT_5_0, Puback, Pubcomp, Pubrec, Pubrel
from ingest.protocol.reason_codes import DisconnectReasonCode, PubrelReasonCode
from ingest.session.checkpoint import SaveQueue
from ingest.session.outgoing import Exchange, Offer, OutgoingMessages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ingest.gateway.client import Client
    from ingest.gateway.context import Context
    from ingest.gateway.delivery_events import DeliveryEvents
    from ingest.gateway.progress import Progress
    from ingest.session.checkpoint import Saved
    from ingest.session.share_parts import GroupKey
    from ingest.session.subscriptions import Copy
    from mqlake.rights.compiled import ClientRights
    from mqlake.session_records import RetainedScan

FAILURE: Final = 0x80
"""Reason codes from here on are failures (5.0: 2.4)."""


class Outgoing(NamedTuple):
    """A message to one client as it waits or is in flight."""

    message: OutboundMessage
    qos: int
    retain: bool
    identifiers: tuple[int, ...]
    shared_filter: str = ""
    """The shared subscription that the client got it for."""


class Groups(SavedGroups, Protocol):
    """Implemented by `ingest.gateway.share_groups.ShareGroups`."""

    def member_moved(self, sender: Sender) -> None:
        """Give a member what waits for it in its groups, if it has room now."""
        ...


class SenderContext:
    """What all senders of a gateway use.

    Args:
        context: Of the gateway.
        told: Whether anybody wants to hear of deliveries.
        groups: Give members of share groups their messages.
        retained: Where retained messages come from.
    """

    __slots__ = ("clock", "counters", "drops", "groups", "retained", "settings", "told")

    def __init__(
        self, context: Context, told: DeliveryEvents, groups: Groups, retained: RetainedSources
    ) -> None:
        self.settings = context.settings
        self.clock = context.clock
        self.counters = context.counters
        self.drops = context.drops
        self.told = told
        self.groups = groups
        self.retained = retained


class Sender:
    """Sends messages to one client and takes its answers.

    A message waits when the client's window is used up, its socket takes no more, the log knows too
    little of what the client has acknowledged, or the client is not there. QoS 0 does not wait: it
    is dropped and recorded. Other packets than PUBLISH do not wait for the window.
    [MQTT5-3.3.4-10] [MQTT5-4.9.0-3]

    Args:
        context: What all senders use.
        tenant: Of the client.
        client_id: Of the client.

    Attributes:
        groups: Share groups that it is a member of: they are told when it may have room.
        rights: What the client may be sent; None: everything. Asked when a message comes and, if it
            has waited, when it leaves; what was sent once is sent again.
    """

    __slots__ = (
        "_aliases",
        "_clock",
        "_connection",
        "_context",
        "_counters",
        "_drops",
        "_has_shared",
        "_level",
        "_max_aliases",
        "_max_packet_bytes",
        "_messages",
        "_retained",
        "_room",
        "_save_queue",
        "_told",
        "client_id",
        "groups",
        "progress",
        "rights",
        "tenant",
    )

    def __init__(
        self,
        context: SenderContext,
        tenant: str,
        client_id: str,
        rights: ClientRights | None,
    ) -> None:
        self.tenant = tenant
        self.client_id = client_id
        self.rights = rights
        self._context = context
        self._counters = context.counters
        self._drops = context.drops
        self._told = context.told
        self._clock = context.clock
        self._connection: Client | None = None
        self._level = 0
        self._max_packet_bytes: int | None = None
        self._max_aliases = 0
        self._aliases: dict[str, int] | None = None
        self._messages: OutgoingMessages[Outgoing] = OutgoingMessages(
            window=1, max_queued=context.settings.max_offline_messages
        )
        # Made when first needed: what the session is owed of the retained messages.
        self._retained: RetainedScans | None = None
        self.progress: Progress | None = None
        # Made when first needed: most sessions share nothing.
        self.groups: dict[GroupKey, None] | None = None
        self._has_shared = False
        # Packets of this connection. Made when first needed: most sessions never do.
        self._save_queue: SaveQueue[bytes] | None = None
        # Made when somebody waits for room.
        self._room: asyncio.Event | None = None

    @property
    def inflight_count(self) -> int:
        return self._messages.inflight_count

    @property
    def queued_count(self) -> int:
        return self._messages.queued_count

    @property
    def is_full(self) -> bool:
        """Whether a message that cannot leave at once would be dropped."""
        return self._messages.is_full and not self._messages.has_room

    @property
    def has_room(self) -> bool:
        """Whether a message given now leaves at once."""
        connection = self._connection
        if connection is None or connection.is_closing or not connection.is_writable:
            return False
        return self._messages.has_room and (self.progress is None or self.progress.has_room)

    async def wait_for_room(self) -> None:
        """Wait until a message leaves at once; nothing else runs before the caller does."""
        while not self.has_room:
            if self._room is None:
                self._room = asyncio.Event()
            self._room.clear()
            await self._room.wait()

    def attach(self, connection: Client) -> None:
        """Take a connection whose CONNACK is on its way; what was in flight is sent again."""
        settings = self._context.settings
        protocol = connection.protocol
        self._connection = connection
        self._level = protocol.protocol_level
        self._max_packet_bytes = protocol.client_maximum_packet_size
        self._max_aliases = min(
            protocol.client_topic_alias_maximum, settings.max_outgoing_topic_aliases
        )
        self._aliases = None
        messages = self._messages
        messages.window = min(settings.max_inflight_messages, protocol.client_receive_maximum)
        messages.max_queued = settings.max_queued_messages
        self._save_queue = None
        for packet_id in messages.resume():
            connection.write(encode_pubrel(packet_id))
        self.send_waiting()

    def detach(self) -> None:
        """Let go of the connection; what is in flight is kept."""
        self._connection = None
        self._save_queue = None
        self._messages.max_queued = self._context.settings.max_offline_messages
        if self._retained is not None:
            self._retained.close_questions()

    def end(self) -> None:
        """Forget the retained messages that are owed: the session is stored, or has ended.

        They know this object: a circle would wait for the collector of garbage.
        """
        self._retained = None

    def restore(self, exchange: Exchange[Outgoing]) -> None:
        """Take back what was in flight when the session was elsewhere; `attach` sends it."""
        self._messages.restore(exchange)

    def exchanges(self) -> Iterator[Exchange[Outgoing]]:
        """Yield what is in flight, in the order of the first sending."""
        return self._messages.exchanges()

    def take_shared(self, *, is_ended: bool, shared_filter: str = "") -> list[Outgoing]:
        """Take out what others of the share groups, or of one, can get instead of this client.

        What it was sent is its own until its session ends; QoS 2 even then. [MQTT5-4.8.2-5]
        """
        shared = self._messages.take_waiting(
            lambda outgoing: (
                outgoing.shared_filter != ""
                and outgoing.shared_filter == (shared_filter or outgoing.shared_filter)
            )
        )
        if is_ended:
            unanswered = [
                one.message
                for one in self._messages.exchanges()
                if one.qos == 1 and one.message is not None and one.message.shared_filter
            ]
            shared = unanswered + shared
        return shared

    def shared_positions(self, shared_filter: str) -> Iterator[tuple[int, int]]:
        """Yield where in the log the messages of a share group are that the client may not keep.

        With QoS 2 what was sent is its own.
        """
        for outgoing in self._messages.waiting():
            if outgoing.qos and outgoing.shared_filter == shared_filter:
                yield outgoing.message.partition, outgoing.message.offset
        for exchange in self._messages.exchanges():
            sent = exchange.message
            if exchange.qos == 1 and sent is not None and sent.shared_filter == shared_filter:
                yield sent.message.partition, sent.message.offset

    def first_waiting(self) -> dict[int, int]:
        """Return per partition the offset of the first message that waits, if one does.

        What waits for a share group is in the record of its part.
        """
        first: dict[int, int] = {}
        for outgoing in self._messages.waiting():
            if outgoing.message.partition not in first and not outgoing.shared_filter:
                first[outgoing.message.partition] = outgoing.message.offset
        first.pop(LOCAL, None)
        return first

    def deliver(self, message: OutboundMessage, copy: Copy[Sender], now_ms: int) -> None:
        """Take a message that one of the client's subscriptions matches.

        DUP as the publisher set it does not count [MQTT5-3.3.1-3] [MQTT311-3.3.1-3], RETAIN only
        with Retain As Published [MQTT5-3.3.1-12] [MQTT5-3.3.1-13] [MQTT311-3.3.1-9]. A first
        PUBLISH has DUP 0. [MQTT5-4.3.2-2] [MQTT5-4.3.3-2]
        """
        qos = min(message.qos, copy.qos)  # [MQTT5-3.8.4-8] [MQTT311-3.8.4-6]
        retain = message.retain and copy.retain_as_published
        identifiers = copy.identifiers if self._level == MQTT_5_0 else ()
        rights = self.rights
        if rights is not None and not rights.may_receive(message.topic_name):
            self._drop(DropReason.NOT_AUTHORIZED, message, qos)
            return
        connection = self._connection
        if connection is None or connection.is_closing:
            if qos or self._context.settings.keep_qos_0_offline:
                self._keep(Outgoing(message, qos, retain, copy.identifiers, copy.shared_filter))
                if self.progress is not None:
                    self.progress.touch()
            return
        if qos == 0:
            if not connection.is_writable:
                self._drop(DropReason.SLOW_CLIENT, message, 0)
                return
            if not self._max_aliases and not self._save_queue:
                data = message.template(self._level, now_ms).to_bytes(
                    retain=retain, subscription_identifiers=identifiers
                )
                if self._max_packet_bytes is None or len(data) <= self._max_packet_bytes:
                    self._counters.messages_sent += 1
                    self._counters.payload_bytes_sent += len(message.payload)
                    connection.write(data)
                    if self._told.delivered:
                        self._tell_delivered(message, 0, now_ms)
                    return
            self._send(0, Outgoing(message, 0, retain, identifiers), now_ms, dup=False)
            return
        outgoing = Outgoing(message, qos, retain, identifiers, copy.shared_filter)
        offered = self._messages.offer(outgoing, qos, writable=self._takes_more(connection))
        if self.progress is not None:
            self.progress.touch()
        if offered is Offer.DROPPED:
            self._drop(DropReason.QUEUE_FULL, message, qos)
        elif offered is not Offer.QUEUED:
            self._send(offered, outgoing, now_ms, dup=False)

    def send_waiting(self) -> None:
        """Send what waits, as far as window, socket and the log allow."""
        connection = self._connection
        now_ms = 0
        while connection is not None and self._takes_more(connection) and not connection.is_closing:
            ready = self._messages.take_ready()
            if ready is None:
                break
            now_ms = now_ms or self._clock.now_ms()
            outgoing = ready.message
            reason = None if ready.dup else self._too_late(outgoing.message, now_ms)
            if reason is not None:
                self._drop(reason, outgoing.message, outgoing.qos)
                if ready.packet_id:
                    self._messages.abandon(ready.packet_id)
            else:
                self._send(ready.packet_id, outgoing, now_ms, dup=ready.dup)
        if self._room is not None:
            self._room.set()
        if self._retained is not None:
            self._retained.go_on()
        if self.groups:
            self._context.groups.member_moved(self)

    def _too_late(self, message: OutboundMessage, now_ms: int) -> DropReason | None:
        """Return why a message that has waited is not sent any more.

        [MQTT5-4.3.3-7]
        """
        if message.is_expired(now_ms):
            return DropReason.EXPIRED
        if self.rights is not None and not self.rights.may_receive(message.topic_name):
            return DropReason.NOT_AUTHORIZED
        return None

    @property
    def retained(self) -> RetainedScans:
        """What the session is owed of the retained messages."""
        if self._retained is None:
            self._retained = RetainedScans(self._context.retained, self)
        return self._retained

    def caught_up(self, floor: Sequence[int]) -> None:
        """Note up to where a session that came back was given what it missed."""
        if self._retained is not None:
            self._retained.caught_up(floor)

    def forget_retained(self, topic_filter: str) -> None:
        """Send no more retained messages for a filter that was unsubscribed [MQTT5-3.10.4-2]."""
        if self._retained is not None:
            self._retained.forget(topic_filter)

    def pending_retained(self) -> list[RetainedScan]:
        """Return what the client has not got yet of the retained messages."""
        return [] if self._retained is None else self._retained.pending()

    def retained_room(self, qos: int) -> int:
        """Return how many retained messages of a QoS can leave now; 0 until `send_waiting`."""
        if not self.has_room:
            return 0
        if not qos:
            return RETAINED_PAGE
        return min(RETAINED_PAGE, self._messages.window - self._messages.inflight_count)

    def send_retained(self, message: OutboundMessage, scan: RetainedScan) -> bool:
        """Send a retained message to a new subscription; False when there is no room for it.

        Behind all that waits; one that has expired, or is not for this client, is as good as sent.
        """
        if not self.has_room:
            return False
        now_ms = self._clock.now_ms()
        if message.is_expired(now_ms):
            return True
        qos = min(message.qos, scan.qos)
        if self.rights is not None and not self.rights.may_receive(message.topic_name):
            self._drop(DropReason.NOT_AUTHORIZED, message, qos)
            return True
        outgoing = Outgoing(message, qos, True, scan.identifiers)
        if not qos:
            self._send(0, outgoing, now_ms, dup=False)
            return True
        offered = self._messages.offer(outgoing, qos, writable=True)
        if self.progress is not None:
            self.progress.touch()
        if not isinstance(offered, Offer):
            self._send(offered, outgoing, now_ms, dup=False)
        return True

    def retained_sent(self) -> None:
        """Note that a subscription has got all that it was owed."""
        if self.progress is not None:
            self.progress.touch()

    def process_puback(self, puback: Puback) -> None:
        acked = self._acked(puback) if self._told.acked else None
        # A reason code of failure ends it too, and nobody else gets the message. [MQTT5-4.8.2-6]
        if self._messages.receive_puback(puback.packet_id):
            if self.progress is not None:
                self.progress.acknowledged()
            if acked is not None:
                self._tell_acked(acked)
            self.send_waiting()
        else:
            self._check_is_over(puback.packet_id, "PUBACK")

    def process_pubrec(self, pubrec: Pubrec) -> None:
        connection = self._connection
        assert connection is not None
        packet_id = pubrec.packet_id
        refused = pubrec.reason_code >= FAILURE
        acked = self._acked(pubrec) if self._told.acked else None
        known = self._messages.receive_pubrec(packet_id, refused=refused)
        if known and acked is not None:
            self._tell_acked(acked)
        if not known:
            self._check_is_over(packet_id, "PUBREC")
        if refused:
            if known:
                if self.progress is not None:
                    self.progress.touch()
                self.send_waiting()
        elif known or self._level < MQTT_5_0:
            self._write(encode_pubrel(packet_id), after_saved=known)
        else:
            reason_code = PubrelReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            connection.send(Pubrel(packet_id, reason_code))

    def process_pubcomp(self, pubcomp: Pubcomp) -> None:
        if self._messages.receive_pubcomp(pubcomp.packet_id):
            if self.progress is not None:
                self.progress.touch()
            self.send_waiting()
        else:
            self._check_is_over(pubcomp.packet_id, "PUBCOMP")

    def _check_is_over(self, packet_id: int, packet_name: str) -> None:
        """Accept an answer that nothing waits for: the exchange may have ended before.

        Raises:
            ProtocolViolation: The exchange waits for another answer.
        """
        if self._messages.is_in_flight(packet_id):
            raise ProtocolViolation(
                DisconnectReasonCode.PROTOCOL_ERROR,
                f"{packet_name} is not what message {packet_id} waits for",
                "MQTT5-4.13.1-1" if self._level == MQTT_5_0 else "MQTT311-4.8.0-1",
            )

    def _takes_more(self, connection: Client) -> bool:
        """Whether QoS 1 and 2 messages may leave: the log knows of most that were acknowledged."""
        return connection.is_writable and (self.progress is None or self.progress.has_room)

    def _keep(self, outgoing: Outgoing) -> None:
        """Queue a message for a client that is not there."""
        messages = self._messages
        if messages.is_full and self._context.settings.drop_when_offline == "oldest":
            oldest = messages.drop_oldest()
            if oldest is not None:
                self._drop(DropReason.QUEUE_FULL, oldest.message, oldest.qos)
        if not messages.put(outgoing, outgoing.qos):
            self._drop(DropReason.QUEUE_FULL, outgoing.message, outgoing.qos)

    def _send(self, packet_id: int, outgoing: Outgoing, now_ms: int, *, dup: bool) -> None:
        """Write one message; one that the client cannot take is as good as sent."""
        message = outgoing.message
        alias, is_known = self._alias(message.topic_name) if self._max_aliases else (0, False)
        data = message.template(self._level, now_ms).to_bytes(
            qos=outgoing.qos,
            dup=dup and outgoing.qos > 0,
            retain=outgoing.retain,
            packet_id=packet_id,
            subscription_identifiers=outgoing.identifiers if self._level == MQTT_5_0 else (),
            topic_alias=alias,
            omit_topic_name=is_known,
        )
        if self._max_packet_bytes is None or len(data) <= self._max_packet_bytes:
            self._counters.messages_sent += 1
            self._counters.payload_bytes_sent += len(message.payload)
            if outgoing.qos == 1:
                self._counters.messages_sent_qos_1 += 1
                if self.progress is not None:
                    self.progress.sent()
            elif outgoing.qos:
                self._counters.messages_sent_qos_2 += 1
            self._write(data, after_saved=outgoing.qos == 2, shared_filter=outgoing.shared_filter)
            if alias and not is_known:
                assert self._aliases is not None
                self._aliases[message.topic_name] = alias
            if self._told.delivered and not dup:
                self._tell_delivered(message, outgoing.qos, now_ms)
        else:  # [MQTT5-3.1.2-24] [MQTT5-3.1.2-25]
            self._drop(DropReason.TOO_LARGE, message, outgoing.qos)
            if packet_id:
                self._messages.abandon(packet_id)

    def _write(self, data: bytes, *, after_saved: bool, shared_filter: str = "") -> None:
        """Write a packet, behind those that wait for the log; a QoS 2 step waits itself."""
        assert self._connection is not None
        saved = self._saved_by(shared_filter) if after_saved else None
        if saved is None and self._save_queue is None:
            self._connection.write(data)
            return
        if self._save_queue is None:
            self._save_queue = SaveQueue(partial(_write_if_open, self._connection))
        self._save_queue.add(data, saved)

    def _saved_by(self, shared_filter: str) -> Saved | None:
        """Return what tells that the log knows of a step; they tell in the order of the steps."""
        self._has_shared = self._has_shared or shared_filter != ""
        if not self._has_shared or (self.progress is None and not shared_filter):
            return self.progress
        groups = self._context.groups
        return GroupStep(groups, self.tenant, shared_filter, self.progress)

    def _alias(self, topic_name: str) -> tuple[int, bool]:
        """Return the alias for a topic, 0 without one, and whether the client knows it already.

        The first topics of a connection get one, up to the client's Topic Alias Maximum.
        [MQTT5-3.1.2-26] [MQTT5-3.1.2-27] [MQTT5-3.3.2-11]
        """
        aliases = self._aliases
        if aliases is None:
            aliases = self._aliases = {}
        known = aliases.get(topic_name)
        if known is not None:
            return known, True
        return (len(aliases) + 1 if len(aliases) < self._max_aliases else 0), False

    def _acked(self, answer: Puback | Pubrec) -> Outgoing | None:
        """Return the message that a client says it has; None for one that it refuses."""
        if answer.reason_code >= FAILURE:
            return None
        return self._messages.message(answer.packet_id)

    def _tell_acked(self, outgoing: Outgoing) -> None:
        told = self._told
        if self.tenant in told.acked:
            now_ms = self._clock.now_ms()
            told.add(ACKED, self.tenant, self.client_id, outgoing.message, outgoing.qos, now_ms)

    def _tell_delivered(self, message: OutboundMessage, qos: int, now_ms: int) -> None:
        told = self._told
        if self.tenant in told.delivered:
            told.add(DELIVERED, self.tenant, self.client_id, message, qos, now_ms)

    def _drop(self, reason: DropReason, message: OutboundMessage, qos: int) -> None:
        self._drops.add(reason, self.tenant, self.client_id, message.topic_name, qos)


def _write_if_open(connection: Client, data: bytes) -> None:
    if not connection.is_closing:
        connection.write(data)
