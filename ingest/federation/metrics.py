"""Metrics of a federator for Prometheus, read from its counters at each scrape."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingest.federation.finding import SiteOverlay
    from mqlake.metrics.families import Families


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
