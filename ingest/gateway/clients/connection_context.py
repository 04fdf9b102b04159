"""The context of a gateway's connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from ingest.gateway.authentication.authorizer import Authorizer
    from ingest.gateway.authentication.chain import Chain
    from ingest.gateway.base.connections import Connections
    from ingest.gateway.base.counters import GatewayCounters
    from ingest.gateway.base.deadlines import Deadlines
    from ingest.gateway.base.denials import Denials
    from ingest.gateway.base.drops import Drops
    from ingest.gateway.base.tenant_counters import CountersOfTenants
    from ingest.gateway.clients.draining import Draining
    from ingest.gateway.clients.opening import OpeningContext
    from ingest.gateway.clients.receiver_context import ReceiverContext
    from ingest.gateway.clients.redirecting import Redirecting
    from ingest.gateway.clients.subscribing import SubscriberContext
    from ingest.gateway.limits.bans import Bans
    from ingest.gateway.limits.client_limits import ConnectLimit
    from ingest.gateway.limits.protection import Protection
    from ingest.gateway.limits.shared_limits import SharedLimits
    from ingest.gateway.limits.tenants import Tenants
    from ingest.gateway.listeners.arrivals import Arrivals
    from ingest.gateway.sessions.sessions import Sessions
    from ingest.gateway.settings.gateway import GatewaySettings
    from mqlake.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionContext:
    """Parts of a gateway that all its connections use.

    Attributes:
        settings: Settings of the gateway, with defaults filled in.
        incarnation: Identifier of this run of the gateway.
        clock: Clock for the times of messages.
        loop: Event loop on which everything runs.
        counters: Counters of packets and bytes.
        of_tenants: Counters of the gateway's work for the clients of each tenant.
        denials: Counts attempts of clients without the right.
        drops: Counts messages that clients do not get.
        connections: All connections of the gateway.
        arrivals: Connections whose clients have not logged in.
        deadlines: Say when a connection is to be looked at.
        overload: Says whether the gateway has too much to do.
        draining: Says whether clients are let in.
        connect_limit: Says whether too many clients connect at once.
        shared_limits: Limits of users and tenants.
        bans: Say which clients are not let in.
        tenants: Say which tenants exist.
        chain: Authenticates clients.
        authorizer: Gives clients their rights.
        redirecting: Says which clients are to use another gateway; None: no client is.
        sessions: Sessions of the gateway's clients.
        openings: Context of the parts that bring clients to their sessions.
        receivers: Context of the parts that take messages from clients.
        subscribers: Context of the parts that take subscriptions from clients.
    """

    settings: GatewaySettings
    incarnation: str
    clock: Clock
    loop: asyncio.AbstractEventLoop
    counters: GatewayCounters
    of_tenants: CountersOfTenants
    denials: Denials
    drops: Drops
    connections: Connections
    arrivals: Arrivals
    deadlines: Deadlines
    overload: Protection
    draining: Draining
    connect_limit: ConnectLimit
    shared_limits: SharedLimits
    bans: Bans
    tenants: Tenants
    chain: Chain
    authorizer: Authorizer
    redirecting: Redirecting | None
    sessions: Sessions
    openings: OpeningContext
    receivers: ReceiverContext
    subscribers: SubscriberContext
