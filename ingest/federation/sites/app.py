"""Makes the federator of a site that is federated by its log."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from ingest.federation.process import RunningSite
from ingest.federation.sites.metrics import add_site
from ingest.federation.sites.service import SiteService
from mqlake.clock import SystemClock
from mqlake.log.admin import LogAdmin
from mqlake.log.contract import LogAccess
from mqlake.log.following import following_growth
from mqlake.log.kafka_ranges import KafkaRangeReader
from mqlake.log.kafka_reader import KafkaLogReader
from mqlake.log.kafka_writer import KafkaLogWriter
from mqlake.log.log_topics import KEPT_A_WEEK
from mqlake.records.federation import CONFIG, FEDERATION

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from ingest.federation.settings import FederationSettings
    from mqlake.log.growth_watch import GrowthWatch
    from mqlake.log.security import LogServers

RECORD_OVERHEAD_BYTES: Final = 128 * 1024
"""More than the headers of a record take beside the packet's own."""


async def make(
    settings: FederationSettings, servers: LogServers, stack: AsyncExitStack, name: str
) -> RunningSite:
    """Make the federator; the log is closed with the stack."""
    log, watch = await _open_log(servers, settings.max_packet_bytes, name, stack)
    make_topic = partial(_make_topic, servers)
    service = SiteService(settings, SystemClock(), log, make_topic, lambda: watch.growth)
    return RunningSite(service, partial(add_site, service))


async def _open_log(
    servers: LogServers, max_packet_bytes: int, name: str, stack: AsyncExitStack
) -> tuple[LogAccess, GrowthWatch]:
    """Make the log ready."""
    await asyncio.to_thread(LogAdmin(servers).ensure, FEDERATION, CONFIG)
    writer = KafkaLogWriter(
        servers, client_id=name, max_record_bytes=max_packet_bytes + RECORD_OVERHEAD_BYTES
    )
    stack.push_async_callback(writer.close)
    watch = await stack.enter_async_context(following_growth(writer, servers))
    ranges = KafkaRangeReader(servers, client_id=name)
    stack.push_async_callback(ranges.close)
    return LogAccess(writer, partial(KafkaLogReader, servers, client_id=name), ranges), watch


async def _make_topic(servers: LogServers, log_topic: str) -> None:
    await asyncio.to_thread(LogAdmin(servers).ensure, log_topic, KEPT_A_WEEK)
