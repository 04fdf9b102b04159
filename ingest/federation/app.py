"""The federator process: settings in, exit code out."""

import asyncio
import logging
import signal
from pathlib import Path
from typing import Final

import uvloop

from ingest.federation.chains import Chains, RecentIds
from ingest.federation.metrics import FederationMetrics
from ingest.federation.service import FederationService
from ingest.federation.settings import FederationSettings
from mqlake.clock import SystemClock
from mqlake.errors import MqlakeError, SettingsError
from mqlake.heartbeat import INTERVAL_SECONDS, write_heartbeat
from mqlake.logs import set_up_logging
from mqlake.metrics.server import MetricsServer, new_registry
from mqlake.settings import load

_logger = logging.getLogger(__name__)

HEARTBEAT: Final = "heartbeat.json"
"""In the state directory, when no other file is set."""


def main(settings: FederationSettings, path: Path | None = None) -> int:
    """Run a federator until SIGTERM or SIGINT; return the exit code.

    Args:
        settings: Of the process.
        path: Of the file they are from; its neighbours are read again at SIGHUP.
    """
    name = f"federation-{settings.host.id}"
    set_up_logging(settings.log_level, settings.log_file, settings.log_format, name)
    try:
        uvloop.run(_run(settings, path, name))
    except MqlakeError as exc:
        _logger.critical("the federator stops: %s", exc)
        return 1
    return 0


def heartbeat_path(settings: FederationSettings) -> Path | None:
    """Return the file that tells how the process is."""
    if settings.heartbeat_file is None and settings.state_dir is not None:
        return settings.state_dir / HEARTBEAT
    return settings.heartbeat_file


async def _run(settings: FederationSettings, path: Path | None, name: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    service = FederationService(settings, SystemClock())
    loop.add_signal_handler(signal.SIGHUP, _reload, service, path)
    shown = FederationMetrics(service)
    metrics = MetricsServer(settings.metrics, new_registry(name, shown.is_healthy, shown.read))
    beat = asyncio.create_task(_beat(service, name))
    try:
        await service.run(stop)
    finally:
        beat.cancel()
        await asyncio.to_thread(metrics.close)


def _reload(service: FederationService, path: Path | None) -> None:
    try:
        settings = load(FederationSettings, path)
    except SettingsError as exc:
        fields = {"reason": str(exc)}
        _logger.error("neighbours stay as they were", extra={"fields": fields})
        return
    if settings.model_copy(update={"neighbors": service.settings.neighbors}) != service.settings:
        _logger.warning("settings beside the neighbours count after a restart")
    service.reload(settings.neighbors)
    sites = [one.id for one in settings.neighbors]
    _logger.info("neighbours read again", extra={"fields": {"neighbours": sites}})


async def _beat(service: FederationService, name: str) -> None:
    path = heartbeat_path(service.settings)
    warned: set[str] = set()
    while True:
        _warn_of_overflow(service, warned)
        healthy, detail = service.health()
        if path is not None:
            try:
                await asyncio.to_thread(
                    write_heartbeat,
                    path,
                    name,
                    healthy=healthy,
                    detail=detail,
                    figures=service.figures(),
                )
            except OSError as exc:
                _logger.warning("no heartbeat", extra={"fields": {"reason": str(exc)}})
        await asyncio.sleep(INTERVAL_SECONDS)


def _warn_of_overflow(service: FederationService, warned: set[str]) -> None:
    """Say once for each what is too small for the messages that come."""
    federator = service.federator
    marks = federator.marks
    full = {
        "store_seconds is not reached: raise store_messages or store_bytes": (
            federator.store.overflowed
        ),
        "max_topics is too small: an old copy may be delivered again": (
            marks.forgotten if isinstance(marks, Chains) else 0
        ),
        "cache_size is too small if a copy may be late for longer than it lasts: set it to the "
        "messages a second times the longest outage": (
            marks.overflowed if isinstance(marks, RecentIds) else 0
        ),
    }
    for words, count in full.items():
        if count and words not in warned:
            warned.add(words)
            _logger.warning(words)
