"""All kinds of listeners on real sockets, with raw clients and with paho."""

import asyncio
import contextlib
import logging
import os
import re
import resource
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from pydantic import ValidationError

from ingest.gateway.listeners import accepting
from ingest.gateway.listeners.arrivals import HANDSHAKE_BYTES, PLACE_BYTES, Arrivals
from ingest.gateway.listeners.info import ListenerInfo
from ingest.gateway.listeners.listeners import Listeners
from ingest.gateway.listeners.proxy_protocol import SIGNATURE
from ingest.gateway.settings.listeners import TcpListener, TlsListener, UnixListener
from ingest.protocol.packets import Connack
from mqlake.errors import OperationalError
from tests.ingest.gateway.harness import (
    DEADLINE_SECONDS,
    Client,
    free_port,
    running_gateway,
    turns,
    until,
)
from tests.ingest.gateway.listeners.test_tls import Recorder, open_tls
from tests.ingest.gateway.listeners.tls import HOST, Authority
from tests.ingest.gateway.listeners.websocket_client import WebSocketClient

pytestmark = pytest.mark.anyio

PROXY_V1 = b"PROXY TCP4 192.0.2.7 10.0.0.1 50123 1883\r\n"
PROXY_V2 = (
    SIGNATURE
    + struct.pack("!BBH", 0x21, 0x11, 12 + 3 + len(HOST))
    + bytes((192, 0, 2, 7, 10, 0, 0, 1))
    + struct.pack("!HHBH", 50123, 1883, 0x02, len(HOST))
    + HOST.encode()
)
PROXY_LOCAL = SIGNATURE + b"\x20\x00\x00\x00"


async def open_unix(file: Path, level: int = 5) -> Client:
    return Client(*await asyncio.open_unix_connection(file), level)


async def open_on(host: str, port: int) -> Client:
    return Client(*await asyncio.open_connection(host, port), 5)


async def test_many_listeners_serve_at_once(authority: Authority, tmp_path: Path) -> None:
    ports = [free_port() for _ in range(7)]
    tls = authority.settings()
    listeners = (
        {"kind": "tcp", "port": ports[0]},
        {"kind": "tcp", "port": ports[1], "host": "::1"},
        {"kind": "tls", "port": ports[2], **tls},
        {"kind": "tls", "port": ports[3], "host": "::1", **tls},
        {"kind": "ws", "port": ports[4]},
        {"kind": "ws", "port": ports[5], "path": "/other"},
        {"kind": "wss", "port": ports[6], **tls},
        {"kind": "unix", "file": tmp_path / "one.sock"},
        {"kind": "unix", "file": tmp_path / "two.sock"},
    )
    async with running_gateway(listeners=listeners) as harness:
        context = authority.client_context()
        other = await WebSocketClient.open(ports[5])
        await other.request("/other")
        clients = [
            await Client.open(harness.port),
            await Client.open(ports[0]),
            await open_on("::1", ports[1]),
            await open_tls(ports[2], context),
            await open_tls(ports[3], context, host="::1"),
            (await WebSocketClient.connect(ports[4])).mqtt(),
            other.mqtt(),
            (await WebSocketClient.connect(ports[6], context=context)).mqtt(),
            await open_unix(tmp_path / "one.sock"),
            await open_unix(tmp_path / "two.sock"),
        ]
        for number, client in enumerate(clients):
            await client.handshake(f"client-{number}")
            await client.subscribe("all", 1)
        publisher = await Client.connect(harness.port, "publisher")
        await publisher.publish("all", b"to all", 1)
        assert [(await client.message()).payload for client in clients] == [b"to all"] * 10
        assert harness.gateway.status.figures()["listeners"] == list(
            harness.gateway.listeners.addresses
        )
        assert harness.gateway.listeners.addresses == (
            f"mqtt://127.0.0.1:{harness.port}",
            f"mqtt://127.0.0.1:{ports[0]}",
            f"mqtt://[::1]:{ports[1]}",
            f"mqtts://127.0.0.1:{ports[2]}",
            f"mqtts://[::1]:{ports[3]}",
            f"ws://127.0.0.1:{ports[4]}/mqtt",
            f"ws://127.0.0.1:{ports[5]}/other",
            f"wss://127.0.0.1:{ports[6]}/mqtt",
            f"unix://{tmp_path}/one.sock",
            f"unix://{tmp_path}/two.sock",
        )
    assert not any(name.endswith(".sock") for name in os.listdir(tmp_path))


