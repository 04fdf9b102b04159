"""What the balancer's tests share: real HAProxy, real Mosquitto, many clients on raw sockets."""

import asyncio
import contextlib
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ingest.balancer.control_plane import ControlPlane
from ingest.balancer.haproxy.commands import parse_servers
from ingest.balancer.haproxy.configuration import render
from ingest.balancer.haproxy.runtime_api import ProxyError, RuntimeApi
from ingest.balancer.settings import BalancerSettings
from ingest.balancer.snapshot import Snapshot
from ingest.protocol.encoder import encode
from ingest.protocol.packets import Connect, Publish, Subscribe, Subscription
from mqlake.clock import SystemClock
from mqlake.log.contract import LogAccess
from tests.ingest.gateway.harness import free_port
from tests.waiting import until as until

DEADLINE_SECONDS = 120.0
"""Of what other processes do; never reached where they do it."""
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
CONNACK_3 = b"\x20\x02\x00\x00"


_opened: list[asyncio.StreamWriter] = []


async def open_connection(
    port: int, **more: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a port of this machine; what is left open is cut at the end of the test."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **more)
    _opened.append(writer)
    return reader, writer


async def cut_connections() -> None:
    while _opened:
        writer = _opened.pop()
        writer.close()
        writer.transport.abort()
    await asyncio.sleep(0)


class Haproxy:
    """A master process of HAProxy with its own configuration."""

    def __init__(self, program: str, folder: Path, name: str = "proxy-1") -> None:
        self.name = name
        self.configuration = folder / f"{name}.cfg"
        self.map_file = folder / f"{name}.map"
        self.talkers_file = folder / f"{name}-talkers.map"
        self.socket = folder / f"{name}.sock"
        self._program = program
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.api = RuntimeApi(str(self.socket))

    def settings(self, **more: Any) -> dict[str, Any]:
        return {
            "name": self.name,
            "runtime_api": str(self.socket),
            "configuration_file": self.configuration,
            "map_file": self.map_file,
            "talkers_file": self.talkers_file,
            **more,
        }

    def write(self, settings: BalancerSettings, port: int | None = None) -> None:
        """Write a configuration without nodes; with a port in the place of `*:1`.

        Proxies of one machine differ in their ports, those of several do not. Many clients of one
        busy process may send their CONNECT seconds after they have connected: they are waited for.
        """
        layout = replace(settings.layout(), inspect_seconds=DEADLINE_SECONDS)
        proxy = next(one for one in layout.proxies if one.name == self.name)
        for file in (self.map_file, self.talkers_file):
            file.write_text("", encoding="utf-8")
        text = render(layout, proxy, Snapshot())
        if port is not None:
            text = text.replace("bind *:1\n", f"bind 127.0.0.1:{port}\n")
        self.configuration.write_text(text, encoding="utf-8")

    def is_enabled_in_file(self, port: int) -> bool:
        """Tell whether a worker that starts now gives clients to the node with this port.

        Workers that run are told sooner than the file is written.
        """
        lines = self.configuration.read_text(encoding="utf-8").splitlines()
        servers = [line for line in lines if f":{port} " in line]
        return bool(servers) and not any(line.endswith(" disabled") for line in servers)

    def check(self) -> str:
        """Return what HAProxy has to say of the configuration."""
        done = subprocess.run(
            [self._program, "-c", "-q", "-f", self.configuration],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stderr + done.stdout

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - does not block for long
                [self._program, "-W", "-f", self.configuration], stdout=log, stderr=log
            )
        await self.answers()
        await until(self._may_be_reloaded)

    def _may_be_reloaded(self) -> bool:
        """Tell whether the master process catches SIGUSR2: some time after its worker answers.

        Before, the signal ends it.
        """
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) & 1 << signal.SIGUSR2 - 1)

    async def answers(self, but: str = "") -> str:
        """Wait until a worker answers, another than the one named; return its PID."""
        pid = ""

        async def look() -> bool:
            nonlocal pid
            assert self._process is not None
            assert self._process.poll() is None, self._log.read_text(encoding="utf-8")
            pid = await self.pid()
            return pid not in ("", but)

        await until(look)
        return pid

    async def pid(self) -> str:
        try:
            answer = await self.api.ask("show info")
        except ProxyError:
            return ""
        lines = dict(line.partition(": ")[::2] for line in answer.splitlines())
        return lines.get("Pid", "")

    async def reload(self) -> None:
        """Start a new worker; the old one stays for the connections that it has."""
        before = await self.pid()
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR2)
        await self.answers(but=before)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()  # SIGTERM: the workers go at once
            self._process.wait(DEADLINE_SECONDS)
            self._process = None

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    async def sessions(self, backend: str) -> dict[str, int]:
        """Return how many connections each slot of a backend has been given."""
        answer = await self.api.ask("show stat")
        rows = [line.split(",") for line in answer.splitlines() if line]
        columns = rows[0]
        name, server = columns.index("# pxname"), columns.index("svname")
        total = columns.index("stot")
        return {
            row[server]: int(row[total])
            for row in rows[1:]
            if row[name] == backend and row[server].startswith("s")
        }


