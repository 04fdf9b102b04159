"""A gateway tells HAProxy itself how many clients are to come, when nobody else does."""

import asyncio
from pathlib import Path

import pytest

from ingest.balancer.haproxy.commands import parse_servers
from ingest.gateway.clients.draining import DRAINING, SERVING, Drain
from ingest.gateway.process.agent_check import AgentCheck
from mqlake.errors import OperationalError
from tests.ingest.balancer.harness import Haproxy, stopping
from tests.ingest.gateway.harness import free_port, running_gateway
from tests.waiting import until

pytestmark = [pytest.mark.programs, pytest.mark.anyio]

CONFIGURATION = """
global
    stats socket {socket} mode 600 level admin
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
backend nodes
    default-server check inter 100ms agent-check agent-port {agent} agent-inter 100ms
    server s1 127.0.0.1:{port} weight 100
"""


def agent(state: str, level: int) -> AgentCheck:
    return AgentCheck("127.0.0.1", 0, lambda: state, lambda: level)


@pytest.mark.parametrize(
    ("level", "line"), [(0, "up ready 100%"), (3, "up ready 70%"), (10, "up ready 1%")]
)
def test_the_part_is_less_by_a_tenth_with_each_level(level: int, line: str) -> None:
    assert agent(SERVING, level).line() == line


def test_who_is_drained_takes_nobody() -> None:
    assert agent(DRAINING, 0).line() == "maint"


async def test_a_port_that_is_taken_is_said() -> None:
    port = free_port()
    taken = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", port)
    with pytest.raises(OperationalError, match=f"agent check on port {port}"):
        await AgentCheck("127.0.0.1", port, lambda: SERVING, lambda: 0).open()
    taken.close()


async def test_haproxy_does_what_a_gateway_says(
    haproxy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Haproxy(haproxy, tmp_path)
    async with running_gateway(agent_check_port=free_port()) as harness:
        settings = harness.gateway.settings
        proxy.configuration.write_text(
            CONFIGURATION.format(
                socket=proxy.socket, port=settings.port, agent=settings.agent_check_port
            )
        )
        with stopping(proxy):
            await proxy.start()

            async def shows(weight: int, *, is_ready: bool) -> None:
                async def look() -> bool:
                    text = await proxy.api.ask("show servers state")
                    server = parse_servers(text)["nodes", 1]
                    return (server.weight, server.is_ready) == (weight, is_ready)

                await until(look)

            await shows(100, is_ready=True)
            monkeypatch.setattr(type(harness.gateway.overload), "level", 3)
            await shows(70, is_ready=True)
            harness.gateway.draining.begin(Drain())
            await shows(70, is_ready=False)
            harness.gateway.draining.undo()
            await shows(70, is_ready=True)
