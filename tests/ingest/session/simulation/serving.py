"""A session that a simulated gateway holds: its state, and what is written of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ingest.session.client.catch_up import UNBOUNDED, Missed, log_ranges
from ingest.session.client.checkpoint import Before, CheckpointKind, write
from ingest.session.client.fallen_behind import first_unread, recorded
from ingest.session.client.incoming import IncomingMessages
from ingest.session.states import IN_FORCE, OVER, SessionState, step
from mqlake.records.offsets import latest
from mqlake.records.progress import HistoryRecord, Outgoing, ProgressRecord
from mqlake.records.sessions import (
    SessionRecord,
    StoredSubscription,
    StoredWill,
    encode_session,
    session_key,
)
from tests.ingest.session.simulation.receiving import Receiving
from tests.ingest.session.simulation.sending import Sending

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingest.gateway.sending.progress import SessionProgress
    from mqlake.errors import LogError
    from mqlake.records.shards import Key
    from tests.ingest.session.simulation.clients import Connection
    from tests.ingest.session.simulation.gateway import Process
    from tests.ingest.session.simulation.log import Message

FILTER = "m"


class Serving:
    """A session from the claim to its last record."""

    def __init__(self, process: Process, connection: Connection) -> None:
        options = connection.options
        self.process = process
        self.world = process.world
        self.client = connection.client
        self.connection: Connection | None = connection
        self.last_connection = connection
        self.was_asked = False
        """Its client has sent DISCONNECT."""
        self.options = options
        self.session_id = self.world.new_session()
        self.connected_at_ms = process.clock.now_ms()
        self.will: StoredWill | None = None
        if options.will_delay is not None:
            self.will = StoredWill("w", b"", 0, False, {}, options.will_delay)
        self.state = SessionState.CONNECTING
        self.epoch: int | None = None
        self.is_written = False
        self.hands_on = False
        self.incoming = IncomingMessages()
        self.sender = Sending(self)
        self.receiver = Receiving(self, connection)
        self.subscriptions: dict[str, Sequence[int]] = {}
        self.restored_starts: dict[str, Sequence[int]] | None = None
        self.progress: SessionProgress | None = None
        self.has_progress_record = False
        self.floor: list[int] | None = None
        self.behind: Missed | None = None
        """What it had no room for, until the gateway has come past where that was read to."""
        self.reads_behind = False
        """Its subscription is not in force: that is read."""
        self.held: list[tuple[str, int, str]] | None = []
        """Packets of a client that is not heard yet."""

    @property
    def key(self) -> Key:
        return self.client.key

    @property
    def is_stored(self) -> bool:
        """Whether it outlives its connection."""
        return self.options.expiry > 0

    @property
    def is_ended(self) -> bool:
        return self.state in OVER

    @property
    def is_coming_back(self) -> bool:
        return self.restored_starts is not None and self.state not in IN_FORCE

    @property
    def has_progress(self) -> bool:
        return self.has_progress_record or (self.progress is not None and self.progress.is_begun)

    def become(self, state: SessionState) -> None:
        self.state = step(self.state, state)

    def restore(self, session: SessionRecord, progress: ProgressRecord | None) -> None:
        self.is_written = True
        self.session_id = session.session_id
        self.has_progress_record = progress is not None
        starts = {one.topic_filter: one.starts or [0] for one in session.subscriptions}
        self.restored_starts, self.subscriptions = starts, dict(starts)
        for history in [] if progress is None else progress.histories:
            assert history.fell_behind
            self.behind = Missed(list(history.cursor), list(history.cursor), UNBOUNDED)
            self.reads_behind = True
        for packet_id in [] if progress is None else progress.incoming:
            self.incoming.restore(packet_id)

    # Packets of its client

    def take_packet(self, what: str, packet_id: int, name: str) -> None:
        if self.held is not None:
            self.held.append((what, packet_id, name))
            return
        self.world.note(self.process, f"gets {what} {packet_id} {name}")
        getattr(self.process.part_for(self, what), f"take_{what}")(packet_id, name)

    def hear(self) -> None:
        """Take what the client has sent meanwhile."""
        held, self.held = self.held or [], None
        for packet in held:
            if not self.is_ended and self.connection is not None:
                self.take_packet(*packet)

    def take_subscribe(self, _packet_id: int, _name: str) -> None:
        connection = self.connection

        def suback(error: LogError | None) -> None:
            if error is None and connection is not None and not connection.is_closed:
                self.world.at(1, connection.client.subscribed_to, connection)

        def counted(end: int) -> None:
            if self.is_ended or self.connection is None:
                return
            self.subscriptions.setdefault(FILTER, [end])
            self.save(suback, before=Before.SUBACK)

        self.process.send_barrier(counted)

    # Messages to it

    def gets(self, message: Message, offset: int) -> bool:
        """Tell whether it gets what the router brings."""
        return not self.reads_behind and self.wants(message, offset)

    def wants(self, message: Message, offset: int) -> bool:
        starts = self.subscriptions.get(FILTER)
        return message.kind == "message" and starts is not None and offset >= starts[0]

    def come_past(self, next_offset: int) -> None:
        """Note that the gateway has read so far."""
        is_over = self.behind is not None and not self.reads_behind
        if is_over and self.behind is not None and next_offset >= self.behind.cursor[0]:
            self.behind = None
            self.touch()
        if self.floor is not None and next_offset >= self.floor[0]:
            self.floor = None
            self.touch()

    def touch(self) -> None:
        if self.progress is not None:
            self.progress.touch()

    # What it had no room for

    def fall_behind(self, offset: int) -> None:
        """Go on from the log, from a message on."""
        floor = self.floor if self.behind is None else latest(self.behind.cursor, self.floor)
        cursor = first_unread([self.process.inbound], floor, 0, offset)
        self.world.note(self.process, f"{self.session_id} falls behind at {cursor}")
        self.behind = Missed(cursor, list(cursor), UNBOUNDED)
        self.world.fallen_behind += 1
        self.reads_behind = True
        self.read_behind(self.behind)

    def read_behind(self, missed: Missed) -> None:
        """Read some of it, as far as there is room; go on until that has overtaken the router."""
        if self.is_ended or self.behind is not missed:
            return
        inbound, process = self.world.inbound, self.process
        if process.random.random() < 0.5:
            missed.aim({0: len(inbound)})
        for start, end in log_ranges([missed], range(1)).values():
            for offset in range(start, min(end, start + 2)):
                if self.wants(inbound[offset], offset):
                    if not (self.sender.has_room and process.may_deliver()):
                        process.later(self.read_behind, missed)
                        return
                    missed.pass_by(0, offset)
                    self.sender.deliver(offset, inbound[offset].qos)
                missed.pass_by(0, offset)
        if not log_ranges([missed], range(1)) and missed.follow([process.inbound]):
            self.world.note(process, f"{self.session_id} has caught up at {missed.cursor}")
            starts = self.subscriptions.get(FILTER)
            self.subscriptions[FILTER] = latest(missed.cursor, starts)
            self.reads_behind = False
            self.come_past(process.inbound)
        else:
            process.later(self.read_behind, missed)
        self.touch()

    # What is written

    def snapshot(self) -> ProgressRecord:
        """Return how far the session has come."""
        cursor = latest([self.process.inbound], self.floor)
        waiting = self.sender.first_waiting()
        if waiting is not None:
            cursor[0] = min(cursor[0], waiting)
        histories = []
        if self.behind is not None:
            first = recorded(self.behind.cursor, {} if waiting is None else {0: waiting})
            histories = [HistoryRecord([FILTER], 0, first, fell_behind=True)]
        is_owed = waiting is not None or bool(histories)
        maybe_sent = self.sender.maybe_sent if is_owed else None
        return ProgressRecord(
            self.session_id,
            cursor,
            settled=waiting is None and self.floor is None,
            outgoing=[
                Outgoing(one.packet_id, one.qos, 0, one.message or 0, one.message is None)
                for one in self.sender.messages.exchanges()
            ],
            incoming=self.incoming.held(),
            storing=self.incoming.storing(),
            storing_from=self.incoming.storing_from([self.process.last_acked + 1]),
            histories=histories,
            sent_before=[] if maybe_sent is None else list(maybe_sent.before),
        )

    def record(self, *, disconnected_at_ms: int | None = None) -> SessionRecord:
        will = self.will
        will_at_ms = None
        if disconnected_at_ms is not None and will is not None:
            will_at_ms = disconnected_at_ms + will.will_delay_interval * 1000
        starts = {**self.subscriptions, **(self.restored_starts or {})}
        return SessionRecord(
            session_id=self.session_id,
            tenant=self.key[0],
            client_id=self.key[1],
            protocol_level=5,
            username=None,
            keep_alive=0,
            clean_start=self.options.clean,
            session_expiry_interval=self.options.expiry,
            gateway=self.process.me.gateway,
            incarnation=self.process.me.incarnation,
            connected=disconnected_at_ms is None,
            connected_at_ms=self.connected_at_ms,
            disconnected_at_ms=disconnected_at_ms,
            subscriptions=[StoredSubscription(name, 2, starts=one) for name, one in starts.items()],
            will=will,
            will_at_ms=will_at_ms,
            principal=self.client.user,
        )

    def save(
        self,
        on_saved: Callable[[LogError | None], None] | None = None,
        *,
        before: Before = Before.RELEASE,
        progress: Callable[[], object] | None = None,
    ) -> None:
        self.is_written = self.is_written or self.is_stored or self.will is not None
        if not self.is_written:
            if on_saved is not None:
                self.process.once_counted(partial(on_saved, None))
            return
        assert self.epoch is not None, self.key
        writers: dict[CheckpointKind, Callable[[], object]] = {
            CheckpointKind.SESSION: partial(self.save_session, self.record(), self.epoch, on_saved)
        }
        if progress is None and self.is_stored and self.subscriptions and not self.has_progress:
            progress = partial(self.save_progress, self.snapshot())
        if progress is not None:
            writers[CheckpointKind.PROGRESS] = progress
        write(before, writers)

    def save_session(
        self,
        record: SessionRecord | None,
        epoch: int,
        on_saved: Callable[[LogError | None], None] | None = None,
        *,
        is_last: bool = False,
    ) -> None:
        value = None if record is None else encode_session(record)

        def report(_: int) -> None:
            if is_last and self.was_asked and self.process.is_leased:
                self.last_connection.has_disconnected = True
            elif on_saved is not None:
                self.process.once_counted(partial(on_saved, None))

        self.process.append_session(session_key(*self.key), value, self.key, epoch, report)

    def save_progress(self, progress: ProgressRecord, epoch: int | None = None) -> None:
        epoch = self.epoch if epoch is None else epoch
        assert epoch is not None
        self.has_progress_record = True
        self.process.save_progress(self.key, progress, epoch)
