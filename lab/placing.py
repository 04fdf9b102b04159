"""The published experiments with real HAProxy, control plane and clients, before modelled nodes.

Each client is a connection through HAProxy, the control plane is a process that probes and scrapes
the nodes, and the CPU that a node reports is modelled from the clients that it has. Scaled:
`SCALE` of the published numbers of clients and topics; the time of the model, in which clients
come, nodes work and the control plane looks, is `HASTE` times as fast. A part of the messages is
sent, acknowledged and delivered, `SENT` of those that the model counts.
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, cast

import uvloop

from bench.results.figures import Figures, figure
from bench.systems.proxied import await_ready, control_plane, is_ready, running
from ingest.balancer.placement import STRATEGIES, Strategy
from ingest.open_files import raise_open_files
from ingest.protocol.decoder import NEED_DATA, Decoder
from ingest.protocol.encoder import encode
from ingest.protocol.fixed_header import Role
from ingest.protocol.packets import Connack, Connect, Puback, Publish, Subscribe, Subscription
from lab.balancing import NAMES
from lab.experiments import ARRIVAL_SECONDS, LOOK_SECONDS
from lab.load_model import LoadModel, PlacingOutcome
from lab.modelled_nodes import CPU_METRIC, LEVEL, ModelledNodes
from lab.waves import (
    EXPERIMENTS,
    PUBLISHED,
    WaveClient,
    expected_lines,
    waves_of,
)
from launcher.planning.balancing import find_haproxy
from launcher.ports import free_ports

RUNS: Final = 3
SCALE: Final = 0.25
HASTE: Final = 10.0
SENT: Final = 0.001
WINDOW_SECONDS: Final = 60.0
"""Window of mean CPU, in the time of the model."""
GATHERED_SECONDS: Final = 2.0
"""In which the control plane has placed those who hear the same, at the nodes that it has."""
LAST_SECONDS: Final = 30.0
"""For messages on their way at the end."""
LOOK_AGAIN_SECONDS: Final = 0.1


def measure_placing(
    seed: int, strategies: Sequence[Strategy] = STRATEGIES, scale: float = SCALE
) -> Figures:
    """Repeat the experiments with every strategy.

    Args:
        seed: Seed of all random choices.
        strategies: Strategies to compare.
        scale: Part of the published numbers of clients.

    Raises:
        OperationalError: There is no HAProxy, or a part does not start.
    """
    haproxy = find_haproxy()
    raise_open_files()
    figures: Figures = {}
    for strategy in strategies:
        begin = f"placing by {NAMES[strategy]}"
        total = 0.0
        for number, name in enumerate(EXPERIMENTS):
            outcome, sent, lost, copies = uvloop.run(_run(haproxy, number, strategy, scale, seed))
            of_one = f"{begin}, {name}"
            figures[figure(f"{of_one}, deviation of CPU", "points")] = outcome.deviation
            figures[figure(f"{of_one}, lost", "%")] = outcome.lost_percent
            figures[figure(f"{of_one}, delivery p99", "model ms")] = outcome.p99_ms
            figures[figure(f"{of_one}, copies per message", "")] = copies
            figures[figure(f"{of_one}, sent", "messages")] = sent
            figures[figure(f"{of_one}, of these lost", "")] = lost
            if number < len(PUBLISHED):
                total += outcome.deviation
        figures[figure(f"{begin}, deviation of CPU, all three", "points")] = total
    return figures


async def _run(
    haproxy: str, number: int, strategy: Strategy, scale: float, seed: int
) -> tuple[PlacingOutcome, int, int, float]:
    """Return how it ends by the model, the messages sent, those lost, and copies of a message."""
    random = Random(seed)  # noqa: S311 - not for secrets
    waves = waves_of(number, scale, random)
    cores = {name: one for wave in waves for name, one in wave.joins.items()}
    port, *ports = free_ports(1 + 2 * len(cores))
    places = dict(zip(cores, zip(ports[::2], ports[1::2], strict=True), strict=True))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mqlake-placing-")))
        everybody = [client for wave in waves for client in wave.clients]
        (folder / "loads.csv").write_text("\n".join(expected_lines(everybody, random)))
        plane = stack.enter_context(
            control_plane(folder, _settings(folder, strategy, port, cores, places))
        )
        configuration = folder / "haproxy.cfg"
        written = partial(await_ready, "it writes no haproxy.cfg", configuration.exists, plane)
        await asyncio.to_thread(written)
        proxy = stack.enter_context(
            running([haproxy, "-W", "-f", str(configuration)], folder / "haproxy.log")
        )
        nodes = ModelledNodes(LoadModel(waves), {client.name: client for client in everybody})
        passing = asyncio.create_task(_pass_time(nodes.model))
        stack.callback(passing.cancel)
        crowd = _Crowd(port, random)
        stack.callback(crowd.leave)
        for wave in waves:
            for name, count in wave.joins.items():
                await stack.enter_async_context(nodes.serve(name, count, *places[name]))
            joined = partial(is_ready, folder, len(nodes.model.nodes))
            await asyncio.to_thread(await_ready, "nodes take no clients", joined, plane, proxy)
            await asyncio.sleep(GATHERED_SECONDS)
            await crowd.admit(wave.clients)
        lost = await crowd.end(nodes)
        return nodes.model.outcome(), crowd.published, lost, nodes.copied / nodes.matched


async def _pass_time(model: LoadModel) -> None:
    """Have the model's seconds pass; those that this machine was too busy for are made up for."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while True:
        await asyncio.sleep(1 / HASTE)
        while model.seconds < (loop.time() - begin) * HASTE:
            model.pass_second()


