"""Gateways of the log: found, served through HAProxy, drained; with the log in memory."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ingest.balancer.discovery.gateways import GatewaySource
from ingest.balancer.fleet import Node
from ingest.balancer.placement import Strategy
from ingest.protocol.packets import Connack
from mqlake.clock import ManualClock
from mqlake.log.contract import LogAccess
from mqlake.log.memory import MemoryLog, MemoryLogReader, MemoryLogWriter, MemoryRangeReader
from mqlake.records.messages import GATEWAYS, VERSION_KEY
from tests.ingest.balancer.harness import (
    Haproxy,
    System,
    open_connection,
    quick_settings,
    running_plane,
    stopping,
    until,
)
from tests.ingest.gateway.harness import (
    Client,
    Harness,
    MemoryRouter,
    free_port,
    new_log,
    running_gateway,
    turns,
)

pytestmark = [pytest.mark.programs, pytest.mark.anyio]


def say(log: MemoryLog, name: str, **more: Any) -> None:
    value = {"v": 1, "state": "serving", "listeners": ["mqtt://10.0.0.1:1883"], **more}
    log.store(GATEWAYS, name.encode(), json.dumps(value).encode(), [], 1, 0)


async def test_a_gateway_says_where_its_metrics_are_and_which_ports_are_for_proxies() -> None:
    log = new_log()
    listeners = ["mqtt://127.0.0.1:1884", "mqtt+proxy://127.0.0.1:2001"]
    say(log, "g1", listeners=listeners, metrics_port=9464)
    say(log, "g2", listeners=["mqtt://[::1]:1885"], metrics_port=9465)
    say(log, "g3", listeners=["mqtt://127.0.0.1:1886"], metrics_port=0)
    found = GatewaySource(MemoryLogReader(log), ManualClock(), 10.0, lambda: None)
    await found.open()
    await turns()
    assert [node.metrics_url for node in found.nodes()] == [
        "http://127.0.0.1:9464/metrics",
        "http://[::1]:9465/metrics",
        "",
    ]
    assert found.nodes()[0].ports == (("mqtt", 1884), ("mqtt+proxy", 2001))
    await found.close()


async def test_a_gateway_that_is_retired_is_no_node() -> None:
    log = new_log()
    say(log, "g1")
    say(log, "g2")
    found = await source(log, ManualClock())
    assert [node.name for node in found.nodes()] == ["g1", "g2"]
    say(log, "g2", state="retiring", listeners=[])
    await turns()
    assert [node.name for node in found.nodes()] == ["g1"]
    await found.close()


async def source(log: MemoryLog, clock: ManualClock) -> GatewaySource:
    found = GatewaySource(
        MemoryLogReader(log),
        clock,
        10.0,
        lambda: None,
        host="{name}.internal",
        metrics_url="http://{address}:9/{name}",
    )
    await found.open()
    await turns()
    return found


async def test_what_a_gateway_says_is_a_node() -> None:
    log = new_log()
    listeners = ["mqtt://10.0.0.1:1883", "mqtt://10.0.0.1:1884", "ws://0.0.0.0:8083", "unix:///x"]
    say(log, "g1", listeners=listeners, overload=7)
    say(log, "g2", listeners=["mqtts://0.0.0.0:8883", "mqtt://[::]:1883"], state="draining")
    log.store(GATEWAYS, VERSION_KEY, b'{"v":1,"written":1}', [], 1, 0)
    log.store(GATEWAYS, b"later", b'{"v":99}', [], 1, 0)
    log.store(GATEWAYS, b"broken", b"[]", [], 1, 0)
    say(log, "unreachable", listeners=["unix:///x"])
    found = await source(log, ManualClock())
    assert found.is_read
    assert found.nodes() == [
        Node(
            "g1", "10.0.0.1", (("mqtt", 1883), ("ws", 8083)), "http://10.0.0.1:9/g1", True, 7, True
        ),
        Node(
            "g2",
            "g2.internal",
            (("mqtt", 1883), ("mqtts", 8883)),
            "http://g2.internal:9/g2",
            False,
            None,
            True,
        ),
    ]
    await found.close()


async def test_a_gateway_is_gone_when_it_says_so_or_is_silent_while_others_speak() -> None:
    log, clock = new_log(), ManualClock()
    for name in ("a", "b", "c"):
        say(log, name)
    found = await source(log, clock)
    log.store(GATEWAYS, b"c", None, [], 1, 0)
    await turns()
    assert [node.name for node in found.nodes()] == ["a", "b"]
    clock.advance(60)  # the log is away: nobody is gone for that
    assert [node.name for node in found.nodes()] == ["a", "b"]
    say(log, "a")
    await turns()
    assert [node.name for node in found.nodes()] == ["a"]
    await found.close()


@dataclass
class Balanced:
    """Two gateways of one log behind a real HAProxy."""

    system: System
    gateways: list[Harness]
    port: int


@asynccontextmanager
async def balanced(
    haproxy: str, folder: Path, strategy: Strategy = "predicted"
) -> AsyncIterator[Balanced]:
    port = free_port()
    proxy = Haproxy(haproxy, folder)
    log = new_log("gateway-1", "gateway-2")
    settings = quick_settings(
        folder,
        [proxy],
        strategy=strategy,
        discovery={"gateways": True},
        predicted={"session_shards": 4},
        frontends=[{"name": "mqtt", "bind": f"127.0.0.1:{port}"}],
    )
    proxy.write(settings)
    async with AsyncExitStack() as stack:
        router = MemoryRouter(log)
        await router.start()
        stack.push_async_callback(router.close)
        gateways = [
            await stack.enter_async_context(running_gateway(log=log, router=router, name=name))
            for name in ("gateway-1", "gateway-2")
        ]
        writer = MemoryLogWriter(log, max_queued_records=100, max_record_bytes=10_000)
        ranges = MemoryRangeReader(log)
        stack.push_async_callback(writer.close)
        stack.push_async_callback(ranges.close)
        stack.enter_context(stopping(proxy))
        await proxy.start()
        access = LogAccess(writer, lambda: MemoryLogReader(log), ranges)
        system = await stack.enter_async_context(running_plane(settings, access))
        await system.takes("gateway-1", "gateway-2")
        yield Balanced(system, gateways, port)


@pytest.mark.parametrize("level", [4, 5])
async def test_a_drained_gateway_lets_its_clients_go_and_they_land_elsewhere(
    level: int, haproxy: str, tmp_path: Path
) -> None:
    async with balanced(haproxy, tmp_path) as found:
        system, gateways, port = found.system, found.gateways, found.port
        clients = {f"client-{number}": await connect(port, level) for number in range(20)}
        for name, client in clients.items():
            assert isinstance(await client.handshake(name), Connack)
        # Each is where the shard of its session is kept.
        for gateway in gateways:
            for key in (("default", name) for name in names_at(gateway)):
                assert gateway.gateway.shards.owned_shard(key) is not None
        at_first = clients_of(gateways[0])
        assert at_first

        assert await system.plane.drain("gateway-1", 1_000.0) == ""
        await until(lambda: gateways[0].gateway.draining.state == "drained")
        assert system.taking() == {"gateway-2"}
        assert clients_of(gateways[1]) == 20 - at_first
        back = await connect(port, level)
        await back.handshake("client-back")
        await until(lambda: clients_of(gateways[1]) == 21 - at_first)

        assert await system.plane.undrain("gateway-1") == ""
        await system.takes("gateway-1", "gateway-2")
        assert "nobody" in await system.plane.drain("nobody", 1.0)
        for client in (*clients.values(), back):
            client.cut()
        await asyncio.sleep(0)


@pytest.mark.parametrize("strategy", ["weighted_cpu", "predicted"])
async def test_a_gateway_with_too_much_to_do_keeps_its_clients_and_gets_no_more(
    strategy: Strategy, haproxy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with balanced(haproxy, tmp_path, strategy) as found:
        system, (first, second), port = found.system, found.gateways, found.port
        names = [f"client-{number}" for number in range(20)]
        clients = [await connect(port, 5) for _ in names]
        for name, client in zip(names, clients, strict=True):
            await client.handshake(name)
        at_first, at_second = clients_of(first), clients_of(second)
        assert at_first
        assert at_second

        with monkeypatch.context() as patch:
            busy = first.gateway.overload
            level = property(lambda one: 10 if one is busy else 0)
            patch.setattr(type(busy), "level", level)
            # A gateway with less to do than that is left out as well.
            await until(lambda: system.plane.fleet.describe(0)[0]["overload_level"] == 10)
            await system.takes("gateway-2")
            assert (clients_of(first), clients_of(second)) == (at_first, at_second)
            # Who was there and is cut lands elsewhere, though he would stick.
            was_there = names_at(first)[0]
            clients[names.index(was_there)].cut()
            await until(lambda: clients_of(first) == at_first - 1)
            back = await connect(port, 5)
            await back.handshake(was_there)
            assert clients_of(second) == at_second + 1
        await system.takes("gateway-1", "gateway-2")
        for client in (*clients, back):
            client.cut()
        await asyncio.sleep(0)


def names_at(harness: Harness) -> list[str]:
    """Return the clients of a gateway, those of probes left out."""
    names = [one.client_id for one in harness.connections() if one.session is not None]
    return [name for name in names if name.startswith("client-")]


def clients_of(harness: Harness) -> int:
    return len(names_at(harness))


async def connect(port: int, level: int) -> Client:
    return Client(*await open_connection(port), level)
