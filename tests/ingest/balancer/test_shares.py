"""New clients come to nodes in proportion to what these have free; through real HAProxy."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.ingest.balancer.harness import (
    Haproxy,
    brokers,
    by_node,
    connect_many,
    quick_settings,
    running_plane,
    stopping,
    until,
)
from tests.ingest.balancer.metrics_page import MetricsPage
from tests.ingest.gateway.harness import free_port

pytestmark = [pytest.mark.programs, pytest.mark.anyio]

FREE = (13, 70, 95, 78)
SHARES = (5.1, 27.3, 37.1, 30.5)
"""As published, in percent."""
CLIENTS = 512


async def test_free_processor_time_gives_the_published_shares(
    haproxy: str, mosquitto: str, tmp_path: Path
) -> None:
    port = free_port()
    proxy = Haproxy(haproxy, tmp_path)
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(brokers(mosquitto, tmp_path, len(FREE)))
        nodes = []
        for broker, free in zip(found, FREE, strict=True):
            page = await stack.enter_async_context(MetricsPage().served())
            page.text = f"# HELP cpu percent\ncpu {100 - free}\ncpu_total 3\n"
            nodes.append(
                {
                    "name": broker.name,
                    "host": "127.0.0.1",
                    "port": broker.port,
                    "metrics_url": page.url,
                }
            )
        weights = {
            "scrape_seconds": 0.1,
            "window_seconds": 5.0,
            "cpu_kind": "gauge",
            "cpu_metric": "cpu",
        }
        settings = quick_settings(
            tmp_path,
            [proxy],
            nodes=nodes,
            weights=weights,
            frontends=[{"name": "mqtt", "bind": f"127.0.0.1:{port}"}],
        )
        proxy.write(settings)
        stack.enter_context(stopping(proxy))
        await proxy.start()
        system = await stack.enter_async_context(running_plane(settings))
        await system.takes(*(broker.name for broker in found))
        await until(lambda: [node.weight for node in system.plane.snapshot.nodes] == list(FREE))
        await until(system.at_rest)
        clients = await connect_many([port], [f"client-{n}" for n in range(CLIENTS)])
        given = by_node(clients)
        for client in clients.values():
            client.close()
        for broker, share in zip(found, SHARES, strict=True):
            assert given[broker.name] / CLIENTS * 100 == pytest.approx(share, abs=0.3)
