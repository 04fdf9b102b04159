"""The API process: the only place that wires settings, routes and server."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import uvicorn
from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto.utilities import LocalProtocolError

from api.audit.states import check_states
from api.audit.trail import AuditTrail
from api.clients.cache import SessionCache
from api.dashboard import serving as dashboard
from api.entrance import openapi, refusals
from api.entrance.authentication import authorize, is_audited
from api.entrance.limits import Entrance, TimedProtocol
from api.jobs.journal import JobsTaker
from api.log.following import Followable, LogFollower
from api.routes.access import accounts, keys, logins, session, sign_on
from api.routes.clients import bans, clients, rights, tenants
from api.routes.messages import history, live, publish, replay, retained, topics, tracing
from api.routes.queries import relations, sql
from api.routes.rules import backfills, dead_letters, references, rules, schemas, trials, versions
from api.routes.system import (
    alarms,
    balancer,
    federation,
    gateways,
    health,
    jobs,
    metrics,
    processes,
)
from api.settings import PREFIX, ApiSettings
from api.web import problems
from api.web.host_names import HostNames
from api.web.middleware import RequestContext
from api.web.segments import MarkedPath
from api.wiring.edges import NAME
from api.wiring.services import Services, make_services
from mqlake.logs import set_up_logging
from mqlake.metrics.families import Families
from mqlake.metrics.server import MetricsServer
from mqlake.processes.heart import Heart, ProcessState
from mqlake.records.messages import GATEWAYS, JOBS, METRICS, RULES, SESSIONS
from mqlake.security.addresses import is_loopback

_logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = 65_536
"""Largest frame that a reader may send over a WebSocket."""
MAX_HEAD_BYTES = 16_384 + 3 * 65_535
"""Largest line and headers of a request: a client identifier has 65,535 bytes, in a path `%xx`
each."""
SESSION_PACE_SECONDS = 0.2
"""Pace of reading sessions: their records come by the thousand, and a page may lag by a moment."""

_FOR_CALLERS: Final = (
    session,
    keys,
    accounts,
    logins,
    bans,
    rights,
    processes,
    gateways,
    balancer,
    federation,
    clients,
    retained,
    publish,
    topics,
    tenants,
    metrics,
    live,
    alarms,
    # Fixed paths go before those with an identifier: the first match counts.
    trials,
    backfills,
    versions,
    dead_letters,
    rules,
    references,
    schemas,
    jobs,
    relations,
    sql,
    history,
    replay,
    tracing,
)
"""Modules whose routes answer a caller who is known."""


def create_app(services: Services) -> FastAPI:
    """Return the application that hands out these services."""
    settings = services.settings
    app = FastAPI(
        title="mqlake",
        version="1",
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lambda _: _lifespan(services),
    )
    app.state.services = services
    problems.register(app)
    refusals.register(app)
    openapi.describe(app)
    _add_middleware(app, services)
    app.include_router(dashboard.router)
    app.include_router(health.router, prefix=PREFIX)
    app.include_router(session.public, prefix=PREFIX, max_body_size=settings.max_body_bytes)
    app.include_router(sign_on.router, prefix=PREFIX)
    app.include_router(live.sockets, prefix=PREFIX)
    check_states(_audited())
    for module in _FOR_CALLERS:
        app.include_router(
            module.router,
            prefix=PREFIX,
            dependencies=[Depends(authorize)],
            max_body_size=settings.max_body_bytes,
        )
    return app


def _audited() -> set[str]:
    """Return the paths of all operations that are audited."""
    return {
        route.path_format
        for module in _FOR_CALLERS
        for route in module.router.routes
        if isinstance(route, APIRoute)
        and any(is_audited(method, route.openapi_extra) for method in route.methods or ())
    }


def _add_middleware(app: FastAPI, services: Services) -> None:
    """Put around all routes what each request goes through; the last one comes first."""
    settings = services.settings
    app.add_middleware(MarkedPath)
    app.add_middleware(AuditTrail)
    app.add_middleware(Entrance, prefix=PREFIX)
    app.add_middleware(HostNames, names=_host_names(settings))
    app.add_middleware(
        RequestContext,
        is_logging=settings.access_log,
        metrics=services.metrics.requests,
        hsts_seconds=settings.hsts_seconds,
    )


def _host_names(settings: ApiSettings) -> frozenset[str] | None:
    """Return the names by which the API may be asked; None: any."""
    if not is_loopback(settings.host) or settings.trusted_proxies or "*" in settings.host_names:
        return None
    public = "" if settings.oidc is None else urlsplit(settings.oidc.public_url).hostname or ""
    return frozenset({*settings.host_names, public} - {""})


class Server(uvicorn.Server):
    """A server that ends although clients do not close connections that it has closed."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        # The loop would wait at its end for clients that do not answer that TLS is over.
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
    """Return the configuration of the server of an application."""
    services: Services = app.state.services
    settings, certificate = services.settings, services.certificate
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
        http=TimedProtocol,
        ws=WebSocketProtocol,
        ws_max_size=MAX_FRAME_BYTES,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        log_config=None,
        access_log=False,
        server_header=False,
        # Headers that anybody may set would get round the limits of logins.
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_graceful_shutdown=3,
    )


