"""The context of every part of a gateway: its identity, settings, clock and counters.

A part that needs more is given just that: only the gateway's process holds the whole gateway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from ingest.gateway.base.counters import GatewayCounters
    from ingest.gateway.base.denials import Denials
    from ingest.gateway.base.drops import Drops
    from ingest.gateway.base.events import Events
    from ingest.gateway.base.tenant_counters import CountersOfTenants
    from ingest.gateway.settings.gateway import GatewaySettings
    from mqlake.clock import Clock
    from mqlake.records.shards import Run


@dataclass(frozen=True, slots=True)
class Context:
    """Context of one gateway, which all its parts share.

    Attributes:
        settings: Settings of the gateway.
        me: Its name and this run of it.
        clock: For the times of messages and of time-outs.
        loop: Everything runs on it.
        counters: Counters of its work.
        of_tenants: Counters of its work for the clients of each tenant.
        events: Takes events for rules and other readers.
        drops: For messages that clients do not get.
        denials: For attempts of clients without the right.
    """

    settings: GatewaySettings
    me: Run
    clock: Clock
    loop: asyncio.AbstractEventLoop
    counters: GatewayCounters
    of_tenants: CountersOfTenants
    events: Events
    drops: Drops
    denials: Denials

    @property
    def origin(self) -> str:
        """Return the origin of messages that it accepts: `<site>/<gateway>`."""
        return f"{self.settings.site}/{self.settings.name}"