def _settings(
    folder: Path,
    strategy: Strategy,
    port: int,
    cores: Mapping[str, float],
    places: Mapping[str, tuple[int, int]],
) -> str:
    text = (
        f'strategy = "{strategy}"\nslots = {len(cores)}\nmax_connections = 4000\n'
        f"[weights]\nscrape_seconds = {LOOK_SECONDS / HASTE}\n"
        f"window_seconds = {WINDOW_SECONDS / HASTE}\n"
        f'cpu_kind = "gauge"\ncpu_metric = "{CPU_METRIC}"\n'
        "[probe]\nevery_seconds = 1\nwindow_seconds = 10\nfall = 3\n"
        f'[predicted]\nloads_file = "{folder}/loads.csv"\n'
        f'[[proxies]]\nname = "bench"\nruntime_api = "{folder}/haproxy.sock"\n'
        f'configuration_file = "{folder}/haproxy.cfg"\nmap_file = "{folder}/buckets.map"\n'
        f'talkers_file = "{folder}/talkers.map"\n'
        f'[[frontends]]\nname = "mqtt"\nbind = "127.0.0.1:{port}"\n'
    )
    for name, (node_port, metrics_port) in places.items():
        text += (
            f'[[nodes]]\nname = "{name}"\nhost = "127.0.0.1"\nport = {node_port}\n'
            f"capacity = {cores[name]}\n"
            f'metrics_url = "http://127.0.0.1:{metrics_port}/metrics"\n'
        )
    return text


class _Crowd:
    """All clients.

    Args:
        port: Port of HAProxy.
        random: Says when within its interval a client begins to publish.
    """

    def __init__(self, port: int, random: Random) -> None:
        self._port = port
        self._random = random
        self._clients: list[_Client] = []
        self.is_publishing = True
        self.published = self.acknowledged = self.received = 0

    async def admit(self, clients: Sequence[WaveClient]) -> None:
        """Let clients come, spread over the time of a wave."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for number, client in enumerate(clients):
            at = begin + ARRIVAL_SECONDS / HASTE * number / len(clients)
            await asyncio.sleep(max(0.0, at - loop.time()))
            one = _Client(self, client, self._random.random())
            await loop.create_connection(partial(_as_it_is, one), "127.0.0.1", self._port)
            self._clients.append(one)
        # A client that is not let in would be missing from the load.
        async with asyncio.timeout(LAST_SECONDS):
            while not all(one.is_connected for one in self._clients):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def end(self, nodes: ModelledNodes) -> int:
        """Publish no more; return how many messages or deliveries have not come in time."""
        self.is_publishing = False
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LAST_SECONDS
        while True:
            lost = self.published - self.acknowledged + nodes.sent - self.received
            if not lost or loop.time() > deadline:
                return lost
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    def leave(self) -> None:
        for one in self._clients:
            one.leave()


class _Client(asyncio.Protocol):
    def __init__(self, crowd: _Crowd, client: WaveClient, phase: float) -> None:
        self._crowd = crowd
        self._client = client
        self._phase = phase
        self._decoder = Decoder(LEVEL, role=Role.CLIENT)
        self._transport: asyncio.Transport | None = None
        self._packet_id = 0
        self.is_connected = False
        self._topic = str(client.topic) if client.topic >= 0 else f"of {client.name}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(encode(Connect(self._client.name, LEVEL), LEVEL))

    def connection_lost(self, _exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._decoder.receive_data(data)
        while (packet := self._decoder.next_packet()) is not NEED_DATA:
            match packet:
                case Publish():
                    self._crowd.received += 1
                case Puback():
                    self._crowd.acknowledged += 1
                case Connack():
                    self._begin()

    def leave(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _begin(self) -> None:
        self.is_connected = True
        client, loop = self._client, asyncio.get_running_loop()
        if client.subscribed:
            topics = [Subscription(str(topic)) for topic in client.subscribed]
            self._send(encode(Subscribe(1, topics), LEVEL))
        if client.rate:
            interval = 1 / (client.rate * SENT * HASTE)
            loop.call_later(self._phase * interval, self._publish, interval)

    def _publish(self, interval: float) -> None:
        if self._transport is None or not self._crowd.is_publishing:
            return
        self._packet_id = self._packet_id % 65_535 + 1
        self._crowd.published += 1
        message = Publish(self._topic, b"", qos=1, packet_id=self._packet_id)
        self._send(encode(message, LEVEL))
        asyncio.get_running_loop().call_later(interval, self._publish, interval)

    def _send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _as_it_is(client: _Client) -> _Client:
    return client
