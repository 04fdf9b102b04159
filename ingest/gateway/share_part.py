"""This gateway's part of one share group: what it was given, and to which member it goes."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.drops import DropReason
from ingest.session.open_work import OpenWork, Position
from ingest.session.share_parts import Gap, GroupKey, Outlook, PartRecord, PartState
from ingest.session.subscriptions import ClientSubscription
from mqlake.offsets import latest
from mqlake.records import Route
from mqlake.topics import split_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ingest.gateway.outbound import OutboundMessage
    from ingest.gateway.sending import Sender
    from ingest.gateway.server import Gateway
    from ingest.session.subscriptions import Copy

NOT_KNOWN: Final = 2**63
"""`from_delivery` of a part that takes nothing yet."""

ANY_MEMBER: Final = 2**63
"""Offset from which on every member counts: what has waited is for whoever is there."""

QUEUE_MESSAGES: Final = 1_000
QUEUE_BYTES: Final = 8 * 1024 * 1024
"""So much waits in memory for members with room; the rest is read from the log when they have."""

READ_AT_ONCE: Final = 200
READ_BELOW: Final = 100
"""So many messages are read from the log at once, when less than so many wait in memory."""

MAX_WAITING: Final = 100_000
"""More never wait, whatever the settings say: the record of a part has a place for each."""


class Missed:
    """Takes what a share group has missed."""

    __slots__ = ("_part", "client_id")

    def __init__(self, part: SharePart) -> None:
        self._part = part
        self.client_id = part.client_id

    def deliver(self, message: OutboundMessage, _copy: object, _now_ms: int) -> None:
        self._part.keep_missed(message)


class SharePart:
    """What this gateway holds for one share group.

    It is a subscriber itself: what cannot go to a member yet is delivered to the part.

    Args:
        gateway: Whose.
        group: Of which group.
        changed: Parts of which the log does not know what they hold now.
        read: Reads from the log what a part wants to read.

    Attributes:
        members: How many subscriptions there are, those on their way included.
        pending: Subscriptions that wait until the part has joined, by the routes they share.
        holds_route: The last member has gone, its place in the routes is kept.
        is_joined: It is known from where on the router gives to it.
        is_open: Members are given what comes; else it waits here.
        is_lost: Another gateway took this one for dead and has what the part held.
        from_delivery: What stands before this offset of the gateway's deliveries is not for it.
        starts: Where the group became live; None while that is not known.
        given: What is before was given to somebody, or is in `gaps`.
        unread: What waits and is not in memory: taken over from other parts, or too much.
        gaps: What nobody was given, still to be read.
        takes: Parts that it has asked for.
        took: Parts that it has taken over, until the log has forgotten them.
        due_at: When that is to be written, by the loop's time.
    """

    def __init__(
        self,
        gateway: Gateway,
        group: GroupKey,
        changed: dict[SharePart, None],
        read: Callable[[SharePart], None],
    ) -> None:
        self._gateway = gateway
        self._changed = changed
        self._read = read
        self.part_id = secrets.token_hex(8)
        self.group = group
        self.route = Route(gateway.settings.name, *group)
        self.client_id = ""  # nobody's: drops name no client
        self.state = PartState.JOINING
        self.members = 0
        self.pending: list[tuple[list[Route], Callable[[], None]]] = []
        self.unwanted = asyncio.Event()
        self.holds_route = False
        self.is_joined = False
        self.is_open = False
        self.is_lost = False
        self.from_delivery = 0
        self.starts: list[int] | None = None
        self.given: list[int] | None = None
        self.unread = OpenWork()
        self.gaps: list[Gap] = []
        self.takes: list[str] = []
        self.took: list[str] = []
        self.due_at = 0.0
        self.is_reading = False
        self.task: asyncio.Task[None] | None = None
        self.outlook: asyncio.Future[Outlook] = gateway.loop.create_future()
        self.awaited: list[str] | None = None
        self.changed = asyncio.Event()
        self._number = 0
        self._echoes: dict[int, asyncio.Future[bool]] = {}
        self._reading = OpenWork()
        self._queue: deque[OutboundMessage] = deque()
        self._queued_bytes = 0
        self._missed: deque[OutboundMessage] = deque()

    @property
    def wants_to_read(self) -> bool:
        """Whether there is something to read, and place for it."""
        if self.unread:
            return len(self._queue) < READ_BELOW and self._queued_bytes < QUEUE_BYTES // 2
        return bool(self.gaps)

    @property
    def keeps_messages(self) -> bool:
        """Whether what is put here is in the part's record, from the next one on."""
        return self.state in {PartState.LIVE, PartState.LEAVING} and not self.is_lost

    # What was missed. Implements `ingest.gateway.resuming.Absent`.

    @property
    def tenant(self) -> str:
        return self.group.tenant

    @property
    def is_ended(self) -> bool:
        return self.is_lost or self.state is not PartState.LIVE

    @property
    def subscriptions(self) -> dict[str, ClientSubscription[Any]]:
        """What nobody was given: all of it, with the QoS it was published with."""
        plain = split_shared(self.group.topic_filter).topic_filter
        missed: Any = Missed(self)
        return {plain: ClientSubscription(missed, plain, 2, retain_as_published=True)}

    def is_catching_up(self, _topic_filter: str) -> bool:
        """A part has no history."""
        return False

    # What comes

    def receive(self, partition: int, offset: int) -> bool:
        """Note that the router gave a message; False when it is not for this part."""
        if self.starts is not None and offset < self.starts[partition]:
            return False  # of the gap, which the first part reads
        if self.given is not None:
            self.given[partition] = max(self.given[partition], offset + 1)
        self._changed[self] = None
        return True

    def touch(self) -> None:
        """Note that the log does not know what the part holds now."""
        self._changed[self] = None

    def copy(self, message_topic: str, publisher: str, at: Position) -> Copy[Sender] | None:
        """Return the copy of the member that gets a message; None: it is to wait here."""
        if not self.is_open or self._queue or self.unread:
            return None
        return self._gateway.subscriptions.shared_copy(
            *self.group, message_topic, publisher, *at, can_wait=True
        )

    def deliver(self, message: OutboundMessage, _copy: object, now_ms: int) -> None:
        """Take a message that cannot go to a member now.

        What there is no place for in memory stays in the log. QoS 0 waits for nobody's room.
        """
        if not message.qos:
            self._deliver_qos_0(message, now_ms)
            return
        limit = min(self._gateway.settings.max_queued_messages, MAX_WAITING)
        if len(self._queue) + len(self._reading) + len(self.unread) >= limit:
            self.drop(DropReason.QUEUE_FULL, message)
            return
        if self.unread or not self._has_place:
            self.unread.add(message.partition, message.offset)
        else:
            self._put(message)
        self._read(self)

    def _deliver_qos_0(self, message: OutboundMessage, now_ms: int) -> None:
        if self.is_open:
            copy = self._gateway.subscriptions.shared_copy(
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
        """Take messages that came before what waits here."""
        queue = [*self._queue, *messages]
        queue.sort(key=lambda message: message.offset)
        self._queue = deque(queue)
        self._queued_bytes = sum(len(message.payload) for message in queue)
        self.touch()

    # What is read from the log

    def begin_to_read(self) -> set[Position]:
        """Return what is to be read next; it stays in the part's record."""
        self._reading = self.unread.take_first(READ_AT_ONCE)
        return set(self._reading)

    def was_read(self, messages: Iterable[OutboundMessage]) -> int:
        """Take what was to be read; return how much of it the log does not have."""
        found = list(messages)
        missing = len(self._reading) - len(found)
        self._reading.clear()
        self.take_back(found)
        return missing

    def was_not_read(self) -> None:
        """Note that the log did not answer."""
        self.unread.update(self._reading)
        self._reading.clear()

    def keep_missed(self, message: OutboundMessage) -> None:
        """Take a message that the group has missed: the limits of an absent client apply."""
        settings = self._gateway.settings
        if self.is_ended or not (message.qos or settings.keep_qos_0_offline):
            return
        self.gaps[0].start[message.partition] = message.offset + 1
        self._missed.append(message)
        if len(self._missed) > settings.max_offline_messages:
            oldest = settings.drop_when_offline == "oldest"
            dropped = self._missed.popleft() if oldest else self._missed.pop()
            self.drop(DropReason.QUEUE_FULL, dropped)

    def end_missed(self) -> None:
        """Let what was missed wait like the rest: a gap has been read to its end."""
        missed, self._missed = self._missed, deque()
        self.take_back(missed)

    def begin(self, starts: list[int]) -> None:
        """Count from here on: what came before belongs to the gap."""
        self.starts = starts
        self.given = latest(starts, self.given)
        queue, self._queue = self._queue, deque()
        self.take_back(one for one in queue if one.offset >= starts[one.partition])

    # What goes

    def hand_out(self) -> None:
        """Give what waits to the members, as far as they take it."""
        subscriptions = self._gateway.subscriptions
        now_ms = self._gateway.clock.now_ms()
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
        """Note that a member may be done with messages, and give it what waits.

        While something waits nobody else has room.
        """
        self.touch()
        if not self._queue or not self.is_open:
            return
        copy = self._gateway.subscriptions.copy_for_member(*self.group, sender)
        if copy is None:
            self.hand_out()
            return
        now_ms = self._gateway.clock.now_ms()
        while self._queue and sender.has_room:
            message = self._pop()
            if message.is_expired(now_ms):
                self.drop(DropReason.EXPIRED, message)
            else:
                sender.deliver(message, copy, now_ms)
        self._read(self)

    def drop(self, reason: DropReason, message: OutboundMessage) -> None:
        self._gateway.drops.add(
            reason, self.group.tenant, self.client_id, message.topic_name, message.qos
        )

    def give_up(self) -> None:
        """Forget everything: another part has it."""
        self._queue.clear()
        self._queued_bytes = 0
        self._missed.clear()
        self.unread.clear()
        self._reading.clear()
        self.gaps.clear()
        for sender in self._senders():
            sender.take_shared(is_ended=False, shared_filter=self.group.topic_filter)

    # What the log is told

    def snapshot(self) -> PartRecord:
        """Return the part as it is now."""
        gateway = self._gateway
        self._number += 1
        if self.state is PartState.LIVE:
            self.move_given()
        return PartRecord(
            self.part_id,
            self.group,
            gateway.settings.name,
            gateway.incarnation,
            self.state,
            self._number,
            gateway.next_delivery,
            self.starts,
            self.given,
            self._open(),
            [Gap(list(gap.start), list(gap.end), gap.since_ms) for gap in self.gaps],
            list(self.takes),
            list(self.took),
            gateway.clock.now_ms(),
        )

    def move_given(self) -> None:
        """Note that the router has come as far as this gateway has heard of it.

        Only while the route is in force: then somebody was given whatever is before.
        """
        now = self._gateway.next_offsets()
        self.given = latest(now, self.given)

    def echo(self, number: int) -> None:
        """Note that a record has come back from the log, and with it those before it."""
        for one in [one for one in self._echoes if one <= number]:
            echo = self._echoes.pop(one)
            if not echo.done():
                echo.set_result(True)

    def fail(self, number: int) -> None:
        """Note that the log did not take a record."""
        self.touch()
        echo = self._echoes.pop(number, None)
        if echo is not None and not echo.done():
            echo.set_result(False)

    def next_echo(self) -> asyncio.Future[bool]:
        """Return what tells that the next record has come back; False: it will not."""
        echo: asyncio.Future[bool] = self._gateway.loop.create_future()
        self._echoes[self._number + 1] = echo
        return echo

    def _open(self) -> OpenWork:
        """Return what was given to this part and is not dealt with.

        What was sent with QoS 2 is the client's, whatever becomes of it. [MQTT5-4.8.2-5]
        """
        work = self.unread.copy()
        work.update(self._reading)
        positions = [
            (one.partition, one.offset)
            for waiting in (self._queue, self._missed)
            for one in waiting
            if one.qos
        ]
        for sender in self._senders():
            positions.extend(sender.shared_positions(self.group.topic_filter))
        positions.sort()
        for partition, offset in positions:
            work.add(partition, offset)
        return work

    def _senders(self) -> list[Sender]:
        return self._gateway.subscriptions.shared_members(*self.group)
