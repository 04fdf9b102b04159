"""The session of one client that is connected here: how it is written down, and comes back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from ingest.gateway.base.outbound import LOCAL
from ingest.gateway.sessions.subscribed_session import SubscribedSession
from ingest.session.checkpoint import Before, CheckpointKind, write
from ingest.session.share_records import MemberRecord
from ingest.session.subscriptions import ClientSubscription
from mqlake.errors import LogError
from mqlake.offsets import latest
from mqlake.progress_records import HistoryRecord, Outgoing, ProgressRecord
from mqlake.session_records import SessionRecord, StoredSubscription, exchange_name
from mqlake.topics import SHARE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingest.gateway.sending.sender_context import OutgoingMessage
    from ingest.gateway.sending.sending import Sender
    from ingest.gateway.sessions.session_context import StoredSession


Changes: TypeAlias = "list[tuple[str, StoredSubscription | None]]"
"""Topic filters with the content of their own records; None: the record is to be removed."""


class ClientSession(SubscribedSession):
    """The session as the log gets it and gives it back.

    Arguments as of `SubscribedSession`.
    """

    __slots__ = ()

    @property
    def has_progress(self) -> bool:
        """Whether the log has, or is to have, a record of how far it has come.

        Without subscriptions or exchanges there is no progress.
        """
        return self._has_progress_record or (self.progress is not None and self.progress.is_begun)

    def exchange(self, packet_id: int) -> bytes:
        """Return the name of a QoS 2 exchange, by which its message is found in the log."""
        return exchange_name(self.session_id, packet_id, self._context.me.incarnation)

    def save(
        self,
        on_saved: Callable[[LogError | None], None] | None = None,
        *,
        before: Before = Before.RELEASE,
        progress: Callable[[], object] | None = None,
    ) -> None:
        """Write the session as it is now, if it is one that is written.

        Before SUBACK and UNSUBACK only changes of its subscriptions. With the first of them how far
        it has come: else a gateway that takes it over would not know from where on to read.

        Args:
            on_saved: Told when the log has it, or not; of one that is not written, when it is held.
            before: The packet or record that relies on that.
            progress: Writes how far it has come, where that is new.

        Raises:
            LogError: The log takes no more; only with a callback.
        """
        self.is_written = self.is_written or self.is_stored or self.will is not None
        if not self.is_written:
            if on_saved is not None:  # it may have been granted before others settled it
                self._context.session_log.once_held(partial(on_saved, None))
            return
        records = self._records
        changes = self.take_changes()
        # Where nothing has changed something is written all the same: an answer that follows tells
        # of records on their way to the log.
        is_session_due = before is not Before.SUBACK or records.is_session_changed or not changes
        records.is_session_changed = False
        saved = _Saved(self, changes, is_session_due, on_saved) if on_saved is not None else None
        writers = self._writers(changes, saved, progress, is_session_due=is_session_due)
        try:
            if not write(before, writers):
                raise LogError("the log takes no more", definite=True)
        except LogError:
            if saved is not None:
                saved.fail()
            raise

    def _writers(
        self,
        changes: Changes,
        saved: _Saved | None,
        progress: Callable[[], object] | None,
        *,
        is_session_due: bool,
    ) -> dict[CheckpointKind, Callable[[], object]]:
        writers: dict[CheckpointKind, Callable[[], object]] = {}
        if changes:
            writers[CheckpointKind.SUBSCRIPTION] = partial(self.save_subscriptions, changes, saved)
        if is_session_due:
            writers[CheckpointKind.SESSION] = partial(self._save, saved)
        if progress is None and self.is_stored and self.subscriptions and not self.has_progress:
            progress = partial(self.save_progress, self.snapshot())
        if progress is not None:
            writers[CheckpointKind.PROGRESS] = progress
        if self.is_stored and self.shares:
            writers[CheckpointKind.MEMBER] = self.save_member
        return writers

    def _save(self, saved: _Saved | None) -> None:
        assert self.epoch is not None
        self._context.session_log.save_session(self.record(), self.epoch, saved)

    def take_changes(self) -> Changes:
        """Return changes of subscriptions that have, or had, records of their own."""
        changes: Changes = []
        for topic_filter in self._records.take_changed():
            subscription = self.subscriptions.get(topic_filter)
            if topic_filter not in self._records.own or subscription is None:
                changes.append((topic_filter, None))
            elif subscription.is_counted:
                changes.append((topic_filter, self._stored(subscription)))
            # Else its client has not been told that it has it; it is written when it counts.
        return changes

    def save_subscriptions(
        self,
        changes: Changes,
        on_saved: Callable[[LogError | None], None] | None = None,
        epoch: int | None = None,
    ) -> None:
        """Write the changes that `take_changes` returned."""
        epoch = self.epoch if epoch is None else epoch
        assert epoch is not None
        log = self._context.session_log
        for topic_filter, subscription in changes:
            log.save_subscription(
                self.key, self.session_id, topic_filter, subscription, epoch, on_saved
            )

    def save_again(self, topic_filter: str) -> None:
        """Write the record that a subscription has of its own, or has not."""
        self._records.put_back([topic_filter])
        self.save_subscriptions(self.take_changes())

    def save_progress(self, progress: ProgressRecord) -> None:
        """Write how far the session has come, until the log has it."""
        assert self.epoch is not None
        self._has_progress_record = True
        self._context.session_log.save_progress(self.key, progress, self.epoch)

    def fall_behind(self, partition: int, offset: int) -> bool:
        """Go on from the log, from a message on that there is no room for; False: it cannot."""
        return self._context.slow_clients.fall_behind(self, partition, offset)

    def miss(self, log_begins: Sequence[int]) -> None:
        """Go on from the log, from where deliveries have come to, as some are gone behind that."""
        self._context.slow_clients.miss(self, log_begins)

    def stored(self) -> None:
        """Note that the log has answered for a QoS 2 message, from the client or to it."""
        if self.connection is None:
            self._context.release(self.key)

    def record(self, *, disconnected_at_ms: int | None = None) -> SessionRecord:
        """Return the record by which another gateway can take the session over."""
        will = self.will
        will_at_ms = None
        if disconnected_at_ms is not None and will is not None:
            will_at_ms = disconnected_at_ms + will.will_delay_interval * 1000
        return SessionRecord(
            session_id=self.session_id,
            tenant=self.tenant,
            client_id=self.client_id,
            protocol_level=self.protocol_level,
            username=self.username,
            keep_alive=self.keep_alive,
            clean_start=self.clean_start,
            session_expiry_interval=self.expiry_interval,
            gateway=self._context.me.gateway,
            incarnation=self._context.me.incarnation,
            connected=disconnected_at_ms is None,
            connected_at_ms=self.connected_at_ms,
            disconnected_at_ms=disconnected_at_ms,
            reason=self.end_reason or None,
            subscriptions=[
                self._stored(one)
                for one in self.subscriptions.values()
                # Else it has its own record, or its client has not been told that it has it.
                if one.topic_filter not in self._records.own and one.is_counted
            ],
            more=len(self._records.own),
            will=will,
            will_at_ms=will_at_ms,
            principal=self.principal,
        )

    def _stored(self, one: ClientSubscription[Sender]) -> StoredSubscription:
        return StoredSubscription(one.topic_filter, *_options(one), self._starts_of(one))

    def _starts_of(self, subscription: ClientSubscription[Sender]) -> Sequence[int] | None:
        """Return from where on a subscription counts for a gateway that brings the session back.

        Live messages count from where this connection has caught up; but messages read before
        that may still wait for the client, and then the session's cursor is there.
        """
        restored = self._restored_starts
        if subscription.starts is None or restored is None:
            return subscription.starts
        return restored.get(subscription.topic_filter, subscription.starts)

    def restore(self, stored: StoredSession) -> None:
        """Take the state of the record; the subscriptions are not in force yet."""
        record, progress, more = stored
        self.is_written = True
        self._has_progress_record = progress is not None
        self.known_packet_id = 0 if progress is None else progress.last_packet_id
        self.session_id = record.session_id
        in_session = [one.topic_filter for one in record.subscriptions]
        self._records.restore(
            in_session, [one.topic_filter for one in more], can_move=self._can_have_records
        )
        # The later one of a filter counts: that of the session's record.
        subscriptions = {one.topic_filter: one for one in (*more, *record.subscriptions)}
        self._restored_starts = {one.topic_filter: one.starts for one in subscriptions.values()}
        for one in subscriptions.values():
            if one.topic_filter.startswith(SHARE_PREFIX):
                self._share(one.topic_filter)
            self._hold(
                ClientSubscription(self.sender, one.topic_filter, *_options(one), one.starts)
            )
        if progress is not None:
            for packet_id in progress.incoming:
                self.incoming.restore(packet_id)
            for scan in progress.scans:
                self.sender.retained.restore(scan)
            for history in progress.histories:
                if history.fell_behind:
                    self._context.slow_clients.restore(self, history)
                else:
                    self._context.histories.restore(self, history)
            if progress.sent_before:
                self.sender.restore_maybe_sent(progress.sent_before)

    def next_progress(self) -> ProgressRecord:
        """Return how far the session has come, for a record that is written now.

        Its messages in flight of share groups are in the log before that, see
        `ingest.session.checkpoint`.
        """
        if self.shares:
            self.save_member()
        progress = self.snapshot()
        if not progress.sent_before:
            self.sender.maybe_sent = None
        return progress

    def save_member(self) -> None:
        """Write of which share groups it is a member, and its messages in flight of them."""
        if self.is_coming_back:
            return  # its messages in flight are in the log already, and not here yet
        assert self.epoch is not None
        known = self.known_packet_id
        records = {one: MemberRecord(known_packet_id=known) for one in self.shared_filters()}
        for one in self.sender.outbox.exchanges():
            record = None if one.message is None else records.get(one.message.shared_filter)
            if record is not None and one.message is not None:
                record.in_flight.append(_position(one.message))
                record.packet_ids.append(one.packet_id)
        self._context.share_log.save_member(self.key, self.epoch, records)
        self.sender.outbox.member_saved()

    def snapshot(self) -> ProgressRecord:
        """Return how far the session has come."""
        cursor = latest(self._context.delivered.next_offsets(), self.floor)
        waiting = self.sender.outbox.first_waiting()
        for partition, offset in waiting.items():
            cursor[partition] = min(cursor[partition], offset)
        giving = self.sender.outbox.giving
        told = [one for one in self.sender.outbox.exchanges() if one.packet_id not in giving]
        scans, histories = self.sender.pending_retained(), self._history_records()
        maybe_sent = self.sender.maybe_sent
        if not (waiting or scans or histories):
            maybe_sent = None  # all of it has been sent
        return ProgressRecord(
            self.session_id,
            cursor,
            settled=not waiting and self.floor is None,
            outgoing=[
                Outgoing(one.packet_id, one.qos, *_position(one.message), one.message is None)
                for one in told
                if one.message is None or one.message.message.partition != LOCAL
            ],
            incoming=self.incoming.held(),
            storing=self.incoming.storing(),
            storing_from=self.incoming.storing_from(self._context.publisher.next_offsets()),
            scans=scans,
            shared={
                one.packet_id: one.message.shared_filter
                for one in told
                if one.message is not None and one.message.shared_filter
            },
            histories=histories,
            sent_before=[] if maybe_sent is None else list(maybe_sent.before),
            last_packet_id=self.sender.outbox.last_packet_id if self.shares else None,
        )

    def _history_records(self) -> list[HistoryRecord]:
        if self._histories is None:
            return []
        return [history.record() for history in self.histories()]


class _Saved:
    """Told of several records: tells once, when the log has all, or that it has one of them not.

    Failed changes are written with the next record.
    """

    __slots__ = ("_changes", "_has_session", "_left", "_on_saved", "_session")

    def __init__(
        self,
        session: ClientSession,
        changes: Changes,
        has_session: bool,
        on_saved: Callable[[LogError | None], None],
    ) -> None:
        self._session = session
        self._changes = changes
        self._has_session = has_session
        self._left = len(changes) + has_session
        self._on_saved: Callable[[LogError | None], None] | None = on_saved

    def __call__(self, error: LogError | None) -> None:
        self._left -= 1
        on_saved = self._on_saved
        if on_saved is None or (error is None and self._left):
            return
        if error is not None:
            self.fail()
        self._on_saved = None
        on_saved(error)

    def fail(self) -> None:
        """Tell nobody any more: one of them could not be written."""
        self._on_saved = None
        records = self._session._records
        records.put_back(topic_filter for topic_filter, _ in self._changes)
        records.is_session_changed = records.is_session_changed or self._has_session


def _position(outgoing: OutgoingMessage | None) -> tuple[int, int]:
    """Return where in the log a message is; of a released one nobody needs it again."""
    if outgoing is None:
        return (0, 0)
    return (outgoing.message.partition, outgoing.message.offset)


def _options(
    one: ClientSubscription[Sender] | StoredSubscription,
) -> tuple[int, bool, bool, int, int | None]:
    """Return the subscription options and the identifier, in the order of both classes."""
    return one.qos, one.no_local, one.retain_as_published, one.retain_handling, one.identifier
