"""The control plane: it finds nodes, looks at them, and keeps every proxy at one snapshot.

Tasks feed the `Fleet`, which is pure; whenever its snapshot is another version, all drivers
follow that. The snapshot is not changed before every source has named its nodes once, nor to one
without nodes: until then proxies have the last good one.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ingest.balancer.discovery.addresses import Addresses
from ingest.balancer.discovery.dns import DnsError, DnsSource, Resolver
from ingest.balancer.discovery.gateways import GatewaySource
from ingest.balancer.drains import Drains
from ingest.balancer.fleet import Fleet, Node
from ingest.balancer.haproxy.configuration import maps_of, render, render_map
from ingest.balancer.haproxy.driver import Driver
from ingest.balancer.history import BalancerHistory
from ingest.balancer.loads_file import LoadsFile
from ingest.balancer.probe import Probe, ProbeCredentials
from ingest.balancer.scraping import ScrapeError, read_metric, scrape
from ingest.balancer.state_file import Remembered, encode_state, load_state
from mqlake.durable import write_durably

if TYPE_CHECKING:
    from ingest.balancer.settings import BalancerSettings
    from ingest.balancer.snapshot import Snapshot
    from mqlake.clock import Clock
    from mqlake.log.contract import LogAccess

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 1.0
"""Time alone changes a snapshot too: windows pass, leases end."""

_GATEWAYS: Final = "gateways"
_LISTED: Final = "listed"


class ControlPlane:
    """Everything that runs in the process.

    Args:
        settings: Settings of the control plane.
        clock: Its monotonic time counts.
        log: Needed for the gateways of the log; None without them.
    """

    def __init__(
        self, settings: BalancerSettings, clock: Clock, log: LogAccess | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._layout = settings.layout()
        remembered = load_state(settings.state_file)
        self.snapshot = remembered.snapshot
        self.fleet = Fleet(settings.policy(), remembered.snapshot, remembered.draining)
        self.drivers = [
            Driver(self._layout, proxy, settings.repair_seconds) for proxy in self._layout.proxies
        ]
        self.drains = Drains(self.drivers, log)
        self.probes = {"passed": 0, "failed": 0}
        self.scrapes = {"passed": 0, "failed": 0}
        self.snapshots = 0
        self.file_problem = ""
        self.gathered_at: float | None = None
        """When clients with a place of their own were placed, in seconds since 1970."""
        login = settings.probe
        secret = None if login.password is None else login.password.get_secret_value().encode()
        self._probe = Probe(
            login.window_seconds,
            login.concurrency,
            login.topic_prefix,
            ProbeCredentials(login.username, secret),
        )
        self._addresses = Addresses(clock)
        self._found: dict[str, list[Node] | None] = {}
        self._sources: list[tuple[str, DnsSource]] = []
        resolver = Resolver(settings.discovery.dns_servers)
        for one in settings.discovery.dns:
            key = f"{one.kind} {one.name}:{one.port}"
            source = DnsSource(resolver, one.name, one.kind, one.port, one.metrics_url)
            self._sources.append((key, source))
            self._found[key] = None
        self._gateways: GatewaySource | None = None
        if settings.discovery.gateways:
            assert log is not None
            self._found[_GATEWAYS] = None
            self._gateways = GatewaySource(
                log.open_reader(),
                clock,
                settings.discovery.lease_seconds,
                self._wake,
                settings.discovery.gateway_host,
                settings.discovery.gateway_metrics_url,
            )
        if settings.nodes or not self._found:
            self._found[_LISTED] = [_listed(one) for one in settings.nodes]
        self._woken = asyncio.Event()
        self._unwritten = asyncio.Event()
        self.loads: LoadsFile | None = None
        self._history: BalancerHistory | None = None
        if (file := settings.predicted.loads_file) is not None:
            self.loads = LoadsFile(file, self._layout.buckets, settings.predicted.talkers)
            if settings.history.data_dir is not None:
                self._history = BalancerHistory(settings.history, settings.tenants(), file, clock)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. Proxies keep their state.

        Raises:
            LogError: The log cannot be read at the start.
        """
        if self._gateways is not None:
            await self._gateways.open()
        try:
            async with asyncio.TaskGroup() as group:
                loops = [
                    self._keep_snapshot(),
                    self._write_files(),
                    self._probe_nodes(),
                    self._scrape_nodes(),
                    *(self._follow_dns(key, source) for key, source in self._sources),
                    *(driver.run() for driver in self.drivers),
                    self.drains.run(),
                    *([self._history.run()] if self._history is not None else []),
                ]
                tasks = [group.create_task(loop) for loop in loops]
                self._apply(self.snapshot)
                await stop.wait()
                for task in tasks:
                    task.cancel()
        finally:
            if self._gateways is not None:
                await self._gateways.close()

    async def drain(self, name: str, connections_per_second: float) -> str:
        """Give a node no new clients; when all proxies know that, let its clients go.

        Returns:
            Why not; empty: it begins.
        """
        node = next((one for one in self.fleet.nodes if one.name == name), None)
        if node is None or not self.fleet.drain(name, is_draining=True):
            return f"there is no node {name}"
        self._update()
        self._unwritten.set()
        slot = next((one.slot for one in self.snapshot.nodes if one.name == name), None)
        self.drains.begin(node, slot, connections_per_second)
        return ""

    async def undrain(self, name: str) -> str:
        """Give a node clients again.

        Returns:
            Why not; empty: it is done.

        Raises:
            LogError: A gateway cannot be asked; the node stays drained.
        """
        node = next((one for one in self.fleet.nodes if one.name == name), None)
        if node is None:
            return f"there is no node {name}"
        await self.drains.end(node)
        self.fleet.drain(name, is_draining=False)
        self._update()
        self._unwritten.set()
        return ""

    def health(self) -> tuple[bool, str]:
        """Tell whether all is as it should be, and in one line all that is not."""
        problems = [
            f"proxy {one.state.name}: {one.state.problem}"
            for one in self.drivers
            if one.state.problem
        ]
        problems += [
            f"{key}: no nodes found yet" for key, found in self._found.items() if found is None
        ]
        if self.fleet.left_out:
            problems.append(f"no slot for {', '.join(self.fleet.left_out)}: raise slots")
        if not any(node.takes_clients for node in self.snapshot.nodes):
            problems.append("no node takes clients")
        if self.file_problem:
            problems.append(self.file_problem)
        if problems:
            return False, "; ".join(problems)
        taking = sum(node.takes_clients for node in self.snapshot.nodes)
        return True, f"{taking} of {len(self.snapshot.nodes)} nodes take clients"

    def now(self) -> float:
        """Return the time that counts, monotonic."""
        return self._clock.monotonic()

    def describe(self) -> dict[str, Any]:
        """Return all there is to know, for people."""
        healthy, detail = self.health()
        return {
            "healthy": healthy,
            "detail": detail,
            "strategy": self._settings.strategy,
            "version": self.snapshot.version,
            "talkers": len(self.snapshot.talkers),
            "loads": self._describe_loads(),
            "nodes": self.fleet.describe(self.now()),
            "left_out": self.fleet.left_out,
            "proxies": [asdict(driver.state) for driver in self.drivers],
            "drains": self.drains.describe(),
        }

    def _describe_loads(self) -> dict[str, Any]:
        made_at = None if self.loads is None else self.loads.made_at
        problem = "" if self.loads is None else self.loads.problem
        if not problem and self._history is not None:
            problem = self._history.state.problem
        return {
            "made_at": made_at and datetime.fromtimestamp(int(made_at), UTC).isoformat(),
            "problem": problem,
        }

    def _wake(self) -> None:
        self._woken.set()

    async def _keep_snapshot(self) -> None:
        while True:
            self._woken.clear()
            await self._discover()
            if self.loads is not None and (expected := await self.loads.changed()) is not None:
                self.fleet.expect(expected)
            self._update()
            await self._gather()
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def _discover(self) -> None:
        gateways = self._gateways
        if gateways is not None and gateways.is_read:
            self._found[_GATEWAYS] = gateways.nodes()
        lists = list(self._found.values())
        if any(found is None for found in lists):
            return
        nodes = {node.name: node for found in lists for node in found or ()}
        placed = await self._addresses.of(nodes.values())
        if placed:
            self.fleet.discover(placed, self._clock.monotonic())

    def _update(self) -> None:
        """Put the fleet's snapshot in force if it is another one."""
        if not self.fleet.nodes:
            return
        snapshot = self.fleet.snapshot(self._clock.monotonic())
        # A version is worked out only for another snapshot, not every second.
        if snapshot != self.snapshot and snapshot.version != self.snapshot.version:
            self.snapshots += 1
            self._apply(snapshot)

    async def _gather(self) -> None:
        gathering = self.fleet.gathering()
        if gathering is not None:
            self.fleet.gathered(await asyncio.to_thread(gathering.run))
            self.gathered_at = self._clock.now_ms() / 1000
            self._update()

    def _apply(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._unwritten.set()
        if snapshot.nodes:
            for driver in self.drivers:
                driver.follow(snapshot)

    async def _write_files(self) -> None:
        while True:
            await self._unwritten.wait()
            self._unwritten.clear()
            try:
                await asyncio.to_thread(self._write, self.snapshot, self.fleet.draining)
                self.file_problem = ""
            except OSError as exc:  # a full disk: proxies are driven all the same
                self.file_problem = f"snapshot not written: {exc}"
                logger.warning("snapshot not written", extra={"fields": {"reason": str(exc)}})

    def _write(self, snapshot: Snapshot, draining: frozenset[str]) -> None:
        write_proxy_files(self._settings, snapshot)
        write_durably(self._settings.state_file, encode_state(Remembered(snapshot, draining)))

    async def _follow_dns(self, key: str, source: DnsSource) -> None:
        discovery = self._settings.discovery
        problem = ""
        while True:
            try:
                self._found[key] = await source.find()
                problem = ""
                self._wake()
            except DnsError as exc:
                # Known nodes stay: an answer that is missing says nothing of them.
                if problem != str(exc):
                    problem = str(exc)
                    fields = {"name": key, "reason": problem}
                    logger.warning("name not found out", extra={"fields": fields})
            pause = max(discovery.least_seconds, source.ttl_seconds)
            await asyncio.sleep(min(pause, discovery.most_seconds))

    async def _probe_nodes(self) -> None:
        await self._regularly(self._settings.probe.every_seconds, self._probe_one)

    async def _probe_one(self, node: Node) -> None:
        port = node.mqtt_port
        if port is None:
            self.fleet.note_probe(node.name, "it has no port of MQTT over TCP", definite=True)
            return
        outcome = await self._probe.run(node.address, port)
        self.probes["failed" if outcome.reason else "passed"] += 1
        if self.fleet.note_probe(node.name, outcome.reason, definite=outcome.definite):
            self._update()

    async def _scrape_nodes(self) -> None:
        await self._regularly(self._settings.weights.scrape_seconds, self._scrape_one)

    async def _scrape_one(self, node: Node) -> None:
        if not node.metrics_url:
            return
        try:
            page = await scrape(node.metrics_url, self._settings.probe.window_seconds)
        except ScrapeError as exc:
            self.scrapes["failed"] += 1
            logger.debug("no metrics", extra={"fields": {"node": node.name, "reason": str(exc)}})
            return
        self.scrapes["passed"] += 1
        now = self._clock.monotonic()
        cpu = read_metric(page, self._settings.weights.cpu_metric)
        if cpu is not None:
            self.fleet.note_cpu(node.name, now, cpu)
        level = read_metric(page, self._settings.overload.metric)
        if level is not None and self.fleet.note_overload(node.name, now, level):
            self._update()

    async def _regularly(self, seconds: float, look: Any) -> None:
        """Look at each node once in a while, spread over that time, a new one at once."""
        loop = asyncio.get_running_loop()
        due: dict[str, float] = {}
        running: dict[str, asyncio.Task[None]] = {}
        step = min(0.25, seconds / 4)
        try:
            while True:
                now = loop.time()
                nodes = {node.name: node for node in self.fleet.nodes}
                due = {name: at for name, at in due.items() if name in nodes}
                for name, node in nodes.items():
                    task = running.get(name)
                    if task is not None and task.done():
                        task.result()
                        task = None
                    if task is None and now >= due.get(name, now):
                        due[name] = now + seconds
                        running[name] = loop.create_task(look(node))
                await asyncio.sleep(step)
        finally:
            for task in running.values():
                task.cancel()


def write_proxy_files(settings: BalancerSettings, snapshot: Snapshot) -> None:
    """Write the files of all proxies that are on this machine.

    Raises:
        OSError: One cannot be written.
    """
    layout = settings.layout()
    for proxy, files in zip(layout.proxies, settings.proxies, strict=True):
        if files.configuration_file is None:
            continue
        text = render(layout, proxy, snapshot)
        for file in (files.map_file, files.talkers_file):
            # HAProxy does not start when one is not there.
            entries = maps_of(layout, proxy, snapshot).get(str(file), {})
            write_durably(file, render_map(entries).encode())
        write_durably(files.configuration_file, text.encode())


def _listed(one: Any) -> Node:
    ports = {"mqtt": one.port, "mqtts": one.tls_port, "ws": one.websocket_port}
    return Node(
        one.name,
        one.host,
        tuple(sorted((kind, port) for kind, port in ports.items() if port is not None)),
        one.metrics_url,
        capacity=one.capacity,
    )
