"""What the benchmark does with a fleet, against a real gateway on a log in memory."""

import pytest

from bench.gateways.fleet import FILTERS, bring_back, make_sessions, publish_commands
from mqlake.errors import OperationalError
from tests.ingest.gateway.harness import running_gateway

pytestmark = pytest.mark.anyio

SIZE = 20


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_fleet_is_made_and_comes_back_for_its_messages() -> None:
    for topic_filter in FILTERS.values():
        async with running_gateway() as harness:
            address = f"127.0.0.1:{harness.port}"
            made = await make_sessions(address, SIZE, topic_filter)
            await publish_commands(address, SIZE, 3 * SIZE)
            back = await bring_back(address, SIZE)
            assert len(made) == len(back) == SIZE
            assert min(made) > 0
            assert min(back) > 0


async def test_a_fleet_that_was_lost_is_no_figure() -> None:
    async with running_gateway() as harness:
        with pytest.raises(ExceptionGroup) as failed:
            await bring_back(f"127.0.0.1:{harness.port}", SIZE)
        assert failed.group_contains(OperationalError, match="was lost")
