"""The gateway process: settings in, exit code out."""

import asyncio
import logging
import signal
from functools import partial
from typing import Final

import uvloop

from ingest.gateway.load.garbage import collect_rarely
from ingest.gateway.log.partitions import count_partitions
from ingest.gateway.process.gateway import Gateway
from ingest.gateway.process.metrics import add_metrics
from ingest.gateway.process.process import Process
from ingest.gateway.process.status import Status
from ingest.gateway.settings.gateway import GatewaySettings
from ingest.open_files import SPARE_FILES, raise_open_files
from mqlake.clock import SystemClock
from mqlake.errors import MqlakeError
from mqlake.log.admin import check_durability, ensure_delivery_topic
from mqlake.log.contract import LogAccess
from mqlake.log.durability import Durability
from mqlake.log.kafka_ranges import KafkaRangeReader
from mqlake.log.kafka_reader import KafkaLogReader
from mqlake.log.kafka_writer import KafkaLogWriter
from mqlake.logs import set_up_logging
from mqlake.metrics.server import MetricsServer, in_event_loop
from mqlake.processes.heart import Heart, ProcessState
from mqlake.processes.tracing import Tracer, open_tracer

logger = logging.getLogger(__name__)

SHARD_PACE_SECONDS: Final = 0.025
"""Pace of reading shards while their records come in a stream: the first claim of another gateway
for a while waits half of it more then."""

STANDBY_SECONDS: Final = 0.1
"""How late shards are read that this gateway stands by for: a takeover takes so much longer."""

LOADING_SECONDS: Final = 0.01
"""How late the broker may answer a reader that loads shards: its next request adds further ones."""

RECORD_OVERHEAD_BYTES: Final = 256 * 1024
"""Bytes that key, headers and a batch's frame may add to a packet of the largest size."""


def main(settings: GatewaySettings) -> int:
    """Run a gateway until SIGTERM or SIGINT; return the exit code."""
    set_up_logging(settings.log_level, settings.log_file, settings.log_format, settings.name)
    settings = within_open_files(settings, raise_open_files())
    failures: list[Exception] = []
    try:
        uvloop.run(_run(settings))
    except* MqlakeError as errors:
        failures.extend(errors.exceptions)
    for failure in failures:
        logger.critical("the gateway stops: %s", failure)
    return 1 if failures else 0


def within_open_files(settings: GatewaySettings, open_files: int) -> GatewaySettings:
    """Return settings with no more connections than the process may have files open.

    So that a client too many hears that the server is busy, and the log is never out of files.
    """
    possible = max(1, open_files - SPARE_FILES)
    if settings.max_connections <= possible:
        return settings
    logger.warning(
        "fewer connections than max_connections are possible: raise the hard limit of open files "
        "(ulimit -Hn, LimitNOFILE)",
        extra={
            "fields": {
                "possible": possible,
                "max_connections": settings.max_connections,
                "open_files": open_files,
            }
        },
    )
    return settings.model_copy(update={"max_connections": possible})


async def _run(settings: GatewaySettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    servers = settings.log.servers
    await asyncio.to_thread(ensure_delivery_topic, servers, settings.name)
    if settings.durability is not Durability.D1:
        await asyncio.to_thread(check_durability, servers, settings.durability)
    writer = KafkaLogWriter(
        servers,
        client_id=settings.name,
        max_record_bytes=settings.max_packet_bytes + RECORD_OVERHEAD_BYTES,
    )
    spare = KafkaLogWriter(servers, client_id=settings.name)
    ranges = KafkaRangeReader(servers, client_id=settings.name)
    open_reader = partial(KafkaLogReader, servers, client_id=settings.name)
    open_paced_reader = partial(open_reader, pace_seconds=SHARD_PACE_SECONDS)
    open_late_reader = partial(open_reader, late_seconds=STANDBY_SECONDS)
    open_loader = partial(open_reader, late_seconds=LOADING_SECONDS)
    readers = open_paced_reader, open_late_reader, open_loader
    log = LogAccess(writer, open_reader, ranges, spare, *readers)
    tracer = open_tracer(settings.tracing, settings.name)
    try:
        await _serve(settings, log, tracer, stop)
    finally:
        if tracer is not None:
            await asyncio.to_thread(tracer.close)
        await ranges.close()
        await spare.close()
        await writer.close()


async def _serve(
    settings: GatewaySettings, log: LogAccess, tracer: Tracer | None, stop: asyncio.Event
) -> None:
    reader = log.open_reader()
    try:
        partitions = await count_partitions(reader)
    finally:
        await reader.close()
    gateway = Gateway(settings, log, partitions, stop, SystemClock(), tracer)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, gateway.reloading.begin)
    heart = Heart(settings.name, settings.heartbeat_file)
    read = in_event_loop(partial(add_metrics, gateway.status))
    metrics = MetricsServer(settings.metrics, heart, read)
    collect_rarely()
    heartbeats = asyncio.create_task(heart.beat_on(partial(_state_now, gateway.status)))
    try:
        await Process(gateway, stop).run()
    finally:
        heartbeats.cancel()
        await asyncio.to_thread(metrics.close)


def _state_now(status: Status) -> ProcessState:
    healthy, detail = status.health()
    return ProcessState(healthy, detail, status.figures(), healthy and status.takes_clients)
