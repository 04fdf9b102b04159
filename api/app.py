"""The API process: the only place that wires settings, routes and server."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

import uvicorn
from fastapi import Depends, FastAPI
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto.utilities import LocalProtocolError

from api import openapi, problems
from api.access.book import AccessBook
from api.access.callers import Callers
from api.access.changes import AccessChanges
from api.access.follower import AccessFollower
from api.access.passwords import PasswordChecks
from api.access.provider import Provider
from api.alarms.book import AlarmBook, AlarmFollower
from api.alarms.changes import AlarmChanges
from api.alarms.checks import looking_at
from api.alarms.notify import channels
from api.alarms.watch import AlarmWatch
from api.audit.trail import AuditLog, AuditTrail
from api.authentication import Doorkeeper, authorize, read_token
from api.balancing import BalancerLink
from api.bans import BanBook, BanChanges
from api.cache import SessionCache
from api.dashboard import serving as dashboard
from api.entrance import Entrance, TimedProtocol
from api.federation import FederationLink
from api.follower import Follower
from api.host_names import HostNames
from api.job_journal import JobsFollower, LogJournal
from api.jobs import Jobs
from api.live.messages import MessageFeed
from api.live.metrics import MetricsSource, MetricsTicker
from api.live.outputs import OutputFeed
from api.live.readers import Readers
from api.log import LogAppender
from api.messages import MessageMaker
from api.middleware import RequestContext
from api.presence import Gateways
from api.prometheus import RequestMetrics
from api.publishing import LogAddress, Publisher
from api.references.book import ReferenceBook
from api.references.changes import ReferenceChanges
from api.references.tables import ReferenceTables
from api.retained import RetainedTable
from api.rights import RightsBook, RightsChanges
from api.routes import (
    access,
    alarms,
    balancer,
    bans,
    clients,
    dead_letters,
    federation,
    gateways,
    health,
    history,
    jobs,
    live,
    logins,
    metrics,
    processes,
    publish,
    references,
    relations,
    replay,
    retained,
    rights,
    rule_backfills,
    rule_trials,
    rule_versions,
    rules,
    schemas,
    sign_on,
    sql,
    tenants,
    topics,
    tracing,
)
from api.rules.book import RuleBook
from api.rules.changes import Changes
from api.rules.follower import RulesFollower
from api.rules.metrics import MetricsBook
from api.schemas.changes import SchemaChanges
from api.served_certificate import ServedCertificate
from api.settings import ApiSettings
from api.spans import TracingPublisher
from api.spark import SparkConnect
from api.sql.running import QueryRunner
from api.sql.warming import WarmUp
from api.storage import Storage
from api.tenant_metrics import TenantFigures, TenantMetricsBook
from api.tenants import TenantBook, TenantChanges
from api.tracing.scan import KafkaScan
from mqlake.addresses import is_loopback
from mqlake.clock import SystemClock
from mqlake.heartbeat import INTERVAL_SECONDS, write_heartbeat
from mqlake.logs import set_up_logging
from mqlake.metrics.families import Families
from mqlake.metrics.server import MetricsServer, new_registry
from mqlake.records import SESSIONS
from mqlake.tables import RETAINED
from mqlake.tracing import open_tracer

_logger = logging.getLogger(__name__)

NAME = "api"
PREFIX = "/api/v1"
MAX_FRAME_BYTES = 65_536
"""Of a WebSocket's: what a reader may say."""


