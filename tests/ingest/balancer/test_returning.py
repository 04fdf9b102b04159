"""Clients come back to the node that they were at; real HAProxy in front of Mosquittos.

`MQLAKE_RECONNECTS` says how many reconnects; CI has fewer than a proof.
"""

import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from ingest.open_files import raise_open_files
from tests.ingest.balancer.harness import (
    Haproxy,
    LiveClient,
    brokers,
    connect_many,
    has_ready_servers,
    listed,
    quick_settings,
    running_plane,
    stopping,
)
from tests.ingest.gateway.harness import free_port
from tests.waiting import until

pytestmark = [pytest.mark.programs, pytest.mark.anyio]

RECONNECTS = int(os.environ.get("MQLAKE_RECONNECTS", "600"))
CLIENTS = 200


@pytest.mark.parametrize("strategy", ["weighted_cpu", "least_connections", "predicted"])
async def test_clients_come_back_to_their_node(
    strategy: str, haproxy: str, mosquitto: str, tmp_path: Path
) -> None:
    sticks = strategy != "predicted"
    raise_open_files()
    proxies = [Haproxy(haproxy, tmp_path, f"proxy-{number}") for number in (1, 2)]
    ports = [free_port(), free_port()]
    # Longer than the 32 characters at which HAProxy cuts keys unless told otherwise.
    names = [f"client-with-a-name-that-is-rather-long-{number}" for number in range(CLIENTS)]
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(brokers(mosquitto, tmp_path))
        settings = quick_settings(
            tmp_path,
            (),
            strategy=strategy,
            nodes=listed(*found),
            proxies=[
                one.settings(peer=f"127.0.0.1:{free_port()}", configuration_file=None)
                for one in proxies
            ],
            frontends=[{"name": "mqtt", "bind": "*:1"}],
        )
        for proxy, port in zip(proxies, ports, strict=True):
            proxy.write(settings, port)
        stack.enter_context(stopping(*proxies))
        for proxy in proxies:
            await proxy.start()
        system = await stack.enter_async_context(running_plane(settings))
        await system.takes(*(broker.name for broker in found))
        home = await at_nodes(ports[:1], names)
        if sticks:
            await entries_are_everywhere(proxies, len(names))

        returned = 0
        for turn in range(RECONNECTS // CLIENTS):
            # By turns through the one proxy and the other.
            there = await at_nodes(ports[turn % 2 :][:1], names)
            returned += sum(there[name] == home[name] for name in names)
        assert returned / (RECONNECTS // CLIENTS * CLIENTS) >= 0.99

        # Both proxies are reloaded: what they knew of clients is not lost.
        if strategy != "least_connections":
            for proxy in proxies:
                if sticks:
                    await knows_its_peers(proxy)
                await proxy.reload()
                if sticks:
                    await entries_are_everywhere(proxies, len(names))
                await has_ready_servers(proxy, len(found))
            there = await at_nodes(ports, names)
            assert sum(there[name] == home[name] for name in names) / CLIENTS >= 0.99

        # A node is gone: only its clients move.
        gone = found[2]
        gone.process.kill()
        gone.process.wait()
        await system.takes(*(broker.name for broker in found[:2]))
        there = await at_nodes(ports, names)
        stayed = [name for name in names if home[name] != gone.name]
        assert all(there[name] == home[name] for name in stayed)
        assert len(stayed) < len(names)
        assert gone.name not in there.values()


async def at_nodes(ports: list[int], names: list[str]) -> dict[str, str]:
    """Connect all clients, note where they are, and let them go."""
    clients: dict[str, LiveClient] = await connect_many(ports, names)
    for client in clients.values():
        client.close()
    return {name: client.node for name, client in clients.items()}


async def knows_its_peers(proxy: Haproxy) -> None:
    """Wait until a proxy has all entries of others: before, it gives none to its successor."""

    async def look() -> bool:
        return "resync_timeout=<PAST>" in await proxy.api.ask("show peers")

    await until(look)


async def entries_are_everywhere(proxies: list[Haproxy], count: int) -> None:
    """Wait until each proxy has an entry for each client."""

    async def look() -> bool:
        tables = [await proxy.api.ask("show table nodes_mqtt") for proxy in proxies]
        return all(f"used:{count}" in entries for entries in tables)

    await until(look)