async def test_the_empty_host_is_all_of_ipv4_and_ipv6() -> None:
    async with running_gateway(host="", allow_anonymous=True) as harness:
        for host in ("127.0.0.1", "::1"):
            client = await open_on(host, harness.port)
            await client.handshake(f"at {host}")


async def test_address_of_an_ipv6_client_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running_gateway(host="::1") as harness:
        client = await open_on("::1", harness.port)
        await client.handshake("alice")
    assert any("::1" in str(getattr(record, "fields", "")) for record in caplog.records)


@pytest.mark.parametrize("level", [3, 4, 5])
@pytest.mark.parametrize(
    ("versions", "welcome"),
    [(("3.1",), {3}), (("3.1.1",), {4}), (("5.0",), {5}), (("3.1", "5.0"), {3, 5})],
)
async def test_a_listener_may_restrict_the_versions(
    versions: tuple[str, ...], welcome: set[int], level: int
) -> None:
    port = free_port()
    listeners = ({"kind": "tcp", "port": port, "versions": versions},)
    async with running_gateway(listeners=listeners) as harness:
        client = await Client.open(port, level)
        connack = await client.handshake("alice")
        if level in welcome:
            assert connack.reason_code == 0
        else:
            assert connack.reason_code == 0x84  # return code 1 in 3.x, see the next test
            assert await client.is_closed()
        elsewhere = await Client.open(harness.port, level)
        assert (await elsewhere.handshake("bob")).reason_code == 0


@pytest.mark.parametrize(("level", "last_byte"), [(3, 1), (4, 1), (5, 0x84)])
async def test_refusal_of_a_version_is_in_its_own_words(level: int, last_byte: int) -> None:
    port = free_port()
    versions = {3: "5.0", 4: "5.0", 5: "3.1.1"}[level]
    listeners = ({"kind": "tcp", "port": port, "versions": (versions,)},)
    # The connection ends with the refusal, not because the time for CONNECT is over.
    async with running_gateway(listeners=listeners, connect_timeout_seconds=300):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        name = b"MQIsdp" if level == 3 else b"MQTT"
        variable = struct.pack("!H", len(name)) + name + bytes((level, 2, 0, 60))
        variable += (b"\0" if level == 5 else b"") + b"\0\x05alice"
        writer.write(bytes((0x10, len(variable))) + variable)
        answer = await asyncio.wait_for(reader.read(), DEADLINE_SECONDS)
        assert (answer[0], answer[3]) == (0x20, last_byte)
        writer.transport.abort()


# Unix sockets


async def test_a_unix_socket_serves_and_is_removed_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "mqtt.sock"
    async with running_gateway(listeners=({"kind": "unix", "file": file, "mode": "0600"},)):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        client = await open_unix(file)
        await client.handshake("alice")
        await client.publish("a", b"", 2)
        await client.disconnect()
    assert not file.exists()


async def test_a_socket_that_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "mqtt.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(file))
    async with running_gateway(listeners=({"kind": "unix", "file": file},)):
        await (await open_unix(file)).handshake("alice")


@pytest.mark.parametrize("taken", ["socket", "file", "folder"])
async def test_what_is_not_left_over_stays(tmp_path: Path, taken: str) -> None:
    file = tmp_path / "mqtt.sock"
    with contextlib.ExitStack() as until_then:
        if taken == "socket":
            other = until_then.enter_context(socket.socket(socket.AF_UNIX))
            other.bind(str(file))
            other.listen()
        elif taken == "file":
            file.write_text("mine")
        with pytest.RaisesGroup(pytest.RaisesExc(OperationalError, match="cannot listen on")):
            missing = tmp_path / "missing" / "mqtt.sock"
            listener = {"kind": "unix", "file": missing if taken == "folder" else file}
            async with running_gateway(listeners=(listener,)):
                pass
        assert file.exists() == (taken != "folder")


