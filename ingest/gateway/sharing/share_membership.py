"""This gateway's membership in one share group: its messages, and the members that get them."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.base.drops import DropReason
from ingest.session.groups.open_work import OpenWork, Position
from ingest.session.groups.share_membership import GroupMembership
from ingest.session.groups.share_records import (
    GroupKey,
    MembershipRecord,
    MembershipState,
    ShareGap,
)
from ingest.session.subscriptions import ANY_MEMBER, ClientSubscription
from mqlake.records.messages import Route
from mqlake.records.offsets import advance, at, latest
from mqlake.topics.names import split_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ingest.gateway.base.context import Context
    from ingest.gateway.base.outbound import OutboundMessage
    from ingest.gateway.log.delivered import Delivered
    from ingest.gateway.sending.sending import Sender
    from ingest.session.groups.share_choices import Chosen
    from ingest.session.groups.share_routes import RoutesThen
    from ingest.session.subscriptions import Copy, Subscriptions

NOT_KNOWN: Final = 2**63
"""`from_delivery` of a membership that takes nothing yet."""

QUEUE_MESSAGES: Final = 1_000
QUEUE_BYTES: Final = 8 * 1024 * 1024
"""So much waits in memory for members with room; the rest is read from the log when they have."""

READ_AT_ONCE: Final = 200
READ_BELOW: Final = 100
"""Messages read from the log at once, and number in memory below which this is done."""

EXACTLY_ONCE: Final = 2
"""A QoS."""

MAX_WAITING: Final = 100_000
"""More never wait, with any settings: the record of a membership has an entry for each."""


class MissedByGroup:
    """Takes messages that a share group has missed."""

    __slots__ = ("_membership", "client_id", "shared_filter")

    def __init__(self, membership: ShareMembership) -> None:
        self._membership = membership
        self.client_id = membership.client_id
        self.shared_filter = membership.group.topic_filter

    def deliver(self, message: OutboundMessage, _copy: object, _now_ms: int) -> None:
        self._membership.keep_missed(message)


class ShareMembership:
    """The state of this gateway for one share group.

    It is a subscriber itself: messages that cannot go to a member yet are delivered to it.

    Args:
        context: Shared by all parts of the gateway.
        subscriptions: Those in force: they know the members.
        delivered: How far the gateway has come.
        group: Group of the membership.
        changed: Memberships whose present state is not in the log.
        read: Reads messages from the log for a membership.

    Attributes:
        group: Share group that it is a membership in.
        standing: The membership as its record has it. `unread` there are waiting messages not in
            memory: taken over from other memberships, or too many.
        members: How many subscriptions there are, those on their way included.
        pending: Subscriptions that wait until the membership has joined, by the routes they share.
        holds_route: The last member has gone, its count in the routes is kept.
        is_joined: It is known from where on the router gives to it.
        is_open: Members are given messages that come; else they wait here.
        from_delivery: Deliveries of the gateway before this offset are not for it.
        uncertain: Dropped messages of the present gap: another member may have them.
        due_at: When that is to be written, by the loop's time.
    """

    def __init__(
        self,
        context: Context,
        subscriptions: Subscriptions[Sender],
        delivered: Delivered,
        group: GroupKey,
        changed: dict[ShareMembership, None],
        read: Callable[[ShareMembership], None],
    ) -> None:
        self.group = group
        self.standing = GroupMembership(group, context.me, self.new_id())
        self.standing.on_begin = self._begin
        self._context = context
        self._subscriptions = subscriptions
        self._delivered = delivered
        self._changed = changed
        self._read = read
        self.route = Route(context.me.gateway, *group)
        self.client_id = ""  # of no client: drops name none
        self.members = 0
        self.pending: list[tuple[list[Route], Callable[[], None]]] = []
        self.unwanted = asyncio.Event()
        self.holds_route = False
        self.is_joined = False
        self.is_open = False
        self.from_delivery = 0
        self.uncertain = OpenWork()
        self.due_at = 0.0
        self.is_reading = False
        self.task: asyncio.Task[None] | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._reading = OpenWork()
        self._queue: deque[OutboundMessage] = deque()
        self._queued_bytes = 0
        self._missed: deque[OutboundMessage] = deque()
        self._missed_bytes = 0

    @staticmethod
    def new_id() -> str:
        """Return the name of a membership."""
        return secrets.token_hex(8)

    @property
    def wants_to_read(self) -> bool:
        """Tell whether there is something to read, and room for it.

        What has been taken over is its own when the log says so.
        """
        if self.standing.taking:
            return False
        if self.standing.unread and not self.reads_gap_first:
            return len(self._queue) < READ_BELOW and self._queued_bytes < QUEUE_BYTES // 2
        return bool(self.standing.gaps)

    @property
    def reads_gap_first(self) -> bool:
        """Tell whether the next gap only says which messages wait: these are read in order."""
        return bool(self.standing.gaps) and self.standing.gaps[0].chosen is not None

    @property
    def keeps_messages(self) -> bool:
        """Tell whether messages put here are in the membership's record, from the next one on."""
        return (
            self.standing.state in {MembershipState.LIVE, MembershipState.LEAVING}
            and not self.standing.is_lost
        )

    # Missed messages. Implements `ingest.gateway.history.gaps.Absent`.

    @property
    def tenant(self) -> str:
        return self.group.tenant

    @property
    def is_ended(self) -> bool:
        return self.standing.is_lost or self.standing.state is not MembershipState.LIVE

    @property
    def subscriptions(self) -> dict[str, ClientSubscription[Any]]:
        """Return one to all messages that no member was given, with the QoS of the publisher."""
        plain = split_shared(self.group.topic_filter).topic_filter
        missed: Any = MissedByGroup(self)
        return {plain: ClientSubscription(missed, plain, 2, retain_as_published=True)}

    def is_catching_up(self, _topic_filter: str) -> bool:
        """A membership has no history."""
        return False

    # Messages in

    def receive(self, partition: int, offset: int) -> bool:
        """Note that the router gave a message; False when it is not for this membership."""
        standing = self.standing
        if standing.starts is not None and offset < at(standing.starts, partition):
            return False  # of the gap, which the first membership reads
        if standing.given is not None:
            advance(standing.given, partition, offset + 1)
        self._changed[self] = None
        return True

    @property
    def known(self) -> list[int]:
        """Per partition the first offset of which it does not know whether it was given that.

        Once it counts.
        """
        return latest(self.standing.starts or [], self._delivered.next_offsets())

    def miss(self, routes: RoutesThen, ends: Sequence[int], since_ms: int) -> None:
        """Have messages read from `mqlake.inbound` whose deliveries are gone.

        Args:
            routes: Tell which were given to this gateway.
            ends: Per partition the first offset that comes by itself.
            since_ms: When it was noticed.
        """
        # It knows itself how far it has read: `written_ms` is to tell that of others.
        chosen = routes.chosen(
            self.group, self.standing.run.gateway, self.known, ends, written_ms=0
        )
        gap = ShareGap(*chosen.narrowed(ends), since_ms, chosen)
        if not gap.is_empty:
            self.standing.gaps.append(gap)
        self.touch()

    def touch(self) -> None:
        """Note that the membership's present state is not in the log."""
        self._changed[self] = None

    def copy(self, message_topic: str, publisher: str, at: Position) -> Copy[Sender] | None:
        """Return the copy of the member that gets a message; None: it is to wait here."""
        if not self.is_open or self._queue or self.standing.unread:
            return None
        return self._subscriptions.shared_copy(
            *self.group, message_topic, publisher, *at, can_wait=True
        )

    def deliver(self, message: OutboundMessage, _copy: object, now_ms: int) -> None:
        """Take a message that cannot go to a member now.

        Without room in memory it stays in the log. QoS 0 does not wait for a member's room.
        """
        if not message.qos:
            self._deliver_qos_0(message, now_ms)
            return
        limit = min(self._context.settings.max_queued_messages, MAX_WAITING)
        if len(self._queue) + len(self._reading) + len(self.standing.unread) >= limit:
            self.drop(DropReason.QUEUE_FULL, message)
            return
        if self.standing.unread or self.reads_gap_first or not self._has_place:
            self.standing.unread.add(message.partition, message.offset)
        else:
            self._put(message)
        self._read(self)

    def _deliver_qos_0(self, message: OutboundMessage, now_ms: int) -> None:
        if self.is_open:
            copy = self._subscriptions.shared_copy(
                *self.group,
                message.topic_name,
                message.publisher,
                message.partition,
                message.offset,
                can_wait=False,
            )
            if copy is not None:
                copy.client.deliver(message, copy, now_ms)
                return
        if self._has_place:
            self._put(message)
        else:
            self.drop(DropReason.QUEUE_FULL, message)

    @property
    def _has_place(self) -> bool:
        return len(self._queue) < QUEUE_MESSAGES and self._queued_bytes < QUEUE_BYTES

    def _put(self, message: OutboundMessage) -> None:
        self._queue.append(message)
        self._queued_bytes += len(message.payload)

    def _pop(self) -> OutboundMessage:
        message = self._queue.popleft()
        self._queued_bytes -= len(message.payload)
        return message

    def take_back(self, messages: Iterable[OutboundMessage]) -> None:
        """Take messages that came before those that wait here."""
        queue = [*self._queue, *messages]
        # A topic that has moved to another partition is in one of a higher number since.
        queue.sort(key=lambda message: (message.partition, message.offset))
        self._queue = deque(queue)
        self._queued_bytes = sum(len(message.payload) for message in queue)
        self.touch()

    # Messages read from the log

    def begin_to_read(self) -> set[Position]:
        """Return positions to be read next; they stay in the membership's record."""
        self._reading = self.standing.unread.take_first(READ_AT_ONCE)
        return set(self._reading)

    def was_read(self, messages: Iterable[OutboundMessage]) -> int:
        """Take the messages that were read; return how many of those asked for the log lacks."""
        found = list(messages)
        missing = len(self._reading) - len(found)
        self._reading.clear()
        self.take_back(found)
        return missing

    def was_not_read(self) -> None:
        """Note that the log did not answer."""
        self.standing.unread.update(self._reading)
        self._reading.clear()

    def keep_missed(self, message: OutboundMessage) -> None:
        """Take a message that the group has missed: the limits of an absent client apply."""
        if self.is_ended:
            return
        settings, gap = self._context.settings, self.standing.gaps[0]
        if message.offset >= at(gap.end, message.partition):
            return  # others are read further
        if gap.chosen is not None:
            self._keep_chosen(gap.chosen, message)
        elif message.qos or settings.keep_qos_0_offline:
            self._keep_nobodys(message)
        advance(gap.start, message.partition, message.offset + 1)

    def _keep_chosen(self, chosen: Chosen, message: OutboundMessage) -> None:
        """Take a message if a gateway that is gone had been given it, or may have been.

        If this is unknown, another member may have it: what comes at least once comes again.
        """
        partition, offset = message.partition, message.offset
        is_given = chosen.has(
            self.group.topic_filter, message.topic_name, message.publisher, partition, offset
        )
        if is_given is False:
            return
        if not message.qos:
            self.drop(DropReason.UNREADABLE, message)
            return
        if is_given is None and message.qos == EXACTLY_ONCE:
            self.uncertain.add(partition, offset)
            self.drop(DropReason.UNREADABLE, message)
        elif len(self.standing.unread) >= MAX_WAITING:
            self.drop(DropReason.QUEUE_FULL, message)
        else:
            self.standing.unread.add(partition, offset)

    def _keep_nobodys(self, message: OutboundMessage) -> None:
        settings, missed = self._context.settings, self._missed
        missed.append(message)
        self._missed_bytes += len(message.payload)
        most, most_bytes = settings.max_queued_messages, settings.limits.queued_bytes
        while missed and (
            len(missed) > min(most, MAX_WAITING) or 0 < most_bytes < self._missed_bytes
        ):
            oldest = settings.when_queue_full == "drop_oldest"
            dropped = missed.popleft() if oldest else missed.pop()
            self._missed_bytes -= len(dropped.payload)
            self.drop(DropReason.QUEUE_FULL, dropped)

    def end_missed(self) -> None:
        """Let missed messages wait like the rest: a gap has been read to its end."""
        missed, self._missed, self._missed_bytes = self._missed, deque(), 0
        self.take_back(missed)

    def _begin(self, starts: list[int]) -> None:
        """Let go of messages that belong to the gap."""
        queue, self._queue = self._queue, deque()
        self.take_back(one for one in queue if one.offset >= at(starts, one.partition))

    # Messages out

    def hand_out(self) -> None:
        """Give waiting messages to the members, as far as they take them."""
        subscriptions = self._subscriptions
        now_ms = self._context.clock.now_ms()
        while self.is_open and self._queue:
            message = self._queue[0]
            if message.is_expired(now_ms):
                self.drop(DropReason.EXPIRED, self._pop())
                continue
            copy = subscriptions.shared_copy(
                *self.group,
                message.topic_name,
                message.publisher,
                message.partition,
                ANY_MEMBER,
                can_wait=message.qos > 0,
            )
            if copy is None:
                break
            copy.client.deliver(self._pop(), copy, now_ms)
        self._read(self)

    def member_moved(self, sender: Sender) -> None:
        """Note that a member may be done with messages, and give it waiting ones.

        While messages wait no other member has room.
        """
        self.touch()
        if not self._queue or not self.is_open:
            return
        copy = self._subscriptions.copy_for_member(*self.group, sender)
        if copy is None:
            self.hand_out()
            return
        now_ms = self._context.clock.now_ms()
        while self._queue and sender.has_room:
            message = self._pop()
            if message.is_expired(now_ms):
                self.drop(DropReason.EXPIRED, message)
            else:
                sender.deliver(message, copy, now_ms)
        self._read(self)

    def drop(self, reason: DropReason, message: OutboundMessage) -> None:
        self._context.drops.add(
            reason, self.group.tenant, self.client_id, message.topic_name, message.qos
        )

    def give_up(self, left: MembershipRecord | None) -> None:
        """Forget everything: another membership has it.

        Args:
            left: The membership as its owner had it leave, if that is known.
        """
        if left is not None:
            for sender in self._senders():
                sender.leave_to_others(self.group.topic_filter, left)
        self._queue.clear()
        self._queued_bytes = 0
        self._missed.clear()
        self._missed_bytes = 0
        self.standing.unread.clear()
        self._reading.clear()
        self.standing.gaps.clear()
        for sender in self._senders():
            sender.outbox.take_shared(is_ended=False, shared_filter=self.group.topic_filter)

    # Records for the log

    def snapshot(self) -> MembershipRecord:
        """Return the membership as it is now."""
        if self.standing.state is MembershipState.LIVE:
            self.move_given()
        next_delivery = self._delivered.next
        if self.from_delivery != NOT_KNOWN:
            next_delivery = max(next_delivery, self.from_delivery)
        delivered = self._delivered.next_offsets()
        now_ms, gone_at_ms = self._context.clock.now_ms(), self._delivered.gone_at_ms
        # Who settles it takes what was given out long before for read.
        at_ms = now_ms if gone_at_ms is None else gone_at_ms
        return self.standing.record(self._open(), next_delivery, delivered, at_ms)

    @property
    def is_written(self) -> bool:
        """Tell whether the log may know of it."""
        return self.standing.is_recorded

    def new_answer(self) -> asyncio.Future[Any]:
        """Return a future for the answer of the owner of the shard."""
        self._answer = self._context.loop.create_future()
        return self._answer

    def answer(self, value: Any) -> None:
        """Take the answer of the owner of the shard."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(value)

    def move_given(self) -> None:
        """Note that the router has come as far as this gateway has heard of it.

        Only while the route is in force: then all messages before were given to some membership.
        """
        now = self._delivered.next_offsets()
        self.standing.given = latest(now, self.standing.given)

    def _open(self) -> OpenWork:
        """Return messages that were given to this membership and are not dealt with.

        A message sent with QoS 2 is the client's, with any outcome. [MQTT5-4.8.2-5]
        """
        work = self.standing.unread.copy()
        work.update(self._reading)
        positions = [
            (one.partition, one.offset)
            for waiting in (self._queue, self._missed)
            for one in waiting
            if one.qos
        ]
        for sender in self._senders():
            positions.extend(sender.outbox.shared_positions(self.group.topic_filter))
        positions.sort()
        for partition, offset in positions:
            work.add(partition, offset)
        return work

    def _senders(self) -> list[Sender]:
        return self._subscriptions.shared_members(*self.group)
