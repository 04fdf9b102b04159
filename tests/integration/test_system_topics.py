"""mosquitto_sub sees what it knows from Mosquitto."""

import asyncio
import json

import pytest

from ingest.gateway.retained.system_topics import PREFIX
from tests.ingest.gateway.harness import running_gateway

pytestmark = [pytest.mark.programs, pytest.mark.anyio, pytest.mark.usefixtures("mosquitto_clients")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
async def test_mosquitto_sub_reads_the_values(version: str) -> None:
    async with running_gateway() as harness:
        command = ["-p", str(harness.port), "-V", version, "-F", "%j", "-W", "10"]
        topics = ["-t", PREFIX + "uptime", "-t", PREFIX + "clients/#", "-C", "8"]
        process = await asyncio.create_subprocess_exec(
            "mosquitto_sub", *command, *topics, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert process.returncode == 0
        messages = {one["topic"]: one for one in map(json.loads, output.splitlines())}
        assert messages[PREFIX + "uptime"]["payload"] == "0 seconds"
        assert messages[PREFIX + "clients/total"]["payload"] == "0"
        assert len(messages) == 8
        assert all(one["retain"] == 1 for one in messages.values())
