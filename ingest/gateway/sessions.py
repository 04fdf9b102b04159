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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from ingest.gateway.client_session import ClientSession
from ingest.gateway.progress import Progress, ProgressSaver
from ingest.gateway.publishing import client_headers
from ingest.protocol.packets import MQTT_5_0, Connect, Publish
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from mqlake.errors import LogError
from mqlake.offsets import have_reached, latest
from mqlake.session_records import NEVER_EXPIRES, SessionRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.gateway.connection import ClientConnection
    from ingest.gateway.sending import Outgoing as OutgoingMessage
    from ingest.gateway.server import Gateway
    from ingest.gateway.session_log import Claim, Key, SessionLog
    from ingest.gateway.store.sessions import Owner, StoredSession
    from ingest.protocol.properties import Properties

logger = logging.getLogger(__name__)

HELD_BY_SESSION: Final = "session"
OPEN_SECONDS: Final = 15.0
"""How long a client waits for its session; longer than it takes to find its gateway dead."""

REWRITE_SECONDS: Final = 0.1
"""How long a gateway waits for the claim of another that has written a session of its own."""

DUE_AT_ONCE: Final = 500
"""Wills and expiries dealt with in one turn of the event loop."""


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
        self._saver = ProgressSaver(
            log,
            gateway.loop,
            max_repeated_messages=gateway.settings.max_repeated_messages,
        )
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
        session = ClientSession(  # [MQTT5-3.1.2-6]
            self._gateway, connection, connect, opening.username, self._expiry_interval(connect)
        )
        if stored is not None:  # [MQTT5-3.1.2-5] [MQTT311-3.1.2-4]
            session.restore(stored)
        if session.is_stored:
            session.progress = Progress(
                self._saver, key, session.snapshot, session.sender.send_waiting
            )
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
            self._go_live(session)
        else:
            self._gateway.resumer.resume(session, stored)

    def joined(self, session: ClientSession, starts: Sequence[int]) -> None:
        """Let a session go live that has been given all it missed up to these offsets."""
        session.is_resuming = False
        session.floor = list(starts)
        for subscription in session.subscriptions.values():
            if not session.is_catching_up(subscription.topic_filter):
                subscription.starts = latest(starts, subscription.starts)
                self._gateway.subscriptions.add(session.tenant, subscription)
        self._gateway.share_groups.hand_out()
        if session.progress is not None:
            session.progress.touch()
        self._go_live(session)

    def _go_live(self, session: ClientSession) -> None:
        """Let a session send, and its client be heard."""
        connection = session.connection
        assert connection is not None
        session.sender.progress = session.progress
        session.sender.attach(connection)
        connection.release(HELD_BY_SESSION)
        for history in session.histories():
            self._gateway.histories.start(history)

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
            # Others of the share groups get what it was not done with (5.0: 4.8.2).
            left = session.sender.take_shared(is_ended=True)
            self._gateway.share_groups.pass_on(session.tenant, left)
            if session.will is not None:
                self._publish_will(session.record())
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
        record = session.record(disconnected_at_ms=now_ms)
        if record.will is not None and not record.will.will_delay_interval:
            self._publish_will(record)
        self._drop_subscriptions(session)
        self._gateway.share_groups.pass_on(session.tenant, shared)
        self._log.save_session(record)
        if session.key in self._openings:
            self._try_open(session.key)

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
        if not self._gateway.share_groups.save_all():
            return  # the marks would say that it is in the log
        next_offsets = self._gateway.next_offsets()
        if next_offsets == self._saved_marks:
            return
        for session in self._sessions.values():
            floor = session.floor
            if floor is not None and have_reached(next_offsets, floor):
                session.floor = None
                if session.progress is not None:
                    session.progress.touch()
            if session.settle_histories(next_offsets) and session.progress is not None:
                session.progress.touch()
        # Marks move the cursor of each session whose last record says that it has nothing on its
        # way: what they pass must stand in a record before them.
        if self._saver.save_all():
            marks = [offset - 1 for offset in next_offsets]
            self._log.save_marks(marks, self._gateway.next_delivery)
            self._saved_marks = next_offsets

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
            self._publish_will(record)
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
        if record.will_at_ms is not None:
            self._publish_will(record)
        self._gateway.share_groups.pass_on_stored(record)
        self._log.forget((record.tenant, record.client_id))

    def _publish_will(self, record: SessionRecord) -> None:
        """Publish the will of a session once [MQTT5-3.1.2-10] [MQTT5-3.1.3-9] [MQTT311-3.1.2-8].

        Retained or not as its CONNECT says. [MQTT5-3.1.2-14] [MQTT5-3.1.2-15] [MQTT311-3.1.2-16]
        [MQTT311-3.1.2-17]
        """
        will, record.will, record.will_at_ms = record.will, None, None
        assert will is not None
        properties = cast("Properties", will.properties)
        publish = Publish(
            will.topic_name, will.payload, will.qos, will.retain, properties=properties
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
