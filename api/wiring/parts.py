"""Parts of the services, group by group: each part is made once. No part knows of HTTP."""

from dataclasses import dataclass

from api.access.authenticator import ApiAuthenticator
from api.access.callers import Callers
from api.access.logins import Logins
from api.access.passwords import ApiPasswordChecks
from api.access.provider import Provider
from api.access.tokens import read_token
from api.alarms.checks import Look
from api.alarms.notify import channels
from api.alarms.watch import AlarmWatch
from api.clients.balancing import BalancerLink
from api.clients.cache import SessionCache
from api.clients.presence import Gateways
from api.federation import FederationLink
from api.live.messages import MessageFeed
from api.live.metrics import MetricsSource, MetricsTicker
from api.live.outputs import OutputFeed
from api.live.readers import LiveReaders
from api.messages.completeness import Completeness
from api.messages.messages import MessageMaker
from api.messages.publishing import ApiPublisher
from api.messages.retained import RetainedTable
from api.metrics.rules import MaterialisedMetrics
from api.metrics.tenants import MaterialisedTenantMetrics, TenantFigures
from api.references.tables import ReferenceTables
from api.settings import PREFIX, ApiSettings
from api.spark.connect import SparkConnect
from api.sql.direct.reader import TableFiles
from api.sql.running import QueryRunner
from api.sql.threads import QueryThreads
from api.sql.warming import WarmUp
from api.tenants.storage import Storage
from api.web.prometheus import RequestMetrics
from api.wiring.edges import Edges
from api.wiring.kept import Kept
from api.wiring.resources import ACCESS, ALARMS, REFERENCES, RULES
from mqlake.tables.catalogue import RETAINED


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessParts:
    """How callers are known, by keys, accounts and logins."""

    authenticator: ApiAuthenticator
    passwords: ApiPasswordChecks
    logins: Logins
    provider: Provider | None

    @classmethod
    def make(cls, settings: ApiSettings, edges: Edges, kept: Kept) -> "AccessParts":
        access, passwords = kept[ACCESS], ApiPasswordChecks()
        callers = Callers(read_token(settings.token_file), access.view, edges.clock)
        hours = settings.session_hours
        return cls(
            authenticator=ApiAuthenticator.make(
                callers,
                edges.clock,
                requests_per_second=settings.requests_per_second,
                burst=settings.request_burst,
            ),
            passwords=passwords,
            logins=Logins(callers, access.view, access.changes, passwords, hours * 3600.0),
            provider=None
            if settings.oidc is None
            else Provider(settings.oidc, PREFIX, edges.clock),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayParts:
    """State of gateways."""

    heard: Gateways
    sessions: SessionCache
    balancer: BalancerLink
    federation: FederationLink

    @classmethod
    def make(cls, settings: ApiSettings, edges: Edges) -> "GatewayParts":
        return cls(
            heard=Gateways(edges.clock),
            sessions=SessionCache(settings.data_dir / "api"),
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
    """Parts of rules that the API does not write."""

    reference_tables: ReferenceTables
    metrics: MaterialisedMetrics

    @classmethod
    def make(cls, settings: ApiSettings, edges: Edges) -> "RuleParts":
        return cls(
            reference_tables=ReferenceTables(settings.data_dir),
            metrics=MaterialisedMetrics(edges.clock),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryParts:
    """Spark, and the parts that query it."""

    spark: SparkConnect
    runner: QueryRunner
    threads: QueryThreads
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
        threads = QueryThreads(settings.sql_at_once)
        return cls(spark=spark, runner=runner, threads=threads, warm_up=WarmUp(spark, runner))


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
        cls,
        settings: ApiSettings,
        edges: Edges,
        kept: Kept,
        gateways: GatewayParts,
        rules: RuleParts,
    ) -> "MetricParts":
        source = MetricsSource(
            settings.data_dir,
            gateways.heard,
            kept[RULES].view,
            rules.metrics,
            gateways.balancer,
            gateways.federation,
            edges.clock,
        )
        references = kept[REFERENCES].view
        storage = Storage(settings.data_dir / "tables", references.names, edges.clock)
        tenants = MaterialisedTenantMetrics(gateways.heard)
        return cls(
            source=source,
            tenants=tenants,
            figures=TenantFigures(tenants, rules.metrics, gateways.sessions, storage),
            requests=RequestMetrics(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmParts:
    """Parts that look for alarms, and send notices of them."""

    watch: AlarmWatch

    @classmethod
    def make(cls, settings: ApiSettings, edges: Edges, kept: Kept, look: Look) -> "AlarmParts":
        alarms = kept[ALARMS]
        watch = AlarmWatch(
            alarms.view,
            alarms.changes,
            look,
            edges.clock,
            channels(settings.alarms, settings.site),
            wait_seconds=settings.alarms.wait_seconds,
            has_warnings=settings.alarms.warnings,
        )
        return cls(watch=watch)
