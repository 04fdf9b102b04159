"""Clients that had a subscription for a topic at a moment, from `mqlake.events`.

Events have times, not positions in `mqlake.inbound`: within milliseconds of a message they do not
show which came first. Where a session still has the subscription, its `starts` tell it
(`api.tracing.deliveries`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mqlake.records.sessions import NEVER_EXPIRES
from mqlake.topics.matching import filter_matches
from mqlake.topics.names import split_shared

EVENTS_USED: Final = (
    "session.subscribed",
    "session.unsubscribed",
    "client.connected",
    "client.disconnected",
)

Presence = Literal["connected", "away", "session_expired", "session_ended"]


@dataclass(slots=True)
class Held:
    """One subscription as events tell it."""

    topic_filter: str
    subscribed_at: int | None = None
    """Offset in `mqlake.events` of the last time before the message; None: there was none."""
    qos: int | None = None
    unsubscribed_at: int | None = None
    later_ms: int | None = None
    """Time of the first subscription after the message."""

    @property
    def is_held(self) -> bool:
        return self.subscribed_at is not None and self.subscribed_at > (self.unsubscribed_at or -1)


@dataclass(slots=True)
class Life:
    """A client as events tell it, up to the message."""

    connected_at: int | None = None
    expiry: int = 0
    session_present: bool = False
    gateway: str | None = None
    disconnected_at: int | None = None
    disconnected_ms: int | None = None
    held: dict[str, Held] = field(default_factory=dict)

    def presence(self, held: Held, at_ms: int) -> Presence:
        """Return whether the client was there, or its session, with a subscription that it held."""
        begun = self.connected_at if self.connected_at is not None else -1
        subscribed = held.subscribed_at or 0
        if begun > subscribed and not self.session_present:
            return "session_ended"  # and a new one without the subscription began
        if self.disconnected_at is None or self.disconnected_at < max(begun, subscribed):
            return "connected"
        if not self.expiry:
            return "session_ended"
        ends_ms = (self.disconnected_ms or 0) + self.expiry * 1000
        return "away" if self.expiry == NEVER_EXPIRES or ends_ms > at_ms else "session_expired"


class Timeline:
    """The clients that had, or have got since, a subscription for a topic, from events.

    Args:
        topic_name: Topic of the message.
        at_ms: When it was accepted, UTC.
        client_id: Only of this client, and all of its subscriptions; None: of all clients.
    """

    def __init__(self, topic_name: str, at_ms: int, client_id: str | None = None) -> None:
        self._topic_name = topic_name
        self._at_ms = at_ms
        self._client_id = client_id
        self.lives: dict[str, Life] = {}

    def take(self, offset: int, event: Mapping[str, Any]) -> None:
        """Take an event, in the order of the log; those of clients without a match are no matter.

        Args:
            offset: In `mqlake.events`.
            event: Its members, see docs/records.md.
        """
        name, client_id = event.get("event"), event.get("client_id")
        if not isinstance(client_id, str) or self._client_id not in (None, client_id):
            return
        if name in ("session.subscribed", "session.unsubscribed"):
            topic_filter = event.get("filter")
            if isinstance(topic_filter, str) and self._is_wanted(topic_filter):
                life = self.lives.setdefault(client_id, Life())
                held = life.held.setdefault(topic_filter, Held(topic_filter))
                self._take_subscription(held, offset, event)
                if name == "session.subscribed" and int(event["ts"]) <= self._at_ms:
                    life.gateway = life.gateway or event.get("gateway")
        elif int(event.get("ts") or 0) <= self._at_ms:
            # Kept of everybody: that a client has connected is known before it subscribes.
            self._take_presence(self.lives.setdefault(client_id, Life()), offset, event)

    def clients(self) -> Iterable[tuple[str, Life]]:
        return ((client_id, life) for client_id, life in self.lives.items() if life.held)

    def matches(self, topic_filter: str) -> bool:
        return filter_matches(split_shared(topic_filter).topic_filter, self._topic_name)

    def _is_wanted(self, topic_filter: str) -> bool:
        return self._client_id is not None or self.matches(topic_filter)

    def _take_subscription(self, held: Held, offset: int, event: Mapping[str, Any]) -> None:
        at_ms = int(event["ts"])
        if at_ms > self._at_ms:
            if event["event"] == "session.subscribed":
                held.later_ms = min(held.later_ms or at_ms, at_ms)
        elif event["event"] == "session.subscribed":
            held.subscribed_at = offset
            held.qos = event.get("qos")
        else:
            held.unsubscribed_at = offset

    @staticmethod
    def _take_presence(life: Life, offset: int, event: Mapping[str, Any]) -> None:
        if event["event"] == "client.connected":
            life.connected_at = offset
            life.expiry = int(event.get("expiry") or 0)
            life.session_present = bool(event.get("session_present"))
            life.gateway = event.get("gateway")
        elif event["event"] == "client.disconnected":
            life.disconnected_at, life.disconnected_ms = offset, int(event["ts"])
