"""Live metrics of the system: once a second while a stream is open."""

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Field

from api.clients.balancing import Balancer, BalancerLink
from api.clients.presence import Gateways, Presence
from api.federation import Federation, FederationLink
from api.live.stream import Event, LiveStream
from api.metrics.rules import MaterialisedMetrics
from api.rules.materialised import MaterialisedRules
from mqlake.clock import Clock
from mqlake.errors import OperationalError
from mqlake.processes.latency import STAGES, added_up, percentile
from mqlake.processes.status import read_state, report
from mqlake.records.gateway_heartbeat import ShownGateway

_logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 1.0
STREAMING: Final = ("router", "lake")
"""The processes whose queries are shown."""

_SUMS: Final[dict[str, tuple[str, ...]]] = {
    "messages_received_per_second": ("messages_received",),
    "messages_stored_per_second": ("messages_stored",),
    "messages_sent_per_second": ("messages_sent",),
    "payload_bytes_received_per_second": ("payload_bytes_received",),
    "payload_bytes_sent_per_second": ("payload_bytes_sent",),
    "dropped_per_second": (
        "dropped_slow_client",
        "dropped_queue_full",
        "dropped_expired",
        "dropped_too_large",
        "dropped_no_member",
        "dropped_not_authorized",
        "dropped_retained_full",
        "dropped_too_fast",
        "dropped_unreadable",
    ),
}
"""Rate of the system -> counters of gateways whose rates it adds up."""


class StageLatency(BaseModel):
    messages: int = Field(description="approximate number measured in the last ten seconds")
    p50_ms: float | None = Field(description="median; null without messages")
    p95_ms: float | None
    p99_ms: float | None


class SystemLatency(BaseModel):
    accept: StageLatency = Field(
        description="from PUBLISH with QoS 1 or 2 to PUBACK or PUBREC: the log has the message"
    )
    route: StageLatency = Field(
        description="from the log (its time stamp at handover) to the delivery topic of the "
        "gateway; clocks in whole milliseconds"
    )
    deliver: StageLatency = Field(
        description="from PUBLISH at any gateway to PUBLISH to subscribers, as above; if a message "
        "must wait for a client, to the start of the wait"
    )


class GatewayRates(ShownGateway):
    name: str
    alive: bool
    overload_level: int = Field(description="0 to 10; above 4 it is overloaded")
    per_second: dict[str, float] = Field(description="of each counter, over about two seconds")
    latency: SystemLatency


class ProcessMetrics(BaseModel):
    name: str
    healthy: bool
    detail: str
    restarts: int
    uptime_seconds: float
    rss_bytes: int
    cpu_percent: float = Field(description="of one core, over the last seconds")
    figures: dict[str, Any] = Field(description="its own counters, some seconds old")


class QueryMetrics(BaseModel):
    name: str
    tenant: str | None = Field(default=None, description="of a stateful rule")
    rule: str | None = Field(default=None, description="of the query; null: a query of the system")
    active: bool = Field(description="false while it is idle, or waits to restart")
    real_time: bool = Field(default=False, description="it runs in real time, without batches")
    lag_records: int | None = Field(
        default=None, description="offsets of the log still to read; null: not known"
    )
    input_rows_per_second: float = Field(
        default=0.0, description="records read, over the last ten seconds"
    )
    batch_ms: int | None = Field(
        default=None, description="duration of the last batch; null in real time"
    )
    state_rows: int = Field(default=0, description="keys in its state")
    restarts: int = Field(default=0, description="after failures, since the engine started")


class RuleTotals(BaseModel):
    rules: int
    running: int
    matched_per_second: float = Field(description="messages that match a rule's filter")


class SystemMetrics(BaseModel):
    at: datetime
    clients: int
    sessions: int
    subscriptions: int
    retained: int = Field(description="messages, counted by the gateways that own their shards")
    messages_received_per_second: float = Field(description="PUBLISH packets from clients")
    messages_stored_per_second: float = Field(description="of these, stored in the log")
    messages_sent_per_second: float = Field(description="PUBLISH packets to clients")
    payload_bytes_received_per_second: float
    payload_bytes_sent_per_second: float
    dropped_per_second: float
    copies_per_message: float | None = Field(
        description="approximate records sent to gateways by the router for each message that they "
        "store: one for each gateway with a subscriber; null without messages"
    )
    latency: SystemLatency = Field(description="of all gateways")
    gateways: list[GatewayRates]
    processes: list[ProcessMetrics]
    queries: list[QueryMetrics] = Field(description="of Spark; some seconds old")
    rules: RuleTotals
    balancer: Balancer | None = Field(description="null: none runs on this machine")
    federation: Federation | None = Field(description="null: this site is not federated")


