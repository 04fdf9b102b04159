"""The sessions of a gateway: what outlives a connection, and when it ends.

open ──► connected ──connection lost──► offline ──expiry──► ended
             ▲                            │
             └────────── open ────────────┘
"""

from __future__ import annotations

import heapq
import logging
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from ingest.gateway.publishing import client_headers
from ingest.gateway.sending import Sender
from ingest.protocol.packets import MQTT_5_0, Connect, Publish, Will
from ingest.protocol.reason_codes import DisconnectReasonCode
from ingest.session.incoming import IncomingMessages
from mqlake.records import Route
from mqlake.topics import is_system

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingest.gateway.connection import ClientConnection
    from ingest.gateway.server import Gateway
    from ingest.protocol.properties import Properties
    from ingest.session.subscriptions import ClientSubscription

logger = logging.getLogger(__name__)

NEVER: Final = 0xFFFF_FFFF
"""Session Expiry Interval of a session that does not expire (5.0: 3.1.2.11.2)."""


class ClientSession:
    """What the server keeps of one client, connected or not (5.0: 4.1).

    It is known by its client identifier [MQTT5-3.1.3-2] [MQTT311-3.1.3-2] and lasts at least as
    long as its connection [MQTT5-4.1.0-1] [MQTT311-4.1.0-1] [MQTT311-4.1.0-2].

    Attributes:
        session_id: 16 hexadecimal digits.
        expiry_interval: Seconds it outlives its connection; `NEVER` for ever.
        connection: None while the client is offline.
        subscriptions: By topic filter, shared ones included.
        will: To be published when the connection ends without DISCONNECT; None once it was, or
            when there was none. [MQTT5-3.1.2-7] [MQTT311-3.1.2-12]
        will_due_ms: When a delayed will is due; None while connected.
        expires_at_ms: When the session ends; None while connected, or never.
        is_ended: Nothing of it is kept any more.
    """

    __slots__ = (
        "_gateway",
        "clean_start",
        "client_id",
        "connected_at_ms",
        "connection",
        "disconnected_at_ms",
        "end_reason",
        "expires_at_ms",
        "expiry_interval",
        "headers",
        "incoming",
        "is_ended",
        "keep_alive",
        "protocol_level",
        "sender",
        "session_id",
        "subscriptions",
        "tenant",
        "username",
        "will",
        "will_due_ms",
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
        self.protocol_level = MQTT_5_0
        self.username: str | None = None
        self.keep_alive = 0
        self.clean_start = True
        self.expiry_interval = 0
        self.connected_at_ms = 0
        self.disconnected_at_ms: int | None = None
        self.end_reason = ""
        self.expires_at_ms: int | None = None
        self.will: Will | None = None
        self.will_due_ms: int | None = None
        self.headers = client_headers(client_id, gateway.origin, None)
        self.is_ended = False

    def routes(self, topic_filters: Iterable[str]) -> list[Route]:
        """Return the routes that the filters need: none for what does not come from the log."""
        name = self._gateway.settings.name
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
        if topic_filter in self.subscriptions:  # another connection was faster
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
        self._gateway.subscriptions.remove(self.tenant, subscription)
        self._unroute(topic_filter)
        self.sender.forget_retained(topic_filter)

    def _unroute(self, topic_filter: str) -> None:
        for route in self.routes([topic_filter]):
            self._gateway.routes.unsubscribe(route)


class _Deadline(NamedTuple):
    """Something is due for a session; void when the session says otherwise by then."""

    at_ms: int
    number: int
    session: ClientSession


class Sessions:
    """All sessions of a gateway by tenant and client identifier."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._sessions: dict[tuple[str, str], ClientSession] = {}
        self._deadlines: list[_Deadline] = []
        self._deadline_count = 0
        self._connected = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def connected_count(self) -> int:
        return self._connected

    @property
    def offline_count(self) -> int:
        return len(self._sessions) - self._connected

    @property
    def waiting_count(self) -> int:
        """Messages that wait for clients or for their acknowledgement; looks at every session."""
        senders = [session.sender for session in self._sessions.values()]
        return sum(sender.queued_count + sender.inflight_count for sender in senders)

    def get(self, tenant: str, client_id: str) -> ClientSession:
        """Return the session of a client.

        Raises:
            KeyError: It has none.
        """
        return self._sessions[tenant, client_id]

    def open(
        self, connection: ClientConnection, connect: Connect, username: str | None
    ) -> tuple[ClientSession, bool]:
        """Give a connection the session of its client; an older connection is closed.

        [MQTT5-3.1.2-5] [MQTT5-3.1.4-4] [MQTT311-3.1.2-4] [MQTT311-3.1.4-3]

        Returns:
            The session, and whether it was there before (Session Present).
        """
        self.process_due()  # the client's own session may have ended since the last tick
        key = (connection.tenant, connection.client_id)
        session = self._sessions.get(key)
        if session is not None and session.connection is not None:
            # [MQTT5-3.1.4-3] [MQTT311-3.1.4-2]
            session.connection.close(
                DisconnectReasonCode.SESSION_TAKEN_OVER, log_reason="taken over by its client id"
            )
            session = self._sessions.get(key)
        if session is not None and connect.clean_start:  # [MQTT5-3.1.2-4] [MQTT311-3.1.2-6]
            self._end(session)
            session = None
        # [MQTT5-3.2.2-2] [MQTT5-3.2.2-3] [MQTT311-3.2.2-1] [MQTT311-3.2.2-2] [MQTT311-3.2.2-3]
        is_present = session is not None
        if session is None:  # [MQTT5-3.1.2-6]
            session = self._sessions[key] = ClientSession(self._gateway, *key)
        session.connection = connection
        session.protocol_level = connect.protocol_level
        session.username = username
        session.keep_alive = connect.keep_alive
        session.clean_start = connect.clean_start
        session.expiry_interval = self._expiry_interval(connect)
        session.connected_at_ms = self._gateway.clock.now_ms()
        session.disconnected_at_ms = session.expires_at_ms = None
        session.will = connect.will
        session.will_due_ms = None  # [MQTT5-3.1.3-9]
        session.headers = client_headers(connection.client_id, self._gateway.origin, username)
        self._connected += 1
        self._gateway.events.add(
            "client.connected",
            session.tenant,
            session.client_id,
            protocol_level=session.protocol_level,
            username=username,
            peer=connection.peer,
            clean_start=session.clean_start,
            keep_alive=session.keep_alive,
            expiry=session.expiry_interval,
            session_present=is_present,
        )
        return session, is_present

    def connection_lost(self, session: ClientSession, reason: str) -> None:
        """Let go of a session's connection: its will and its expiry begin to count."""
        now_ms = self._gateway.clock.now_ms()
        session.connection = None
        session.sender.detach()  # keeps what is in flight, also of share groups [MQTT5-4.8.2-4]
        session.disconnected_at_ms = now_ms
        session.end_reason = reason
        self._connected -= 1
        self._gateway.events.add(
            "client.disconnected", session.tenant, session.client_id, reason=reason
        )
        if session.expiry_interval == 0:  # [MQTT5-3.1.2-23]
            self._end(session)
            return
        if session.expiry_interval != NEVER:
            session.expires_at_ms = now_ms + session.expiry_interval * 1000
            self._set_deadline(session.expires_at_ms, session)
        if session.will is not None:
            delay = session.will.properties.get("will_delay_interval", 0)
            if delay == 0:
                self._publish_will(session)
            else:
                session.will_due_ms = now_ms + delay * 1000
                self._set_deadline(session.will_due_ms, session)

    def process_due(self) -> None:
        """Publish the wills and end the sessions whose time has come [MQTT5-4.1.0-2]."""
        now_ms = self._gateway.clock.now_ms()
        deadlines = self._deadlines
        while deadlines and deadlines[0].at_ms <= now_ms:
            session = heapq.heappop(deadlines).session
            if session.is_ended:
                continue
            if session.will_due_ms is not None and session.will_due_ms <= now_ms:
                self._publish_will(session)
            if session.expires_at_ms is not None and session.expires_at_ms <= now_ms:
                logger.info(
                    "session expired",
                    extra={"fields": {"tenant": session.tenant, "client_id": session.client_id}},
                )
                self._gateway.counters.sessions_expired += 1
                self._end(session)

    def _end(self, session: ClientSession) -> None:
        """Forget a session; a will that still waits is published now [MQTT5-3.1.2-8].

        What it was to get goes with it, messages of share groups too. [MQTT5-4.8.2-5]
        """
        session.is_ended = True
        for topic_filter in list(session.subscriptions):
            session.remove_subscription(topic_filter)
        if session.will is not None:
            self._publish_will(session)
        del self._sessions[session.tenant, session.client_id]

    def _publish_will(self, session: ClientSession) -> None:
        """Publish a will once [MQTT5-3.1.2-10] [MQTT5-3.1.3-9] [MQTT311-3.1.2-8].

        Retained or not as its CONNECT says. [MQTT5-3.1.2-14] [MQTT5-3.1.2-15] [MQTT311-3.1.2-16]
        [MQTT311-3.1.2-17]
        """
        will, session.will = session.will, None
        session.will_due_ms = None
        assert will is not None
        properties: Properties = {**will.properties}
        properties.pop("will_delay_interval", None)
        publish = Publish(
            will.topic_name, will.payload, will.qos, will.retain, properties=properties
        )
        self._gateway.publisher.publish_will(
            session.tenant + "/", publish, session.protocol_level, session.headers
        )

    def _expiry_interval(self, connect: Connect) -> int:
        """Return how long a session outlives its connection.

        3.x knows two cases: with clean session not at all, else for ever. [MQTT311-3.1.2-5]
        """
        if connect.protocol_level < MQTT_5_0:
            asked = 0 if connect.clean_start else NEVER
        else:
            asked = connect.properties.get("session_expiry_interval", 0)
        return min(asked, self._gateway.settings.max_session_expiry_interval)

    def _set_deadline(self, at_ms: int, session: ClientSession) -> None:
        self._deadline_count += 1
        heapq.heappush(self._deadlines, _Deadline(at_ms, self._deadline_count, session))