def create_app(settings: ApiSettings) -> FastAPI:
    """Return the application.

    Raises:
        OperationalError: The token file or the certificate cannot be used.
    """
    app = FastAPI(
        title="mqlake",
        version="1",
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.settings = settings
    app.state.prefix = PREFIX
    app.state.data_dir = settings.data_dir
    app.state.certificate = ServedCertificate(settings) if settings.certificate else None
    clock = SystemClock()
    app.state.log = LogAppender()
    app.state.cache = SessionCache(settings.data_dir / "api")
    app.state.gateways = Gateways(clock)
    app.state.bans = BanBook()
    app.state.ban_changes = BanChanges(app.state.log, app.state.bans, clock)
    app.state.rights = RightsBook()
    app.state.rights_changes = RightsChanges(app.state.log, app.state.rights, clock)
    app.state.tenants = TenantBook()
    app.state.tenant_changes = TenantChanges(app.state.log, app.state.tenants, clock)
    app.state.retained = RetainedTable(settings.data_dir / "tables" / RETAINED.name)
    app.state.message_maker = MessageMaker(settings.site, settings.datacenter, clock)
    tracer = open_tracer(settings.tracing, NAME)
    app.state.publisher = Publisher() if tracer is None else TracingPublisher(tracer)
    app.state.log_address = LogAddress(settings.data_dir)
    app.state.references = ReferenceBook()
    app.state.reference_changes = ReferenceChanges(
        settings.data_dir, app.state.log, app.state.references, clock
    )
    app.state.reference_tables = ReferenceTables(settings.data_dir)
    app.state.rules = RuleBook()
    app.state.rule_changes = Changes(app.state.log, app.state.rules, clock)
    app.state.schema_changes = SchemaChanges(app.state.log, app.state.rules, clock)
    app.state.rule_metrics = MetricsBook(clock)
    app.state.tenant_metrics = TenantMetricsBook(app.state.gateways)
    app.state.tenant_figures = TenantFigures(
        app.state.tenant_metrics,
        app.state.rule_metrics,
        app.state.cache,
        Storage(settings.data_dir / "tables", app.state.references.names, clock),
    )
    app.state.spark = SparkConnect(settings.data_dir)
    app.state.queries = QueryRunner(
        app.state.spark, settings.data_dir / "api" / "sql", settings.sql_at_once
    )
    app.state.warm_up = WarmUp(app.state.spark, app.state.queries)
    app.state.jobs = Jobs(clock, LogJournal(app.state.log, settings.data_dir))
    app.state.open_scan = KafkaScan
    app.state.message_feed = MessageFeed(settings.data_dir)
    app.state.output_feed = OutputFeed(settings.data_dir)
    app.state.balancer = BalancerLink(settings.data_dir)
    app.state.federation = FederationLink(settings.data_dir)
    app.state.metrics_source = MetricsSource(
        settings.data_dir,
        app.state.gateways,
        app.state.rules,
        app.state.rule_metrics,
        app.state.balancer,
        app.state.federation,
        clock,
    )
    app.state.metrics_ticker = MetricsTicker(app.state.metrics_source.read)
    app.state.alarms = AlarmBook()
    app.state.alarm_changes = AlarmChanges(app.state.log, app.state.alarms, clock)
    app.state.alarm_watch = AlarmWatch(
        settings.data_dir,
        app.state.alarms,
        app.state.alarm_changes,
        looking_at(app.state),
        clock,
        channels(settings.alarms, settings.site),
        wait_seconds=settings.alarms.wait_seconds,
        has_warnings=settings.alarms.warnings,
    )
    app.state.live_readers = Readers()
    app.state.is_stopping = lambda: False
    app.state.access = AccessBook()
    app.state.access_changes = AccessChanges(app.state.log, app.state.access, clock)
    app.state.provider = None if settings.oidc is None else Provider(settings.oidc, PREFIX, clock)
    app.state.password_checks = PasswordChecks()
    app.state.doorkeeper = Doorkeeper.make(
        Callers(read_token(settings.token_file), app.state.access, clock),
        clock,
        requests_per_second=settings.requests_per_second,
        burst=settings.request_burst,
    )
    problems.register(app)
    openapi.describe(app)
    app.state.request_metrics = RequestMetrics()
    app.state.audit_log = AuditLog(app.state.log, settings.data_dir, clock)
    app.add_middleware(AuditTrail)
    app.add_middleware(Entrance, prefix=PREFIX)
    app.add_middleware(HostNames, names=_host_names(settings))
    app.add_middleware(
        RequestContext,
        is_logging=settings.access_log,
        metrics=app.state.request_metrics,
        hsts_seconds=settings.hsts_seconds,
    )
    app.include_router(dashboard.router)
    app.include_router(health.router, prefix=PREFIX)
    app.include_router(access.public, prefix=PREFIX, max_body_size=settings.max_body_bytes)
    app.include_router(sign_on.router, prefix=PREFIX)
    app.include_router(live.sockets, prefix=PREFIX)
    modules = (
        *(
            access,
            logins,
            bans,
            rights,
            processes,
            gateways,
            balancer,
            federation,
            clients,
            retained,
        ),
        *(publish, topics, tenants, metrics, live, alarms),
        # What is tried by name goes before what is found by identifier.
        *(rule_trials, rule_backfills, rule_versions, dead_letters, rules),
        *(references, schemas, jobs),
        *(relations, sql, history, replay, tracing),
    )
    for module in modules:
        app.include_router(
            module.router,
            prefix=PREFIX,
            dependencies=[Depends(authorize)],
            max_body_size=settings.max_body_bytes,
        )
    return app


def _host_names(settings: ApiSettings) -> frozenset[str] | None:
    """Return by which names the API may be asked; None: by any."""
    if not is_loopback(settings.host) or settings.trusted_proxies or "*" in settings.host_names:
        return None
    public = "" if settings.oidc is None else urlsplit(settings.oidc.public_url).hostname or ""
    return frozenset({*settings.host_names, public} - {""})


class Server(uvicorn.Server):
    """A server that ends although clients do not close what it has closed."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        # The loop would wait at its end for who does not answer that TLS is over.
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class WebSocketProtocol(WSProtocol):
    """A connection of uvicorn's that may be closing already when the server ends."""

    def shutdown(self) -> None:
        try:
            super().shutdown()
        except LocalProtocolError:  # the client has closed it, and only the transport is left
            self.transport.close()


def server_config(app: FastAPI) -> uvicorn.Config:
    """Return how an application is served."""
    settings: ApiSettings = app.state.settings
    certificate: ServedCertificate | None = app.state.certificate
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
        http=TimedProtocol,
        ws=WebSocketProtocol,
        ws_max_size=MAX_FRAME_BYTES,
        log_config=None,
        access_log=False,
        server_header=False,
        # What anybody may say of himself would get round the limits of logins.
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_graceful_shutdown=3,
    )


