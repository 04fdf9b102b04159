"""The session of a client that is connected here: state, subscriptions and histories."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from ingest.gateway.routing.publishing import client_headers
from ingest.gateway.sending.sending import Sender
from ingest.session.incoming import IncomingMessages
from ingest.session.share_records import GroupKey
from ingest.session.states import IN_FORCE, OVER, ROUTED, SessionState, step
from ingest.session.subscription_records import SubscriptionRecords
from mqlake.offsets import cut, have_reached
from mqlake.records import Route
from mqlake.rights.grants import NO_GRANTS
from mqlake.session_records import OWN_RECORDS_SINCE, StoredWill
from mqlake.topics import SHARE_PREFIX, is_system

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ingest.gateway.base.client import Client
    from ingest.gateway.sending.progress import SessionProgress
    from ingest.gateway.sessions.histories import SubscribeHistory
    from ingest.gateway.sessions.session_context import SessionContext
    from ingest.protocol.packets import Connect, Will
    from ingest.session.subscriptions import ClientSubscription
    from mqlake.shard_records import Key


class SubscribedSession:
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
        progress: Of a session that outlives its connection, else None.
        floor: Per partition the first offset that is not dealt with, where that is beyond the
            gateway's deliveries.
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
        self.will = None if connect.will is None else _stored_will(connect.will, connection)
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
        # By topic filter; made when first needed: few sessions ever have one.
        self._histories: dict[str, SubscribeHistory] | None = None
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
        """Whether it outlives its connection."""
        return self.expiry_interval > 0

    def become(self, state: SessionState) -> None:
        """Step on: the states say which may follow."""
        self.state = step(self.state, state)

    @property
    def is_ended(self) -> bool:
        """Whether it is kept here no more: late messages and answers for it are ignored."""
        return self.state in OVER

    @property
    def is_coming_back(self) -> bool:
        """Whether it was stored and has not caught up: nothing is delivered yet."""
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
        """Whether subscriptions may have records of their own: every gateway reads them."""
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
        self._leave_history(topic_filter)
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
        """Whether a subscription still gets its history, and nothing else."""
        history = None if self._histories is None else self._histories.get(topic_filter)
        return history is not None and not history.is_live

    def begin_history(self, history: SubscribeHistory) -> None:
        """Take the subscriptions of a history out of force until it is told."""
        for topic_filter in history.topic_filters:
            if self.state in IN_FORCE and not self.is_catching_up(topic_filter):
                subscription = self.subscriptions[topic_filter]
                self._context.subscriptions.remove(self.tenant, subscription)
            self._leave_history(topic_filter)
            if self._histories is None:
                self._histories = {}
            self._histories[topic_filter] = history

    def histories(self) -> list[SubscribeHistory]:
        """Return each history once."""
        return list(dict.fromkeys((self._histories or {}).values()))

    def cut(self, log_ends: Sequence[int]) -> None:
        """Count from the end of a log that has lost messages which this session knows."""
        for one in self.subscriptions.values():
            one.starts = None if one.starts is None else cut(one.starts, log_ends)
        restored = self._restored_starts or {}
        for topic_filter, starts in restored.items():
            restored[topic_filter] = None if starts is None else cut(starts, log_ends)
        for history in self.histories():
            history.missed.cursor = cut(history.missed.cursor, log_ends)

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


def _stored_will(will: Will, client: Client) -> StoredWill:
    properties: dict[str, Any] = {**will.properties}
    delay = properties.pop("will_delay_interval", 0)
    rights = client.rights
    grants = {} if rights is None or rights.grants == NO_GRANTS else rights.grants.members()
    return StoredWill(
        will.topic_name, will.payload, will.qos, will.retain, properties, delay, grants
    )
