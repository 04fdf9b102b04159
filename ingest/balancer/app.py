"""The balancer's process: settings in, exit code out."""

import asyncio
import logging
import signal
from functools import partial

import uvloop

from ingest.balancer.control_plane import ControlPlane
from ingest.balancer.control_socket import ControlSocket
from ingest.balancer.metrics import add_metrics
from ingest.balancer.settings import BalancerSettings
from mqlake.clock import SystemClock
from mqlake.errors import MqlakeError
from mqlake.log.contract import LogAccess
from mqlake.logs import set_up_logging
from mqlake.metrics.server import MetricsServer, in_event_loop
from mqlake.processes.heart import Heart, ProcessState

logger = logging.getLogger(__name__)


def main(settings: BalancerSettings) -> int:
    """Run a control plane until SIGTERM or SIGINT; return the exit code."""
    set_up_logging(settings.log_level, settings.log_file, settings.log_format, settings.name)
    failures: list[Exception] = []
    logger.info("control plane starts", extra={"fields": {"strategy": settings.strategy}})
    for lacking in settings.lacking():
        logger.warning(lacking)
    try:
        uvloop.run(_run(settings))
    except* MqlakeError as errors:
        failures.extend(errors.exceptions)
    for failure in failures:
        logger.critical("the balancer stops: %s", failure)
    return 1 if failures else 0


async def _run(settings: BalancerSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    log = _open_log(settings) if settings.discovery.gateways else None
    plane = ControlPlane(settings, SystemClock(), log)
    control = ControlSocket(settings.control_socket, plane)
    heart = Heart(settings.name, settings.heartbeat_file)
    read = in_event_loop(partial(add_metrics, plane))
    metrics = MetricsServer(settings.metrics, heart, read)
    heartbeats = asyncio.create_task(heart.beat_on(lambda: ProcessState(*plane.health())))
    try:
        await control.open()
        await plane.run(stop)
    finally:
        heartbeats.cancel()
        await control.close()
        await asyncio.to_thread(metrics.close)
        if log is not None:
            await log.ranges.close()
            await log.writer.close()


def _open_log(settings: BalancerSettings) -> LogAccess:
    # Without gateways of the log no client of Kafka is needed.
    from mqlake.log.kafka_ranges import KafkaRangeReader
    from mqlake.log.kafka_reader import KafkaLogReader
    from mqlake.log.kafka_writer import KafkaLogWriter

    servers = settings.log.servers
    return LogAccess(
        KafkaLogWriter(servers, client_id=settings.name),
        partial(KafkaLogReader, servers, client_id=settings.name),
        KafkaRangeReader(servers, client_id=settings.name),
    )
