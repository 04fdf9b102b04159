"""The sessions of a gateway: whose they are, what outlives a connection, when they end.

    claim ──► saved ──► connected ──connection lost──► stored ──expiry──► ended
                ▲                                        │
                └──────────── claim, here or elsewhere ──┘

A session lives in memory while its client is connected here. One that outlives its connection is a
record in the log (`ingest.gateway.session_log`), whoever claims it next gets it: nothing is queued
for an absent client, it is read from the log when the client is back (`ingest.gateway.resuming`).
A session that ends with its connection is nobody else's matter, and is not written.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from ingest.gateway.drops import DropReason
from ingest.gateway.outbound import LOCAL
from ingest.gateway.progress import Progress, ProgressSaver
from ingest.gateway.publishing import client_headers
from ingest.gateway.sending import Outgoing as OutgoingMessage
from ingest.gateway.sending import Sender
from ingest.protocol.packets import MQTT_5_0, Connect, Publish, Will
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from ingest.session.incoming import IncomingMessages
from ingest.session.records import (
    NEVER_EXPIRES,
    Outgoing,
    ProgressRecord,
    SessionRecord,
    StoredSubscription,
    StoredWill,
)
from mqlake.errors import LogError
from mqlake.records import HEADER_EXCHANGE, Headers, Route
from mqlake.topics import is_system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ingest.gateway.connection import ClientConnection
    from ingest.gateway.server import Gateway
    from ingest.gateway.session_log import Claim, Key, SessionLog
    from ingest.gateway.store.sessions import Owner, StoredSession
    from ingest.protocol.properties import Properties
    from ingest.session.subscriptions import ClientSubscription

logger = logging.getLogger(__name__)

HELD_BY_SESSION: Final = "session"
OPEN_SECONDS: Final = 15.0
"""How long a client waits for its session; longer than it takes to find its gateway dead."""

REWRITE_SECONDS: Final = 0.1
"""How long a gateway waits for the claim of another that has written a session of its own."""

DUE_AT_ONCE: Final = 500
"""Wills and expiries dealt with in one turn of the event loop."""


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
        is_routed: The router has its filters, or is about to.
        is_resuming: What it missed is being read; nothing is delivered yet.
        is_ended: It is kept no more; what comes late for it is nothing to it.
    """

    __slots__ = (
        "_gateway",
        "clean_start",
        "client_id",
        "connected_at_ms",
        "connection",
        "end_reason",
        "expiry_interval",
        "floor",
        "headers",
        "incoming",
        "is_ended",
        "is_resuming",
        "is_routed",
        "keep_alive",
        "progress",
        "protocol_level",
        "sender",
        "session_id",
        "subscriptions",
        "tenant",
        "username",
        "will",
    )

    def __init__(self, gateway: Gateway, tenant: str, client_id: str) -> None:
        self._gateway = gateway
        self.tenant = tenant
        self.client_id = client_id
        self.session_id = secrets.token_hex(8)
        self.sender = Sender(gateway, tenant, client_id)
        self.incoming = IncomingMessages()
        self.subscriptions: dict[str, ClientSubscription[Sender]] = {}
        self.connection: ClientConnection | None = None
        self.progress: Progress | None = None
        self.floor: list[int] | None = None
        self.is_resuming = False
        self.is_routed = True
        self.is_ended = False
        self.protocol_level = MQTT_5_0
        self.username: str | None = None
        self.keep_alive = 0
        self.clean_start = True
        self.expiry_interval = 0
        self.connected_at_ms = 0
        self.end_reason = ""
        self.will: Will | None = None
        self.headers = client_headers(client_id, gateway.origin, None)

    @property
    def key(self) -> Key:
        return (self.tenant, self.client_id)

    @property
    def is_stored(self) -> bool:
        """Whether it outlives its connection."""
        return self.expiry_interval > 0

    def routes(self, topic_filters: Iterable[str]) -> list[Route]:
        """Return the routes that the filters need: none for what does not come from the log."""
        name = self._gateway.settings.name
        return [
            Route(name, self.tenant, topic_filter)
            for topic_filter in topic_filters
            if not is_system(topic_filter)
        ]

    def exchange_headers(self, packet_id: int) -> Headers:
        """Return the headers of a QoS 2 message, by which it is found after a crash."""
        if self.progress is None:
            return self.headers
        exchange = f"{self.session_id}/{packet_id}".encode()
        return [*self.headers, (HEADER_EXCHANGE, exchange)]

    def add_subscription(self, subscription: ClientSubscription[Sender]) -> None:
        """Take a subscription up whose route counts this session."""
        topic_filter = subscription.topic_filter
        if self.is_ended:
            self._unroute(topic_filter)
            return
        if topic_filter in self.subscriptions:
            self.remove_subscription(topic_filter)
        self.subscriptions[topic_filter] = subscription
        self._gateway.subscriptions.add(self.tenant, subscription)

    def replace_subscription(self, subscription: ClientSubscription[Sender]) -> None:
        """Put a subscription in the place of the one to the same filter."""
        existing = self.subscriptions[subscription.topic_filter]
        subscription.starts = existing.starts
        self._gateway.subscriptions.remove(self.tenant, existing)
        self._gateway.subscriptions.add(self.tenant, subscription)
        self.subscriptions[subscription.topic_filter] = subscription

    def remove_subscription(self, topic_filter: str) -> None:
        subscription = self.subscriptions.pop(topic_filter)
        if not self.is_resuming:
            self._gateway.subscriptions.remove(self.tenant, subscription)
        if self.is_routed:
            self._unroute(topic_filter)
        self.sender.forget_retained(topic_filter)

    def _unroute(self, topic_filter: str) -> None:
        for route in self.routes([topic_filter]):
            self._gateway.routes.unsubscribe(route)

    def save(
        self,
        on_saved: Callable[[LogError | None], None] | None = None,
        *,
        is_resumed: bool = False,
    ) -> None:
        """Write the session as it is now, if it is one that is written.

        Args:
            on_saved: Told when the log has it, or not.
            is_resumed: The log has it as an absent client's, whose will and expiry come due.

        Raises:
            LogError: The log takes no more; only with a callback.
        """
        if self.is_stored or self.will is not None or is_resumed:
            self._gateway.session_log.save_session(self.record(), on_saved)
        elif on_saved is not None:
            on_saved(None)

    def stored(self) -> None:
        """Note that the log has answered for a QoS 2 message."""
        if self.connection is None:
            self._gateway.sessions.release_if_stored(self)

    def record(self, *, disconnected_at_ms: int | None = None) -> SessionRecord:
        """Return what whoever takes the session over must know of it."""
        will = self.will
        will_at_ms = None
        if disconnected_at_ms is not None and will is not None:
            delay = will.properties.get("will_delay_interval", 0)
            will_at_ms = disconnected_at_ms + delay * 1000
        return SessionRecord(
            session_id=self.session_id,
            tenant=self.tenant,
            client_id=self.client_id,
            protocol_level=self.protocol_level,
            username=self.username,
            keep_alive=self.keep_alive,
            clean_start=self.clean_start,
            session_expiry_interval=self.expiry_interval,
            gateway=self._gateway.settings.name,
            incarnation=self._gateway.incarnation,
            connected=disconnected_at_ms is None,
            connected_at_ms=self.connected_at_ms,
            disconnected_at_ms=disconnected_at_ms,
            reason=self.end_reason or None,
            subscriptions=[
                StoredSubscription(
                    one.topic_filter,
                    one.qos,
                    one.no_local,
                    one.retain_as_published,
                    one.retain_handling,
                    one.identifier,
                    one.starts,
                )
                for one in self.subscriptions.values()
            ],
            will=None if will is None else _stored_will(will),
            will_at_ms=will_at_ms,
        )

    def snapshot(self) -> ProgressRecord:
        """Return how far the session has come."""
        cursor = self._gateway.next_offsets()
        if self.floor is not None:
            cursor = [max(pair) for pair in zip(cursor, self.floor, strict=True)]
        waiting = self.sender.first_waiting()
        for partition, offset in waiting.items():
            cursor[partition] = min(cursor[partition], offset)
        storing = self.incoming.storing()
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
            storing=storing,
            storing_from=[offset + 1 for offset in self._gateway.publisher.acked]
            if storing
            else [],
        )


