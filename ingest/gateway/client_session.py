"""The session of one client that is connected here: what it has, and how it is written down."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ingest.gateway.outbound import LOCAL
from ingest.gateway.publishing import client_headers
from ingest.gateway.sending import Sender
from ingest.session.checkpoint import Before, Kind, write
from ingest.session.incoming import IncomingMessages
from ingest.session.share_parts import GroupKey
from ingest.session.states import IN_FORCE, OVER, ROUTED, State, step
from ingest.session.subscription_records import SubscriptionRecords
from ingest.session.subscriptions import ClientSubscription
from mqlake.errors import LogError
from mqlake.offsets import have_reached, latest
from mqlake.records import Route
from mqlake.session_records import (
    OWN_RECORDS_SINCE,
    HistoryRecord,
    Outgoing,
    ProgressRecord,
    SessionRecord,
    StoredSubscription,
    StoredWill,
    exchange_name,
)
from mqlake.topics import SHARE_PREFIX, is_system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ingest.gateway.client import Client
    from ingest.gateway.delivered import Delivered
    from ingest.gateway.histories import Histories, History
    from ingest.gateway.peers import Peers
    from ingest.gateway.progress import Progress
    from ingest.gateway.publishing import Publisher
    from ingest.gateway.sending import Outgoing as OutgoingMessage
    from ingest.gateway.sending import SenderContext
    from ingest.gateway.session_log import SessionLog
    from ingest.gateway.share_groups import ShareGroups
    from ingest.gateway.share_log import ShareLog
    from ingest.protocol.packets import Connect, Will
    from ingest.session.subscriptions import Subscriptions
    from mqlake.clock import Clock
    from mqlake.shard_records import Key, Run


Changes: TypeAlias = "list[tuple[str, StoredSubscription | None]]"
"""Topic filters with what their own records are to say; None: the record is to be removed."""


class StoredSession(NamedTuple):
    """What the log has of a session whose client was away."""

    session: SessionRecord
    progress: ProgressRecord | None
    """None when there is none yet."""
    more: Sequence[StoredSubscription] = ()
    """Its subscriptions that have records of their own."""


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What all sessions of a gateway use.

    Attributes:
        me: This run of the gateway.
        origin: `<site>/<gateway>`.
        clock: For times in records.
        peers: Knows which version of records is in force.
        senders: What their senders use.
        subscriptions: Those in force.
        share_groups: The share groups that sessions here are members of.
        histories: Reads for sessions that have asked for history.
        publisher: Knows what the log has confirmed.
        delivered: How far the gateway has come.
        session_log: Where sessions are written.
        share_log: Where it is written what they share.
        release: Called when the log may have answered for the last message of a session whose
            client has gone.
    """

    me: Run
    origin: str
    clock: Clock
    peers: Peers
    senders: SenderContext
    subscriptions: Subscriptions[Sender]
    share_groups: ShareGroups
    histories: Histories
    publisher: Publisher
    delivered: Delivered
    session_log: SessionLog
    share_log: ShareLog
    release: Callable[[ClientSession], None]


