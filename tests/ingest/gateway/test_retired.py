import pytest

from ingest.gateway.retired import withdraw_retired_routes
from mqlake.errors import LogError
from mqlake.log.memory import MemoryLog, MemoryLogReader, MemoryLogWriter
from mqlake.records import ROUTES, Route, route_key

pytestmark = pytest.mark.anyio


async def log_with_routes(*gateways: str) -> tuple[MemoryLog, MemoryLogReader, MemoryLogWriter]:
    log = MemoryLog()
    log.create(ROUTES, 1)
    writer = MemoryLogWriter(log)
    for gateway in gateways:
        key = route_key(Route(gateway, "default", "$share/group/plant/#"))
        await writer.append_durably(ROUTES, key, b"1", [])
    return log, MemoryLogReader(log), writer


async def test_only_the_routes_of_the_given_gateways_stay() -> None:
    _, reader, writer = await log_with_routes("gateway-1", "gateway-2", "gateway-10")
    assert await withdraw_retired_routes(reader, writer, ["gateway-1"]) == 2
    left = await reader.read_compacted(ROUTES)
    assert list(left) == [b"gateway-1/default/$share/group/plant/#"]
    assert await withdraw_retired_routes(reader, writer, ["gateway-1"]) == 0


async def test_a_log_that_refuses_is_an_error() -> None:
    log, reader, writer = await log_with_routes("gateway-2")
    log.fail_next(LogError("no space left", definite=True))
    with pytest.raises(LogError, match="no space left"):
        await withdraw_retired_routes(reader, writer, ["gateway-1"])
