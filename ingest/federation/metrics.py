"""Metrics of a federator for Prometheus, read from its counters at each scrape."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ingest.federation.chains import Chains, RecentIds
from ingest.federation.sites.service import SiteService

if TYPE_CHECKING:
    from ingest.federation.finding import SiteOverlay
    from ingest.federation.service import FederationService
    from mqlake.metrics.families import Families

ANSWER_SECONDS: Final = 5.0


class FederationMetrics:
    """Adds the figures of a federator to a look; in the event loop, which alone may touch it.

    Args:
        service: Beside a broker, or beside a log.
    """

    def __init__(self, service: FederationService | SiteService) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()

    def is_healthy(self) -> bool:
        return self._service.health()[0]

    def read(self, families: Families) -> None:
        """Look from another thread.

        Raises:
            TimeoutError: The event loop is stuck.
        """
        asyncio.run_coroutine_threadsafe(self._look(families), self._loop).result(ANSWER_SECONDS)

    async def _look(self, families: Families) -> None:
        self.add(families)

    def add(self, families: Families) -> None:
        """Add all there is to tell."""
        if isinstance(self._service, SiteService):
            add_site(self._service, families)
        else:
            add_federator(self._service, families)


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


def add_site(service: SiteService, families: Families) -> None:
    """Add all that there is to tell of a federator beside a log."""
    for site, link in service.links.items():
        families.add("mqlake_federation_neighbour_there", link.is_up, str(site))
        families.add("mqlake_federation_link_waiting_packets", link.waiting, str(site))
        families.add("mqlake_federation_link_behind_records", link.behind, str(site))
        families.add("mqlake_federation_link_records_gone_total", link.gone, str(site))
        held = service.taking.holding.held(site) + service.full_log.held(site)
        families.add("mqlake_federation_link_held_messages", held, str(site))
        counters = link.counters
        families.add("mqlake_federation_link_dropped_packets_total", counters.too_large, str(site))
        families.add("mqlake_federation_link_sent_bytes_total", link.sent_bytes, str(site))
        families.add("mqlake_federation_link_slowed_total", counters.slowed, str(site))
        families.add("mqlake_federation_sent_total", counters.sent)
        families.add("mqlake_federation_offered_total", counters.offered)
        families.add("mqlake_federation_handed_total", counters.handed)
        families.add("mqlake_federation_returned_total", counters.returned)
        families.add("mqlake_federation_expired_total", counters.expired)
        families.add("mqlake_federation_over_hop_limit_total", counters.over_hop_limit)
    families.add("mqlake_federation_asked_total", service.taking.bodies.asked)
    told = service.spreading.sent + service.taking.sent
    families.add("mqlake_federation_control_sent_total", told)
    had = service.inlet.counters
    families.add("mqlake_federation_streams", len(service.inlet.streams))
    families.add("mqlake_federation_interests", len(service.spreading.subscriptions))
    families.add("mqlake_federation_gaps", service.inlet.streams.gaps)
    families.add("mqlake_federation_received_total", had.received)
    families.add("mqlake_federation_duplicates_total", had.duplicates)
    families.add("mqlake_federation_echoes_total", had.echoes)
    families.add("mqlake_federation_delivered_total", had.appended)
    families.add("mqlake_federation_refused_total", had.refused)
    families.add("mqlake_federation_malformed_total", had.malformed)
    families.add("mqlake_federation_outdated_total", had.outdated)
    families.add("mqlake_federation_for_groups_total", had.for_groups)
    families.add("mqlake_federation_unclaimed_total", had.unclaimed)
    retained = service.retaining.retained
    families.add("mqlake_federation_retained_topics", len(retained))
    families.add("mqlake_federation_shown_again_total", retained.shown_again)
    families.add("mqlake_federation_strangers_total", service.strangers)
    add_overlay(service.finding, families)


def add_federator(service: FederationService, families: Families) -> None:
    """Add all that there is to tell of a federator beside a broker."""
    federator = service.federator
    counters = federator.counters
    there = federator.neighbours()
    for site, link in service.links.items():
        families.add("mqlake_federation_neighbour_there", there.get(site, False), str(site))
        families.add("mqlake_federation_link_waiting_packets", link.waiting, str(site))
        families.add("mqlake_federation_link_dropped_packets_total", link.dropped, str(site))
    for mesh in federator.meshes.values():
        families.add("mqlake_federation_meshes", 1, mesh.state.value)
    families.add("mqlake_federation_interests", len(federator.interests))
    families.add("mqlake_federation_stored_messages", len(federator.store))
    families.add("mqlake_federation_store_overflow_total", federator.store.overflowed)
    marks = federator.marks
    if isinstance(marks, Chains):
        families.add("mqlake_federation_held_back_messages", marks.waiting)
        families.add("mqlake_federation_gaps_given_up_total", marks.given_up)
        families.add("mqlake_federation_marks_forgotten_total", marks.forgotten)
    elif isinstance(marks, RecentIds):
        families.add("mqlake_federation_marks_forgotten_total", marks.overflowed)
    for name in counters.__slots__:
        families.add(f"mqlake_federation_{name}_total", getattr(counters, name))
    families.add("mqlake_federation_malformed_total", service.malformed)
    families.add("mqlake_federation_cache_needed_messages", service.cache_need.identifiers)
    add_overlay(service.finding, families)