# What cannot be opened


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("no.such.host.invalid", "cannot listen on no.such.host.invalid:"),
        ("2001:db8::7", r"cannot listen on \[2001:db8::7\]:"),
    ],
)
async def test_a_host_that_is_not_here_is_named(host: str, problem: str) -> None:
    listeners = ({"kind": "tcp", "port": free_port(), "host": host},)
    with pytest.RaisesGroup(pytest.RaisesExc(OperationalError, match=problem)):
        async with running_gateway(listeners=listeners, allow_anonymous=True):
            pass


async def test_when_one_cannot_be_opened_none_stays_open(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "mqtt.sock"
    with socket.create_server(("127.0.0.1", 0)) as other:
        listeners = Listeners(
            [
                TcpListener(port=port),
                UnixListener(file=file),
                TcpListener(port=other.getsockname()[1]),
            ],
            Arrivals(),
            timeout_seconds=5,
        )
        with pytest.raises(OperationalError, match="Address already in use"):
            await listeners.start(Recorder)
    await turns()
    assert not file.exists()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


# How many


@pytest.mark.parametrize("kind", ["tcp", "tls", "ws", "unix"])
async def test_connections_beyond_the_limit_are_closed_at_once(
    kind: str, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ingest.gateway.listeners")
    port, file = free_port(), tmp_path / "mqtt.sock"
    listener: dict[str, Any] = {"kind": kind, "max_connections": 2, "port": port}
    if kind == "unix":
        listener |= {"file": file}
        del listener["port"]
    elif kind == "tls":
        listener |= authority.settings()

    async def connect(client_id: str) -> Client:
        if kind == "tls":
            client = await open_tls(port, authority.client_context())
        elif kind == "ws":
            client = (await WebSocketClient.connect(port)).mqtt()
        elif kind == "unix":
            client = await open_unix(file)
        else:
            client = await Client.open(port)
        await client.handshake(client_id)
        return client

    async with running_gateway(listeners=(listener,)) as harness:
        first, second = await connect("first"), await connect("second")
        with pytest.raises((OSError, AssertionError, asyncio.IncompleteReadError)):
            await connect("third")
        await Client.connect(harness.port, "elsewhere")
        await first.expect_nothing()
        await second.expect_nothing()
        first.cut()
        await until(lambda: len(harness.gateway.connections) == 2)
        third = await connect("third")
        await third.expect_nothing()
    assert "connection refused" in caplog.messages


@pytest.mark.parametrize("kind", ["tcp", "tls", "ws", "proxy"])
async def test_silent_connections_keep_nobody_out(
    kind: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    most_bytes = 3 * HANDSHAKE_BYTES
    monkeypatch.setattr("ingest.gateway.process.gateway.Arrivals", lambda: Arrivals(most_bytes))
    port = free_port()
    listener: dict[str, Any] = {"kind": kind, "port": port}
    if kind == "tls":
        listener |= authority.settings()
    elif kind == "proxy":
        listener |= {"kind": "tcp", "proxy_protocol": True}
    async with running_gateway(listeners=(listener,)) as harness:
        waiting = harness.gateway.arrivals
        place = HANDSHAKE_BYTES if kind == "tls" else PLACE_BYTES
        most = most_bytes // place
        silent = [await Client.open(port) for _ in range(most)]
        await until(lambda: len(waiting) == most)
        if kind == "tls":
            client = await open_tls(port, authority.client_context())
        elif kind == "ws":
            client = (await WebSocketClient.connect(port)).mqtt()
        else:
            client = await Client.open(port)
        if kind == "proxy":
            client.send_bytes(PROXY_V1)
        await client.handshake("alice")
        assert await silent[0].is_closed(), "the oldest"
        await client.expect_nothing()
        # One for its connection, perhaps one for its first packet.
        await until(lambda: len(waiting) in {most - 1, most - 2})


async def test_silent_connections_do_not_fill_a_listener() -> None:
    port = free_port()
    listeners = ({"kind": "tcp", "port": port, "max_connections": 2},)
    async with running_gateway(listeners=listeners) as harness:
        silent = [await Client.open(port) for _ in range(2)]
        await until(lambda: len(harness.gateway.arrivals) == 2)
        alice = await Client.connect(port, "alice")
        assert await silent[0].is_closed()
        bob = await Client.connect(port, "bob")
        assert await silent[1].is_closed()
        with pytest.raises((OSError, AssertionError, asyncio.IncompleteReadError)):
            await Client.connect(port, "carol")
        await alice.expect_nothing()
        await bob.expect_nothing()


async def test_when_descriptors_run_out_clients_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accepting, "EXHAUSTED_PAUSE_SECONDS", 0.01)
    port = free_port()
    listeners = ({"kind": "tcp", "port": port, "proxy_protocol": True},)
    async with running_gateway(listeners=listeners):
        client = await Client.open(port)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        second = socket.socket()
        second.setblocking(False)
        client.send_bytes(PROXY_V1)
        await client.handshake("alice")
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with contextlib.suppress(BlockingIOError):
                second.connect(("127.0.0.1", port))
            await until(lambda: "connections wait" in caplog.messages)
            await client.expect_nothing()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        other = Client(*await asyncio.open_connection(sock=second), 5)
        other.send_bytes(PROXY_V1)
        await other.handshake("bob")


# Behind a proxy


def behind_proxy(kind: str, authority: Authority, tmp_path: Path) -> tuple[Any, dict[str, Any]]:
    """Return where to connect, and the settings of a gateway that listens there."""
    listener: dict[str, Any] = {"kind": kind, "proxy_protocol": True}
    if kind == "unix":
        listener["file"] = tmp_path / "mqtt.sock"
    else:
        listener["port"] = free_port()
    if kind in ("tls", "wss"):
        listener |= authority.settings()
    return listener.get("file") or listener["port"], {"listeners": (listener,)}


async def connect_behind_proxy(
    kind: str, where: Any, header: bytes, authority: Authority, *, byte_by_byte: bool = False
) -> Client:
    """Connect as a proxy does: its header in the clear, then what the client sends."""
    if kind == "unix":
        reader, writer = await asyncio.open_unix_connection(where)
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", where)
    for part in [bytes((byte,)) for byte in header] if byte_by_byte else [header]:
        writer.write(part)
        await turns(3 if byte_by_byte else 0)
    if kind in ("tls", "wss"):
        await writer.start_tls(authority.client_context(), server_hostname=HOST)
    if kind in ("ws", "wss"):
        client = WebSocketClient(reader, writer)
        await client.request()
        return client.mqtt()
    return Client(reader, writer, 5)


@pytest.mark.parametrize("kind", ["tcp", "tls", "ws"])
async def test_nobody_else_may_be_the_proxy(
    kind: str, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ingest.gateway.listeners")
    where, settings = behind_proxy(kind, authority, tmp_path)
    settings["listeners"][0]["proxies"] = ("192.0.2.1", "198.51.100.0/24")
    async with running_gateway(**settings):
        client = await Client.open(where)
        client.send_bytes(PROXY_V1)
        assert await client.is_closed()
        (refused,) = [one for one in caplog.records if one.getMessage() == "connection refused"]
        reason = "127.0.0.1 is none of this listener's proxies"
        assert vars(refused)["fields"]["reason"] == reason
    settings["listeners"][0]["proxies"] = ("192.0.2.1", "127.0.0.0/24")
    async with running_gateway(**settings):
        client = await connect_behind_proxy(kind, where, PROXY_V1, authority)
        await client.handshake("alice")


async def test_a_proxy_comes_by_either_protocol(authority: Authority, tmp_path: Path) -> None:
    where, settings = behind_proxy("tcp", authority, tmp_path)
    settings["listeners"][0].update(proxies=("127.0.0.1",), host="")
    async with running_gateway(allow_anonymous=True, **settings):
        client = await connect_behind_proxy("tcp", where, PROXY_V1, authority)
        await client.handshake("alice")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"proxies": ("192.0.2.300",)}, "'192.0.2.300' is neither an address"),
        ({"proxies": ("10.0.0.7/8",)}, "'10.0.0.7/8' is neither an address"),
        ({"host": "0.0.0.0"}, "name the addresses of the proxies"),
        ({"host": ""}, "name the addresses of the proxies"),
        ({"proxies": ("192.0.2.1",), "proxy_protocol": False}, "proxy_protocol is not"),
    ],
)
def test_proxies_are_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        TcpListener(**{"port": 1, "proxy_protocol": True, **settings})
    assert TcpListener(port=1, proxy_protocol=True, host="::1")
    assert TcpListener(port=1, proxy_protocol=True, host="0.0.0.0", proxies=("10.1.0.0/16",))