def main(settings: ApiSettings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    set_up_logging(settings.log_level, settings.log_file, settings.log_format, NAME)
    services = make_services(settings)
    server = Server(server_config(create_app(services)))
    services.live.readers.is_stopping = lambda: server.should_exit
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again at its end
        server.run()
    return 0 if server.started else 1


@asynccontextmanager
async def _lifespan(services: Services) -> AsyncIterator[None]:
    settings, sessions, live = services.settings, services.gateways.sessions, services.live
    followers = _followers(services)
    for one in followers:
        one.start()
    heart = Heart(NAME, settings.heartbeat_file)
    tasks = [
        asyncio.create_task(heart.beat_on(partial(_state_now, settings, sessions))),
        asyncio.create_task(services.alarms.watch.run()),
    ]
    if services.certificate is not None:
        tasks.append(asyncio.create_task(services.certificate.follow()))
    served = MetricsServer(settings.metrics, heart, partial(_add_metrics, services))
    yield
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    services.access.passwords.close()
    services.queries.threads.close()
    await services.messages.publisher.close()
    for end in (
        served.close,
        services.runs.jobs.close,
        services.log.close,
        live.messages.close,
        live.outputs.close,
        *(one.stop for one in followers),
        services.queries.warm_up.close,
        services.queries.runner.close,
        services.queries.spark.close,
    ):
        await asyncio.to_thread(end)


def _add_metrics(services: Services, families: Families) -> None:
    services.metrics.requests.read(families)
    families.add("mqlake_api_live_readers", len(services.live.readers))


def _followers(services: Services) -> tuple[LogFollower, ...]:
    """Return the followers that keep the parts as the log has them."""
    servers, gateways = services.settings.log.servers, services.gateways
    kept: dict[str, tuple[Followable, ...]] = {**services.kept.followed()}
    said = {GATEWAYS: (*kept.pop(GATEWAYS), gateways.heard), SESSIONS: (gateways.sessions,)}
    counted = services.rules.metrics, services.metrics.tenants
    kept[JOBS] = (JobsTaker(services.runs.jobs),)
    return (
        LogFollower(servers, "sessions", said, pace_seconds=SESSION_PACE_SECONDS),
        LogFollower(servers, "rules", {RULES: kept.pop(RULES), METRICS: counted}),
        *(LogFollower(servers, one.removeprefix("mqlake."), {one: kept[one]}) for one in kept),
    )


def _state_now(settings: ApiSettings, cache: SessionCache) -> ProcessState:
    if not cache.is_complete:
        return ProcessState(healthy=False, detail=f"reading {SESSIONS} from the log")
    scheme = "https" if settings.certificate else "http"
    address = f"{scheme}://{settings.host}:{settings.port}"
    return ProcessState(healthy=True, detail=f"serving {address}")
