"""Federators beside real brokers: Mosquitto, 5.0 and 3.1.1 mixed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from bench.federation import BrokerClient, Grid
from bench.systems.mosquitto import EXECUTABLE
from ingest.federation.brokers.service import FederationService
from ingest.federation.settings import (
    FederationSettings,
    NeighborSettings,
    OverlaySettings,
    PrefixSettings,
)
from ingest.protocol.encoder import encode
from ingest.protocol.packets import MQTT_5_0, Connect, Publish, Will
from mqlake.clock import SystemClock
from mqlake.metrics.families import Families
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from ingest.federation.brokers.links import Link

pytestmark = [
    pytest.mark.promise,
    pytest.mark.programs,
    pytest.mark.anyio,
    pytest.mark.skipif(not EXECUTABLE.is_file(), reason=f"no {EXECUTABLE}"),
]
LIMIT_SECONDS = 120.0
"""Of what other processes do; never reached where they do it."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Listener(BrokerClient):
    """A subscriber that keeps whole packets."""

    def __init__(self, port: int, name: str, topic_filter: str) -> None:
        self.packets: list[Publish] = []
        super().__init__(port, name, topic_filter)

    def receive(self, link: Link, publish: Publish) -> None:
        self.packets.append(publish)
        super().receive(link, publish)

    @property
    def payloads(self) -> list[bytes]:
        return [publish.payload for publish in self.packets]


@dataclass
class Sites:
    grid: Grid
    services: dict[int, FederationService] = field(default_factory=dict)
    stops: dict[int, tuple[asyncio.Event, asyncio.Task[None]]] = field(default_factory=dict)
    clients: list[BrokerClient] = field(default_factory=list)

    def broker(self, node: int, **changes: Any) -> NeighborSettings:
        protocol = self.grid.protocols.get(node, "5.0")
        uri = f"mqtt://127.0.0.1:{self.grid.ports[node]}"
        given: dict[str, Any] = {"id": node, "uri": uri, "protocol": protocol}
        return NeighborSettings(**given | changes)

    def start(self, node: int, **changes: Any) -> FederationService:
        given: dict[str, Any] = {
            "host": self.broker(node),
            "neighbors": tuple(map(self.broker, self.grid.neighbours[node])),
            "state_dir": self.grid.folder / f"state-{node}",
        }
        service = FederationService(FederationSettings(**given | changes), SystemClock())
        stop = asyncio.Event()
        self.services[node] = service
        self.stops[node] = stop, asyncio.create_task(service.run(stop))
        return service

    async def stop(self, node: int) -> None:
        stop, task = self.stops.pop(node)
        stop.set()
        await task

    async def listen(self, node: int, topic_filter: str = "federated/#") -> Listener:
        client = Listener(self.grid.ports[node], f"listener-{node}-{topic_filter}", topic_filter)
        self.clients.append(client)
        async with asyncio.timeout(LIMIT_SECONDS):
            await client.up.wait()
        return client

    def are_meshed(self, topic_filter: str, nodes: set[int]) -> bool:
        """Whether a message from anywhere comes to all these nodes."""
        for start in self.services:
            reached, todo = {start}, [start]
            while todo:
                mesh = self.services[todo.pop()].federator.meshes.get(topic_filter)
                found = set(mesh.targets()) - reached if mesh is not None else set()
                reached |= found
                todo += found
            if not nodes <= reached:
                return False
        return True


@asynccontextmanager
async def sites(
    folder: Path, neighbours: dict[int, tuple[int, ...]], *, old: tuple[int, ...] = ()
) -> AsyncIterator[Sites]:
    """Run a broker for each node; federators are started by the test."""
    grid = Grid(folder, neighbours, protocols=dict.fromkeys(old, "3.1.1"))
    with grid.running(with_federators=False):
        found = Sites(grid)
        try:
            yield found
        finally:
            for client in found.clients:
                await client.close()
            for node in list(found.stops):
                await found.stop(node)


LINE = {1: (2,), 2: (1, 3), 3: (2,)}


@pytest.mark.parametrize("old", [(), (2,), (3,), (1, 2, 3)], ids=str)
async def test_messages_cross_brokers_of_both_protocols(
    tmp_path: Path, old: tuple[int, ...]
) -> None:
    async with sites(tmp_path, LINE, old=old) as running:
        for node in LINE:
            running.start(node, interests=("federated/#",) if node != 2 else ())
        first, third = await running.listen(1), await running.listen(3)
        await until(lambda: running.are_meshed("federated/#", {1, 3}))
        for number in range(50):
            third.publish("federated/a", b"3-%d" % number)
            first.publish("federated/a", b"1-%d" % number)
        await until(lambda: len(first.packets) >= 100 and len(third.packets) >= 100)
        for listener in (first, third):
            for origin in (b"1", b"3"):
                found = [one for one in listener.payloads if one.startswith(origin)]
                assert found == [origin + b"-%d" % number for number in range(50)]


