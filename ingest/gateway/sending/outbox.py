"""Messages to one client that wait or are in flight, and how a packet of them leaves.

QoS 2 to a session that outlives its connection: each step is in the log before the packet that
depends on it leaves, so that neither a crash nor another gateway begins an exchange anew that the
client has finished. Packets behind such a one wait.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from ingest.gateway.base.drops import DropReason
from ingest.gateway.base.outbound import LOCAL, OutboundMessage
from ingest.gateway.sending.delivery_events import DELIVERED
from ingest.gateway.sending.group_step import GroupStep
from ingest.protocol.packets import MQTT_5_0
from ingest.session.checkpoint import SaveQueue
from ingest.session.maybe_sent import MaybeSent
from ingest.session.outgoing import Exchange, OutgoingMessages, SharedQueue

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ingest.gateway.base.client import Client
    from ingest.gateway.sending.group_step import GroupMember
    from ingest.gateway.sending.progress import SessionProgress
    from ingest.gateway.sending.retained_scans import RetainedScans
    from ingest.gateway.sending.sender_context import OutgoingMessage, SenderContext
    from ingest.session.checkpoint import Saved
    from ingest.session.share_records import GroupKey
    from mqlake.rights.compiled import ClientRights


class Outbox:
    """Of one session; arguments and attributes as of `ingest.gateway.sending.sending.Sender`."""

    __slots__ = (
        "_aliases",
        "_clock",
        "_connection",
        "_context",
        "_counters",
        "_drops",
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
        waiting: SharedQueue,
    ) -> None:
        self.tenant = tenant
        self.client_id = client_id
        self.rights = rights
        self._context = context
        self._counters = context.counters
        self._of_tenant = context.of_tenants.of(tenant)
        self._drops = context.drops
        self._told = context.told
        self._clock = context.clock
        self._connection: Client | None = None
        self._level = 0
        self._max_packet_bytes: int | None = None
        self._max_aliases = 0
        self._aliases: dict[str, int] | None = None
        self._messages: OutgoingMessages[OutgoingMessage] = OutgoingMessages(
            window=1,
            max_queued=context.settings.max_offline_messages,
            max_queued_bytes=context.settings.limits.queued_bytes,
            shared=waiting,
        )
        # Made when first needed: retained messages that the session is owed.
        self._retained: RetainedScans | None = None
        self.progress: SessionProgress | None = None
        self.maybe_sent: MaybeSent | None = None
        # Made when first needed: most sessions share nothing.
        self.groups: dict[GroupKey, None] | None = None
        self._has_shared = False
        self.member: GroupMember | None = None
        # Packet identifiers, in their order, of QoS 2 messages of which the shard of their share
        # group need not know yet that they are this client's: the progress does not tell of them.
        # True: the next record in that shard stands behind the one that tells it, or none does, as
        # the session ends with its connection.
        self._giving: dict[int, bool] | None = None
        # Packets of this connection. Made when first needed: most sessions never do.
        self._save_queue: SaveQueue[bytes] | None = None
        # Made when a caller waits for room.
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
        return self._messages.is_full and not self.has_room

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

    def restore(self, exchange: Exchange[OutgoingMessage]) -> None:
        """Take back an exchange from when the session was elsewhere; `attach` sends it."""
        self._messages.restore(exchange)

    @property
    def last_packet_id(self) -> int:
        """The packet identifier that was given last, of those in the progress; 0 before any."""
        for first in self._giving or ():
            return first - 1
        return self._messages.last_packet_id

    def go_on_behind(self, packet_id: int) -> None:
        """Give packet identifiers behind this one; called when exchanges are restored."""
        self._messages.go_on_behind(packet_id)

    @property
    def giving(self) -> Collection[int]:
        """Packet identifiers of messages that are not yet this client's by the log, in order.

        None of these has been sent: they are of share groups and go to others after a crash.
        """
        return self._giving or ()

    def member_saved(self) -> None:
        """Note that the client's messages in flight of share groups were written."""
        giving = self._giving or {}
        for packet_id in giving:
            giving[packet_id] = True

    def restore_maybe_sent(self, before: Sequence[int]) -> None:
        """Note up to where a holder that has died may have sent more than that."""
        self.maybe_sent = MaybeSent(before, self._context.settings.max_repeated_messages)

    def exchanges(self) -> Iterator[Exchange[OutgoingMessage]]:
        """Yield messages in flight, in the order of the first sending."""
        return self._messages.exchanges()

    def take_shared(self, *, is_ended: bool, shared_filter: str = "") -> list[OutgoingMessage]:
        """Take out messages that others of the share groups, or of one, can get in its place.

        Sent messages are its own until its session ends; QoS 2 even then. [MQTT5-4.8.2-5]
        """
        giving = self._giving or {}
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
                if (one.qos == 1 or one.packet_id in giving)
                and one.message is not None
                and one.message.shared_filter
            ]
            shared = unanswered + shared
        return shared

    def shared_positions(self, shared_filter: str) -> Iterator[tuple[int, int]]:
        """Yield where in the log the messages of a share group are that the client may not keep.

        With QoS 2 sent messages are its own.
        """
        giving = self._giving or {}
        for outgoing in self._messages.waiting():
            if outgoing.qos and outgoing.shared_filter == shared_filter:
                yield outgoing.message.partition, outgoing.message.offset
        for exchange in self._messages.exchanges():
            sent = exchange.message
            if sent is None or sent.shared_filter != shared_filter:
                continue
            if exchange.qos == 1 or giving.get(exchange.packet_id) is False:
                yield sent.message.partition, sent.message.offset

    def first_waiting(self) -> dict[int, int]:
        """Return per partition the offset of the first message that waits, if one does.

        Waiting messages of a share group are in the record of its membership.
        """
        first: dict[int, int] = {}
        for outgoing in self._messages.waiting():
            if outgoing.message.partition not in first and not outgoing.shared_filter:
                first[outgoing.message.partition] = outgoing.message.offset
        first.pop(LOCAL, None)
        return first

    def _takes_more(self, connection: Client) -> bool:
        """Whether QoS 1 and 2 messages may leave: the log knows of most that were acknowledged."""
        return connection.is_writable and (self.progress is None or self.progress.has_room)

    def _keep(self, outgoing: OutgoingMessage) -> None:
        """Queue a message for a client that is not there."""
        messages = self._messages
        drops_oldest = self._context.settings.drop_when_offline == "oldest"
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
            if self._giving is None:
                self._giving = {}
            self._giving[given] = self.member is None
            step.member = self.member
            step.on_given = partial(self._given, given)
        return step

    def _given(self, packet_id: int) -> None:
        """Note that the shard of the group knows whose a message is."""
        assert self._giving is not None
        self._giving.pop(packet_id, None)
        if self._connection is None and not self._giving and self.member is not None:
            self.member.stored()

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
        self._drops.add(reason, self.tenant, self.client_id, message.topic_name, qos)


def _write_if_open(connection: Client, data: bytes) -> None:
    if not connection.is_closing:
        connection.write(data)
