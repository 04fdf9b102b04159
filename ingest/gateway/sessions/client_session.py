"""The session of a client that is connected here: state, subscriptions, histories and records."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING

from ingest.gateway.base.outbound import LOCAL
from ingest.gateway.routing.publishing import client_headers
from ingest.gateway.sending.sending import Sender
from ingest.gateway.sending.wills import stored_will
from ingest.gateway.sessions.save_report import SaveReport
from ingest.gateway.sessions.session_histories import SessionHistories
from ingest.session.client.checkpoint import Before, CheckpointKind, write
from ingest.session.client.incoming import IncomingMessages
from ingest.session.groups.share_records import GroupKey
from ingest.session.shard.subscription_records import SubscriptionRecords
from ingest.session.states import IN_FORCE, OVER, ROUTED, SessionState, step
from ingest.session.subscriptions import ClientSubscription
from mqlake.errors import LogError
from mqlake.records.messages import Route
from mqlake.records.offsets import cut, latest
from mqlake.records.progress import Outgoing, ProgressRecord
from mqlake.records.sessions import (
    OWN_RECORDS_SINCE,
    SessionRecord,
    StoredSubscription,
    exchange_name,
)
from mqlake.topics.names import SHARE_PREFIX, is_system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ingest.gateway.base.client import Client
    from ingest.gateway.sending.progress import SessionProgress
    from ingest.gateway.sessions.histories import SubscribeHistory
    from ingest.gateway.sessions.save_report import Changes
    from ingest.gateway.sessions.session_context import SessionContext, StoredSession
    from ingest.protocol.packets import Connect
    from mqlake.records.shards import Key


class ClientSession:
    """A session whose client is connected to this gateway (5.0: 4.1).

    It is known by its client identifier [MQTT5-3.1.3-2] [MQTT311-3.1.3-2] and lasts at least as
    long as its connection [MQTT5-4.1.0-1] [MQTT311-4.1.0-1] [MQTT311-4.1.0-2].

    Attributes:
        session_id: 16 hexadecimal digits.
        expiry_interval: Seconds it outlives its connection; `NEVER_EXPIRES` for ever.
        connection: None once the client has gone.
        subscriptions: By topic filter, shared ones included.
        size: Bytes of these filters and of the will.
        will: To be published when the connection ends without DISCONNECT; None once it was, or
            when there was none. [MQTT5-3.1.2-7] [MQTT311-3.1.2-12]
        progress: Progress of the session, if it outlives its connection; else None.
        floor: Per partition the first offset that is not dealt with, where that is beyond the
            gateway's deliveries.
        state: See `ingest.session.states`.
        epoch: Epoch under which it is held; None: not known yet, of one that is not written.
        is_written: The log has, or will have, a record of it.
        shares: It has, or had, shared subscriptions.
        hands_on: Another connection of its client goes on under its claim: neither was written.
    """

    __slots__ = (
        "_context",
        "_has_progress_record",
        "_histories",
        "_listener",
        "_records",
        "_restored_starts",
        "clean_start",
        "client_id",
        "connected_at_ms",
        "connection",
        "end_reason",
        "epoch",
        "expiry_interval",
        "floor",
        "hands_on",
        "headers",
        "incoming",
        "is_written",
        "keep_alive",
        "known_packet_id",
        "principal",
        "progress",
        "protocol_level",
        "sender",
        "session_id",
        "shares",
        "size",
        "state",
        "subscriptions",
        "tenant",
        "username",
        "will",
    )

    def __init__(
        self,
        context: SessionContext,
        connection: Client,
        connect: Connect,
        expiry_interval: int,
    ) -> None:
        self._context = context
        self.known_packet_id: int | None = None
        self.tenant = connection.tenant
        self.client_id = connection.client_id
        self.session_id = secrets.token_hex(8)
        self.connection: Client | None = connection
        self.protocol_level = connect.protocol_level
        self.username = connection.username
        self.principal = connection.principal
        self._listener = connection.listener
        self.keep_alive = connect.keep_alive
        self.clean_start = connect.clean_start
        self.expiry_interval = expiry_interval
        self.connected_at_ms = context.clock.now_ms()
        self.end_reason = ""
        self.will = None if connect.will is None else stored_will(connect.will, connection)
        self.headers = client_headers(
            self.client_id, context.origin, self.username, connection.address
        )
        waiting = context.shared_limits.waiting(self.tenant, self.principal)
        self.sender = Sender(
            context.senders, self.tenant, self.client_id, connection.rights, waiting
        )
        self.incoming: IncomingMessages = IncomingMessages()
        self.subscriptions: dict[str, ClientSubscription[Sender]] = {}
        self.size = 0 if connect.will is None else connect.will.size
        self._records = SubscriptionRecords()
        self.progress: SessionProgress | None = None
        # Written by itself, not among changes.
        self._has_progress_record = False
        # Made when first needed: few sessions ever have one.
        self._histories: SessionHistories | None = None
        self.floor: list[int] | None = None
        # Starts of subscriptions of a session that came back, from before that.
        self._restored_starts: dict[str, Sequence[int] | None] | None = None
        self.state = SessionState.CONNECTING
        self.epoch: int | None = None
        self.is_written = False
        self.shares = False
        self.hands_on = False

    @property
    def key(self) -> Key:
        return (self.tenant, self.client_id)

    @property
    def is_stored(self) -> bool:
        """Tell whether it outlives its connection."""
        return self.expiry_interval > 0

    def become(self, state: SessionState) -> None:
        """Step on: the states say which may follow."""
        self.state = step(self.state, state)

    @property
    def is_ended(self) -> bool:
        """Tell whether it is kept here no more: late messages and answers for it are ignored."""
        return self.state in OVER

    @property
    def is_coming_back(self) -> bool:
        """Tell whether it was stored and has not caught up: nothing is delivered yet."""
        return self._restored_starts is not None and self.state not in IN_FORCE

    def end(self, state: SessionState) -> None:
        """Be stored or ended: let go of all subscriptions."""
        before = self.state
        self.become(state)
        for topic_filter in list(self.subscriptions):
            self._remove(topic_filter, before)
        self.sender.end()

    def routes(self, topic_filters: Iterable[str]) -> list[Route]:
        """Return the routes that the filters need: none for topics outside the log."""
        name = self._context.me.gateway
        return [
            Route(name, self.tenant, topic_filter)
            for topic_filter in topic_filters
            if not is_system(topic_filter)
        ]

    def add_subscription(self, subscription: ClientSubscription[Sender]) -> None:
        """Take a subscription up whose route counts this session."""
        topic_filter = subscription.topic_filter
        if self.is_ended:
            self._unroute(topic_filter)
            return
        if topic_filter in self.subscriptions:
            self.remove_subscription(topic_filter)
        self._hold(subscription)
        self._records.add(topic_filter, can_have_record=self._can_have_records)
        self._context.subscriptions.add(self.tenant, subscription)
        if topic_filter.startswith(SHARE_PREFIX):
            self._share(topic_filter)

    def _hold(self, subscription: ClientSubscription[Sender]) -> None:
        """Have a subscription that this session has not had."""
        self.subscriptions[subscription.topic_filter] = subscription
        self.size += len(subscription.topic_filter.encode())
        self._context.shared_limits.subscribed(
            self.tenant, self.principal, self._listener, subscription.topic_filter
        )

    def _share(self, topic_filter: str) -> None:
        self.shares = True
        group = GroupKey(self.tenant, topic_filter)
        if self.sender.groups is None:
            self.sender.groups = {}
        self.sender.groups[group] = None

    def replace_subscription(self, subscription: ClientSubscription[Sender]) -> None:
        """Replace the subscription to the same filter."""
        existing = self.subscriptions[subscription.topic_filter]
        subscription.starts = existing.starts
        if not self.is_catching_up(subscription.topic_filter):
            self._context.subscriptions.remove(self.tenant, existing)
            self._context.subscriptions.add(self.tenant, subscription)
        self.subscriptions[subscription.topic_filter] = subscription
        for history in self.histories():
            history.changed()

    def remove_subscription(self, topic_filter: str) -> None:
        """Let go of a subscription; others of a share group get its waiting messages."""
        self._remove(topic_filter, self.state)
        self._records.remove(topic_filter)
        if topic_filter.startswith(SHARE_PREFIX):
            waiting = self.sender.outbox.take_shared(is_ended=False, shared_filter=topic_filter)
            self._context.share_groups.pass_on(self.tenant, waiting)

    def note_changed(self, topic_filter: str) -> None:
        """Note that a subscription is to be written with the next record."""
        self._records.change(topic_filter)

    @property
    def _can_have_records(self) -> bool:
        """Tell whether subscriptions may have their own records: every gateway reads them."""
        return self.is_written and self._context.peers.version >= OWN_RECORDS_SINCE

    def _remove(self, topic_filter: str, state: SessionState) -> None:
        """Undo the steps for a subscription up to a state."""
        subscription = self.subscriptions.pop(topic_filter)
        self.size -= len(topic_filter.encode())
        self._context.shared_limits.unsubscribed(
            self.tenant, self.principal, self._listener, topic_filter
        )
        if self._restored_starts is not None:
            self._restored_starts.pop(topic_filter, None)
        is_in_force = state in IN_FORCE and not self.is_catching_up(topic_filter)
        if self._histories is not None:
            self._histories.leave(topic_filter)
        if is_in_force:
            self._context.subscriptions.remove(self.tenant, subscription)
        if state in ROUTED:
            self._unroute(topic_filter)
        self.sender.forget_retained(topic_filter)
        if topic_filter.startswith(SHARE_PREFIX):
            assert self.sender.groups is not None
            self.sender.groups.pop(GroupKey(self.tenant, topic_filter), None)

    def shared_filters(self) -> list[str]:
        """Return its shared subscriptions."""
        return [one for one in self.subscriptions if one.startswith(SHARE_PREFIX)]

    # History that subscriptions get before they are in force

    def is_catching_up(self, topic_filter: str) -> bool:
        """Tell whether a subscription still gets its history, and nothing else."""
        return self._histories is not None and self._histories.is_catching_up(topic_filter)

    def begin_history(self, history: SubscribeHistory) -> None:
        """Take the subscriptions of a history out of force until the client has got it."""
        if self._histories is None:
            self._histories = SessionHistories()
        for topic_filter in history.topic_filters:
            if self.state in IN_FORCE and not self.is_catching_up(topic_filter):
                subscription = self.subscriptions[topic_filter]
                self._context.subscriptions.remove(self.tenant, subscription)
            self._histories.leave(topic_filter)
            self._histories.add(topic_filter, history)

    def histories(self) -> list[SubscribeHistory]:
        """Return each history once."""
        return [] if self._histories is None else self._histories.each()

    def settle_histories(self, next_offsets: Sequence[int]) -> bool:
        """Forget those that are live and that the gateway has come past; whether there were any."""
        return self._histories is not None and self._histories.settle(next_offsets)

    def cut(self, log_ends: Sequence[int]) -> None:
        """Count from the end of a log that has lost messages which this session knows."""
        for one in self.subscriptions.values():
            one.starts = None if one.starts is None else cut(one.starts, log_ends)
        restored = self._restored_starts or {}
        for topic_filter, starts in restored.items():
            restored[topic_filter] = None if starts is None else cut(starts, log_ends)
        if self._histories is not None:
            self._histories.cut(log_ends)

    def _unroute(self, topic_filter: str) -> None:
        for route in self.routes([topic_filter]):
            self._context.share_groups.unsubscribe(route)

    # How it is written down, and comes back

    @property
    def has_progress(self) -> bool:
        """Tell whether the log has, or is to have, a record of how far it has come.

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
            on_saved: Called when the log has it, or not; for one that is not written, when it is
                held.
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
        saved = (
            SaveReport(self._records, changes, on_saved, has_session=is_session_due)
            if on_saved is not None
            else None
        )
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
        saved: SaveReport | None,
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

    def _save(self, saved: SaveReport | None) -> None:
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
            # Else its client has not had SUBACK for it; it is written when it counts.
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
                # Else it has its own record, or its client has not had SUBACK for it.
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
        `ingest.session.client.checkpoint`.
        """
        if self.shares:
            self.save_member()
        progress = self.snapshot()
        if not progress.sent_before:
            self.sender.maybe_sent = None
        return progress

    def save_member(self, on_saved: Callable[[], None] | None = None) -> None:
        """Write of which share groups it is a member, and its messages in flight of them.

        Args:
            on_saved: Called when the log has them.
        """
        if not self.is_coming_back:
            assert self.epoch is not None
            outbox = self.sender.outbox
            records = outbox.member_records(self.shared_filters(), self.known_packet_id)
            saved = outbox.when_member_saved(on_saved)
            self._context.share_log.save_member(self.key, self.epoch, records, saved)
        elif on_saved is not None:
            on_saved()  # its messages in flight are in the log already, and not here yet

    def snapshot(self) -> ProgressRecord:
        """Return how far the session has come."""
        cursor = latest(self._context.delivered.next_offsets(), self.floor)
        waiting = self.sender.outbox.first_waiting()
        for partition, offset in waiting.items():
            cursor[partition] = min(cursor[partition], offset)
        giving = self.sender.outbox.giving
        told = [one for one in self.sender.outbox.exchanges() if one.packet_id not in giving]
        scans = self.sender.pending_retained()
        histories = [history.record() for history in self.histories()]
        maybe_sent = self.sender.maybe_sent
        if not (waiting or scans or histories):
            maybe_sent = None  # all of it has been sent
        return ProgressRecord(
            self.session_id,
            cursor,
            settled=not waiting and self.floor is None,
            outgoing=[
                Outgoing(one.packet_id, one.qos, 0, 0, released=True)
                if one.message is None
                else Outgoing(one.packet_id, one.qos, *one.message.position, released=False)
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


def _options(
    one: ClientSubscription[Sender] | StoredSubscription,
) -> tuple[int, bool, bool, int, int | None]:
    """Return the subscription options and the identifier, in the order of both classes."""
    return one.qos, one.no_local, one.retain_as_published, one.retain_handling, one.identifier