async def test_properties_and_retained_flags_cross(tmp_path: Path) -> None:
    async with sites(tmp_path, {1: (2,), 2: (1,)}) as running:
        running.start(1)
        running.start(2, interests=("federated/#",))
        publisher, listener = await running.listen(1, "none"), await running.listen(2)
        await until(lambda: running.are_meshed("federated/#", {2}))
        properties: Any = {
            "content_type": "text/plain",
            "response_topic": "answers",
            "correlation_data": b"\0\1",
            "user_property": [("a", "1"), ("a", "2")],
            "payload_format_indicator": 1,
        }
        publisher.link.publish(Publish("federated/a", b"x", 1, True, properties=properties))
        await until(lambda: len(listener.packets) == 1)
        assert listener.packets[0].properties == properties
        late = await running.listen(2, "federated/a")
        await until(lambda: len(late.packets) == 1)
        assert late.packets[0].retain
        publisher.publish("federated/a", b"", retain=True)
        await until(lambda: len(listener.packets) == 2)
        later = await running.listen(2, "federated/+")
        publisher.publish("federated/b", b"y")
        await until(lambda: len(later.packets) == 1)
        assert later.payloads == [b"y"]


async def test_a_will_crosses_from_its_site(tmp_path: Path) -> None:
    async with sites(tmp_path, {1: (2,), 2: (1,)}) as running:
        running.start(1)
        running.start(2, interests=("federated/#",))
        listener = await running.listen(2)
        await until(lambda: running.are_meshed("federated/#", {2}))
        reader, writer = await asyncio.open_connection("127.0.0.1", running.grid.ports[1])
        will = Will("federated/gone", b"dead", qos=1)
        writer.write(encode(Connect("dying", MQTT_5_0, will=will), MQTT_5_0))
        assert await reader.read(1), "it is connected"
        writer.transport.abort()
        await until(lambda: listener.payloads == [b"dead"])


async def test_prefixes_give_topics_another_name_outside(tmp_path: Path) -> None:
    async with sites(tmp_path, {1: (2,), 2: (1,)}) as running:
        running.start(1, prefixes=(PrefixSettings(local="line/", federated="federated/a/"),))
        running.start(2)
        here, there = await running.listen(1, "line/#"), await running.listen(2)
        here.beacon("line/+")
        there.publish("federator/beacon/federated/a/x", b"")
        await until(lambda: running.are_meshed("federated/a/x", {2}))
        await until(lambda: running.are_meshed("federated/a/+", {1}))
        here.publish("line/x", b"out")
        there.publish("federated/a/y", b"in")
        await until(lambda: len(here.packets) == 2 and len(there.packets) == 2)
        assert ("federated/a/x", b"out") in [(p.topic_name, p.payload) for p in there.packets]
        assert ("line/y", b"in") in [(one.topic_name, one.payload) for one in here.packets]


async def test_filters_of_a_site_bound_what_leaves_and_comes(tmp_path: Path) -> None:
    async with sites(tmp_path, {1: (2,), 2: (1,)}) as running:
        running.start(1, filters_out=("federated/open/#",))
        running.start(2, filters_in=("federated/#",), interests=("#",))
        publisher, listener = await running.listen(1, "none"), await running.listen(2, "#")
        await until(lambda: running.are_meshed("federated/#", {2}))
        for topic in ("federated/secret", "secret", "federated/open/x"):
            publisher.publish(topic, topic.encode())
        await until(lambda: b"federated/open/x" in listener.payloads)
        assert b"secret" not in listener.payloads
        assert b"federated/secret" not in listener.payloads


