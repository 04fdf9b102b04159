"""What clients tried that they may not: counted, and told as events `client.denied`.

Whoever tries may try often, so equal attempts are added up and become one event a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from ingest.gateway.client import Client
    from ingest.gateway.counters import Counters
    from ingest.gateway.events import Events

MAX_KINDS: Final = 1_000
"""Different attempts told of one second; further ones are added up without their client."""

Action: TypeAlias = Literal["connect", "publish", "subscribe"]


class _Kind(NamedTuple):
    action: Action
    reason: str
    tenant: str
    client_id: str = ""
    username: str | None = None
    address: str = ""
    topic: str = ""


class Denials:
    """Counts what was denied and tells it to the log."""

    def __init__(self, counters: Counters, events: Events) -> None:
        self._counters = counters
        self._events = events
        self._counts: dict[_Kind, int] = {}

    def add(self, client: Client, action: Action, reason: str, topic: str = "") -> None:
        """Count an attempt.

        Args:
            client: Who tried; as whom it says it is, until it has logged in.
            action: What it tried.
            reason: Why it may not.
            topic: Topic name or topic filter.
        """
        self._counters.attempts_denied += 1
        address = client.peer.rpartition(":")[0]
        kind = _Kind(
            action, reason, client.tenant, client.client_id, client.username, address, topic
        )
        counts = self._counts
        if kind not in counts and len(counts) >= MAX_KINDS:
            kind = _Kind(action, "too many attempts to tell each", client.tenant)
        counts[kind] = counts.get(kind, 0) + 1

    def record(self) -> None:
        """Write what was denied since the last call to the log."""
        if not self._counts:
            return
        counts, self._counts = self._counts, {}
        for kind, count in counts.items():
            self._events.add(
                "client.denied",
                kind.tenant,
                kind.client_id,
                action=kind.action,
                reason=kind.reason,
                username=kind.username,
                address=kind.address,
                topic=kind.topic,
                count=count,
            )
