"""The published case of broker federation on this machine: nine brokers in a grid of 3 x 3.

Mosquitto and a federator stand for each node, numbered by rows from 1 to 9. A client publishes 64
bytes at node 7; subscribers are at nodes 3 and 8. Published (Ribas and Spohn, J. Computer Science
18(7), 2022): means and deviations in milliseconds, at 500 and 1,000 messages. The delay of the
testbed's links is not stated there; here it is that of the loopback device.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

from bench.results.latencies import summary
from bench.systems.mosquitto import EXECUTABLE, await_listening, check_installed, settings_of
from ingest.federation.brokers.links import Link, LinkLimits
from ingest.federation.settings import BrokerSettings
from ingest.protocol.packets import Publish, Subscription
from launcher.ports import free_ports
from mqlake.errors import OperationalError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TOPIC: Final = "federated/grid"
PAYLOAD_BYTES: Final = 64
PUBLISHER: Final = 7
SUBSCRIBERS: Final = (3, 8)
START_SECONDS: Final = 60.0
WARM_UP: Final = 20
"""Messages in a row that both subscribers must have got before any counts."""

GRID: Final = {
    node: tuple(
        node + step
        for step, fits in ((-3, node > 3), (-1, node % 3 != 1), (1, node % 3), (3, node < 7))
        if fits
    )
    for node in range(1, 10)
}
PUBLISHED: Final = {
    "federation, node 3": {500: (17.21, 9.17), 1000: (16.71, 9.53)},
    "federation, node 8": {500: (9.51, 6.58), 1000: (12.35, 10.70)},
    "central broker at 3, node 3": {500: (19.81, 18.80), 1000: (17.66, 17.68)},
    "central broker at 3, node 8": {500: (3.33, 3.34), 1000: (5.04, 5.10)},
}
"""Milliseconds: mean and deviation by the number of messages."""


@dataclass
class Grid:
    """Brokers with federators beside them, each a process.

    Attributes:
        folder: For their files.
        neighbours: Node -> nodes that it has links to.
        settings: TOML that all federators share.
        protocols: Node -> protocol of its broker, 5.0 where none is named.
    """

    folder: Path
    neighbours: Mapping[int, Sequence[int]]
    settings: str = ""
    protocols: Mapping[int, str] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=dict)

    @contextmanager
    def running(self, *, with_federators: bool = True) -> Iterator[Grid]:
        """Run all of it, or the brokers alone, for the length of the block.

        Raises:
            OperationalError: There is no Mosquitto here.
        """
        check_installed()
        nodes = sorted(self.neighbours)
        self.ports = dict(zip(nodes, free_ports(len(nodes)), strict=True))
        try:
            for node in nodes:
                self.start_broker(node)
            for node in nodes if with_federators else ():
                self.start_federator(node)
            yield self
        finally:
            for process in self.processes.values():
                process.send_signal(signal.SIGTERM)
            for process in self.processes.values():
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def start_broker(self, node: int, settings: str = "") -> None:
        """Start a node's broker, with further lines of settings, and wait until it listens."""
        path = self.folder / f"mosquitto-{node}.conf"
        path.write_text(settings_of(self.ports[node]) + settings, encoding="utf-8")
        name = f"broker-{node}"
        self._start(name, [str(EXECUTABLE), "-c", str(path)])
        await_listening(self.ports[node], self.processes[name], START_SECONDS)

    def start_federator(self, node: int) -> None:
        """Start a node's federator."""
        path = self.folder / f"federation-{node}.toml"
        lines = [self.settings, f'state_dir = "{self.folder / f"state-{node}"}"']
        lines += ["[host]", *self._broker(node)]
        for other in self.neighbours[node]:
            lines += ["[[neighbors]]", *self._broker(other)]
        path.write_text("\n".join(lines), encoding="utf-8")
        program = [sys.executable, "-P", "-m", "ingest.federation.brokers"]
        self._start(f"federator-{node}", [*program, "--config", str(path)])

    def kill(self, name: str) -> None:
        """Kill `broker-<node>` or `federator-<node>` without warning."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def status(self, node: int) -> dict[str, Any]:
        """Return the status that a federator tells, {} when none yet."""
        try:
            path = self.folder / f"state-{node}" / "heartbeat.json"
            figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["figures"]
        except (OSError, ValueError):
            return {}
        return figures

    def _broker(self, node: int) -> list[str]:
        protocol = self.protocols.get(node, "5.0")
        uri = f"mqtt://127.0.0.1:{self.ports[node]}"
        return [f"id = {node}", f'uri = "{uri}"', f'protocol = "{protocol}"']

    def _start(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


class BrokerClient:
    """A client of one broker: publishes, subscribes, sends beacons.

    Attributes:
        arrivals: (topic name, payload, when by `time.perf_counter`), in the order of coming.
    """

    def __init__(self, port: int, name: str, topic_filter: str = "$none") -> None:
        self.arrivals: list[tuple[str, bytes, float]] = []
        self.up = asyncio.Event()
        self.link = Link(
            BrokerSettings(id=0, uri=f"mqtt://127.0.0.1:{port}"),
            name,
            self,
            subscriptions=[Subscription(topic_filter, 1)],
            limits=LinkLimits(
                keep_alive_seconds=60,
                max_queued=1_000_000,
                max_inflight=1_000,
                max_packet_bytes=1024 * 1024,
                max_pause_seconds=0.5,
            ),
        )
        self.task = asyncio.create_task(self.link.run())

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self.link.publish(Publish(topic, payload, 1, retain))

    def beacon(self, topic_filter: str) -> None:
        """Tell the broker's federator that there is a subscriber."""
        self.publish("federator/beacon", topic_filter.encode())

    async def close(self) -> None:
        self.link.close()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def link_is_up(self, link: Link) -> None:
        self.up.set()

    def link_is_down(self, link: Link) -> None:
        self.up.clear()

    def receive(self, link: Link, publish: Publish) -> None:
        self.arrivals.append((publish.topic_name, publish.payload, time.perf_counter()))
        if publish.packet_id:
            link.acknowledge([publish.packet_id])


