"""Figures of a federator beside a log, for heartbeat, `federation status`, API and doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingest.federation.sites.full_log import FullLog
    from ingest.federation.sites.links.link import SiteLink
    from ingest.federation.sites.retaining import Retaining
    from ingest.federation.sites.spreading import Spreading
    from ingest.federation.sites.taking import Taking

MOST_SHOWN: Final = 20
"""Filters of a link."""


def figures_of(
    links: Mapping[int, SiteLink],
    spreading: Spreading,
    retaining: Retaining,
    taking: Taking,
    full_log: FullLog,
) -> dict[str, Any]:
    """Return counters and links, fit for JSON."""
    streams, wanted = taking.inlet.streams, spreading.wanted
    return {
        "links": [
            {
                "site": site,
                "uri": link.neighbour.uri,
                "there": link.is_up,
                "reason": link.reason,
                "waiting": link.waiting,
                "behind": link.behind,
                "gone": link.gone,
                "held": taking.holding.held(site) + full_log.held(site),
                "held_because": full_log.reason(site) or taking.holding.reason(site),
                "bytes": link.sent_bytes,
                "wants": len(wanted.of(site)),
                "carries": sorted(wanted.of(site))[:MOST_SHOWN],
                "counters": counted(link.counters),
            }
            for site, link in links.items()
        ],
        "streams": len(streams),
        "gaps": streams.gaps,
        "retained": len(retaining.retained),
        "shown_again": retaining.retained.shown_again,
        "asked": taking.bodies.asked,
        "interests": len(spreading.subscriptions),
    }


def counted(counters: Any) -> dict[str, int]:
    """Return counters by their names."""
    return {name: getattr(counters, name) for name in counters.__slots__}
