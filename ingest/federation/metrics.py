"""Metrics of a federator for Prometheus, read from its counters at each scrape."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.federation.finding import SiteOverlay
    from mqlake.metrics.families import Families

ANSWER_SECONDS: Final = 5.0


class FederationMetrics:
    """Adds the figures of a federator to a look; in the event loop, which alone may touch it.

    Args:
        health: Tells whether the federator is healthy, and how it is in words.
        add: Adds all there is to tell of it.
    """

    def __init__(
        self, health: Callable[[], tuple[bool, str]], add: Callable[[Families], None]
    ) -> None:
        self._health = health
        self._add = add
        self._loop = asyncio.get_running_loop()

    def is_healthy(self) -> bool:
        return self._health()[0]

    def read(self, families: Families) -> None:
        """Look from another thread.

        Raises:
            TimeoutError: The event loop is stuck.
        """
        asyncio.run_coroutine_threadsafe(self._look(families), self._loop).result(ANSWER_SECONDS)

    async def _look(self, families: Families) -> None:
        self._add(families)


def add_overlay(finding: SiteOverlay, families: Families) -> None:
    """Add metrics of the map, and of links that were found."""
    overlay = finding.overlay
    reached = len(overlay.map.reachable()) - 1
    families.add("mqlake_federation_overlay_links", overlay.degree)
    families.add("mqlake_federation_overlay_sites", reached, "reached")
    families.add("mqlake_federation_overlay_sites", len(overlay.map.members) - reached, "apart")
    families.add("mqlake_federation_overlay_overflow_total", overlay.map.overflowed)
    for name in overlay.counters.__slots__:
        value = getattr(overlay.counters, name)
        families.add("mqlake_federation_overlay_total", value, name)
