"""Problems of the system, its rules and its jobs, found in the state that the API knows."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from api.clients.balancing import Balancer, NodeView
from api.clients.cache import SessionCache
from api.federation import Federation
from api.jobs.jobs import Job, Jobs
from api.live.metrics import (
    GatewayRates,
    MetricsSource,
    ProcessMetrics,
    QueryMetrics,
    SystemMetrics,
)
from api.rules.materialised import Entry, MaterialisedRules
from mqlake.processes.status import RECOVERED_SECONDS
from mqlake.records.alarms import Severity

MOST_LAG_RECORDS: Final = 50_000
"""A query that is so far behind does not keep up; a batch of the history's is smaller."""
MOST_OVERLOAD: Final = 4
"""A gateway above this level takes no new clients from a balancer."""

_STEPS: Final = (
    "",
    "; publishers are slowed down",
    "; publishers are read no further",
    "; new clients are refused",
    "; clients that hold most memory are disconnected",
)
"""Measures of a gateway against overload, by step."""
_ENDED: Final = {"failed": "has failed", "interrupted": "was interrupted"}


@dataclass(frozen=True, slots=True)
class Found:
    """One thing to look at."""

    severity: Severity
    what: str
    detail: str
    page: str = "overview"
    item: str = ""
    tenant: str | None = None

    @property
    def id(self) -> str:
        """The same as long as it is about the same."""
        text = "\0".join((self.tenant or "", self.page, self.item, self.what))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def of_system(metrics: SystemMetrics) -> Iterator[Found]:
    """Yield the problems of the system."""
    for process in metrics.processes:
        yield from _of_process(process)
    for gateway in metrics.gateways:
        yield from _of_gateway(gateway)
    for query in metrics.queries:
        yield from _of_query(query)
    if metrics.balancer is not None:
        yield from _of_balancer(metrics.balancer)
    if metrics.federation is not None:
        yield from _of_federation(metrics.federation)
    if metrics.dropped_per_second > 0:
        rate = f"{metrics.dropped_per_second:g} a second"
        detail = f"{rate}; the table drops says which and why"
        yield Found("warning", "messages are dropped", detail, "sql")


def of_rules(entries: Iterable[Entry]) -> Iterator[Found]:
    """Yield the rules that do not run though they should."""
    for entry in entries:
        if entry.state in ("failed", "paused"):
            rule = entry.rule
            what = f"rule {rule.id} is {entry.state}"
            yield Found("alarm", what, entry.error or "", "rules", rule.id, rule.tenant)


def of_jobs(jobs: Iterable[Job]) -> Iterator[Found]:
    """Yield the jobs that have not come to their end."""
    for job in jobs:
        if job.state in _ENDED:
            what = f"{job.kind.replace('_', ' ')} {job.id} {_ENDED[job.state]}"
            yield Found("warning", what, job.error or job.note, "jobs", job.id, job.tenant)


def _of_process(one: ProcessMetrics) -> Iterator[Found]:
    if not one.healthy:
        yield Found("alarm", f"{one.name} is not healthy", one.detail)
    elif one.restarts and one.uptime_seconds < RECOVERED_SECONDS:
        detail = f"{one.restarts} times since the system came up"
        yield Found("warning", f"{one.name} was started again", detail)


def _of_gateway(one: GatewayRates) -> Iterator[Found]:
    if not one.alive:
        detail = "nothing was heard of it for 3 seconds or more"
        yield Found("alarm", f"{one.name} does not answer", detail)
        return
    if one.state != "serving":
        yield Found("warning", f"{one.name} is {one.state}", "it takes no new clients")
    if one.overload_level > MOST_OVERLOAD or one.overload_step > 1:
        level = f"its overload level is {one.overload_level} of 10"
        what = f"{one.name} has more to do than it can"
        yield Found("warning", what, level + _STEPS[one.overload_step])


def _of_query(one: QueryMetrics) -> Iterator[Found]:
    if (one.lag_records or 0) > MOST_LAG_RECORDS:
        name = f"of rule {one.rule}" if one.rule else one.name
        detail = f"{one.lag_records} records behind the end of the log"
        yield Found("alarm", f"the query {name} is behind", detail, tenant=one.tenant)


def _of_balancer(balancer: Balancer) -> Iterator[Found]:
    for node in balancer.nodes:
        if not node.takes_clients:
            severity: Severity = "warning" if node.draining or node.overloaded else "alarm"
            what = f"{node.name} takes no new clients"
            yield Found(severity, what, _why_not(node), "balancer")
    for proxy in balancer.proxies:
        if proxy.problem:
            what = f"the proxy {proxy.name} does not follow"
            yield Found("alarm", what, proxy.problem, "balancer")


def _why_not(node: NodeView) -> str:
    if node.draining:
        return "it is drained"
    if node.overloaded:
        return "it is overloaded"
    return "; ".join(one.reason for one in node.factors.values() if one.reason)


def _of_federation(federation: Federation) -> Iterator[Found]:
    for link in federation.links:
        if link.gone:
            detail = f"the log had no more what it was to get next, {link.gone} times"
            what = f"site {link.site} has missed messages"
            yield Found("alarm", what, detail, "federation")
        if not link.there:
            detail = f"{link.reason}; {link.behind} records behind, it gets them when it is back"
            yield Found("warning", f"site {link.site} is away", detail, "federation")
        if link.held_because:
            what = f"messages from site {link.site} are held back"
            yield Found("warning", what, link.held_because, "federation")


Look = Callable[[], list[Found] | None]
"""Returns the present problems; None: not all is known yet."""


def looking_at(
    metrics: MetricsSource, sessions: SessionCache, rules: MaterialisedRules, jobs: Jobs
) -> Look:
    """Return a function that looks at all that an application knows."""

    def look() -> list[Found] | None:
        if not (sessions.is_complete and rules.is_complete):
            return None
        entries = [one for tenant in rules.tenants() for one in rules.all(tenant)]
        return [*of_system(metrics.read()), *of_rules(entries), *of_jobs(jobs.all())]

    return look
