"""The process of a federator, beside a broker or beside a log: signals, metrics, heartbeats."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import uvloop

from ingest.federation.settings import FederationSettings
from mqlake.errors import MqlakeError, SettingsError
from mqlake.logs import set_up_logging
from mqlake.metrics.server import MetricsServer, in_event_loop
from mqlake.processes.heart import Heart, ProcessState
from mqlake.settings import load

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from ingest.federation.settings import NeighborSettings
    from mqlake.metrics.families import Families

_logger = logging.getLogger(__name__)

HEARTBEAT: Final = "heartbeat.json"
"""In the state directory, when no other file is set."""


class AnyFederator(Protocol):
    """The federator of one site, beside a broker or beside a log."""

    settings: FederationSettings

    async def run(self, stop: asyncio.Event) -> None:
        """Work until it is to stop."""

    def reload(self, neighbours: tuple[NeighborSettings, ...], /) -> None:
        """Take neighbours that were read again."""

    def health(self) -> tuple[bool, str]:
        """Return whether it is healthy, and how it is in words."""

    def figures(self) -> dict[str, Any]:
        """Return what `mqlake federation status` shows."""

    def warnings(self) -> dict[str, str]:
        """Return what the log should say once of each limit that is too small, by its name."""


@dataclass(frozen=True, slots=True)
class RunningSite:
    """A federator, and how its figures become metrics."""

    federator: AnyFederator
    add_metrics: Callable[[Families], None]


def run(
    settings: FederationSettings,
    path: Path | None,
    make: Callable[[AsyncExitStack, str], Awaitable[RunningSite]],
) -> int:
    """Run a federator until SIGTERM or SIGINT; return the exit code.

    Args:
        settings: Settings of the process.
        path: File of these settings, whose neighbours are read again at SIGHUP; None without one.
        make: Makes the federator in the event loop, from a stack that closes what the federator
            uses and from the name of the process.
    """
    name = f"federation-{settings.host.id}"
    set_up_logging(settings.log_level, settings.log_file, settings.log_format, name)
    try:
        uvloop.run(_run(settings, path, name, make))
    except MqlakeError as exc:
        _logger.critical("the federator stops: %s", exc)
        return 1
    return 0


def heartbeat_path(settings: FederationSettings) -> Path | None:
    """Return the file that tells how the process is."""
    if settings.heartbeat_file is None and settings.state_dir is not None:
        return settings.state_dir / HEARTBEAT
    return settings.heartbeat_file


async def _run(
    settings: FederationSettings,
    path: Path | None,
    name: str,
    make: Callable[[AsyncExitStack, str], Awaitable[RunningSite]],
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        await _work(await make(stack, name), path, name, stop)


async def _work(site: RunningSite, path: Path | None, name: str, stop: asyncio.Event) -> None:
    federator = site.federator
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, _reload, federator, path)
    heart = Heart(name, heartbeat_path(federator.settings))
    read = in_event_loop(site.add_metrics)
    metrics = MetricsServer(federator.settings.metrics, heart, read)
    heartbeats = asyncio.create_task(heart.beat_on(partial(_state_now, federator, set())))
    try:
        await federator.run(stop)
    finally:
        heartbeats.cancel()
        await asyncio.to_thread(metrics.close)


def _reload(federator: AnyFederator, path: Path | None) -> None:
    try:
        settings = load(FederationSettings, path)
    except SettingsError as exc:
        fields = {"reason": str(exc)}
        _logger.error("neighbours stay as they were", extra={"fields": fields})
        return
    if (
        settings.model_copy(update={"neighbors": federator.settings.neighbors})
        != federator.settings
    ):
        _logger.warning("settings beside the neighbours count after a restart")
    federator.reload(settings.neighbors)
    sites = [one.id for one in settings.neighbors]
    _logger.info("neighbours read again", extra={"fields": {"neighbours": sites}})


def _state_now(federator: AnyFederator, warned: set[str]) -> ProcessState:
    _warn(federator, warned)
    healthy, detail = federator.health()
    return ProcessState(healthy, detail, federator.figures())


def _warn(federator: AnyFederator, warned: set[str]) -> None:
    """Warn once of each limit that is too small for the messages that come."""
    for name, words in federator.warnings().items():
        if name not in warned:
            warned.add(name)
            _logger.warning(words)