@dataclass
class Broker:
    """A Mosquitto; the retained message of the topic `node` says which."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(DEADLINE_SECONDS)


async def start_broker(program: str, folder: Path, name: str, port: int | None = None) -> Broker:
    port = port or free_port()
    file = folder / f"{name}.conf"
    file.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nlog_type none\nmax_connections -1\n"
    )
    process = subprocess.Popen([program, "-c", file])  # noqa: ASYNC220 - as above
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await _name(process, port, name)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return Broker(name, port, process)


async def _name(process: subprocess.Popen[bytes], port: int, name: str) -> None:
    """Let a broker say who it is to whoever asks."""
    opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def opens() -> bool:
        assert process.poll() is None
        with contextlib.suppress(OSError):
            opened.append(await open_connection(port))
        return bool(opened)

    await until(opens)
    reader, writer = opened.pop()
    writer.write(encode(Connect("naming", 4), 4))
    await reader.readexactly(4)
    writer.write(encode(Publish("node", name.encode(), 1, True, packet_id=1), 4))
    await reader.readexactly(4)
    writer.close()


@contextlib.asynccontextmanager
async def brokers(program: str, folder: Path, count: int = 3) -> AsyncIterator[list[Broker]]:
    async with AsyncExitStack() as stack:
        found = []
        for number in range(1, count + 1):
            broker = await start_broker(program, folder, f"node-{number}")
            stack.callback(broker.stop)
            found.append(broker)
        yield found


class LiveClient:
    """A client with an open connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.node = ""

    @classmethod
    async def connect(cls, port: int, client_id: str, level: int = 4) -> "LiveClient":
        """Connect, and ask the node who it is."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            reader, writer = await open_connection(port)
            client = cls(reader, writer)
            subscribe = Subscribe(1, [Subscription("node")])
            writer.write(encode(Connect(client_id, level), level) + encode(subscribe, level))
            await client._receive_node()
        return client

    async def _receive_node(self) -> None:
        received = b""
        while b"node-" not in received:
            data = await self._reader.read(4096)
            assert data, f"closed after {received!r}"
            received += data
        self.node = received[received.index(b"node-") :].decode()

    async def is_alive(self) -> bool:
        """Tell whether the connection is as good as it was."""
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                self._writer.write(PINGREQ)
                return await self._reader.readexactly(2) == PINGRESP
        except (OSError, asyncio.IncompleteReadError):
            return False

    def close(self) -> None:
        self._writer.close()


async def connect_many(
    ports: Sequence[int], names: Sequence[str], *, at_once: int = 50
) -> dict[str, LiveClient]:
    """Connect clients by turns over some ports."""
    places = asyncio.Semaphore(at_once)

    async def connect(number: int, name: str) -> LiveClient:
        async with places:
            return await LiveClient.connect(ports[number % len(ports)], name)

    clients = await asyncio.gather(*(connect(number, one) for number, one in enumerate(names)))
    return dict(zip(names, clients, strict=True))


async def all_alive(clients: dict[str, LiveClient]) -> bool:
    return all(await asyncio.gather(*(client.is_alive() for client in clients.values())))


def by_node(clients: dict[str, LiveClient]) -> Counter[str]:
    return Counter(client.node for client in clients.values())


async def has_ready_servers(proxy: Haproxy, count: int) -> None:
    async def are_ready() -> bool:
        servers = parse_servers(await proxy.api.ask("show servers state"))
        return sum(server.is_ready for server in servers.values()) >= count

    await until(are_ready)


@dataclass
class System:
    """A control plane that runs in this process."""

    plane: ControlPlane
    stop: asyncio.Event
    task: asyncio.Task[None]
    settings: BalancerSettings
    killed: bool = field(default=False)

    def at_rest(self) -> bool:
        """Tell whether all proxies have the snapshot in force."""
        version = self.plane.snapshot.version
        return all(driver.state.version == version for driver in self.plane.drivers)

    def taking(self) -> set[str]:
        return {node.name for node in self.plane.snapshot.nodes if node.takes_clients}

    async def takes(self, *names: str) -> None:
        """Wait until just these nodes take clients, and all proxies know it."""
        try:
            await until(lambda: self.taking() == set(names) and self.at_rest())
        except TimeoutError:
            pytest.fail(f"expected {names} to take clients: {self.plane.describe()}")

    async def kill(self) -> None:
        """End without a word to anybody."""
        self.task.cancel()
        await asyncio.wait([self.task])


@contextlib.asynccontextmanager
async def running_plane(
    settings: BalancerSettings, log: LogAccess | None = None
) -> AsyncIterator[System]:
    plane = ControlPlane(settings, SystemClock(), log)
    stop = asyncio.Event()
    task = asyncio.create_task(plane.run(stop))
    try:
        yield System(plane, stop, task, settings)
    finally:
        stop.set()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def quick_settings(folder: Path, driven: Sequence[Haproxy], **more: Any) -> BalancerSettings:
    """Return settings that find things out fast."""
    defaults: dict[str, Any] = {
        "strategy": "weighted_cpu",
        "slots": 6,
        "max_connections": 4_000,
        "repair_seconds": 0.1,
        "control_socket": folder / "balancer.sock",
        "state_file": folder / "state.json",
        "probe": {"every_seconds": 0.1, "window_seconds": 5.0},
        "weights": {"scrape_seconds": 0.1, "window_seconds": 5.0, "cpu_kind": "gauge"},
        "discovery": {"least_seconds": 0.1, "most_seconds": 0.1},
        "proxies": [one.settings() for one in driven],
    }
    return BalancerSettings(**{**defaults, **more})


def listed(*found: Broker) -> list[dict[str, Any]]:
    return [{"name": one.name, "host": "127.0.0.1", "port": one.port} for one in found]


@contextlib.contextmanager
def stopping(*proxies: Haproxy) -> Iterator[None]:
    try:
        yield
    finally:
        for proxy in proxies:
            proxy.stop()
