"""Parts of the services, group by group: each part is made once. No part knows of HTTP."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from api.access.authenticator import ApiAuthenticator
from api.access.callers import Callers
from api.access.changes import PASSWORD_ROUNDS, AccessChanges
from api.access.logins import Logins
from api.access.materialised import MaterialisedAccess
from api.access.passwords import ApiPasswordChecks
from api.access.provider import Provider
from api.access.tokens import read_token
from api.alarms.changes import AlarmChanges
from api.alarms.checks import Look
from api.alarms.materialised import MaterialisedAlarms
from api.alarms.notify import channels
from api.alarms.watch import AlarmWatch
from api.balancing import BalancerLink
from api.bans import BanChanges, MaterialisedBans
from api.cache import SessionCache
from api.completeness import Completeness
from api.federation import FederationLink
from api.live.messages import MessageFeed
from api.live.metrics import MetricsSource, MetricsTicker
from api.live.outputs import OutputFeed
from api.live.readers import LiveReaders
from api.log import LogAppender
from api.messages import MessageMaker
from api.metrics.rules import MaterialisedMetrics
from api.metrics.tenants import MaterialisedTenantMetrics, TenantFigures
from api.presence import Gateways
from api.prometheus import RequestMetrics
from api.publishing import ApiPublisher, LogAddress
from api.references.changes import ReferenceChanges
from api.references.materialised import MaterialisedReferences
from api.references.tables import ReferenceTables
from api.retained import RetainedTable
from api.rights import MaterialisedRights, RightsChanges
from api.rules.changes import ANSWER_SECONDS, RuleChanges
from api.rules.materialised import MaterialisedRules
from api.schemas.changes import SchemaChanges
from api.settings import PREFIX, ApiSettings
from api.spans import TracingApiPublisher
from api.spark import SparkConnect
from api.sql.direct.reader import TableFiles
from api.sql.running import QueryRunner
from api.sql.warming import WarmUp
from api.storage import Storage
from api.tenants import MaterialisedTenants, TenantChanges
from api.tracing.scan import KafkaScan, Scan
from mqlake.clock import Clock, SystemClock
from mqlake.log_disk import LogDisk
from mqlake.rule_tables import written_tables
from mqlake.tables import RETAINED
from mqlake.tracing import open_tracer

NAME = "api"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Access of services to the world: the clock and the log. Tests have their own."""

    clock: Clock
    log: LogAppender
    publisher: ApiPublisher
    messages: MessageFeed
    outputs: OutputFeed
    open_scan: Callable[[], Scan]
    password_rounds: int = PASSWORD_ROUNDS
    answer_seconds: float = ANSWER_SECONDS
    """How long a change of a rule waits for the engine."""

    @classmethod
    def of(cls, settings: ApiSettings) -> "Edges":
        address, disk = LogAddress(settings.data_dir), LogDisk(settings.log_disk)
        tracer = open_tracer(settings.tracing, NAME)
        return cls(
            clock=SystemClock(),
            log=LogAppender(address.servers, disk=disk),
            publisher=ApiPublisher(address, disk)
            if tracer is None
            else TracingApiPublisher(address, disk, tracer),
            messages=MessageFeed(settings.data_dir),
            outputs=OutputFeed(settings.data_dir),
            open_scan=lambda: KafkaScan(address.servers()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessParts:
    """Keys, accounts and logins."""

    view: MaterialisedAccess
    changes: AccessChanges
    authenticator: ApiAuthenticator
    passwords: ApiPasswordChecks
    logins: Logins
    provider: Provider | None

    @classmethod
    def make(cls, settings: ApiSettings, edges: Edges) -> "AccessParts":
        view, passwords = MaterialisedAccess(), ApiPasswordChecks()
        changes = AccessChanges(edges.log, view, edges.clock, edges.password_rounds)
        callers = Callers(read_token(settings.token_file), view, edges.clock)
        return cls(
            view=view,
            changes=changes,
            authenticator=ApiAuthenticator.make(
                callers,
                edges.clock,
                requests_per_second=settings.requests_per_second,
                burst=settings.request_burst,
            ),
            passwords=passwords,
            logins=Logins(callers, view, changes, passwords, settings.session_hours * 3600.0),
            provider=None
            if settings.oidc is None
            else Provider(settings.oidc, PREFIX, edges.clock),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayParts:
    """State of gateways, and the rights, bans and tenants that they go by."""

    heard: Gateways
    sessions: SessionCache
    bans: MaterialisedBans
    ban_changes: BanChanges
    rights: MaterialisedRights
    rights_changes: RightsChanges
    tenants: MaterialisedTenants
    tenant_changes: TenantChanges
    balancer: BalancerLink
    federation: FederationLink

    @classmethod
    def make(cls, settings: ApiSettings, edges: Edges) -> "GatewayParts":
        bans, rights, tenants = MaterialisedBans(), MaterialisedRights(), MaterialisedTenants()
        return cls(
            heard=Gateways(edges.clock),
            sessions=SessionCache(settings.data_dir / "api"),
            bans=bans,
            ban_changes=BanChanges(edges.log, bans, edges.clock),
            rights=rights,
            rights_changes=RightsChanges(edges.log, rights, edges.clock),
            tenants=tenants,
            tenant_changes=TenantChanges(edges.log, tenants, edges.clock),
            balancer=BalancerLink(settings.data_dir),
            federation=FederationLink(settings.data_dir),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageParts:
    """Messages: new ones, and those that are there."""

    maker: MessageMaker
    publisher: ApiPublisher
    retained: RetainedTable
    completeness: Completeness

    @classmethod
    def make(cls, settings: ApiSettings, edges: Edges) -> "MessageParts":
        return cls(
            maker=MessageMaker(settings.site, settings.datacenter, edges.clock),
            publisher=edges.publisher,
            retained=RetainedTable(settings.data_dir / "tables" / RETAINED.name),
            completeness=Completeness(settings.data_dir),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleParts:
    """Rules, with their schemas and reference tables."""

    view: MaterialisedRules
    changes: RuleChanges
    schema_changes: SchemaChanges
    references: MaterialisedReferences
    reference_changes: ReferenceChanges
    reference_tables: ReferenceTables
    metrics: MaterialisedMetrics

    @classmethod
    def make(cls, settings: ApiSettings, edges: Edges) -> "RuleParts":
        view, references = MaterialisedRules(), MaterialisedReferences()
        tables = settings.data_dir / "tables"
        log, clock = edges.log, edges.clock
        return cls(
            view=view,
            changes=RuleChanges(
                log, view, clock, partial(written_tables, tables), edges.answer_seconds
            ),
            schema_changes=SchemaChanges(log, view, clock),
            references=references,
            reference_changes=ReferenceChanges(settings.data_dir, log, references, clock),
            reference_tables=ReferenceTables(settings.data_dir),
            metrics=MaterialisedMetrics(clock),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryParts:
    """Spark, and the parts that query it."""

    spark: SparkConnect
    runner: QueryRunner
    warm_up: WarmUp

    @classmethod
    def make(cls, settings: ApiSettings) -> "QueryParts":
        spark = SparkConnect(settings.data_dir)
        runner = QueryRunner(
            spark,
            TableFiles(settings.data_dir / "tables"),
            settings.data_dir / "api" / "sql",
            settings.sql_at_once,
            most_bytes=settings.sql_max_bytes,
        )
        return cls(spark=spark, runner=runner, warm_up=WarmUp(spark, runner))


@dataclass(frozen=True, slots=True)
class LiveParts:
    """Live streams, and their readers."""

    readers: LiveReaders
    messages: MessageFeed
    outputs: OutputFeed
    ticker: MetricsTicker


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricParts:
    """Metrics of the system, tenants and requests."""

    source: MetricsSource
    tenants: MaterialisedTenantMetrics
    figures: TenantFigures
    requests: RequestMetrics

    @classmethod
    def make(
        cls, settings: ApiSettings, edges: Edges, gateways: GatewayParts, rules: RuleParts
    ) -> "MetricParts":
        source = MetricsSource(
            *(settings.data_dir, gateways.heard, rules.view, rules.metrics),
            *(gateways.balancer, gateways.federation, edges.clock),
        )
        storage = Storage(settings.data_dir / "tables", rules.references.names, edges.clock)
        tenants = MaterialisedTenantMetrics(gateways.heard)
        return cls(
            source=source,
            tenants=tenants,
            figures=TenantFigures(tenants, rules.metrics, gateways.sessions, storage),
            requests=RequestMetrics(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmParts:
    """Alarms, and their notification."""

    view: MaterialisedAlarms
    changes: AlarmChanges
    watch: AlarmWatch

    @classmethod
    def make(cls, settings: ApiSettings, edges: Edges, look: Look) -> "AlarmParts":
        view = MaterialisedAlarms()
        changes = AlarmChanges(edges.log, view, edges.clock)
        watch = AlarmWatch(
            *(view, changes, look, edges.clock),
            channels(settings.alarms, settings.site),
            wait_seconds=settings.alarms.wait_seconds,
            has_warnings=settings.alarms.warnings,
        )
        return cls(view=view, changes=changes, watch=watch)
