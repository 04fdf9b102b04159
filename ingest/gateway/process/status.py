"""The status of a gateway: whether messages flow, and its counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.base.counters import GatewayCounters
from ingest.gateway.clients.draining import SERVING
from ingest.gateway.settings.listeners import address_of, advertised, is_open
from mqlake.records.gateway_heartbeat import GatewayHeartbeat

if TYPE_CHECKING:
    from ingest.gateway.authentication.authorizer import Authorizer
    from ingest.gateway.base.connections import Connections
    from ingest.gateway.base.context import Context
    from ingest.gateway.clients.draining import Draining
    from ingest.gateway.limits.protection import Protection
    from ingest.gateway.limits.shared_limits import SharedLimits
    from ingest.gateway.listeners.listeners import Listeners
    from ingest.gateway.load.latency import GatewayLatencies
    from ingest.gateway.peers.peers import Peers
    from ingest.gateway.retained.system_topics import Counted
    from ingest.gateway.routing.publishing import Publisher
    from ingest.gateway.routing.routes import Routes
    from ingest.gateway.sending.wills import Wills
    from ingest.gateway.sessions.resuming import Resumer
    from ingest.gateway.sessions.slow_clients import SlowClients
    from ingest.gateway.shards.shards import Shards
    from mqlake.log.contract import LogWriter

STUCK_SECONDS: Final = 5.0
"""An unanswered barrier older than this means that deliveries do not flow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusContext:
    """Parts of a gateway that its status tells of.

    Attributes:
        context: Context that all parts of the gateway share.
        writer: Writer to the log, which has a queue.
        counted: Sessions, subscriptions and retained messages, which are counted.
        connections: All connections, one for each socket.
        listeners: Listeners for clients.
        draining: Says whether clients are let in.
        publisher: Appends messages to the log, or refuses them.
        wills: Wills, which may wait for the log.
        routes: Routes, which may wait for the router.
        shards: Shards that the gateway owns.
        peers: Know how far our clock is ahead.
        slow_clients: Clients that have fallen behind.
        resumer: Brings sessions back.
        authorizer: Gives clients their rights.
        latencies: Measures how long messages take.
        overload: Has the level and the steps of protection from overload.
        shared_limits: Know the demand on limits that all gateways share.
    """

    context: Context
    writer: LogWriter
    counted: Counted
    connections: Connections
    listeners: Listeners
    draining: Draining
    publisher: Publisher
    wills: Wills
    routes: Routes
    shards: Shards
    peers: Peers
    slow_clients: SlowClients
    resumer: Resumer
    authorizer: Authorizer
    latencies: GatewayLatencies
    overload: Protection
    shared_limits: SharedLimits


