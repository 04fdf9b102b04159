"""Attempts of clients without the right: counted, and reported as events `client.denied`.

A client may try often and may be a stranger, so equal attempts are added up and become one
event a second; how many and how long these are has a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from ingest.gateway.base.client import Client
    from ingest.gateway.base.counters import GatewayCounters
    from ingest.gateway.base.events import Events

MAX_KINDS: Final = 100
"""Different attempts reported for one second; further ones are added up without their client."""

MAX_CHARACTERS: Final = 256
"""Length of a reported name or topic; the rest is left out."""

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
    """Counts denied attempts and writes them to the log."""

    def __init__(self, counters: GatewayCounters, events: Events) -> None:
        self._counters = counters
        self._events = events
        self._counts: dict[_Kind, int] = {}

    def add(self, client: Client, action: Action, reason: str, topic: str = "") -> None:
        """Count an attempt.

        Args:
            client: That tried; under the name that it gives, until it has logged in.
            action: That it tried.
            reason: For the denial.
            topic: Topic name or topic filter.
        """
        self._counters.attempts_denied += 1
        username = client.username
        kind = _Kind(
            action,
            reason,
            client.tenant,
            _clipped(client.client_id),
            None if username is None else _clipped(username),
            client.address,
            _clipped(topic),
        )
        counts = self._counts
        if kind not in counts and len(counts) >= MAX_KINDS:
            kind = _Kind(action, "too many attempts to list each", client.tenant)
        counts[kind] = counts.get(kind, 0) + 1

    def record(self) -> None:
        """Write attempts denied since the last call to the log."""
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


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "…"
