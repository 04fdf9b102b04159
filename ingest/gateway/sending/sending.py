"""The messages that one session gets: sent, kept until the client takes them, or dropped.

A sender lives as long as its session is at this gateway and has a connection at most of the time.

QoS 2 to a session that outlives its connection: each step is in the log before the packet that
depends on it leaves, so that neither after a crash nor at another gateway an exchange begins again
that the client has finished. Packets behind such a one wait.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from ingest.gateway.base.drops import DropReason
from ingest.gateway.base.outbound import LOCAL
from ingest.gateway.sending.delivery_events import ACKED, DELIVERED
from ingest.gateway.sending.group_step import GroupStep
from ingest.gateway.sending.outbox import LaterReading, Outbox, most_while_away
from ingest.gateway.sending.retained_scans import RETAINED_PAGE, RetainedScans
from ingest.gateway.sending.sender_context import OutgoingMessage
from ingest.protocol.encoder import encode_pubrel
from ingest.protocol.errors import ProtocolViolation
from ingest.protocol.packets import MQTT_5_0, Puback, Pubcomp, Pubrec, Pubrel
from ingest.protocol.reason_codes import DisconnectReasonCode, PubrelReasonCode
from ingest.session.client.checkpoint import SaveQueue
from ingest.session.client.maybe_sent import MaybeSent
from ingest.session.client.outgoing import Offer, OutgoingMessages, SharedQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingest.gateway.base.client import Client
    from ingest.gateway.base.outbound import OutboundMessage
    from ingest.gateway.sending.group_step import GroupMember
    from ingest.gateway.sending.progress import SessionProgress
    from ingest.gateway.sending.sender_context import SenderContext
    from ingest.session.client.checkpoint import Saved
    from ingest.session.groups.share_records import GroupKey, MembershipRecord
    from ingest.session.subscriptions import Copy
    from mqlake.records.progress import RetainedScan
    from mqlake.rights.compiled import ClientRights

FAILURE: Final = 0x80
"""Reason codes from here on are failures (5.0: 2.4)."""


class Sender:
    """Sends messages to one client and takes its answers.

    A message waits when the client's window is used up, its socket takes no more, the log knows too
    few of the client's acknowledgements, or the client is not there. QoS 0 does not wait: it
    is dropped and recorded. Other packets than PUBLISH do not wait for the window.
    [MQTT5-3.3.4-10] [MQTT5-4.9.0-3]

    Args:
        context: Parts of the gateway that all senders share.
        tenant: Tenant of the client.
        client_id: Client identifier of the client.
        rights: See below.
        waiting: Counts its waiting messages among those of others.

    Attributes:
        outbox: Messages that wait or are in flight.
        groups: Share groups that it is a member of: the sender tells them when it may have room.
        member: The session, if it outlives its connection.
        maybe_sent: Messages that a dead holder may have sent; None: all sent ones are known.
        rights: Rights to get messages; None: all of them. The sender asks them when a message comes
            and, if it has waited or is sent again, when it leaves.
    """

    __slots__ = (
        "_aliases",
        "_connection",
        "_context",
        "_counters",
        "_giving",
        "_has_shared",
        "_level",
        "_max_aliases",
        "_max_packet_bytes",
        "_messages",
        "_of_tenant",
        "_retained",
        "_room",
        "_save_queue",
        "_told",
        "client_id",
        "groups",
        "maybe_sent",
        "member",
        "outbox",
        "progress",
        "rest",
        "rights",
        "tenant",
    )

    def __init__(
        self,
        context: SenderContext,
        tenant: str,
        client_id: str,
        rights: ClientRights | None,
        waiting: SharedQueue,
    ) -> None:
        self.tenant = tenant
        self.client_id = client_id
        self.rights = rights
        self._context = context
        self._counters = context.counters
        self._of_tenant = context.of_tenants.of(tenant)
        self._told = context.told
        self._connection: Client | None = None
        self._level = 0
        self._max_packet_bytes: int | None = None
        self._max_aliases = 0
        self._aliases: dict[str, int] | None = None
        self._messages: OutgoingMessages[OutgoingMessage] = OutgoingMessages(
            window=1,
            max_queued=most_while_away(context.settings),
            max_queued_bytes=context.settings.limits.queued_bytes,
            shared=waiting,
        )
        self.outbox = Outbox(self._messages)
        self.rest: LaterReading | None = None
        # Made when first needed: retained messages that the session is owed.
        self._retained: RetainedScans | None = None
        self.progress: SessionProgress | None = None
        self.maybe_sent: MaybeSent | None = None
        # Made when first needed: most sessions share nothing.
        self.groups: dict[GroupKey, None] | None = None
        self._has_shared = False
        # Packets of messages that share groups are giving to the client. Made when first needed.
        self._giving: dict[int, bytes] | None = None
        self.member: GroupMember | None = None
        # Packets of this connection. Made when first needed: most sessions never do.
        self._save_queue: SaveQueue[bytes] | None = None
        # Made when a caller waits for room.
        self._room: asyncio.Event | None = None

    @property
    def is_full(self) -> bool:
        """Tell whether a message that cannot leave at once would be dropped."""
        return self._messages.is_full and not self.has_room

    @property
    def has_room(self) -> bool:
        """Tell whether a message given now leaves at once."""
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

    def restore_maybe_sent(self, before: Sequence[int]) -> None:
        """Note up to where a holder that has died may have sent more than that."""
        self.maybe_sent = MaybeSent(before, self._context.settings.max_repeated_messages)

    def attach(self, connection: Client) -> None:
        """Take a connection whose CONNACK is on its way; messages in flight are sent again."""
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
        self.rest = None
        self._save_queue = None
        for packet_id in messages.resume():
            connection.write(encode_pubrel(packet_id))
        self.send_waiting()

    def detach(self) -> None:
        """Let go of the connection; messages in flight are kept."""
        self._connection = None
        self._save_queue = None
        if self._retained is not None:
            self._retained.close_questions()

    def end(self) -> None:
        """Forget the retained messages that are owed and the session: it is stored, or has ended.

        They know this object: a circle would wait for the collector of garbage.
        """
        self._retained = None
        self.member = self.rest = None
        self._messages.leave()

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
                self._keep(
                    OutgoingMessage(message, qos, retain, copy.identifiers, copy.shared_filter)
                )
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
                    self._count_sent(len(message.payload))
                    connection.write(data)
                    if self._told.delivered:
                        self._tell_delivered(message, 0, now_ms)
                    return
            self._send(0, OutgoingMessage(message, 0, retain, identifiers), now_ms, dup=False)
            return
        outgoing = OutgoingMessage(message, qos, retain, identifiers, copy.shared_filter)
        offered = self._messages.offer(
            outgoing, qos, writable=self._takes_more(connection), size=len(message.payload)
        )
        if self.progress is not None:
            self.progress.touch()
        if offered is Offer.DROPPED:
            self._has_no_room_for(outgoing)
        elif offered is not Offer.QUEUED:
            self._send(offered, outgoing, now_ms, dup=False)

    def _has_no_room_for(self, outgoing: OutgoingMessage) -> None:
        """Leave a message to others of its share group, or in the log until there is room."""
        message, session = outgoing.message, self.member
        if outgoing.shared_filter:
            self._context.groups.pass_on(self.tenant, [outgoing])
        elif (
            session is None
            or message.partition == LOCAL
            or not session.fall_behind(message.partition, message.offset)
        ):
            self._put_or_drop(outgoing)

    def send_waiting(self) -> None:
        """Send waiting messages, as far as window, socket and the log allow."""
        connection = self._connection
        now_ms = 0
        while connection is not None and self._takes_more(connection) and not connection.is_closing:
            ready = self._messages.take_ready()
            if ready is None:
                break
            now_ms = now_ms or self._context.clock.now_ms()
            outgoing = ready.message
            reason = self._too_late(outgoing.message, now_ms, dup=ready.dup)
            if reason is None:
                self._send(ready.packet_id, outgoing, now_ms, dup=ready.dup)
                continue
            self._drop(reason, outgoing.message, outgoing.qos)
            if ready.dup:
                self._withdraw(ready.packet_id)
            elif ready.packet_id:
                self._messages.abandon(ready.packet_id)
        if self._room is not None:
            self._room.set()
        if self._retained is not None:
            self._retained.go_on()
        if self.groups:
            self._context.groups.member_moved(self)

    def _too_late(self, message: OutboundMessage, now_ms: int, *, dup: bool) -> DropReason | None:
        """Return why a message that has waited is not sent any more.

        One that was sent does not expire. [MQTT5-4.3.3-7]
        """
        if not dup and message.is_expired(now_ms):
            return DropReason.EXPIRED
        if self.rights is not None and not self.rights.may_receive(message.topic_name):
            return DropReason.NOT_AUTHORIZED
        return None

    def _withdraw(self, packet_id: int) -> None:
        """End the exchange of a message that the client may not have any more."""
        is_released = self._messages.withdraw(packet_id)
        if self.progress is not None:
            self.progress.touch()
        if is_released:
            self._write(encode_pubrel(packet_id), after_saved=True)

    @property
    def retained(self) -> RetainedScans:
        """Retained messages that the session is owed."""
        if self._retained is None:
            self._retained = RetainedScans(self._context.retained, self)
        return self._retained

    def caught_up(self, floor: Sequence[int]) -> None:
        """Note up to where a session that came back was given missed messages."""
        if self._retained is not None:
            self._retained.caught_up(floor)

    def forget_retained(self, topic_filter: str) -> None:
        """Send no more retained messages for a filter that was unsubscribed [MQTT5-3.10.4-2]."""
        if self._retained is not None:
            self._retained.forget(topic_filter)

    def pending_retained(self) -> list[RetainedScan]:
        """Return scans of retained messages that the client has not got yet."""
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
        now_ms = self._context.clock.now_ms()
        if message.is_expired(now_ms):
            return True
        qos = min(message.qos, scan.qos)
        if self.rights is not None and not self.rights.may_receive(message.topic_name):
            self._drop(DropReason.NOT_AUTHORIZED, message, qos)
            return True
        outgoing = OutgoingMessage(message, qos, True, scan.identifiers)
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
        # A reason code of failure ends it too, and no other member gets the message.
        # [MQTT5-4.8.2-6]
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
                f"message {packet_id} does not wait for {packet_name}",
                "MQTT5-4.13.1-1" if self._level == MQTT_5_0 else "MQTT311-4.8.0-1",
            )

    def _acked(self, answer: Puback | Pubrec) -> OutgoingMessage | None:
        """Return the message that a client says it has; None for one that it refuses."""
        if answer.reason_code >= FAILURE:
            return None
        return self._messages.message(answer.packet_id)

    def _tell_acked(self, outgoing: OutgoingMessage) -> None:
        told = self._told
        if self.tenant in told.acked:
            now_ms = self._context.clock.now_ms()
            told.add(ACKED, self.tenant, self.client_id, outgoing.message, outgoing.qos, now_ms)

    # How packets leave

    def _takes_more(self, connection: Client) -> bool:
        """Tell whether QoS 1 and 2 messages may leave.

        They may when the socket takes more and the log knows of most that were acknowledged.
        """
        return connection.is_writable and (self.progress is None or self.progress.has_room)

    def _keep(self, outgoing: OutgoingMessage) -> None:
        """Queue a message for a client that is not there, or leave it in the log."""
        rest, message = self.rest, outgoing.message
        has_no_room = rest is not None and (rest.is_left or self._messages.is_full)
        if (
            rest is None
            or not (has_no_room and outgoing.qos)
            or not rest.leave(message.partition, message.offset)
        ):
            self._put_or_drop(outgoing)

    def _put_or_drop(self, outgoing: OutgoingMessage) -> None:
        """Queue a message; without room it is dropped, or the one that has waited longest."""
        messages = self._messages
        drops_oldest = self._context.settings.when_queue_full == "drop_oldest"
        while drops_oldest and messages.has_most and (oldest := messages.drop_oldest()):
            self._drop(DropReason.QUEUE_FULL, oldest.message, oldest.qos)
        if not messages.put(outgoing, outgoing.qos, len(outgoing.message.payload)):
            self._drop(DropReason.QUEUE_FULL, outgoing.message, outgoing.qos)

    def _count_sent(self, payload_bytes: int) -> None:
        counters, of_tenant = self._counters, self._of_tenant
        counters.messages_sent += 1
        counters.payload_bytes_sent += payload_bytes
        of_tenant.messages_sent += 1
        of_tenant.payload_sent_bytes += payload_bytes

    def _send(self, packet_id: int, outgoing: OutgoingMessage, now_ms: int, *, dup: bool) -> None:
        """Write one message; one that the client cannot take is as good as sent."""
        message = outgoing.message
        was_sent = dup
        if self.maybe_sent is not None and outgoing.qos == 1 and not dup:
            was_sent = self.maybe_sent.take(message.partition, message.offset)
        alias, is_known = self._alias(message.topic_name) if self._max_aliases else (0, False)
        data = message.template(self._level, now_ms).to_bytes(
            qos=outgoing.qos,
            dup=was_sent and outgoing.qos > 0,
            retain=outgoing.retain,
            packet_id=packet_id,
            subscription_identifiers=outgoing.identifiers if self._level == MQTT_5_0 else (),
            topic_alias=alias,
            omit_topic_name=is_known,
        )
        if self._max_packet_bytes is None or len(data) <= self._max_packet_bytes:
            self._count_sent(len(message.payload))
            if outgoing.qos == 1:
                self._counters.messages_sent_qos_1 += 1
                if self.progress is not None:
                    self.progress.sent()
            elif outgoing.qos:
                self._counters.messages_sent_qos_2 += 1
            shared_filter = outgoing.shared_filter
            given = packet_id if shared_filter and outgoing.qos == 2 and not dup else 0
            self._write(
                data, after_saved=outgoing.qos == 2, shared_filter=shared_filter, given=given
            )
            if alias and not is_known:
                assert self._aliases is not None
                self._aliases[message.topic_name] = alias
            if self._told.delivered and not dup:
                self._tell_delivered(message, outgoing.qos, now_ms)
        else:  # [MQTT5-3.1.2-24] [MQTT5-3.1.2-25]
            self._drop(DropReason.TOO_LARGE, message, outgoing.qos)
            if packet_id:
                self._messages.abandon(packet_id)

    def _write(
        self, data: bytes, *, after_saved: bool, shared_filter: str = "", given: int = 0
    ) -> None:
        """Write a packet, behind those that wait for the log; a QoS 2 step waits itself.

        Args:
            data: The packet.
            after_saved: It waits for the log.
            shared_filter: The shared subscription of its message.
            given: Packet identifier of a message that a share group gives to the client with it.
        """
        assert self._connection is not None
        saved = self._saved_by(shared_filter, given) if after_saved else None
        if given:
            self._giving = self._giving or {}
            self._giving[given] = data
        if saved is None and self._save_queue is None:
            self._connection.write(data)
            return
        if self._save_queue is None:
            self._save_queue = SaveQueue(partial(_write_if_open, self._connection))
        self._save_queue.add(data, saved)

    def _saved_by(self, shared_filter: str, given: int) -> Saved | None:
        """Return an object that tells when the log has a step; they tell in the order of steps."""
        self._has_shared = self._has_shared or shared_filter != ""
        if not self._has_shared or (self.progress is None and not shared_filter):
            return self.progress
        step = GroupStep(self._context.groups, self.tenant, shared_filter, self.progress)
        if given:
            self.outbox.give(given, is_written=self.member is None)
            step.member = self.member
            step.on_given = partial(self._given, given)
        return step

    def once_known(self, shared_filter: str, proceed: Callable[[], None]) -> None:
        """Call back when the log has as the client's what a share group has given it by now."""
        groups = self._context.groups
        GroupStep(groups, self.tenant, shared_filter, self.progress).after_saved(proceed)

    def _given(self, packet_id: int) -> None:
        """Note that the shard of the group knows whose a message is."""
        outbox, member = self.outbox, self.member
        outbox.given(packet_id)
        if self._giving is not None:
            self._giving.pop(packet_id, None)
        if self._connection is None and not outbox.giving and member is not None:
            member.stored()

    def leave_to_others(self, shared_filter: str, left: MembershipRecord) -> None:
        """Do not send what a share group was to give to the client, and others have got."""
        packet_ids = self.outbox.leave_to_others(shared_filter, left)
        for packet_id in packet_ids:
            if self._save_queue is not None and self._giving is not None:
                self._save_queue.drop(self._giving[packet_id])
            self._given(packet_id)
        if packet_ids and self.progress is not None and self.member is not None:
            self.progress.touch()
            # Before any record of the next membership, which may give it the same messages.
            self.member.save_member(lambda: None)

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

    def _tell_delivered(self, message: OutboundMessage, qos: int, now_ms: int) -> None:
        told = self._told
        if self.tenant in told.delivered:
            told.add(DELIVERED, self.tenant, self.client_id, message, qos, now_ms)

    def _drop(self, reason: DropReason, message: OutboundMessage, qos: int) -> None:
        self._context.drops.add(reason, self.tenant, self.client_id, message.topic_name, qos)


def _write_if_open(connection: Client, data: bytes) -> None:
    if not connection.is_closing:
        connection.write(data)
