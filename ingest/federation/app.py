"""The federator process: settings in, exit code out."""

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

from ingest.federation.chains import Chains
from ingest.federation.metrics import FederationMetrics
from ingest.federation.service import FederationService
from ingest.federation.settings import FederationSettings
from ingest.federation.sites.service import SiteService
from mqlake.clock import SystemClock
from mqlake.errors import MqlakeError, SettingsError
from mqlake.federation_records import CONFIG, FEDERATION
from mqlake.heartbeat import INTERVAL_SECONDS, write_heartbeat
from mqlake.log.admin import LogAdmin
from mqlake.log.contract import LogAccess
from mqlake.log.following import following_growth
from mqlake.log.growth_watch import GrowthWatch
from mqlake.log.kafka_ranges import KafkaRangeReader
from mqlake.log.kafka_reader import KafkaLogReader
from mqlake.log.kafka_writer import KafkaLogWriter
from mqlake.log.log_topics import KEPT_A_WEEK
from mqlake.logs import set_up_logging
from mqlake.metrics.server import MetricsServer, new_registry
from mqlake.settings import load

_logger = logging.getLogger(__name__)

RECORD_OVERHEAD_BYTES: Final = 128 * 1024
"""More than the headers of a record take beside the packet's own."""

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
    async with AsyncExitStack() as stack:
        await _work(settings, path, name, stop, stack)


async def _work(
    settings: FederationSettings,
    path: Path | None,
    name: str,
    stop: asyncio.Event,
    stack: AsyncExitStack,
) -> None:
    service: FederationService | SiteService
    if settings.log is None:
        service = FederationService(settings, SystemClock())
    else:
        log, watch = await _open_log(settings, name, stack)
        make_topic = partial(_make_topic, settings.log.servers)
        service = SiteService(settings, SystemClock(), log, make_topic, lambda: watch.growth)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, _reload, service, path)
    shown = FederationMetrics(service)
    metrics = MetricsServer(settings.metrics, new_registry(name, shown.is_healthy, shown.read))
    heartbeats = asyncio.create_task(_write_heartbeats(service, name))
    try:
        await service.run(stop)
    finally:
        heartbeats.cancel()
        await asyncio.to_thread(metrics.close)


async def _open_log(
    settings: FederationSettings, name: str, stack: AsyncExitStack
) -> tuple[LogAccess, GrowthWatch]:
    """Make the log ready; it is closed with the stack."""
    assert settings.log is not None
    servers = settings.log.servers
    await asyncio.to_thread(LogAdmin(servers).ensure, FEDERATION, CONFIG)
    writer = KafkaLogWriter(
        servers,
        client_id=name,
        max_record_bytes=settings.max_packet_bytes + RECORD_OVERHEAD_BYTES,
    )
    stack.push_async_callback(writer.close)
    watch = await stack.enter_async_context(following_growth(writer, servers))
    ranges = KafkaRangeReader(servers, client_id=name)
    stack.push_async_callback(ranges.close)
    return LogAccess(writer, partial(KafkaLogReader, servers, client_id=name), ranges), watch


async def _make_topic(servers: str, log_topic: str) -> None:
    await asyncio.to_thread(LogAdmin(servers).ensure, log_topic, KEPT_A_WEEK)


def _reload(service: FederationService | SiteService, path: Path | None) -> None:
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


async def _write_heartbeats(service: FederationService | SiteService, name: str) -> None:
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


def _warn_of_overflow(service: FederationService | SiteService, warned: set[str]) -> None:
    """Warn once of each limit that is too small for the messages that come."""
    full = _full_site(service) if isinstance(service, SiteService) else _full(service)
    for words, count in full.items():
        if count and words not in warned:
            warned.add(words)
            _logger.warning(words)
    need = service.look_at_cache() if isinstance(service, FederationService) else ""
    if need and "cache" not in warned:
        warned.add("cache")
        _logger.warning(need)


def _full_site(service: SiteService) -> dict[str, int]:
    return {
        "max_packet_bytes of a neighbour is too small: it never gets the messages beyond it": sum(
            link.counters.too_large for link in service.links.values()
        ),
    }


def _full(service: FederationService) -> dict[str, int]:
    federator = service.federator
    marks = federator.marks
    return {
        "store_seconds is not reached: raise store_messages or store_bytes": (
            federator.store.overflowed
        ),
        "max_topics is too small: an old copy may be delivered again": (
            marks.forgotten if isinstance(marks, Chains) else 0
        ),
    }
