"""The context of a gateway's connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingest.gateway.authentication.authorizer import Authorizer
    from ingest.gateway.authentication.chain import Chain
    from ingest.gateway.base.connections import Connections
    from ingest.gateway.base.context import Context
    from ingest.gateway.base.deadlines import Deadlines
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


class ConnectionContext:
    """Parts of a gateway that all its connections use.

    Args:
        context: Of the gateway.
        connections: All of them.
        arrivals: Those whose clients have not logged in.
        deadlines: Say when one is to be looked at.
        overload: Says whether there is too much to do.
        draining: Says whether clients are let in.
        connect_limit: Says whether there are too many at once.
        shared_limits: Of users and tenants.
        bans: Say which clients are not let in.
        tenants: Say which there are.
        chain: Authenticates clients.
        authorizer: Gives them their rights.
        redirecting: Says which are to go elsewhere; None: none.
        openings: Context of those on their way to their sessions.
        receivers: Context of those that take their messages.
        subscribers: Context of those that take their subscriptions.
    """

    __slots__ = (
        "arrivals",
        "authorizer",
        "bans",
        "chain",
        "clock",
        "connect_limit",
        "connections",
        "counters",
        "deadlines",
        "denials",
        "draining",
        "drops",
        "incarnation",
        "loop",
        "of_tenants",
        "openings",
        "overload",
        "receivers",
        "redirecting",
        "sessions",
        "settings",
        "shared_limits",
        "subscribers",
        "tenants",
    )

    def __init__(
        self,
        context: Context,
        connections: Connections,
        arrivals: Arrivals,
        deadlines: Deadlines,
        overload: Protection,
        draining: Draining,
        connect_limit: ConnectLimit,
        shared_limits: SharedLimits,
        bans: Bans,
        tenants: Tenants,
        chain: Chain,
        authorizer: Authorizer,
        redirecting: Redirecting | None,
        openings: OpeningContext,
        receivers: ReceiverContext,
        subscribers: SubscriberContext,
    ) -> None:
        self.settings = context.settings
        self.incarnation = context.me.incarnation
        self.clock = context.clock
        self.loop = context.loop
        self.counters = context.counters
        self.of_tenants = context.of_tenants
        self.denials = context.denials
        self.drops = context.drops
        self.connections = connections
        self.arrivals = arrivals
        self.deadlines = deadlines
        self.overload = overload
        self.draining = draining
        self.connect_limit = connect_limit
        self.shared_limits = shared_limits
        self.bans = bans
        self.tenants = tenants
        self.chain = chain
        self.authorizer = authorizer
        self.redirecting = redirecting
        self.openings = openings
        self.sessions = openings.sessions
        self.receivers = receivers
        self.subscribers = subscribers
