"""All that the API is made of, in one place.

Only `api.wiring.dependencies` and `api.app` hold it: the former hands out single parts by their
types, and the latter starts and ends them.
"""

from dataclasses import dataclass

from api.alarms.checks import looking_at
from api.jobs.jobs import Jobs
from api.jobs.journal import LogJournal
from api.live.metrics import MetricsTicker
from api.live.readers import LiveReaders
from api.log.appending import LogAppender
from api.log.audit_log import AuditLog
from api.messages.history import Deleter
from api.replay.work import ReplayParts
from api.rules.work import RuleWorks
from api.settings import ApiSettings
from api.tracing.traces import Traces
from api.web.served_certificate import ServedCertificate
from api.wiring.edges import Edges
from api.wiring.kept import Kept
from api.wiring.parts import (
    AccessParts,
    AlarmParts,
    GatewayParts,
    LiveParts,
    MessageParts,
    MetricParts,
    QueryParts,
    RuleParts,
)
from api.wiring.resources import REFERENCES, RESOURCES, RULES
from api.wiring.runs import LongRuns
from api.wiring.tenant_deletion import DeletionParts


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """All parts."""

    settings: ApiSettings
    certificate: ServedCertificate | None
    log: LogAppender
    audit_log: AuditLog
    kept: Kept
    access: AccessParts
    gateways: GatewayParts
    messages: MessageParts
    rules: RuleParts
    queries: QueryParts
    traces: Traces
    runs: LongRuns
    metrics: MetricParts
    live: LiveParts
    alarms: AlarmParts


def make_services(settings: ApiSettings, edges: Edges | None = None) -> Services:
    """Make all parts; none has begun to work.

    Args:
        settings: Settings of the process.
        edges: Connections with the world; None: those that the settings say.

    Raises:
        OperationalError: The token file or the certificate cannot be used.
    """
    edges = edges or Edges.of(settings)
    kept = Kept(RESOURCES, settings, edges)
    access = AccessParts.make(settings, edges, kept)
    gateways = GatewayParts.make(settings, edges)
    messages = MessageParts.make(settings, edges)
    rules = RuleParts.make(settings, edges)
    queries = QueryParts.make(settings)
    metrics = MetricParts.make(settings, edges, kept, gateways, rules)
    jobs = Jobs(edges.clock, LogJournal(edges.log))
    known_rules = kept[RULES].view
    look = looking_at(metrics.source, gateways.sessions, known_rules, jobs)
    alarms = AlarmParts.make(settings, edges, kept, look)
    log, spark, sessions, heard = edges.log, queries.spark, gateways.sessions, gateways.heard
    return Services(
        settings=settings,
        certificate=ServedCertificate(settings) if settings.certificate else None,
        log=log,
        audit_log=AuditLog(log, edges.clock),
        kept=kept,
        access=access,
        gateways=gateways,
        messages=messages,
        rules=rules,
        queries=queries,
        traces=Traces(edges.open_scan, spark, sessions, known_rules, heard),
        runs=LongRuns(
            jobs,
            RuleWorks(spark, log, known_rules, kept[REFERENCES].view),
            ReplayParts(
                log,
                messages.maker,
                sessions,
                heard,
                queries.runner,
                settings,
                access.authenticator.callers,
            ),
            Deleter(spark, log, edges.clock),
            DeletionParts(
                settings.data_dir, log, kept, gateways, messages, rules, metrics, jobs, spark
            ),
        ),
        metrics=metrics,
        live=LiveParts(
            LiveReaders(settings.live_seconds),
            edges.messages,
            edges.outputs,
            MetricsTicker(metrics.source.read),
        ),
        alarms=alarms,
    )
