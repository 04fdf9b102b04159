"""The API process: the only place that wires settings, routes and server."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import Depends, FastAPI

from api import problems
from api.authentication import read_token, require_administrator
from api.cache import SessionCache
from api.follower import Follower
from api.jobs import Jobs
from api.log import LogAppender
from api.presence import Gateways
from api.problems import ProblemDetails
from api.retained import Deletions, RetainedTable
from api.routes import (
    clients,
    gateways,
    health,
    jobs,
    processes,
    retained,
    rule_trials,
    rule_versions,
    rules,
)
from api.rules.book import RuleBook
from api.rules.changes import Changes
from api.rules.follower import RulesFollower
from api.rules.metrics import MetricsBook
from api.settings import ApiSettings
from api.spark import SparkConnect
from mqlake.clock import SystemClock
from mqlake.heartbeat import INTERVAL_SECONDS, write_heartbeat
from mqlake.logs import set_up_logging
from mqlake.records import SESSIONS
from mqlake.tables import RETAINED

_logger = logging.getLogger(__name__)

NAME = "api"
PREFIX = "/api/v1"


def create_app(settings: ApiSettings) -> FastAPI:
    """Return the application.

    Raises:
        OperationalError: The token file cannot be used.
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
    app.state.data_dir = settings.data_dir
    clock = SystemClock()
    app.state.log = LogAppender()
    app.state.cache = SessionCache(settings.data_dir / "api")
    app.state.gateways = Gateways(clock)
    app.state.retained = RetainedTable(settings.data_dir / "tables" / RETAINED.name)
    app.state.deletions = Deletions(settings.site, settings.datacenter, clock)
    app.state.rules = RuleBook()
    app.state.rule_changes = Changes(app.state.log, app.state.rules, clock)
    app.state.rule_metrics = MetricsBook(clock)
    app.state.spark = SparkConnect(settings.data_dir)
    app.state.jobs = Jobs(clock)
    app.state.token = read_token(settings.token_file)
    problems.register(app)
    app.include_router(health.router, prefix=PREFIX)
    modules = (
        *(processes, gateways, clients, retained),
        # What is tried by name goes before what is found by identifier.
        *(rule_trials, rule_versions, rules, jobs),
    )
    for module in modules:
        app.include_router(
            module.router,
            prefix=PREFIX,
            dependencies=[Depends(require_administrator)],
            responses={401: {"model": ProblemDetails}},
        )
    return app


def main(settings: ApiSettings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    set_up_logging(settings.log_level, settings.log_file)
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(settings),
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=3,
        )
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again at its end
        server.run()
    return 0 if server.started else 1


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state = app.state
    follower = Follower(state.data_dir, state.cache, state.gateways)
    follower.start()
    rules_follower = RulesFollower(state.data_dir, state.rules, state.rule_metrics)
    rules_follower.start()
    beat = asyncio.create_task(_beat(state.settings, state.cache))
    yield
    beat.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await beat
    state.jobs.close()
    await asyncio.to_thread(follower.stop)
    await asyncio.to_thread(rules_follower.stop)
    await asyncio.to_thread(state.spark.close)


async def _beat(settings: ApiSettings, cache: SessionCache) -> None:
    if settings.heartbeat_file is None:
        return
    address = f"serving http://{settings.host}:{settings.port}"
    is_complete = False
    while True:
        is_complete = is_complete or cache.is_complete
        detail = address if is_complete else f"reading {SESSIONS} from the log"
        # The loop that answers requests also writes this: when it is stuck, the beat stops.
        with contextlib.suppress(OSError):  # a full disk, say; readers see the beat grow old
            write_heartbeat(settings.heartbeat_file, NAME, healthy=is_complete, detail=detail)
        await asyncio.sleep(INTERVAL_SECONDS)
