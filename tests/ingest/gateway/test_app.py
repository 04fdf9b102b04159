import asyncio
import logging

import pytest

from ingest.gateway.log.partitions import Partitions, count_partitions
from ingest.gateway.process.app import within_open_files
from ingest.gateway.settings.gateway import GatewaySettings
from mqlake.log.growth import Growth, encode_growth
from mqlake.log.memory import MemoryLog, MemoryLogReader
from mqlake.records.messages import GATEWAYS, GROWTH_KEY, INBOUND, OUTPUTS, SESSIONS


def test_connections_leave_open_files_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    settings = GatewaySettings(max_connections=10_000)
    with caplog.at_level(logging.WARNING):
        assert within_open_files(settings, 20_000) is settings
        assert not caplog.records
        assert within_open_files(settings, 4096).max_connections == 4096 - 256
    assert "hard limit of open files" in caplog.text


def test_partitions_that_somebody_added_are_not_counted() -> None:
    log = MemoryLog()
    log.create(INBOUND, 8)
    log.create(OUTPUTS, 4)
    log.create(SESSIONS, 2)
    log.create(GATEWAYS, 1)
    assert asyncio.run(_count(log)) == Partitions(inbound=4, sessions=2, retained=4)
    growth = Growth(4, 8)
    log.store(GATEWAYS, GROWTH_KEY, encode_growth(growth), [], 1, 0)
    assert asyncio.run(_count(log)) == Partitions(4, 2, 4, growth)
    log.store(GATEWAYS, GROWTH_KEY, encode_growth(growth.moved()), [], 1, 0)
    assert asyncio.run(_count(log)) == Partitions(8, 2, 4, growth.moved())


async def _count(log: MemoryLog) -> Partitions:
    return await count_partitions(MemoryLogReader(log))