class ClientSession:
    """A session whose client is connected to this gateway (5.0: 4.1).

    It is known by its client identifier [MQTT5-3.1.3-2] [MQTT311-3.1.3-2] and lasts at least as
    long as its connection [MQTT5-4.1.0-1] [MQTT311-4.1.0-1] [MQTT311-4.1.0-2].

    Attributes:
        session_id: 16 hexadecimal digits.
        expiry_interval: Seconds it outlives its connection; `NEVER_EXPIRES` for ever.
        connection: None once the client has gone.
        subscriptions: By topic filter, shared ones included.
        will: To be published when the connection ends without DISCONNECT; None once it was, or
            when there was none. [MQTT5-3.1.2-7] [MQTT311-3.1.2-12]
        progress: Of a session that outlives its connection, else None.
        floor: Per partition the first offset that is not dealt with, where that is more than the
            gateway has come to.
        state: See `ingest.session.states`.
        epoch: Under which it is held; of one that is not written it may not be known yet.
        is_written: The log has, or will have, a record of it.
        shares: It has, or had, shared subscriptions.
        hands_on: Another connection of its client goes on under its claim: neither was written.
    """

    __slots__ = (
        "_context",
        "_has_progress_record",
        "_histories",
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
        "progress",
        "protocol_level",
        "sender",
        "session_id",
        "shares",
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
        username: str | None,
        expiry_interval: int,
    ) -> None:
        self._context = context
        self.tenant = connection.tenant
        self.client_id = connection.client_id
        self.session_id = secrets.token_hex(8)
        self.connection: Client | None = connection
        self.protocol_level = connect.protocol_level
        self.username = username
        self.keep_alive = connect.keep_alive
        self.clean_start = connect.clean_start
        self.expiry_interval = expiry_interval
        self.connected_at_ms = context.clock.now_ms()
        self.end_reason = ""
        self.will = None if connect.will is None else _stored_will(connect.will)
        self.headers = client_headers(
            self.client_id, context.origin, username, connection.peer.rpartition(":")[0]
        )
        self.sender = Sender(context.senders, self.tenant, self.client_id, connection.rights)
        self.incoming: IncomingMessages = IncomingMessages()
        self.subscriptions: dict[str, ClientSubscription[Sender]] = {}
        self._records = SubscriptionRecords()
        self.progress: Progress | None = None
        # Written by itself, not as what has changed.
        self._has_progress_record = False
        # By topic filter; made when first needed: few sessions ever have one.
        self._histories: dict[str, History] | None = None
        self.floor: list[int] | None = None
        # What the subscriptions of a session that came back counted from before that.
        self._restored_starts: dict[str, Sequence[int] | None] | None = None
        self.state = State.CONNECTING
        self.epoch: int | None = None
        self.is_written = False
        self.shares = False
        self.hands_on = False

    @property
    def key(self) -> Key:
        return (self.tenant, self.client_id)

    @property
    def is_stored(self) -> bool:
        """Whether it outlives its connection."""
        return self.expiry_interval > 0

    @property
    def has_progress(self) -> bool:
        """Whether the log has, or is to have, a record of how far it has come.

        Without subscriptions or exchanges there is nothing to come to.
        """
        return self._has_progress_record or (self.progress is not None and self.progress.is_begun)

    def become(self, state: State) -> None:
        """Step on: the states say which may follow."""
        self.state = step(self.state, state)

    @property
    def is_ended(self) -> bool:
        """Whether it is kept here no more: what comes late for it is nothing to it."""
        return self.state in OVER

    @property
    def is_coming_back(self) -> bool:
        """Whether it was stored and has not caught up: nothing is delivered yet."""
        return self._restored_starts is not None and self.state not in IN_FORCE

    def end(self, state: State) -> None:
        """Be stored or ended: let go of all subscriptions."""
        before = self.state
        self.become(state)
        for topic_filter in list(self.subscriptions):
            self._remove(topic_filter, before)
        self.sender.end()

    def routes(self, topic_filters: Iterable[str]) -> list[Route]:
        """Return the routes that the filters need: none for what does not come from the log."""
        name = self._context.me.gateway
        return [
            Route(name, self.tenant, topic_filter)
            for topic_filter in topic_filters
            if not is_system(topic_filter)
        ]

    def exchange(self, packet_id: int) -> bytes:
        """Return the name of a QoS 2 exchange, by which its message is found in the log."""
        return exchange_name(self.session_id, packet_id, self._context.me.incarnation)

    def add_subscription(self, subscription: ClientSubscription[Sender]) -> None:
        """Take a subscription up whose route counts this session."""
        topic_filter = subscription.topic_filter
        if self.is_ended:
            self._unroute(topic_filter)
            return
        if topic_filter in self.subscriptions:
            self.remove_subscription(topic_filter)
        self.subscriptions[topic_filter] = subscription
        self._records.add(topic_filter, can_have_record=self._can_have_records)
        self._context.subscriptions.add(self.tenant, subscription)
        if topic_filter.startswith(SHARE_PREFIX):
            self._share(topic_filter)

    def _share(self, topic_filter: str) -> None:
        self.shares = True
        group = GroupKey(self.tenant, topic_filter)
        if self.sender.groups is None:
            self.sender.groups = {}
        self.sender.groups[group] = None

    def replace_subscription(self, subscription: ClientSubscription[Sender]) -> None:
        """Put a subscription in the place of the one to the same filter."""
        existing = self.subscriptions[subscription.topic_filter]
        subscription.starts = existing.starts
        if not self.is_catching_up(subscription.topic_filter):
            self._context.subscriptions.remove(self.tenant, existing)
            self._context.subscriptions.add(self.tenant, subscription)
        self.subscriptions[subscription.topic_filter] = subscription

    def remove_subscription(self, topic_filter: str) -> None:
        """Let go of a subscription; others of a share group get what waits for this client."""
        self._remove(topic_filter, self.state)
        self._records.remove(topic_filter)
        if topic_filter.startswith(SHARE_PREFIX):
            waiting = self.sender.take_shared(is_ended=False, shared_filter=topic_filter)
            self._context.share_groups.pass_on(self.tenant, waiting)

    def note_changed(self, topic_filter: str) -> None:
        """Note that a subscription is to be written with the next record."""
        self._records.change(topic_filter)

    @property
    def _can_have_records(self) -> bool:
        """Whether subscriptions may have records of their own: every gateway reads them."""
        return self.is_written and self._context.peers.version >= OWN_RECORDS_SINCE

    def _remove(self, topic_filter: str, state: State) -> None:
        """Undo what was done for a subscription up to a state."""
        subscription = self.subscriptions.pop(topic_filter)
        if self._restored_starts is not None:
            self._restored_starts.pop(topic_filter, None)
        is_in_force = state in IN_FORCE and not self.is_catching_up(topic_filter)
        self._leave_history(topic_filter)
        if is_in_force:
            self._context.subscriptions.remove(self.tenant, subscription)
        if state in ROUTED:
            self._unroute(topic_filter)
        self.sender.forget_retained(topic_filter)
        if topic_filter.startswith(SHARE_PREFIX):
            assert self.sender.groups is not None
            self.sender.groups.pop(GroupKey(self.tenant, topic_filter), None)

    # History that subscriptions get before they are in force

    def is_catching_up(self, topic_filter: str) -> bool:
        """Whether a subscription still gets its history, and nothing else."""
        history = None if self._histories is None else self._histories.get(topic_filter)
        return history is not None and not history.is_live

    def begin_history(self, history: History) -> None:
        """Take the subscriptions of a history out of force until it is told."""
        for topic_filter in history.topic_filters:
            if self.state in IN_FORCE and not self.is_catching_up(topic_filter):
                subscription = self.subscriptions[topic_filter]
                self._context.subscriptions.remove(self.tenant, subscription)
            self._leave_history(topic_filter)
            if self._histories is None:
                self._histories = {}
            self._histories[topic_filter] = history

    def histories(self) -> list[History]:
        """Return each history once."""
        return list(dict.fromkeys((self._histories or {}).values()))

    def settle_histories(self, next_offsets: Sequence[int]) -> bool:
        """Forget those that are live and that the gateway has come past; whether there were any."""
        over = [
            history
            for history in self.histories()
            if history.is_live and have_reached(next_offsets, history.missed.cursor)
        ]
        for history in over:
            for topic_filter in list(history.topic_filters):
                self._leave_history(topic_filter)
        return bool(over)

    def _leave_history(self, topic_filter: str) -> None:
        history = None if self._histories is None else self._histories.pop(topic_filter, None)
        if history is not None:
            history.leave(topic_filter)

    def _unroute(self, topic_filter: str) -> None:
        for route in self.routes([topic_filter]):
            self._context.share_groups.unsubscribe(route)

    def save(
        self,
        on_saved: Callable[[LogError | None], None] | None = None,
        *,
        before: Before = Before.RELEASE,
        progress: Callable[[], object] | None = None,
    ) -> None:
        """Write the session as it is now, if it is one that is written.

        Before SUBACK and UNSUBACK only what has changed of its subscriptions. With the first of
        them how far it has come: else whoever takes it over would not know from where on to read.

        Args:
            on_saved: Told when the log has it, or not; of one that is not written, when it is held.
            before: What relies on that.
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
        # of what is on its way to the log.
        is_session_due = before is not Before.SUBACK or records.is_session_changed or not changes
        records.is_session_changed = False
        saved = _Saved(self, changes, is_session_due, on_saved) if on_saved is not None else None
        writers: dict[Kind, Callable[[], object]] = {}
        if changes:
            writers[Kind.SUBSCRIPTION] = partial(self.save_subscriptions, changes, saved)
        if is_session_due:
            writers[Kind.SESSION] = partial(self._save, saved)
        if progress is None and self.is_stored and self.subscriptions and not self.has_progress:
            progress = partial(self.save_progress, self.snapshot())
        if progress is not None:
            writers[Kind.PROGRESS] = progress
        if self.is_stored and self.shares:
            writers[Kind.MEMBER] = self._save_member
        try:
            if not write(before, writers):
                raise LogError("the log takes no more", definite=True)
        except LogError:
            if saved is not None:
                saved.fail()
            raise

    def _save(self, saved: _Saved | None) -> None:
        assert self.epoch is not None
        self._context.session_log.save_session(self.record(), self.epoch, saved)

    def take_changes(self) -> Changes:
        """Return what has changed of subscriptions that have, or had, records of their own."""
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
        """Write what `take_changes` returned."""
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

    def stored(self) -> None:
        """Note that the log has answered for a QoS 2 message."""
        if self.connection is None:
            self._context.release(self)

    def record(self, *, disconnected_at_ms: int | None = None) -> SessionRecord:
        """Return what whoever takes the session over must know of it."""
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
        )

    def _stored(self, one: ClientSubscription[Sender]) -> StoredSubscription:
        return StoredSubscription(
            one.topic_filter,
            one.qos,
            one.no_local,
            one.retain_as_published,
            one.retain_handling,
            one.identifier,
            self._starts_of(one),
        )

    def _starts_of(self, subscription: ClientSubscription[Sender]) -> Sequence[int] | None:
        """Return from where on a subscription counts for whoever brings the session back.

        Live messages count from where this connection has caught up; but what was read before that
        may still wait for the client, and then the session's cursor is there.
        """
        restored = self._restored_starts
        if subscription.starts is None or restored is None:
            return subscription.starts
        return restored.get(subscription.topic_filter, subscription.starts)

    def restore(self, stored: StoredSession) -> None:
        """Become what the record says; the subscriptions are not in force yet."""
        record, progress, more = stored
        self.is_written = True
        self._has_progress_record = progress is not None
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
            self.subscriptions[one.topic_filter] = ClientSubscription(
                self.sender,
                one.topic_filter,
                one.qos,
                one.no_local,
                one.retain_as_published,
                one.retain_handling,
                one.identifier,
                one.starts,
            )
        if progress is not None:
            for packet_id in progress.incoming:
                self.incoming.restore(packet_id)
            for scan in progress.scans:
                self.sender.retained.restore(scan)
            for history in progress.histories:
                self._context.histories.restore(self, history)

    def next_progress(self) -> ProgressRecord:
        """Return how far the session has come, for a record that is written now.

        What it has in flight of share groups is in the log before that, see
        `ingest.session.checkpoint`.
        """
        if self.shares:
            self._save_member()
        return self.snapshot()

    def shared_filters(self) -> list[str]:
        """Return its shared subscriptions."""
        return [one for one in self.subscriptions if one.startswith(SHARE_PREFIX)]

    def _save_member(self) -> None:
        if self.is_coming_back:
            return  # what it had in flight is in the log already, and not here yet
        assert self.epoch is not None
        in_flight: dict[str, list[tuple[int, int]]] = {one: [] for one in self.shared_filters()}
        for one in self.sender.exchanges():
            if one.message is not None and one.message.shared_filter in in_flight:
                in_flight[one.message.shared_filter].append(_position(one.message))
        self._context.share_log.save_member(self.key, self.epoch, in_flight)

    def snapshot(self) -> ProgressRecord:
        """Return how far the session has come."""
        cursor = latest(self._context.delivered.next_offsets(), self.floor)
        waiting = self.sender.first_waiting()
        for partition, offset in waiting.items():
            cursor[partition] = min(cursor[partition], offset)
        return ProgressRecord(
            self.session_id,
            cursor,
            settled=not waiting and self.floor is None,
            outgoing=[
                Outgoing(one.packet_id, one.qos, *_position(one.message), one.message is None)
                for one in self.sender.exchanges()
                if one.message is None or one.message.message.partition != LOCAL
            ],
            incoming=self.incoming.held(),
            storing=self.incoming.storing(),
            storing_from=self.incoming.storing_from(self._context.publisher.next_offsets()),
            scans=self.sender.pending_retained(),
            shared={
                one.packet_id: one.message.shared_filter
                for one in self.sender.exchanges()
                if one.message is not None and one.message.shared_filter
            },
            histories=self._history_records(),
        )

    def _history_records(self) -> list[HistoryRecord]:
        if self._histories is None:
            return []
        return [history.record() for history in self.histories()]


class _Saved:
    """Told of several records: tells once, when the log has all, or that it has one of them not.

    What failed is written with the next record.
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


def _stored_will(will: Will) -> StoredWill:
    properties: dict[str, Any] = {**will.properties}
    delay = properties.pop("will_delay_interval", 0)
    return StoredWill(will.topic_name, will.payload, will.qos, will.retain, properties, delay)
