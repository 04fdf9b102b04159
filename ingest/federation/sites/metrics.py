"""Metrics of a federator beside a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.federation.metrics import add_overlay

if TYPE_CHECKING:
    from ingest.federation.sites.service import SiteService
    from mqlake.metrics.families import Families


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
