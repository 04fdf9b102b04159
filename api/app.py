"""The API process: the only place that wires settings, routes and server."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from api import problems
from api.authentication import read_token
from api.control import GatewayControl
from api.routes import gateways, health, processes
from api.settings import ApiSettings
from mqlake.heartbeat import INTERVAL_SECONDS, write_heartbeat
from mqlake.logs import set_up_logging

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
        lifespan=_heartbeats,
    )
    app.state.settings = settings
    app.state.data_dir = settings.data_dir
    app.state.control = GatewayControl()
    app.state.token = read_token(settings.token_file)
    problems.register(app)
    for module in (health, processes, gateways):
        app.include_router(module.router, prefix=PREFIX)
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
async def _heartbeats(app: FastAPI) -> AsyncIterator[None]:
    beat = asyncio.create_task(_beat(app.state.settings))
    yield
    beat.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await beat


async def _beat(settings: ApiSettings) -> None:
    if settings.heartbeat_file is None:
        return
    address = f"serving http://{settings.host}:{settings.port}"
    while True:
        # The loop that answers requests also writes this: when it is stuck, the beat stops.
        with contextlib.suppress(OSError):  # a full disk, say; readers see the beat grow old
            write_heartbeat(settings.heartbeat_file, NAME, healthy=True, detail=address)
        await asyncio.sleep(INTERVAL_SECONDS)
