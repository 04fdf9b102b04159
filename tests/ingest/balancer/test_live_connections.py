"""No live connection is cut, whatever changes; real HAProxy in front of three Mosquittos.

`MQLAKE_LIVE_CONNECTIONS` says how many connections; CI has fewer than a proof.
"""

import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from ingest.balancer.snapshot import Snapshot
from ingest.balancer.state_file import load_state
from ingest.open_files import raise_open_files
from tests.ingest.balancer.dns_server import DnsServer
from tests.ingest.balancer.harness import (
    Broker,
    Haproxy,
    all_alive,
    brokers,
    by_node,
    connect_many,
    has_ready_servers,
    quick_settings,
    running_plane,
    start_broker,
    stopping,
    until,
)
from tests.ingest.balancer.metrics_page import MetricsPage
from tests.ingest.gateway.harness import free_port

pytestmark = [pytest.mark.programs, pytest.mark.anyio]


def name_of(broker: Broker) -> str:
    return f"{broker.name}.test:{broker.port}"


def announce(dns: DnsServer, found: list[Broker]) -> None:
    for broker in found:
        dns.host(f"{broker.name}.test", "127.0.0.1")
    dns.service("_mqtt._tcp.test", *((1, one.port, f"{one.name}.test") for one in found))


CLIENTS = int(os.environ.get("MQLAKE_LIVE_CONNECTIONS", "200"))


@pytest.mark.parametrize("strategy", ["weighted_cpu", "predicted"])
async def test_no_change_cuts_a_live_connection(
    strategy: str, haproxy: str, mosquitto: str, tmp_path: Path
) -> None:
    raise_open_files()
    proxies = [Haproxy(haproxy, tmp_path, f"proxy-{number}") for number in (1, 2)]
    ports = [free_port(), free_port()]
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(brokers(mosquitto, tmp_path))
        page = await stack.enter_async_context(MetricsPage().served())
        dns = await stack.enter_async_context(DnsServer().served())
        announce(dns, found)
        settings = quick_settings(
            tmp_path,
            (),
            strategy=strategy,
            overload={"metric": "level", "memory_seconds": 60},
            weights={
                "scrape_seconds": 0.1,
                "window_seconds": 0.5,
                "cpu_kind": "gauge",
                "cpu_metric": "cpu",
            },
            discovery={
                "least_seconds": 0.1,
                "most_seconds": 0.1,
                "dns_servers": [dns.place],
                "dns": [
                    {"name": "_mqtt._tcp.test", "kind": "srv", "metrics_url": page.url + "/{name}"}
                ],
            },
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
        names = [name_of(broker) for broker in found]
        page.text = "cpu 0\nlevel 0\n"
        async with running_plane(settings) as system:
            await system.takes(*names)
            # A node of whose processor nothing is known yet has the weight 1.
            await until(lambda: all(one.weight >= 90 for one in system.plane.snapshot.nodes))
            await until(system.at_rest)
            clients = await connect_many(ports, [f"client-{n}" for n in range(CLIENTS)])
            assert set(by_node(clients)) == {broker.name for broker in found}
            before = {name: client.node for name, client in clients.items()}

            # Weights.
            first = names[0]
            for cpu, weight in (("100", 1), ("0", 100)):
                page.of["node-1.test"] = f"cpu {cpu}\nlevel 0\n"
                await until(lambda wanted=weight: system.plane.snapshot.nodes[0].weight == wanted)
                await until(system.at_rest)
            assert await all_alive(clients)

            # Overload: no new clients, and those that are there stay.
            page.of["node-1.test"] = "cpu 0\nlevel 5\n"
            await system.takes(*names[1:])
            late = await connect_many(ports, [f"late-{n}" for n in range(20)])
            assert not by_node(late)["node-1"]
            assert await all_alive(clients | late)
            page.of["node-1.test"] = "cpu 0\nlevel 3\n"  # between both levels: as it was
            await until(lambda: system.plane.fleet.describe(0)[0]["overload_level"] == 3)
            assert first not in system.taking()
            page.of["node-1.test"] = "cpu 0\nlevel 1\n"
            await system.takes(*names)
            assert await all_alive(clients | late)

            # A node joins and leaves; its live clients stay while it runs.
            fourth = await start_broker(mosquitto, tmp_path, "node-4")
            stack.callback(fourth.stop)
            announce(dns, [*found, fourth])
            await system.takes(*names, name_of(fourth))
            # Until its processor is known; predicted weights are less by the level.
            await until(lambda: all(one.weight >= 90 for one in system.plane.snapshot.nodes))
            await until(system.at_rest)
            joined = await connect_many(ports, [f"joined-{n}" for n in range(60)])
            assert by_node(joined)["node-4"]
            announce(dns, found)
            await system.takes(*names)
            assert await all_alive(clients | late | joined)

            # Drain without closing anything: the node has no new clients.
            system.plane.fleet.drain(names[1], is_draining=True)
            await system.takes(first, names[2])
            assert await all_alive(clients | late | joined)
            system.plane.fleet.drain(names[1], is_draining=False)
            await system.takes(*names)

            # A reload: the new worker begins with nothing and is brought to the snapshot.
            for proxy in proxies:
                await proxy.reload()
            for proxy in proxies:
                await has_ready_servers(proxy, len(found))
            await until(system.at_rest)
            assert await all_alive(clients | late | joined)

            # It is in force before it is in the file; all processors are known.
            await until(
                lambda: (
                    load_state(settings.state_file).snapshot == system.plane.snapshot
                    and all(one.weight >= 90 for one in system.plane.snapshot.nodes)
                )
            )
            await system.kill()
        # The control plane is dead: proxies go on, with the old clients and new ones.
        assert await all_alive(clients | late | joined)
        later = await connect_many(ports, [f"later-{n}" for n in range(30)])
        assert set(by_node(later)) == {broker.name for broker in found}
        last = load_state(settings.state_file).snapshot

        # It comes back with the last snapshot, and pushes nothing. On a busy machine half a second
        # may have no sample, and a node of which nothing is known has another weight.
        weights = settings.weights.model_copy(update={"window_seconds": 60.0})
        async with running_plane(settings.model_copy(update={"weights": weights})) as system:
            assert system.plane.snapshot == last != Snapshot()
            await until(system.at_rest)
            await until(lambda: system.plane.probes["passed"] >= 3)
            assert not any(driver.state.changes for driver in system.plane.drivers)
            everybody = clients | late | joined | later
            assert await all_alive(everybody)
        assert {name: client.node for name, client in clients.items()} == before
        for client in everybody.values():
            client.close()