def main(settings: ApiSettings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    set_up_logging(settings.log_level, settings.log_file, settings.log_format, NAME)
    app = create_app(settings)
    server = Server(server_config(app))
    app.state.is_stopping = lambda: server.should_exit
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again at its end
        server.run()
    return 0 if server.started else 1


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state = app.state
    books = state.bans, state.rights, state.tenants
    follower = Follower(state.data_dir, state.cache, state.gateways, books)
    follower.start()
    counters = state.rule_metrics, state.tenant_metrics
    rules_follower = RulesFollower(state.data_dir, state.rules, state.references, *counters)
    rules_follower.start()
    jobs_follower = JobsFollower(state.data_dir, state.jobs)
    jobs_follower.start()
    access_follower = AccessFollower(state.data_dir, state.access)
    access_follower.start()
    alarm_follower = AlarmFollower(state.data_dir, state.alarms)
    alarm_follower.start()
    tasks = [
        asyncio.create_task(_beat(state.settings, state.cache)),
        asyncio.create_task(state.alarm_watch.run()),
    ]
    if state.certificate is not None:
        tasks.append(asyncio.create_task(state.certificate.follow()))
    served = MetricsServer(
        state.settings.metrics,
        new_registry(NAME, lambda: state.cache.is_complete, partial(_add_metrics, app)),
    )
    yield
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await asyncio.to_thread(served.close)
    state.password_checks.close()
    await asyncio.to_thread(state.jobs.close)
    await asyncio.to_thread(state.publisher.close)
    await asyncio.to_thread(state.message_feed.close)
    await asyncio.to_thread(state.output_feed.close)
    await asyncio.to_thread(follower.stop)
    await asyncio.to_thread(rules_follower.stop)
    await asyncio.to_thread(jobs_follower.stop)
    await asyncio.to_thread(access_follower.stop)
    await asyncio.to_thread(alarm_follower.stop)
    await asyncio.to_thread(state.warm_up.close)
    await asyncio.to_thread(state.queries.close)
    await asyncio.to_thread(state.spark.close)


def _add_metrics(app: FastAPI, families: Families) -> None:
    requests: RequestMetrics = app.state.request_metrics
    requests.read(families)
    families.add("mqlake_api_live_readers", len(app.state.live_readers))


async def _beat(settings: ApiSettings, cache: SessionCache) -> None:
    if settings.heartbeat_file is None:
        return
    scheme = "https" if settings.certificate else "http"
    address = f"serving {scheme}://{settings.host}:{settings.port}"
    is_complete = False
    while True:
        is_complete = is_complete or cache.is_complete
        detail = address if is_complete else f"reading {SESSIONS} from the log"
        # The loop that answers requests also writes this: when it is stuck, the beat stops.
        with contextlib.suppress(OSError):  # a full disk, say; readers see the beat grow old
            write_heartbeat(settings.heartbeat_file, NAME, healthy=is_complete, detail=detail)
        await asyncio.sleep(INTERVAL_SECONDS)
