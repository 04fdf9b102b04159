"""How clients arrive: CONNECT in parts, without a name, too large; TLS, WebSocket, PROXY."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from ingest.balancer.placement import bucket_of
from ingest.protocol.encoder import encode
from ingest.protocol.packets import Connack, Connect, Will
from tests.ingest.balancer.harness import (
    Haproxy,
    System,
    brokers,
    by_node,
    connect_many,
    listed,
    open_connection,
    quick_settings,
    running_plane,
    stopping,
)
from tests.ingest.gateway.harness import Client, Harness, free_port, running_gateway, until
from tests.ingest.gateway.listeners.tls import HOST, Authority
from tests.ingest.gateway.listeners.websocket_client import WebSocketClient

pytestmark = [pytest.mark.programs, pytest.mark.anyio]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(trustme.CA(), tmp_path)


def pem(authority: Authority, folder: Path) -> Path:
    file = folder / "both.pem"
    file.write_bytes(authority.certificate.read_bytes() + authority.key.read_bytes())
    return file


@asynccontextmanager
async def balanced(
    program: str, folder: Path, strategy: str, nodes: list[Any], *frontends: dict[str, Any]
) -> AsyncIterator[tuple[Haproxy, System]]:
    """Run a proxy with a control plane in front of nodes, until all take clients."""
    proxy = Haproxy(program, folder)
    settings = quick_settings(
        folder, [proxy], strategy=strategy, nodes=nodes, frontends=list(frontends)
    )
    proxy.write(settings)
    with stopping(proxy):
        await proxy.start()
        async with running_plane(settings) as system:
            await system.takes(*(node["name"] for node in nodes))
            yield proxy, system


def frontend(port: int, **more: Any) -> dict[str, Any]:
    return {"name": "mqtt", "bind": f"127.0.0.1:{port}", **more}


async def test_a_connect_in_parts_goes_where_a_whole_one_does(
    haproxy: str, mosquitto: str, tmp_path: Path
) -> None:
    port = free_port()
    async with (
        brokers(mosquitto, tmp_path) as found,
        balanced(haproxy, tmp_path, "predicted", listed(*found), frontend(port)) as (proxy, system),
    ):
        names = [f"client-{number}" for number in range(12)]
        whole = await connect_many([port], names)
        assert len(set(by_node(whole))) == 3
        before = await proxy.sessions("nodes_mqtt")
        for level, name in zip((3, 4, 5) * 4, names, strict=True):
            reader, writer = await open_connection(port)
            for byte in encode(Connect(name, level), level):
                writer.write(bytes((byte,)))
                await writer.drain()
                await asyncio.sleep(0)
            assert (await reader.read(1)) == b"\x20"
            writer.close()
        after = await proxy.sessions("nodes_mqtt")
        slots = {node.name: f"s{node.slot}" for node in system.plane.snapshot.nodes}
        for broker in found:
            slot = slots[broker.name]
            assert after[slot] - before[slot] == by_node(whole)[broker.name]


async def test_haproxy_and_we_compute_the_same_bucket(
    haproxy: str, mosquitto: str, tmp_path: Path
) -> None:
    port = free_port()
    async with (
        brokers(mosquitto, tmp_path) as found,
        balanced(haproxy, tmp_path, "predicted", listed(*found), frontend(port)) as (_, system),
    ):
        snapshot = system.plane.snapshot
        names = ["a", "ä-日本", "with space", "'; drop", "x" * 500, *map(str, range(40))]
        clients = await connect_many([port], names)
        for name, client in clients.items():
            slot = snapshot.buckets[bucket_of("default", name, len(snapshot.buckets))]
            assert client.node == snapshot.by_slot[slot].name, name


@pytest.mark.parametrize("strategy", ["round_robin", "predicted"])
async def test_clients_without_a_name_are_spread(
    strategy: str, haproxy: str, mosquitto: str, tmp_path: Path
) -> None:
    port = free_port()
    async with (
        brokers(mosquitto, tmp_path) as found,
        balanced(haproxy, tmp_path, strategy, listed(*found), frontend(port)) as (proxy, _),
    ):
        for _ in range(30):
            reader, writer = await open_connection(port)
            writer.write(encode(Connect("", 5), 5))
            assert await reader.read(1) == b"\x20"
            writer.close()
        assert sorted((await proxy.sessions("nodes_mqtt")).values()) == [0, 0, 0, 10, 10, 10]


async def test_a_connect_that_does_not_fit_or_is_none_is_passed_on(
    haproxy: str, mosquitto: str, tmp_path: Path
) -> None:
    port = free_port()
    async with (
        brokers(mosquitto, tmp_path) as found,
        balanced(haproxy, tmp_path, "predicted", listed(*found), frontend(port)) as (proxy, _),
    ):
        will = Will("last", bytes(60_000))
        for _ in range(3):
            reader, writer = await open_connection(port)
            writer.write(encode(Connect("large", 4, will=will), 4))
            assert await reader.readexactly(4) == b"\x20\x02\x00\x00"
            writer.close()
        assert sorted((await proxy.sessions("nodes_mqtt")).values()) == [0, 0, 0, 1, 1, 1]
        reader, writer = await open_connection(port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""  # the node's answer to it
        writer.close()


async def test_a_node_that_died_just_now_costs_its_clients_nothing(
    haproxy: str, mosquitto: str, tmp_path: Path
) -> None:
    port = free_port()
    async with (
        brokers(mosquitto, tmp_path) as found,
        balanced(haproxy, tmp_path, "predicted", listed(*found), frontend(port)) as (_, system),
    ):
        await system.kill()  # nobody tells the proxy
        found[0].process.kill()
        found[0].process.wait()
        clients = await connect_many([port], [f"client-{number}" for number in range(30)])
        assert set(by_node(clients)) == {found[1].name, found[2].name}


async def test_tls_that_ends_at_the_proxy_keeps_addresses_and_tenants(
    haproxy: str, tmp_path: Path, authority: Authority
) -> None:
    port, behind = free_port(), free_port()
    listeners = ({"kind": "tcp", "port": behind, "proxy_protocol": True},)
    async with running_gateway(listeners=listeners) as harness:
        nodes = [{"name": "gateway-1", "host": "127.0.0.1", "port": harness.port}]
        tls = frontend(
            port,
            kind="tls",
            certificate=pem(authority, tmp_path),
            node_port=behind,
            send_proxy=True,
            tenants={HOST: "acme"},
        )
        async with balanced(haproxy, tmp_path, "weighted_cpu", nodes, tls) as (proxy, _):
            client = await open_tls(port, authority.client_context(), HOST)
            await client.handshake("alice")
            others = await open_tls(port, authority.client_context(), "localhost")
            await others.handshake("bob")
            table = await proxy.api.ask("show table nodes_mqtt")
            assert "key=acme/alice " in table
            assert "key=default/bob " in table
            # The gateway knows the address from the header, not that of the proxy.
            await until(lambda: {"alice", "bob"} <= peers(harness).keys())
            assert peers(harness)["alice"] == peers(harness)["bob"] == "127.0.0.5"


def peers(harness: Harness) -> dict[str, str]:
    """Return from which addresses clients have connected, as the events tell."""
    connected = harness.events("client.connected")
    return {one["client_id"]: one["peer"].rpartition(":")[0] for one in connected}


async def test_tls_that_is_passed_through_is_led_by_its_host_name(
    haproxy: str, tmp_path: Path, authority: Authority
) -> None:
    port, behind = free_port(), free_port()
    listeners = ({"kind": "tls", "port": behind, **authority.settings()},)
    async with running_gateway(listeners=listeners) as harness:
        nodes = [
            {"name": "gateway-1", "host": "127.0.0.1", "port": harness.port, "tls_port": behind}
        ]
        passed = frontend(port, kind="tls_passthrough", tenants={HOST: "acme"})
        async with balanced(haproxy, tmp_path, "predicted", nodes, passed):
            client = await open_tls(port, authority.client_context(), HOST)
            assert (await client.handshake("alice")).reason_code == 0
            with pytest.raises((ssl.SSLError, OSError)):
                await open_tls(port, authority.client_context(), "localhost")


async def test_websockets_are_led_by_path_and_come_back_by_cookie(
    haproxy: str, tmp_path: Path
) -> None:
    port, behind = free_port(), free_port()
    async with running_gateway(listeners=({"kind": "ws", "port": behind},)) as harness:
        nodes = [
            {
                "name": "gateway-1",
                "host": "127.0.0.1",
                "port": harness.port,
                "websocket_port": behind,
            }
        ]
        async with balanced(
            haproxy, tmp_path, "predicted", nodes, frontend(port, kind="websocket")
        ):
            client = (await WebSocketClient.connect(port)).mqtt()
            assert isinstance(await client.handshake("alice"), Connack)
            await client.expect_nothing()
            reader, writer = await open_connection(port)
            writer.write(b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).split()[1] == b"404"
            writer.close()


async def test_a_browser_comes_back_by_its_cookie(haproxy: str, tmp_path: Path) -> None:
    port, behind = free_port(), (free_port(), free_port())
    listeners = tuple({"kind": "ws", "port": one} for one in behind)
    async with running_gateway(listeners=listeners) as harness:
        # Two nodes, as far as HAProxy can tell.
        nodes = [
            {"name": name, "host": "127.0.0.1", "port": harness.port, "websocket_port": one}
            for name, one in zip(("a", "b"), behind, strict=True)
        ]
        web = frontend(port, kind="websocket")
        async with balanced(haproxy, tmp_path, "round_robin", nodes, web) as (proxy, _):
            cookie = await cookie_of(port, "")
            assert cookie.startswith("MQLAKE=")
            for _ in range(5):
                assert await cookie_of(port, cookie) == ""  # it has the right one
            assert sorted((await proxy.sessions("nodes_mqtt")).values())[-2:] == [0, 6]
            assert await cookie_of(port, "") != cookie


async def cookie_of(port: int, cookie: str) -> str:
    """Ask for a page, show a cookie, and return the one that is set; empty: none."""
    reader, writer = await open_connection(port)
    shown = f"Cookie: {cookie}\r\n" if cookie else ""
    writer.write(f"GET /mqtt HTTP/1.1\r\nHost: x\r\n{shown}\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    writer.close()
    lines = [line for line in head.splitlines() if line.lower().startswith("set-cookie:")]
    return lines[0].partition(": ")[2].partition(";")[0] if lines else ""


async def open_tls(port: int, context: ssl.SSLContext, name: str) -> Client:
    reader, writer = await open_connection(
        port, ssl=context, server_hostname=name, local_addr=("127.0.0.5", 0)
    )
    return Client(reader, writer, 5)