class Status:
    """Looks at the parts of a gateway.

    Args:
        parts: Parts of the gateway that its status tells of.

    Attributes:
        problem: Reason why nothing flows just now, or "".
        bug: The same for an unexpected exception.
    """

    def __init__(self, parts: StatusContext) -> None:
        self.problem = "starting"
        self.bug = ""
        self.counters = parts.context.counters
        self.latencies = parts.latencies
        self._parts = parts

    def health(self) -> tuple[bool, str]:
        """Return whether messages flow, and one line about it."""
        problem = self.problem or self.bug or self._hindrance()
        if problem:
            return False, problem
        has = self._parts.counted
        state = "" if self.takes_clients else f", {self._parts.draining.state}"
        clients, subscriptions = has.sessions.connected_count, len(has.subscriptions)
        detail = f"{clients} clients, {subscriptions} subscriptions{state}"
        return True, f"{detail}{self._catching_up()}{self._lacking()}"

    @property
    def takes_clients(self) -> bool:
        """Tell whether new clients are let in."""
        return self._parts.draining.state == SERVING

    def _hindrance(self) -> str:
        waited = self._parts.routes.oldest_wait_seconds
        if not self._parts.routes.is_answered:
            return "waiting for the router's first answer"
        if waited > STUCK_SECONDS:
            return f"no answer from the router for {waited:.0f} s"
        if self._parts.publisher.is_refusing:
            return f"publishers are refused: {self._parts.publisher.is_refusing}"
        return ""

    def _catching_up(self) -> str:
        resumer = self._parts.resumer
        if not (waiting := resumer.waiting_count):
            return ""
        per_second = resumer.live_per_second
        left = f", {waiting / per_second:.0f} s left" if per_second else ""
        return f", {waiting} sessions get what they missed ({per_second:.0f}/s{left})"

    def _lacking(self) -> str:
        shards = sorted(self._parts.counted.retained.incomplete)
        return f", retained messages are missing in shards {shards}" if shards else ""

    def figures(self) -> dict[str, Any]:
        """Return figures of this gateway for people."""
        return {
            "address": f"{self._parts.context.settings.host}:{self._parts.context.settings.port}",
            "listeners": list(self._parts.listeners.addresses),
            "access": self._access(),
            "overload": self._parts.overload.level,
            "overload_step": self._parts.overload.step,
            **self._load(),
            "retained": len(self._parts.counted.retained),
            **self._counts(),
        }

    def _access(self) -> dict[str, Any]:
        """Return from where clients may come, and whether they are asked for anything."""
        settings = self._parts.context.settings
        return {
            "reachable": [address_of(one) for one in settings.all_listeners if is_open(one)],
            "asks_who": settings.asks_who and not settings.allow_anonymous,
            "has_rights": self._parts.authorizer.has_rules,
        }

    def gauges(self) -> dict[str, float]:
        """Return present stocks and queues, by name."""
        sessions = self._parts.counted.sessions
        return {
            "connections": len(self._parts.connections),
            **self._load(),
            "retained_messages": len(self._parts.counted.retained),
            "retained_incomplete_shards": len(self._parts.counted.retained.incomplete),
            "waiting_messages": sessions.waiting_count,
            "clients_behind": len(self._parts.slow_clients),
            "log_queue_records": self._parts.writer.queued(),
            "clock_ahead_seconds": self._parts.peers.clock_ahead_seconds,
            "overload_level": self._parts.overload.level,
            "overload_step": self._parts.overload.step,
            "overload_waiting_clients": self._parts.overload.waiting,
            "waiting_wills": self._parts.wills.waiting,
            "refusing_publishers": int(bool(self._parts.publisher.is_refusing)),
            "route_wait_seconds": self._parts.routes.oldest_wait_seconds,
        }

    def heartbeat(self) -> GatewayHeartbeat:
        """Return the state of this gateway, which it sends to others twice a second."""
        settings, has = self._parts.context.settings, self._parts.counted
        heartbeat = GatewayHeartbeat(
            site=settings.site,
            state=self._parts.draining.state,
            listeners=list(self._parts.listeners.addresses),
            addresses=advertised(settings.all_listeners, settings.advertised_host),
            overload=self._parts.overload.level,
            overload_step=self._parts.overload.step,
            rights=self._parts.authorizer.version,
            metrics_port=settings.metrics.port,
            shards=self._parts.shards.owned,
            shard_count=self._parts.shards.count,
            clients=has.sessions.connected_count,
            sessions=len(has.sessions),
            sessions_catching_up=self._parts.resumer.waiting_count,
            subscriptions=len(has.subscriptions),
            counters=self._counts(),
            latency=self.latencies.counts(),
        )
        self._parts.shared_limits.add_to(heartbeat)
        return heartbeat

    @property
    def ignored_session_records(self) -> int:
        """How many records of sessions could not be read."""
        return self._parts.shards.ignored_count

    def _load(self) -> dict[str, int]:
        has = self._parts.counted
        return {
            "clients": has.sessions.connected_count,
            "sessions": len(has.sessions),
            "sessions_catching_up": self._parts.resumer.waiting_count,
            "subscriptions": len(has.subscriptions),
        }

    def _counts(self) -> dict[str, int]:
        return {name: getattr(self.counters, name) for name in GatewayCounters.__slots__}
