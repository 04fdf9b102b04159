"""Metrics of a federator beside a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.federation.brokers.chains import Chains, RecentIds
from ingest.federation.metrics import add_overlay

if TYPE_CHECKING:
    from ingest.federation.brokers.service import FederationService
    from mqlake.metrics.families import Families


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