@pytest.mark.parametrize("byte_by_byte", [False, True], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("header", [PROXY_V1, PROXY_V2], ids=["v1", "v2"])
@pytest.mark.parametrize("kind", ["tcp", "tls", "ws", "wss", "unix"])
async def test_the_client_is_who_the_proxy_says(
    kind: str,
    header: bytes,
    byte_by_byte: bool,
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ingest.gateway.clients.connection")
    where, settings = behind_proxy(kind, authority, tmp_path)
    async with running_gateway(**settings):
        client = await connect_behind_proxy(
            kind, where, header, authority, byte_by_byte=byte_by_byte
        )
        await client.handshake("alice")
        await client.expect_nothing()
    (connected,) = [one for one in caplog.records if one.getMessage() == "client connected"]
    assert vars(connected)["fields"]["peer"] == "192.0.2.7:50123"


async def test_the_first_packet_may_come_with_the_header(
    authority: Authority, tmp_path: Path
) -> None:
    where, settings = behind_proxy("tcp", authority, tmp_path)
    async with running_gateway(**settings):
        client = await Client.open(where)
        client.send_bytes(PROXY_V2 + bytes.fromhex("10 10 0004 4d515454 05 02 003c 00 0003 626f62"))
        assert (await client.expect(Connack)).reason_code == 0


async def test_the_proxy_may_speak_for_itself(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ingest.gateway.clients.connection")
    where, settings = behind_proxy("tcp", authority, tmp_path)
    async with running_gateway(**settings):
        client = await Client.open(where)
        client.send_bytes(PROXY_LOCAL)
        await client.handshake("alice")
        host, port = client.writer.get_extra_info("sockname")
    (connected,) = [one for one in caplog.records if one.getMessage() == "client connected"]
    assert vars(connected)["fields"]["peer"] == f"{host}:{port}"


@pytest.mark.parametrize(
    "start",
    [
        bytes.fromhex("10 10 0004 4d515454 05 02 003c 00 0003 626f62"),
        PROXY_V1.replace(b"192", b"992"),
        b"PROXY" + b" " * 200,
        PROXY_V2[:20],
        b"",
    ],
    ids=["CONNECT", "malformed", "too long", "cut off", "nothing"],
)
async def test_without_a_proper_header_a_connection_is_refused(
    start: bytes, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ingest.gateway.listeners")
    where, settings = behind_proxy("tcp", authority, tmp_path)
    async with running_gateway(**settings) as harness:
        client = await Client.open(where)
        client.send_bytes(start)
        client.writer.write_eof()
        assert await client.is_closed()
        assert harness.counters.connections_opened == 0
    assert "connection refused" in caplog.messages


async def test_a_proxy_that_says_nothing_is_cut(authority: Authority, tmp_path: Path) -> None:
    where, settings = behind_proxy("tcp", authority, tmp_path)
    async with running_gateway(connect_timeout_seconds=0.05, **settings):
        client = await Client.open(where)
        client.send_bytes(PROXY_V2[:5])
        assert await client.is_closed()


async def test_facts_of_the_proxy_and_of_the_inner_tls_are_not_mixed(
    authority: Authority,
) -> None:
    common_name = struct.pack("!BH", 0x22, 7) + b"press-7"
    fields = struct.pack("!BHBI", 0x20, 5 + len(common_name), 7, 0) + common_name
    header = (
        SIGNATURE + struct.pack("!BBH", 0x21, 0x11, 12 + len(fields)) + PROXY_V2[16:28] + fields
    )
    ports = free_port(), free_port()
    made: list[Recorder] = []

    def make(info: ListenerInfo) -> Recorder:
        made.append(Recorder(info))
        return made[-1]

    listeners = Listeners(
        [
            TcpListener(port=ports[0], proxy_protocol=True),
            TlsListener(port=ports[1], proxy_protocol=True, **authority.settings()),
        ],
        Arrivals(),
        timeout_seconds=5,
    )
    await listeners.start(make)
    for kind, port, name in (("tcp", ports[0], "press-7"), ("tls", ports[1], None)):
        client = await connect_behind_proxy(kind, port, header, authority)
        await client.reader.readexactly(5)
        facts = made[-1].facts
        assert facts["client_certificate_common_name"] == name
        assert facts["peername"] == ("192.0.2.7", 50123)
        client.cut()
    listeners.stop_accepting()


# Clients as people use them


class Paho:
    """paho-mqtt over any transport, on threads of its own."""

    def __init__(self, client: PahoClient, connect: Callable[[PahoClient], object]) -> None:
        self.client = client
        self.messages: Queue[MQTTMessage] = Queue()
        self._connected = threading.Event()
        self._subscribed = threading.Event()
        client.on_connect = lambda *_: self._connected.set()
        client.on_subscribe = lambda *_: self._subscribed.set()
        client.on_message = lambda _client, _data, message: self.messages.put(message)
        connect(client)
        client.loop_start()
        assert self._connected.wait(60)

    def echo(self) -> list[tuple[int, bytes]]:
        """Publish at each QoS to a subscription of its own and return what comes."""
        self.client.subscribe("echo/#", 2)
        assert self._subscribed.wait(60)
        for qos in (0, 1, 2):
            self.client.publish(f"echo/{qos}", b"x" * 70_000, qos).wait_for_publish(10)
        received = [self.messages.get(timeout=60) for _ in range(3)]
        return sorted((message.qos, bytes(message.payload)) for message in received)


@contextlib.contextmanager
def paho(
    transport: str,
    version: MQTTProtocolVersion,
    authority: Authority,
    connect: Callable[[PahoClient], object],
) -> Iterator[Paho]:
    client = PahoClient(
        CallbackAPIVersion.VERSION2,
        "paho",
        protocol=version,
        transport="websockets" if transport in ("ws", "wss") else "tcp",
    )
    if transport in ("tls", "wss"):
        client.tls_set_context(authority.client_context())
    try:
        yield Paho(client, connect)
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.parametrize(
    "version",
    [MQTTProtocolVersion.MQTTv31, MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5],
    ids=["3.1", "3.1.1", "5.0"],
)
@pytest.mark.parametrize("kind", ["tls", "ws", "wss"])
async def test_paho_clients_work(
    kind: str, version: MQTTProtocolVersion, authority: Authority
) -> None:
    port = free_port()
    tls = authority.settings() if kind in ("tls", "wss") else {}

    def dialogue() -> list[tuple[int, bytes]]:
        with paho(kind, version, authority, lambda one: one.connect("127.0.0.1", port)) as client:
            return client.echo()

    async with running_gateway(listeners=({"kind": kind, "port": port, **tls},)):
        received = await asyncio.to_thread(dialogue)
        assert received == [(qos, b"x" * 70_000) for qos in (0, 1, 2)]


async def test_paho_works_over_a_unix_socket(authority: Authority, tmp_path: Path) -> None:
    file = tmp_path / "mqtt.sock"

    def dialogue() -> list[tuple[int, bytes]]:
        client = PahoClient(CallbackAPIVersion.VERSION2, "paho", transport="unix")
        try:
            return Paho(client, lambda one: one.connect(str(file))).echo()
        finally:
            client.disconnect()
            client.loop_stop()

    async with running_gateway(listeners=({"kind": "unix", "file": file},)):
        assert len(await asyncio.to_thread(dialogue)) == 3