class MetricsSource:
    """Looks at everything that the API knows of the system.

    Args:
        data_dir: Data directory of the system.
        gateways: Last heartbeats of the gateways.
        rules: All rules.
        rule_metrics: Their counters.
        balancer: Balancer of this machine, if there is one.
        federation: Federator of this machine, if there is one.
        clock: Gives the time of a sample.
    """

    def __init__(
        self,
        data_dir: Path,
        gateways: Gateways,
        rules: MaterialisedRules,
        rule_metrics: MaterialisedMetrics,
        balancer: BalancerLink,
        federation: FederationLink,
        clock: Clock,
    ) -> None:
        self._data_dir = data_dir
        self._gateways = gateways
        self._rules = rules
        self._rule_metrics = rule_metrics
        self._balancer = balancer
        self._federation = federation
        self._clock = clock

    def read(self) -> SystemMetrics:
        """Return the present metrics. Reads a file."""
        heard = self._gateways.all()
        gateways = [_gateway(one) for one in heard]
        alive = [one for one in gateways if one.alive]
        processes = self._processes()
        rates = {
            name: round(sum(one.per_second.get(part, 0.0) for one in alive for part in parts), 2)
            for name, parts in _SUMS.items()
        }
        return SystemMetrics(
            at=datetime.fromtimestamp(self._clock.now_ms() / 1000, tz=UTC),
            clients=sum(one.clients for one in alive),
            sessions=sum(one.sessions for one in alive),
            subscriptions=sum(one.subscriptions for one in alive),
            retained=sum(one.figures.get("retained", 0) for one in processes),
            latency=_latency([one.latency for one in heard if one.is_alive]),
            gateways=gateways,
            processes=processes,
            queries=_queries(processes),
            rules=self._rule_totals(),
            balancer=self._balancing(),
            federation=self._federating(),
            copies_per_message=_copies(alive),
            **rates,
        )

    def _balancing(self) -> Balancer | None:
        if not self._balancer.is_there:
            return None
        try:
            return self._balancer.read()
        except OperationalError:
            return None  # the list of processes says why

    def _federating(self) -> Federation | None:
        if not self._federation.is_there:
            return None
        try:
            return self._federation.read()
        except OperationalError:
            return None  # as above

    def _processes(self) -> list[ProcessMetrics]:
        try:
            shown = report(read_state(self._data_dir))["processes"]
        except OperationalError:
            return []  # the gateways may run elsewhere
        return [ProcessMetrics.model_validate(one) for one in shown]

    def _rule_totals(self) -> RuleTotals:
        entries = [entry for tenant in self._rules.tenants() for entry in self._rules.all(tenant)]
        return RuleTotals(
            rules=len(entries),
            running=sum(entry.state == "running" for entry in entries),
            matched_per_second=round(self._rule_metrics.matched_per_second(), 2),
        )


class MetricsTicker:
    """Gives streams the metrics each second; a thread runs while there is one.

    Args:
        read: Returns the metrics.
    """

    def __init__(self, read: Callable[[], SystemMetrics]) -> None:
        self._read = read
        self._changed = threading.Condition()
        self._streams: dict[LiveStream, None] = {}
        self._thread: threading.Thread | None = None

    def add(self, stream: LiveStream) -> None:
        """Offer a stream the metrics, from now on each second."""
        with self._changed:
            self._streams[stream] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
                self._thread.start()
            self._changed.notify()

    def remove(self, stream: LiveStream) -> None:
        with self._changed:
            self._streams.pop(stream, None)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                streams = list(self._streams)
                if not streams:
                    self._thread = None
                    return
            try:
                shown = self._read().model_dump(mode="json")
            except Exception:
                _logger.exception("no metrics")
            else:
                for stream in streams:
                    stream.offer_newest(shown)
                    stream.wake()
            with self._changed:
                # Not before a second has passed, but at once for a new reader.
                self._changed.wait_for(partial(self._is_other, streams), INTERVAL_SECONDS)

    def _is_other(self, known: list[LiveStream]) -> bool:
        return list(self._streams) != known


def metrics_event(shown: dict[str, Any]) -> Event:
    return "metrics", shown


def _copies(gateways: list[GatewayRates]) -> float | None:
    stored, received = (
        sum(one.per_second.get(name, 0.0) for one in gateways)
        for name in ("messages_stored", "deliveries_received")
    )
    return round(received / stored, 2) if stored else None


def _gateway(found: Presence) -> GatewayRates:
    shown = {name: getattr(found.heartbeat, name) for name in ShownGateway.model_fields}
    return GatewayRates(
        **shown,
        name=found.name,
        alive=found.is_alive,
        overload_level=found.heartbeat.overload or 0,
        per_second=found.per_second if found.is_alive else {},
        latency=_latency([found.latency] if found.is_alive else []),
    )


def _latency(all_counts: list[dict[str, list[int]]]) -> SystemLatency:
    stages = {}
    for stage in STAGES:
        counts = added_up(one[stage] for one in all_counts if stage in one)
        stages[stage] = StageLatency(
            messages=sum(counts),
            p50_ms=percentile(counts, 0.5),
            p95_ms=percentile(counts, 0.95),
            p99_ms=percentile(counts, 0.99),
        )
    return SystemLatency(**stages)


def _queries(processes: list[ProcessMetrics]) -> list[QueryMetrics]:
    found = [one.figures.get("queries", {}) for one in processes if one.name in STREAMING]
    return [
        QueryMetrics.model_validate({"name": name, **figures})
        for queries in found
        for name, figures in queries.items()
    ]