async def test_a_restart_misses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    async with sites(tmp_path, LINE) as running:
        for node in LINE:
            running.start(node, interests=("federated/#",) if node == 3 else ())
        publisher, listener = await running.listen(1, "none"), await running.listen(3)
        await until(lambda: running.are_meshed("federated/#", {3}))
        publisher.publish("federated/a", b"0")
        await until(lambda: listener.payloads == [b"0"])
        await running.stop(3)
        publisher.publish("federated/a", b"1")
        publisher.publish("federated/new", b"2")
        await until(lambda: running.services[1].federator.counters.published == 3)
        await running.stop(1)  # with it goes what only it remembers
        running.start(1)
        running.start(3, interests=("federated/#",))
        await until(lambda: len(listener.packets) >= 3)
        publisher.publish("federated/a", b"3")
        await until(lambda: b"3" in listener.payloads)
        assert sorted(listener.payloads) == [b"0", b"1", b"2", b"3"]


async def test_neighbours_are_reloaded_without_cutting_links(tmp_path: Path) -> None:
    async with sites(tmp_path, {1: (2,), 2: (1,), 3: (1,)}) as running:
        first = running.start(1)
        running.start(2, interests=("federated/#",))
        running.start(3, interests=("federated/#",))
        two, three = await running.listen(2), await running.listen(3)
        await until(lambda: 2 in first.federator.targets("federated/a"))
        link = first.links[2]
        first.reload((running.broker(2), running.broker(3)))
        await until(lambda: running.are_meshed("federated/#", {2, 3}))
        two.publish("federated/a", b"x")
        await until(lambda: three.payloads == [b"x"])
        assert first.links[2] is link
        assert link.connections == 1
        first.reload((running.broker(3),))
        assert set(first.links) == {3}


async def test_metrics_and_figures_tell_of_links_and_meshes(tmp_path: Path) -> None:
    from ingest.federation.brokers.metrics import add_federator

    async with sites(tmp_path, {1: (2,), 2: (1,)}) as running:
        service = running.start(1, interests=("federated/#",))
        running.start(2)
        await until(lambda: running.are_meshed("federated/#", {1}))
        families = Families()
        add_federator(service, families)
        samples = {sample.name: sample.value for family in families for sample in family.samples}
        assert samples["mqlake_federation_neighbour_there"] == 1
        assert samples["mqlake_federation_meshes"] == 1
        figures = service.figures()
        assert figures["links"][0]["there"]
        assert figures["meshes"][0]["state"] == "core"
        assert service.health() == (True, "1 of 1 neighbours there")


async def test_links_speak_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    async with sites(tmp_path, {1: (2,), 2: (1,)}) as running:
        grid = running.grid
        grid.kill("broker-2")
        grid.start_broker(
            2,
            f"certfile {tmp_path / 'server.pem'}\nkeyfile {tmp_path / 'server.pem'}\n",
        )
        secure = running.broker(
            2, uri=f"mqtts://127.0.0.1:{grid.ports[2]}", ca_certificates=tmp_path / "ca.pem"
        )
        running.start(1, neighbors=(secure,))
        running.start(2, host=secure, interests=("federated/#",))
        publisher = await running.listen(1, "none")
        await until(lambda: running.are_meshed("federated/#", {2}))
        publisher.publish("federated/a", b"x")
        await until(lambda: running.services[2].federator.counters.delivered == 1)
        await running.stop(1)
        wrong = running.start(1, neighbors=(running.broker(2, uri=secure.uri),), state_dir=None)
        await until(lambda: 2 in wrong.links and "certificate" in wrong.links[2].reason)


RING = {1: (2, 4), 2: (1, 3), 3: (2, 4), 4: (1, 3)}


@pytest.mark.parametrize("victim", ["federator-2", "broker-4", "federator-1", "broker-1"])
async def test_a_kill_while_publishing_loses_nothing_to_the_others(
    tmp_path: Path, victim: str
) -> None:
    """1 is the core, 2 and 4 are the ways to 3; who is not killed gets all, once, in order."""
    dead = int(victim[-1])
    source = 4 if dead == 1 else 1
    grid = Grid(tmp_path, RING, settings='interests = ["federated/#"]\nredundancy = 2\n')
    with grid.running():
        publisher = BrokerClient(grid.ports[source], "publisher")
        listener = Listener(grid.ports[3], "listener", "federated/#")
        try:
            await publisher.up.wait()
            await listener.up.wait()
            await until(
                lambda: all(
                    (status := grid.status(node)).get("mesh_count") == 1
                    and all(link["there"] for link in status["links"])
                    for node in RING
                )
            )
            for number in range(300):
                publisher.publish("federated/a", b"%d" % number)
                if number % 10 == 0:  # they are under way when one is killed, and after that
                    await until(lambda: len(listener.packets) > number - 50)  # noqa: B023
                if number == 100:
                    grid.kill(victim)
            await until(lambda: len(listener.packets) >= 300)
            assert listener.payloads == [b"%d" % number for number in range(300)]
        finally:
            await publisher.close()
            await listener.close()


