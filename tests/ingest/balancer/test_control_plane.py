"""The control plane with a real HAProxy: drift, restarts, drains, what it tells."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from cli.app import mqlake
from ingest.balancer.control_socket import ControlSocket
from ingest.balancer.loads_file import LoadsFile
from ingest.balancer.metrics import add_metrics
from ingest.balancer.state_file import load_state
from mqlake.errors import OperationalError
from mqlake.metrics.families import Families
from mqlake.metrics.names import BALANCER
from mqlake.processes.control_socket import ask_balancer
from tests.ingest.balancer.harness import (
    Haproxy,
    System,
    brokers,
    by_node,
    connect_many,
    listed,
    quick_settings,
    running_plane,
    start_broker,
    stopping,
    until,
)
from tests.ingest.gateway.harness import free_port

pytestmark = [pytest.mark.programs, pytest.mark.anyio]


async def test_a_proxy_that_drifts_or_restarts_is_brought_back(
    haproxy: str, mosquitto: str, tmp_path: Path
) -> None:
    port = free_port()
    proxy = Haproxy(haproxy, tmp_path)
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(brokers(mosquitto, tmp_path))
        settings = quick_settings(
            tmp_path,
            [proxy],
            strategy="predicted",
            nodes=listed(*found),
            frontends=[{"name": "mqtt", "bind": f"127.0.0.1:{port}"}],
        )
        proxy.write(settings)
        stack.enter_context(stopping(proxy))
        system = await stack.enter_async_context(running_plane(settings))
        (driver,) = system.plane.drivers
        await until(lambda: "proxy-1.sock" in driver.state.problem)  # it does not run yet
        await proxy.start()
        await system.takes(*(broker.name for broker in found))

        for number, command in enumerate(
            (
                "set server nodes_mqtt/s1 state maint",
                "set server nodes_mqtt/s2 state drain",
                "set server nodes_mqtt/s2 weight 7",
                "set server nodes_mqtt/s3 addr 127.0.0.1 port 9",
                "set server nodes_mqtt/s5 state ready",
                f"set map {proxy.map_file} 3 s5",
                f"clear map {proxy.map_file}",
                f"add map {proxy.talkers_file} 0123456789ABCDEF s2",
            ),
            1,
        ):
            await proxy.api.ask(command)
            await until(lambda number=number: driver.state.repairs == number)
            await until(system.at_rest)

        # The file has the snapshot: a proxy that starts anew needs nobody.
        await until(lambda: f":{found[2].port}" in proxy.configuration.read_text())
        await system.kill()
        proxy.stop()
        await proxy.start()
        clients = await connect_many([port], [f"client-{number}" for number in range(20)])
        assert len(set(by_node(clients))) == 3
        assert load_state(settings.state_file).snapshot == system.plane.snapshot
        for client in clients.values():
            client.close()


async def test_a_reload_refuses_nobody(haproxy: str, mosquitto: str, tmp_path: Path) -> None:
    port = free_port()
    proxy = Haproxy(haproxy, tmp_path)
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(brokers(mosquitto, tmp_path))
        settings = quick_settings(
            tmp_path,
            [proxy],
            strategy="predicted",
            nodes=listed(*found),
            frontends=[{"name": "mqtt", "bind": f"127.0.0.1:{port}"}],
        )
        proxy.write(settings)
        stack.enter_context(stopping(proxy))
        await proxy.start()
        system = await stack.enter_async_context(running_plane(settings))
        await system.takes(*(broker.name for broker in found))
        await until(lambda: all(proxy.is_enabled_in_file(broker.port) for broker in found))
        await until(lambda: proxy.map_file.read_text().count("\n") == 1024)
        reloaded = asyncio.create_task(proxy.reload())
        home: dict[str, str] = {}
        turn = 0
        while not reloaded.done() or turn < 100:
            name = f"client-{turn % 10}"
            client = await connect_many([port], [name])
            assert home.setdefault(name, client[name].node) == client[name].node
            client[name].close()
            turn += 1
        await reloaded


async def test_clients_of_a_foreign_node_are_moved_at_a_set_rate(
    haproxy: str, mosquitto: str, tmp_path: Path
) -> None:
    port = free_port()
    proxy = Haproxy(haproxy, tmp_path)
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(brokers(mosquitto, tmp_path))
        settings = quick_settings(
            tmp_path,
            [proxy],
            strategy="round_robin",
            nodes=listed(*found),
            frontends=[{"name": "mqtt", "bind": f"127.0.0.1:{port}"}],
        )
        proxy.write(settings)
        stack.enter_context(stopping(proxy))
        await proxy.start()
        system = await stack.enter_async_context(running_plane(settings))
        await system.takes(*(broker.name for broker in found))
        clients = await connect_many([port], [f"client-{number}" for number in range(30)])
        assert by_node(clients)["node-1"] == 10
        assert await system.plane.drain("node-1", 4.0) == ""
        began_at = asyncio.get_running_loop().time()
        await until(lambda: [one["state"] for one in system.plane.drains.describe()] == ["done"])
        assert asyncio.get_running_loop().time() - began_at >= 2.0
        alive = await asyncio.gather(*(client.is_alive() for client in clients.values()))
        nodes = [client.node for client in clients.values()]
        assert dict(zip(nodes, alive, strict=True)) == {
            "node-1": False,
            "node-2": True,
            "node-3": True,
        }
        assert system.plane.drains.describe()[0]["closed"] == 10
        back = await connect_many([port], [f"client-{number}" for number in range(30)])
        assert set(by_node(back)) == {"node-2", "node-3"}
        # The drain outlives the control plane.
        await until(lambda: load_state(settings.state_file).draining == {"node-1"})
        await system.kill()
        async with running_plane(settings) as again:
            await until(lambda: again.plane.probes["passed"] >= 3)
            assert again.taking() == {"node-2", "node-3"}
            assert await again.plane.undrain("node-1") == ""
            await again.takes("node-1", "node-2", "node-3")
        for client in (*clients.values(), *back.values()):
            client.close()


async def test_a_slot_that_another_node_gets_has_no_clients_of_the_one_before(
    haproxy: str, mosquitto: str, tmp_path: Path
) -> None:
    port = free_port()
    proxy = Haproxy(haproxy, tmp_path)
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(brokers(mosquitto, tmp_path, 2))
        common: dict[str, Any] = {
            "strategy": "round_robin",
            "slots": 2,
            "frontends": [{"name": "mqtt", "bind": f"127.0.0.1:{port}"}],
        }
        settings = quick_settings(tmp_path, [proxy], nodes=listed(*found), **common)
        proxy.write(settings)
        stack.enter_context(stopping(proxy))
        await proxy.start()
        names = [f"client-{number}" for number in range(20)]
        async with running_plane(settings) as system:
            await system.takes("node-1", "node-2")
            clients = await connect_many([port], names)
        at_second = [name for name in names if clients[name].node == "node-2"]
        third = await start_broker(mosquitto, tmp_path, "node-3")
        stack.callback(third.stop)
        settings = quick_settings(tmp_path, [proxy], nodes=listed(found[0], third), **common)
        async with running_plane(settings) as system:
            await system.takes("node-1", "node-3")
            assert await asyncio.gather(*(one.is_alive() for one in clients.values()))
            back = await connect_many([port], at_second)
            assert len(set(by_node(back))) == 2
            for client in (*clients.values(), *back.values()):
                client.close()


async def test_the_command_line_asks_a_running_one(
    haproxy: str, mosquitto: str, tmp_path: Path
) -> None:
    port = free_port()
    proxy = Haproxy(haproxy, tmp_path)
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(brokers(mosquitto, tmp_path, 2))
        settings = quick_settings(
            tmp_path,
            [proxy],
            nodes=listed(*found),
            frontends=[{"name": "mqtt", "bind": f"127.0.0.1:{port}"}],
        )
        proxy.write(settings)
        stack.enter_context(stopping(proxy))
        await proxy.start()
        system = await stack.enter_async_context(running_plane(settings))
        control = ControlSocket(settings.control_socket, system.plane)
        await control.open()
        stack.push_async_callback(control.close)
        assert settings.control_socket.stat().st_mode & 0o777 == 0o600
        with pytest.raises(OperationalError, match="another balancer"):
            await ControlSocket(settings.control_socket, system.plane).open()
        await system.takes("node-1", "node-2")
        config = tmp_path / "balancer.toml"
        config.write_text(f'control_socket = "{settings.control_socket}"\n')

        status, code = await command(config, "status", "--json")
        assert code == 0
        told = json.loads(status)
        assert told["version"] == system.plane.snapshot.version
        assert [one["version"] for one in told["proxies"]] == [told["version"]]
        text, code = await command(config, "status")
        assert code == 0
        assert "node-1" in text
        assert told["version"][:12] in text
        text, code = await command(config, "drain", "node-1", "--rate", "10")
        assert code == 0
        await system.takes("node-2")
        text, _ = await command(config, "status")
        assert "drained" in text
        text, code = await command(config, "undrain", "node-1")
        assert code == 0
        await system.takes("node-1", "node-2")
        with pytest.raises(OperationalError, match="there is no node x"):
            await asyncio.to_thread(
                ask_balancer, settings.control_socket, action="undrain", node="x"
            )
        with pytest.raises(OperationalError, match="malformed"):
            await asyncio.to_thread(ask_balancer, settings.control_socket, action="drain")
        assert_every_metric_is_told(system)


def assert_every_metric_is_told(system: System) -> None:
    plane = system.plane
    plane.fleet.note_cpu("node-1", plane.now(), 30.0)
    plane.fleet.note_overload("node-1", plane.now(), 1)
    plane.loads = LoadsFile(system.settings.state_file, 64, 0)
    plane.loads.made_at = plane.gathered_at = 1.0

    class Collector:
        def collect(self) -> Any:
            families = Families()
            add_metrics(system.plane, families)
            return iter(families)

    registry = CollectorRegistry()
    registry.register(Collector())
    names = {sample.name for family in registry.collect() for sample in family.samples}
    assert names == {metric.name for metric in BALANCER}


async def command(config: Path, *words: str) -> tuple[str, int]:
    run = CliRunner().invoke
    result = await asyncio.to_thread(run, mqlake, ["balancer", "--config", str(config), *words])
    return result.output, result.exit_code


def test_the_command_line_says_when_there_is_none(tmp_path: Path) -> None:
    config = tmp_path / "balancer.toml"
    config.write_text(f'control_socket = "{tmp_path}/none.sock"\n')
    result = CliRunner().invoke(mqlake, ["balancer", "--config", str(config), "status"])
    assert isinstance(result.exception, OperationalError)
