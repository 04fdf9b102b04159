"""To how many clients messages go, by publisher: pure.

A gateway knows which of its own clients a message will reach. Other gateways tell their deliveries
twice a second, by publisher: so a publisher is charged for all of them, by the gateway that it is
connected to, for any topics.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

MAX_TOLD: Final = 256
"""Publishers of one gateway in a heartbeat: those with most deliveries. The rest is by tenant."""
MAX_COUNTED: Final = 10_000
"""Publishers counted apart between two heartbeats; further ones are counted by tenant."""
THE_REST: Final = ""
"""Stands for a client identifier."""

Publisher = tuple[str, str]
"""Tenant and client identifier."""


class FanOut:
    """Counts deliveries of messages that came by other gateways, until they are reported."""

    __slots__ = ("_counted", "_counts", "_number")

    def __init__(self) -> None:
        self._counts: dict[str, Counter[Publisher]] = {}
        self._counted = 0
        self._number = 0

    def note(self, gateway: str, tenant: str, client_id: str, deliveries: int) -> None:
        """Count the deliveries of a message that a client has published at another gateway."""
        counts = self._counts.get(gateway)
        if counts is None:
            counts = self._counts[gateway] = Counter()
        publisher = tenant, client_id
        if publisher not in counts:
            if self._counted >= MAX_COUNTED:
                publisher = tenant, THE_REST
            self._counted += 1
        counts[publisher] += deliveries

    def word(self) -> dict[str, Any]:
        """Return the counts for others, and begin to count again."""
        self._number += 1
        told = {gateway: _told(counts) for gateway, counts in self._counts.items()}
        self._counts = {}
        self._counted = 0
        return {"number": self._number, "of": told}


def _told(counts: Counter[Publisher]) -> dict[str, int]:
    most = counts.most_common()
    told = Counter({f"{tenant}/{client_id}": n for (tenant, client_id), n in most[:MAX_TOLD]})
    for (tenant, _), deliveries in most[MAX_TOLD:]:
        told[f"{tenant}/{THE_REST}"] += deliveries
    return dict(told)


class HeardFanOut:
    """Other gateways' deliveries of messages that came by this one; each heartbeat counts once.

    Args:
        gateway: This one.
    """

    __slots__ = ("_gateway", "_last")

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway
        self._last: dict[str, tuple[str, int]] = {}
        """By gateway: its run, and the number of its last heartbeat."""

    def take(self, gateway: str, incarnation: str, word: object) -> dict[Publisher, int]:
        """Return the new deliveries in a heartbeat, by publisher, without malformed ones."""
        if not isinstance(word, dict):
            return {}
        number, of = word.get("number"), word.get("of")
        if not isinstance(number, int) or not isinstance(of, dict):
            return {}
        run, last = self._last.get(gateway, ("", 0))
        if run == incarnation and number <= last:
            return {}
        self._last[gateway] = incarnation, number
        mine = of.get(self._gateway)
        found: dict[Publisher, int] = {}
        for name, deliveries in mine.items() if isinstance(mine, dict) else ():
            tenant, slash, client_id = str(name).partition("/")
            if slash and type(deliveries) is int and deliveries > 0:
                found[tenant, client_id] = deliveries
        return found