class TestSitesThatFindEachOther:
    """Each knows one seed; nobody names a neighbour."""

    def start(self, running: Sites, node: int, seed: int, **changes: Any) -> FederationService:
        everywhere = tuple(f"mqtt://127.0.0.1:{port}" for port in running.grid.ports.values())
        given: dict[str, Any] = {
            "secret": "shared",
            "uri": f"mqtt://127.0.0.1:{running.grid.ports[node]}",
            "least_links": 2,
            "most_links": 3,
            "allow_uris": everywhere,
            "seeds": (running.broker(seed),),
        }
        return running.start(
            node,
            neighbors=(),
            beacon_interval=1.0,
            core_announcement_interval=2.0,
            core_patience=0.5,
            reconnect_max_seconds=1.0,
            interests=("federated/#",),
            overlay=OverlaySettings(**given | changes),
        )

    def are_together(self, running: Sites, nodes: set[int]) -> bool:
        return all(
            running.services[node].finding.overlay.map.reachable() >= nodes
            and 2 <= running.services[node].finding.overlay.degree <= 3
            for node in nodes
        ) and running.are_meshed("federated/#", nodes)

    async def test_a_middle_site_dies_and_another_joins_late(self, tmp_path: Path) -> None:
        nodes = {1, 2, 3, 4, 5}
        async with sites(tmp_path, dict.fromkeys([*nodes, 6], ()), old=(4,)) as running:
            for node in sorted(nodes):
                self.start(running, node, 2 if node == 1 else 1)
            await until(lambda: self.are_together(running, nodes))
            listeners = {node: await running.listen(node) for node in nodes}
            numbers = iter(range(10_000))
            expected: dict[int, list[bytes]] = {node: [] for node in nodes}

            def publish(alive: set[int]) -> None:
                for node in alive:
                    payload = b"%d-%d" % (node, next(numbers))
                    listeners[node].publish(f"federated/{node}", payload)
                    expected[node].append(payload)

            def have_all(alive: set[int], origins: set[int]) -> bool:
                return all(
                    [one for one in listeners[node].payloads if one.startswith(b"%d-" % origin)]
                    == expected[origin]
                    for node in alive
                    for origin in origins
                )

            for _ in range(10):
                publish(nodes)
            await until(lambda: have_all(nodes, nodes))
            # The seed of all, with its broker.
            dead = running.services.pop(1)
            await running.stop(1)
            running.grid.kill("broker-1")
            await running.clients.pop(running.clients.index(listeners[1])).close()
            alive = nodes - {1}
            for _ in range(50):
                publish(alive)
                await asyncio.sleep(0.01)
            await until(lambda: self.are_together(running, alive))
            for _ in range(10):
                publish(alive)
            await until(lambda: have_all(alive, alive))
            self.start(running, 6, 5)
            nodes = alive | {6}
            await until(lambda: self.are_together(running, nodes))
            listeners[6] = await running.listen(6)
            expected[6] = []
            publish({6})
            await until(lambda: have_all(alive, nodes))
            assert dead.finding.overlay.site not in running.services[6].finding.overlay.neighbours
            figures = running.services[6].figures()["overlay"]
            assert {one["site"] for one in figures["sites"]} >= nodes
            assert 1 not in {site for one in figures["sites"] for site in one["links"]}

    async def test_who_is_not_allowed_or_does_not_know_the_secret_stays_out(
        self, tmp_path: Path
    ) -> None:
        async with sites(tmp_path, dict.fromkeys((1, 2, 3, 4), ())) as running:
            first = self.start(running, 1, 2)
            self.start(running, 2, 1)
            liar = self.start(running, 3, 1, secret="guessed")
            # Its address is not one that 1 and 2 may connect to.
            elsewhere = f"mqtt://localhost:{running.grid.ports[4]}"
            outside = self.start(running, 4, 1, uri=elsewhere)
            await until(lambda: first.malformed > 0 and 4 in first.finding.overlay.map.members)
            await until(lambda: first.finding.overlay.degree == 1)
            await until(
                lambda: (
                    outside.finding.overlay.counters.lost >= 0
                    and first.finding.overlay.counters.refused > 0
                )
            )
            assert first.finding.overlay.neighbours == [2]
            assert set(first.links) == {2}
            assert liar.finding.overlay.neighbours == []
            assert outside.finding.overlay.neighbours == []
            assert not liar.health()[0]
