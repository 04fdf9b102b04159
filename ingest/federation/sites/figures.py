"""What a federator beside a log tells of itself: heartbeat, `federation status`, API, doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ingest.federation.sites.service import SiteService

MOST_SHOWN: Final = 20
"""Filters of a link."""


def figures_of(service: SiteService) -> dict[str, Any]:
    """Return counters and links, fit for JSON."""
    streams, wanted = service.inlet.streams, service.spreading.wanted
    return {
        "site": service.site,
        "epoch": service.epoch,
        "links": [
            {
                "site": site,
                "uri": link.neighbour.uri,
                "there": link.is_up,
                "reason": link.reason,
                "waiting": link.waiting,
                "behind": link.behind,
                "gone": link.gone,
                "bytes": link.sent_bytes,
                "wants": len(wanted.of(site)),
                "carries": sorted(wanted.of(site))[:MOST_SHOWN],
                "counters": _counted(link.counters),
            }
            for site, link in service.links.items()
        ],
        "streams": len(streams),
        "gaps": streams.gaps,
        "retained": len(service.retaining.retained),
        "shown_again": service.retaining.retained.shown_again,
        "asked": service.taking.bodies.asked,
        "interests": len(service.spreading.subscriptions),
        "overlay": service.finding.figures(),
        "counters": {**_counted(service.inlet.counters), "strangers": service.strangers},
    }


def _counted(counters: Any) -> dict[str, int]:
    return {name: getattr(counters, name) for name in counters.__slots__}