@dataclass(slots=True)
class _Opening:
    """A connection on its way to its session."""

    connection: ClientConnection
    connect: Connect
    username: str | None
    extra: Properties
    number: int
    asked_at: float
    is_claimed: bool = False
    previous: Claim | None = None
    """Who claimed the session before and has not settled it."""


class Sessions:
    """The sessions of a gateway by tenant and client identifier. Implements `SessionsListener`."""

    def __init__(self, gateway: Gateway, log: SessionLog) -> None:
        self._gateway = gateway
        self._log = log
        self._saver = ProgressSaver(log, gateway.loop)
        self._saved_marks: list[int] = []
        self._sessions: dict[Key, ClientSession] = {}
        self._leaving: dict[Key, ClientSession] = {}
        self._openings: dict[Key, _Opening] = {}
        self._claims: dict[Key, Claim] = {}

    def __len__(self) -> int:
        stored = self._log.store.count()
        return stored + sum(not session.is_stored for session in self._sessions.values())

    @property
    def connected_count(self) -> int:
        return len(self._sessions)

    @property
    def is_idle(self) -> bool:
        """Whether no client is here, on its way in or on its way out."""
        return not (self._sessions or self._openings or self._leaving)

    @property
    def offline_count(self) -> int:
        """Sessions whose clients are not connected here."""
        return max(0, len(self) - len(self._sessions))

    @property
    def waiting_count(self) -> int:
        """Messages that wait for clients or for their acknowledgement; looks at every session."""
        senders = [session.sender for session in self._sessions.values()]
        return sum(sender.queued_count + sender.inflight_count for sender in senders)

    def get(self, tenant: str, client_id: str) -> ClientSession:
        """Return the session of a connected client.

        Raises:
            KeyError: It is not connected here.
        """
        return self._sessions[tenant, client_id]

    # A client comes

    def open(
        self,
        connection: ClientConnection,
        connect: Connect,
        username: str | None,
        extra: Properties,
    ) -> None:
        """Give a connection the session of its client; an older connection is closed.

        [MQTT5-3.1.2-5] [MQTT5-3.1.4-4] [MQTT311-3.1.2-4] [MQTT311-3.1.4-3]

        The connection is told by `welcome`, at once or when the log knows.
        """
        key = (connection.tenant, connection.client_id)
        session = self._sessions.get(key)
        if session is not None and session.connection is not None:
            # [MQTT5-3.1.4-3] [MQTT311-3.1.4-2]
            session.connection.close(
                DisconnectReasonCode.SESSION_TAKEN_OVER, log_reason="taken over by its client id"
            )
        earlier = self._openings.pop(key, None)
        if earlier is not None:
            earlier.connection.refuse(ConnackReasonCode.SERVER_BUSY, "taken over by its client id")
        opening = _Opening(connection, connect, username, extra, 0, self._gateway.loop.time())
        is_known = key in self._leaving or self._log.store.get(*key) is not None
        if not (
            is_known
            or connect.will
            or self._expiry_interval(connect)
            or self._gateway.peers.are_there
        ):
            self._begin(key, opening, None)
            return
        connection.hold(HELD_BY_SESSION)
        try:
            opening.number = self._log.claim(key).number
        except LogError as error:
            connection.refuse(ConnackReasonCode.SERVER_UNAVAILABLE, str(error))
            return
        self._openings[key] = opening

    def connection_gone(self, connection: ClientConnection) -> None:
        """Forget a connection that did not wait for its session."""
        key = (connection.tenant, connection.client_id)
        opening = self._openings.get(key)
        if opening is not None and opening.connection is connection:
            del self._openings[key]
            self._log.settle(key)

    def claimed(self, key: Key, claim: Claim) -> None:
        previous = self._claims.get(key)
        self._claims[key] = claim
        if claim.incarnation == self._gateway.incarnation:
            opening = self._openings.get(key)
            if opening is not None and opening.number == claim.number:
                opening.is_claimed = True
                if previous is not None and previous.incarnation != claim.incarnation:
                    opening.previous = previous
                self._try_open(key)
            return
        session = self._sessions.get(key)
        if session is not None and session.connection is not None:
            session.connection.close(
                DisconnectReasonCode.SESSION_TAKEN_OVER,
                log_reason=f"taken over at gateway {claim.gateway}",
            )
        opening = self._openings.get(key)
        if opening is not None and opening.is_claimed:
            del self._openings[key]
            opening.connection.refuse(
                ConnackReasonCode.SERVER_BUSY, f"taken over at gateway {claim.gateway}"
            )
            self._log.settle(key)

    def settled(self, key: Key, incarnation: str) -> None:
        claim = self._claims.get(key)
        if claim is not None and claim.incarnation == incarnation:
            del self._claims[key]
        opening = self._openings.get(key)
        if (
            opening is not None
            and opening.previous is not None
            and opening.previous.incarnation == incarnation
        ):
            opening.previous = None
            self._try_open(key)

    def changed(self, keys: list[Key]) -> None:
        for key in keys:
            if key in self._openings:
                self._try_open(key)
            elif key in self._sessions:
                # Its claim, if there is one, comes next and takes the session from us.
                session = self._sessions[key]
                self._gateway.loop.call_later(REWRITE_SECONDS, self._write_again, session)

    def _write_again(self, session: ClientSession) -> None:
        """Write a session that another gateway has written though it is ours.

        That gateway took this one for dead, or was held up and did not know that it had lost it.
        """
        if self._sessions.get(session.key) is not session or session.progress is None:
            return
        logger.warning(
            "another gateway has written a session of this one",
            extra={"fields": {"tenant": session.tenant, "client_id": session.client_id}},
        )
        session.save()
        if not session.is_resuming:
            session.progress.touch()

    def _try_open(self, key: Key) -> None:
        """Begin a session if nobody else has it any more."""
        opening = self._openings[key]
        if not opening.is_claimed or key in self._leaving:
            return
        previous = opening.previous
        peers = self._gateway.peers
        if previous is not None and peers.is_alive(previous.gateway, previous.incarnation):
            return
        stored = self._log.store.get(*key)
        if stored is not None and stored.session.connected:
            return  # until its gateway lets go, or somebody for it
        if stored is not None:
            now_ms = self._gateway.clock.now_ms()
            expires_at_ms = stored.session.expires_at_ms()
            if expires_at_ms is not None and expires_at_ms <= now_ms:
                self._process_due(stored.session, now_ms)
                stored = None
        del self._openings[key]
        self._begin(key, opening, stored)

    def _begin(self, key: Key, opening: _Opening, stored: StoredSession | None) -> None:
        connection, connect = opening.connection, opening.connect
        if stored is not None and connect.clean_start:  # [MQTT5-3.1.2-4] [MQTT311-3.1.2-6]
            self._end(stored.session)
            stored = None
        session = ClientSession(self._gateway, *key)  # [MQTT5-3.1.2-6]
        session.connection = connection
        session.protocol_level = connect.protocol_level
        session.username = opening.username
        session.keep_alive = connect.keep_alive
        session.clean_start = connect.clean_start
        session.expiry_interval = self._expiry_interval(connect)
        session.connected_at_ms = self._gateway.clock.now_ms()
        session.will = connect.will  # [MQTT5-3.1.2-7]
        peer_host = connection.peer.rpartition(":")[0]
        session.headers = client_headers(key[1], self._gateway.origin, opening.username, peer_host)
        if stored is not None:  # [MQTT5-3.1.2-5] [MQTT311-3.1.2-4]
            self._gateway.resumer.restore(session, stored)
        if session.is_stored:
            session.progress = Progress(self._saver, key, session.snapshot)
        self._sessions[key] = session
        connection.adopt(session, connect)

        def saved(error: LogError | None) -> None:
            if connection.is_closing:
                return
            if error is not None:
                connection.refuse(ConnackReasonCode.SERVER_UNAVAILABLE, str(error))
            else:
                self._welcome(session, opening, stored)

        try:
            if stored is not None and stored.progress is not None:
                # Until the session has caught up, our marks say nothing of it.
                stored.progress.settled = False
                self._log.save_progress(key, stored.progress, keep=True)
            elif session.is_stored:
                self._log.save_progress(key, session.snapshot(), keep=True)
            session.save(saved, is_resumed=stored is not None)
        except LogError as error:
            saved(error)
        if opening.is_claimed:
            self._log.settle(key)

    def _welcome(
        self, session: ClientSession, opening: _Opening, stored: StoredSession | None
    ) -> None:
        connection = opening.connection
        # [MQTT5-3.2.2-2] [MQTT5-3.2.2-3] [MQTT311-3.2.2-1] [MQTT311-3.2.2-2] [MQTT311-3.2.2-3]
        is_present = stored is not None
        self._gateway.events.add(
            "client.connected",
            session.tenant,
            session.client_id,
            protocol_level=session.protocol_level,
            username=session.username,
            peer=connection.peer,
            clean_start=session.clean_start,
            keep_alive=session.keep_alive,
            expiry=session.expiry_interval,
            session_present=is_present,
        )
        connection.welcome(opening.connect, opening.extra, session_present=is_present)
        if connection.is_closing:
            return
        if stored is None:
            session.sender.progress = session.progress
            session.sender.attach(connection)
            connection.release(HELD_BY_SESSION)
        else:
            self._gateway.resumer.resume(session, stored)

    def joined(self, session: ClientSession, starts: Sequence[int]) -> None:
        """Let a session go live that has been given all it missed up to these offsets."""
        session.is_resuming = False
        session.floor = list(starts)
        for subscription in session.subscriptions.values():
            own = subscription.starts
            subscription.starts = list(
                starts if own is None else [max(pair) for pair in zip(own, starts, strict=True)]
            )
            self._gateway.subscriptions.add(session.tenant, subscription)
        session.sender.progress = session.progress
        connection = session.connection
        assert connection is not None
        session.sender.attach(connection)
        if session.progress is not None:
            session.progress.touch()
        connection.release(HELD_BY_SESSION)

    # A client goes

    def connection_lost(self, session: ClientSession, reason: str) -> None:
        """Let go of a session's connection: its will and its expiry begin to count."""
        del self._sessions[session.key]
        session.connection = None
        session.end_reason = reason
        session.sender.detach()  # what is in flight is kept, of share groups too [MQTT5-4.8.2-4]
        self._gateway.events.add(
            "client.disconnected", session.tenant, session.client_id, reason=reason
        )
        if not session.is_stored:  # [MQTT5-3.1.2-23]
            is_written = session.will is not None or session.progress is not None
            self._drop_subscriptions(session)
            self._pass_on(session, session.sender.take_shared(is_ended=True))
            if session.will is not None:
                self._publish_will(session, session.will)
            if session.progress is not None:
                session.progress.close()
            if is_written or self._log.store.get(*session.key) is not None:
                self._log.forget(session.key)
            return
        self._leaving[session.key] = session
        self.release_if_stored(session)

    def release_if_stored(self, session: ClientSession) -> None:
        """Let others have a session once the log has answered for its QoS 2 messages."""
        if session.incoming.is_storing or self._leaving.get(session.key) is not session:
            return
        del self._leaving[session.key]
        shared: list[OutgoingMessage] = []
        now_ms = self._gateway.clock.now_ms()
        progress = session.progress
        if progress is not None:
            if not session.is_resuming:
                shared = session.sender.take_shared(is_ended=False)
                self._log.save_progress(session.key, session.snapshot(), keep=True)
            progress.close()
        if session.will is not None and not session.will.properties.get("will_delay_interval"):
            self._publish_will(session, session.will)
            session.will = None
        record = session.record(disconnected_at_ms=now_ms)
        self._drop_subscriptions(session)
        self._pass_on(session, shared)
        self._log.save_session(record)
        if session.key in self._openings:
            self._try_open(session.key)

    def _pass_on(self, session: ClientSession, shared: list[OutgoingMessage]) -> None:
        """Give other members of share groups what a member has left (5.0: 4.8.2)."""
        gateway = self._gateway
        now_ms = gateway.clock.now_ms()
        for outgoing in shared:
            message = outgoing.message
            copy = gateway.subscriptions.shared_copy(
                session.tenant,
                outgoing.shared_filter,
                message.topic_name,
                session.client_id,
                message.partition,
                message.offset,
            )
            if copy is None:
                gateway.drops.add(
                    DropReason.NO_MEMBER,
                    session.tenant,
                    session.client_id,
                    message.topic_name,
                    outgoing.qos,
                )
            else:
                copy.client.deliver(message, copy, now_ms)

    def _drop_subscriptions(self, session: ClientSession) -> None:
        session.is_ended = True
        for topic_filter in list(session.subscriptions):
            session.remove_subscription(topic_filter)

    # Time passes

    def process_due(self) -> None:
        """Do what is due: wills, expiries [MQTT5-4.1.0-2], openings that have waited too long."""
        gateway = self._gateway
        now_ms = gateway.clock.now_ms()
        for owner in {one.gateway: one for one in self._log.store.owners()}.values():
            if gateway.peers.is_ours(owner.gateway, owner.incarnation):
                for record in self._log.store.due(owner.gateway, now_ms, limit=DUE_AT_ONCE):
                    self._process_due(record, now_ms)
        now = gateway.loop.time()
        for key, opening in list(self._openings.items()):
            if now - opening.asked_at > OPEN_SECONDS:
                del self._openings[key]
                self._log.settle(key)
                reason = "the session is held by another gateway that does not answer"
                opening.connection.refuse(ConnackReasonCode.SERVER_UNAVAILABLE, reason)
            else:
                self._try_open(key)

    def save_marks(self) -> None:
        """Write what has changed, and how far all sessions have come."""
        next_offsets = self._gateway.next_offsets()
        if next_offsets == self._saved_marks:
            return
        self._saved_marks = next_offsets
        for session in self._sessions.values():
            floor = session.floor
            if floor is not None and all(
                at >= start for at, start in zip(next_offsets, floor, strict=True)
            ):
                session.floor = None
                if session.progress is not None:
                    session.progress.touch()
        self._saver.save_all()
        self._log.save_marks([offset - 1 for offset in next_offsets])

    def orphans(self) -> list[Owner]:
        """Return runs of gateways that are no more and whose connected sessions are ours."""
        peers = self._gateway.peers
        return [
            owner
            for owner in self._log.store.owners()
            if owner.connected
            and not peers.is_alive(owner.gateway, owner.incarnation)
            and peers.is_ours(owner.gateway, owner.incarnation)
        ]

    def _process_due(self, record: SessionRecord, now_ms: int) -> None:
        expires_at_ms = record.expires_at_ms()
        if expires_at_ms is not None and expires_at_ms <= now_ms:
            logger.info(
                "session expired",
                extra={"fields": {"tenant": record.tenant, "client_id": record.client_id}},
            )
            self._gateway.counters.sessions_expired += 1
            self._end(record)
        elif record.will is not None:
            self._publish_stored_will(record)
            record.will = None
            record.will_at_ms = None
            self._log.save_session(record)

    def end_stored(self, key: Key) -> None:
        """End the session of an absent client, if it is this gateway that has to care for it."""
        stored = self._log.store.get(*key)
        if stored is None or stored.session.connected or key in self._claims:
            return
        record = stored.session
        if self._gateway.peers.is_ours(record.gateway, record.incarnation):
            self._end(record)

    def _end(self, record: SessionRecord) -> None:
        """Forget a stored session; a will that still waits is published now [MQTT5-3.1.2-8].

        What it was to get goes with it, messages of share groups too. [MQTT5-4.8.2-5]
        """
        if record.will is not None and record.will_at_ms is not None:
            self._publish_stored_will(record)
        self._log.forget((record.tenant, record.client_id))

    def _publish_will(self, session: ClientSession, will: Will) -> None:
        """Publish a will once [MQTT5-3.1.2-10] [MQTT5-3.1.3-9] [MQTT311-3.1.2-8].

        Retained or not as its CONNECT says. [MQTT5-3.1.2-14] [MQTT5-3.1.2-15] [MQTT311-3.1.2-16]
        [MQTT311-3.1.2-17]
        """
        properties: Properties = {**will.properties}
        properties.pop("will_delay_interval", None)
        publish = Publish(
            will.topic_name, will.payload, will.qos, will.retain, properties=properties
        )
        self._gateway.publisher.publish_will(
            session.tenant + "/", publish, session.protocol_level, session.headers
        )

    def _publish_stored_will(self, record: SessionRecord) -> None:
        will = record.will
        assert will is not None
        publish = Publish(
            will.topic_name,
            will.payload,
            will.qos,
            will.retain,
            properties=cast("Properties", will.properties),
        )
        headers = client_headers(record.client_id, self._gateway.origin, record.username)
        self._gateway.publisher.publish_will(
            record.tenant + "/", publish, record.protocol_level, headers
        )

    def _expiry_interval(self, connect: Connect) -> int:
        """Return how long a session outlives its connection.

        3.x knows two cases: with clean session not at all, else for ever. [MQTT311-3.1.2-5]
        """
        if connect.protocol_level < MQTT_5_0:
            asked = 0 if connect.clean_start else NEVER_EXPIRES
        else:
            asked = connect.properties.get("session_expiry_interval", 0)
        return min(asked, self._gateway.settings.max_session_expiry_interval)


def _position(outgoing: OutgoingMessage | None) -> tuple[int, int]:
    """Return where in the log a message is; of a released one nobody needs it again."""
    if outgoing is None:
        return (0, 0)
    return (outgoing.message.partition, outgoing.message.offset)


def _stored_will(will: Will) -> StoredWill:
    properties: dict[str, Any] = {**will.properties}
    delay = properties.pop("will_delay_interval", 0)
    return StoredWill(will.topic_name, will.payload, will.qos, will.retain, properties, delay)
