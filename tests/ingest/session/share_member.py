"""Stored sessions in the simulated world of a share group: QoS 2 messages, and where each stands.

A session's progress is in another shard than the group, which is simulated here in a few lines. The
exchanges, the records of the member and the order of all records are the product's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ingest.gateway.base.outbound import OutboundMessage
from ingest.gateway.sending.group_step import GroupStep
from ingest.gateway.sending.outbox import Outbox
from ingest.gateway.sending.progress import SessionProgress
from ingest.gateway.sending.sender_context import OutgoingMessage
from ingest.session.client.checkpoint import SaveQueue
from ingest.session.client.outgoing import Exchange, Offer, OutgoingMessages
from mqlake.records.progress import Outgoing, ProgressRecord
from tests.ingest.session.simulation.invariants import Violation
from tests.ingest.session.simulation.node import LEASE_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.session.groups.share_records import GroupKey, MembershipRecord
    from tests.ingest.session.share_simulation import Held, ShareProcess, ShareWorld

WINDOW: Final = 3
"""Receive Maximum of clients."""

_LOOK_MS: Final = 700
_ANSWER_MS: Final = (1, 3, 20, 200)


@dataclass
class StoredSession:
    """A session that outlives its connections, as its own shard has it, and its client.

    Attributes:
        epoch: Epoch of the last claim.
        holder: Gateway that has made it.
        progress: Last record of progress that counts.
        received: Messages that the client has been sent, with their packet identifiers.
    """

    world: ShareWorld
    name: str
    epoch: int = 0
    holder: ShareProcess | None = None
    died_at: int | None = None
    is_claimed: bool = False
    progress: ProgressRecord = field(
        default_factory=lambda: ProgressRecord("s", [0], settled=True, last_packet_id=0)
    )
    received: dict[int, int] = field(default_factory=dict)

    def connect(self, process: ShareProcess) -> None:
        """Have a gateway claim it, unless another has."""
        if self.holder is None and not self.is_claimed:
            self._claim(process)
            self.world.at(_LOOK_MS, self.look)

    def look(self) -> None:
        """Have another gateway claim it when the one that holds it is dead."""
        self.world.at(_LOOK_MS, self.look)
        if self.holder is not None and self.holder.is_alive:
            return
        if self.died_at is None:
            self.died_at, self.is_claimed = self.world.now, False
        if self.is_claimed or self.world.now - self.died_at < LEASE_MS:
            return
        alive = [one for one in self.world.gateways() if one.is_alive and one.may_act()]
        if alive:
            self._claim(self.world.random.choice(alive))

    def _claim(self, process: ShareProcess) -> None:
        self.is_claimed = True

        def land() -> int:
            self.epoch += 1
            self.holder, self.died_at, self.is_claimed = process, None, False
            return self.epoch

        def begin(epoch: int) -> None:
            if epoch == self.epoch:
                process.session_members.append(ShareMember(process, self))

        process.send("session", land, report=begin)

    def save(self, epoch: int, progress: ProgressRecord) -> int:
        """Take a record of progress."""
        if epoch == self.epoch:
            self.progress = progress
        return 0


class _Packet(NamedTuple):
    what: str
    packet_id: int
    offset: int
    held: Held | None


class ShareMember:
    """A stored session that a gateway holds.

    Implements `ingest.gateway.sending.group_step.GroupMember`.
    """

    def __init__(self, process: ShareProcess, session: StoredSession) -> None:
        self.process = process
        self.session = session
        self.key = (process.shares.group.tenant, session.name)
        self.epoch = session.epoch
        messages: OutgoingMessages[OutgoingMessage] = OutgoingMessages(window=WINDOW, max_queued=0)
        self._messages = messages
        self.outbox = Outbox(messages)
        self.known_packet_id = session.progress.last_packet_id
        for one in session.progress.outgoing:
            outgoing = None if one.released else self._outgoing(one.offset)
            self.outbox.restore(Exchange(one.packet_id, one.qos, outgoing))
        self.outbox.go_on_behind(self.known_packet_id or 0)
        self.progress = SessionProgress(
            process.saver, self.key, self.epoch, self.next_progress, lambda: None
        )
        self._giving: dict[int, _Packet] = {}
        self._queue: SaveQueue[_Packet] = SaveQueue(self._leave)
        self.save_member()
        for packet_id in messages.resume():
            self._leave(_Packet("pubrel", packet_id, 0, None))
        while (ready := messages.take_ready()) is not None:
            offset = ready.message.message.offset
            self._write(_Packet("publish", ready.packet_id, offset, None), self._group.topic_filter)

    @property
    def _group(self) -> GroupKey:
        return self.process.shares.group

    def _outgoing(self, offset: int) -> OutgoingMessage:
        message = OutboundMessage("a", b"", 2, False, {}, 0, 0, offset)
        return OutgoingMessage(message, 2, False, (), self._group.topic_filter)

    @property
    def has_room(self) -> bool:
        return self._messages.has_room

    def deliver(self, offset: int, held: Held) -> None:
        """Take a message that the group gives to this member."""
        packet_id = self._messages.offer(self._outgoing(offset), 2, writable=True)
        assert not isinstance(packet_id, Offer)
        packet = _Packet("publish", packet_id, offset, held)
        self.progress.touch()
        self._write(packet, self._group.topic_filter, given=packet_id)

    # As `Sender` does

    def _write(self, packet: _Packet, shared_filter: str = "", given: int = 0) -> None:
        step = GroupStep(self.process, self._group.tenant, shared_filter, self.progress)
        if given:
            self._giving[given] = packet
            self.outbox.give(given, is_written=False)
            step.member = self
            step.on_given = partial(self.outbox.given, given)
        self._queue.add(packet, step)

    def _leave(self, packet: _Packet) -> None:
        world = self.process.shares
        if packet.what == "publish":
            self._judge(packet)
            answer, received = self._take_pubrec, self.session.received
            received[packet.offset] = packet.packet_id
        else:
            answer = self._take_pubcomp
        delay = self.process.random.choice(_ANSWER_MS)
        world.at(delay, answer, packet.packet_id, process=self.process)

    def _judge(self, packet: _Packet) -> None:
        """Look whether anybody else has a message that the client is sent."""
        world, offset = self.process.shares, packet.offset
        world.note(
            self.process, f"PUBLISH {packet.packet_id}, message {offset}, to {self.session.name}"
        )
        for session in world.stored.values():
            packet_id = session.received.get(offset)
            if packet_id is not None and (session, packet_id) != (self.session, packet.packet_id):
                raise Violation("QoS 2 goes to one client once", f"message {offset}")
        for one in world.given.get(offset, ()):
            if one is not packet.held and one.is_durable:
                raise Violation(
                    "one member acknowledges a message", f"message {offset} comes after that again"
                )

    def _take_pubrec(self, packet_id: int) -> None:
        if self._messages.receive_pubrec(packet_id, refused=False):
            self._write(_Packet("pubrel", packet_id, 0, None))

    def _take_pubcomp(self, packet_id: int) -> None:
        if self._messages.receive_pubcomp(packet_id):
            self.progress.touch()
            self.process.go_on_serving()

    def leave_to_others(self, left: MembershipRecord) -> None:
        for packet_id in self.outbox.leave_to_others(self._group.topic_filter, left):
            self._queue.drop(self._giving.pop(packet_id))
            self.outbox.given(packet_id)
        self.progress.touch()
        self.save_member()

    # As `ClientSession` does

    def next_progress(self) -> ProgressRecord:
        self.save_member()
        told = [one for one in self.outbox.exchanges() if one.packet_id not in self.outbox.giving]
        return ProgressRecord(
            "s",
            [0],
            settled=True,
            outgoing=[
                Outgoing(one.packet_id, one.qos, 0, 0, released=True)
                if one.message is None
                else Outgoing(one.packet_id, one.qos, *one.message.position, released=False)
                for one in told
            ],
            shared={one.packet_id: self._group.topic_filter for one in told},
            last_packet_id=self.outbox.last_packet_id,
        )

    def save_member(self, on_saved: Callable[[], None] | None = None) -> None:
        records = self.outbox.member_records([self._group.topic_filter], self.known_packet_id)
        saved = self.outbox.when_member_saved(on_saved)
        self.process.share_log.save_member(self.key, self.epoch, records, saved)

    def fall_behind(self, partition: int, offset: int) -> bool:
        raise AssertionError(f"message {offset} of partition {partition} has no room")

    def stored(self) -> None:
        """Nothing waits for it: the session is released by nobody."""