def measure_grid(
    messages: int,
    rate: float,
    *,
    redundancy: int = 2,
    protocol: str = "5.0",
    kill: str | None = None,
) -> dict[str, Any]:
    """Run the published case once.

    Args:
        messages: How many are published.
        rate: Messages a second.
        redundancy: Parents in a mesh.
        protocol: Version of MQTT.
        kill: `broker-<node>` or `federator-<node>`, killed when half of them are published; the
            longest latency is then the time of the repair.

    Returns:
        Latencies in milliseconds by subscriber, and how it was measured.

    Raises:
        OperationalError: The mesh does not come up, or messages are lost.
    """
    with tempfile.TemporaryDirectory(prefix="mqlake-federation-") as folder:
        settings = f"redundancy = {redundancy}\n"
        grid = Grid(Path(folder), GRID, settings, dict.fromkeys(GRID, protocol))
        with grid.running():
            latencies = uvloop.run(_measure(grid, messages, rate, kill))
    return {
        "messages": messages,
        "rate": rate,
        "redundancy": redundancy,
        "protocol": protocol,
        "link_delay_ms": 0,
        "killed": kill,
        "nodes": {f"node {node}": summary(values) for node, values in latencies.items()},
    }


async def _measure(
    grid: Grid, messages: int, rate: float, kill: str | None
) -> dict[int, list[float]]:
    subscribers = {
        node: BrokerClient(grid.ports[node], f"subscriber-{node}", TOPIC) for node in SUBSCRIBERS
    }
    publisher = BrokerClient(grid.ports[PUBLISHER], "publisher")
    clients = [publisher, *subscribers.values()]
    beacons = asyncio.create_task(_send_beacons(list(subscribers.values())))
    try:
        async with asyncio.timeout(START_SECONDS):
            for client in clients:
                await client.up.wait()
            await _warm_up(publisher, list(subscribers.values()))
        sent: dict[bytes, float] = {}
        begin = time.perf_counter()
        for number in range(messages):
            await asyncio.sleep(max(0.0, begin + number / rate - time.perf_counter()))
            payload = f"message {number} ".ljust(PAYLOAD_BYTES, ".").encode()
            sent[payload] = time.perf_counter()
            publisher.publish(TOPIC, payload)
            if kill is not None and number == messages // 2:
                grid.kill(kill)
        await _wait_for(lambda: all(_count(one) >= messages for one in subscribers.values()))
        found: dict[int, list[float]] = {}
        for node, client in subscribers.items():
            arrived = [(p, at) for _, p, at in client.arrivals if p in sent]
            if [payload for payload, _ in arrived] != list(sent):
                raise OperationalError(
                    f"node {node} got {len(arrived)} messages of {messages}, or not in order"
                )
            found[node] = [1000 * (at - sent[payload]) for payload, at in arrived]
        return found
    finally:
        beacons.cancel()
        for client in clients:
            await client.close()


async def _send_beacons(clients: Sequence[BrokerClient]) -> None:
    while True:
        for client in clients:
            client.beacon(TOPIC)
        await asyncio.sleep(1.0)


async def _warm_up(publisher: BrokerClient, subscribers: Sequence[BrokerClient]) -> None:
    """Publish until everything that is published arrives."""
    number = in_a_row = 0
    while in_a_row < WARM_UP:
        number += 1
        probe = f"probe {number}".encode()
        publisher.publish(TOPIC, probe)
        await asyncio.sleep(0.1)
        came = all(any(p == probe for _, p, _ in one.arrivals) for one in subscribers)
        in_a_row = in_a_row + 1 if came else 0


def _count(client: BrokerClient) -> int:
    return sum(payload.startswith(b"message") for _, payload, _ in client.arrivals)


async def _wait_for(is_done: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_done() and time.monotonic() < deadline:  # noqa: ASYNC110 - arrivals are a list
        await asyncio.sleep(0.02)


def to_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the figures as a table, the published ones beside."""
    lines = [
        (
            f"{result['messages']} messages of {PAYLOAD_BYTES} bytes at {result['rate']:.0f}/s "
            f"from node {PUBLISHER}, redundancy {result['redundancy']}, MQTT {result['protocol']}, "
            "QoS 1, links without added delay; milliseconds"
        ),
        "",
        f"{'':<28}{'mean':>8}{'dev':>8}{'p50':>8}{'p99':>8}{'max':>8}",
    ]
    for name, values in result["nodes"].items():
        figures = "".join(
            f"{values[part]:>8.2f}" for part in ("mean", "deviation", "p50", "p99", "max")
        )
        lines.append(f"{'here, ' + name:<28}{figures}")
    if result["killed"]:
        longest = max(values["max"] for values in result["nodes"].values())
        lines.append(
            f"{result['killed']} killed half-way: none lost, none twice, all in order; the message "
            f"that waited longest for the repair waited {longest / 1000:.2f} s"
        )
        return lines
    for name, by_count in PUBLISHED.items():
        nearest = min(by_count, key=lambda count: abs(count - result["messages"]))
        mean, deviation = by_count[nearest]
        lines.append(f"{name:<28}{mean:>8.2f}{deviation:>8.2f}  published, {nearest} messages")
    return lines
