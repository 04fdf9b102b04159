"""Random federations with share groups: each message goes to one member, planted defects show.

The code of the federator runs on logs in memory and links that are lists; members come and go,
links are cut with messages on their way, federators and routers die and repeat themselves.
"""

import asyncio
import json
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

import pytest

from ingest.federation.envelope import SiteMessage
from ingest.federation.prefixes import Prefixes
from ingest.federation.settings import FederationSettings
from ingest.federation.sites.group_routes import GroupRoutes
from ingest.federation.sites.handing import Handing
from ingest.federation.sites.interest import group_names
from ingest.federation.sites.interest.group_names import neighbour_of, way_name
from ingest.federation.sites.interest.groups import SiteGroups
from ingest.federation.sites.interest.interest import Interest, NeighbourInterest, Ways
from ingest.federation.sites.interest.subscriptions import SiteSubscriptions
from ingest.federation.sites.streams.inlet import Inlet, InletVerdict
from ingest.federation.sites.streams.log_messages import GroupOrigin, of_publish
from ingest.federation.sites.streams.outlet import Outlet, OutletCounters, SiteLog
from ingest.federation.sites.streams.streams import Streams
from ingest.protocol.packets import Publish
from mqlake.log.memory import MemoryLog
from mqlake.records.federation import LinkPosition
from mqlake.records.messages import (
    INBOUND,
    ROUTES,
    Barrier,
    Route,
    barrier_key,
    delivery_topic,
    message_headers,
    message_key,
    route_key,
)
from mqlake.records.messages import Message as LogMessage
from tests.ingest.federation.sites.router import Router
from tests.ingest.simulations import simulations_wanted

pytestmark = pytest.mark.anyio

GROUPS: Final = ("$share/g/f/#", "$share/h/f/1")
STEPS: Final = 160
PARTITIONS: Final = 2
NOW_MS: Final = 1_700_000_000_000


class Writer:
    """Appends to a log; reports later, or never when the federator has died."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.queue: deque[Callable[[], None]] = deque()

    def append(
        self,
        log_topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
        on_appended: Any,
        *,
        partition: int = -1,
    ) -> None:
        def store() -> None:
            at = self.log.store(log_topic, key, value, headers, NOW_MS, partition)
            on_appended(*at, None)

        self.queue.append(store)

    def run(self, most: int) -> bool:
        count = min(most, len(self.queue))
        for _ in range(count):
            self.queue.popleft()()
        return bool(count)


class SimSite:
    """One site: its log, its router, and its federator, which may die."""

    def __init__(self, number: int, world: "World") -> None:
        self.number, self.world = number, world
        self.log = MemoryLog()
        self.log.create(INBOUND, PARTITIONS)
        self.log.create(ROUTES, 1)
        self.log.create(delivery_topic(f"{group_names.PREFIX}{number}"), 1)
        self.router = Router(self.log)
        self.neighbours: list[int] = []
        self.saved: dict[str, Any] = {}
        self.interest_saved: dict[str, Any] = {}
        self.members: Counter[str] = Counter()
        self.groups_end = -1

    # What the process around it does.

    def start(self) -> None:
        saved = self.saved
        self.inlet = Inlet(Streams.from_json(saved.get("streams", [])), {})
        for partition in range(PARTITIONS):
            start = saved.get("read", {}).get(partition, 0)
            self.inlet.recover(self.log.partitions(INBOUND)[partition].records[start:])
        self.positions = {
            one: LinkPosition({}, handed=saved.get("handed", {}).get(one, 0))
            for one in self.neighbours
        }
        self.interest = Interest(self.number, 16)
        if self.interest_saved:
            self.interest.restore(self.interest_saved)
        self.subscriptions = SiteSubscriptions("default", Prefixes([]), ("f/#",), (), 256)
        self.routes_read = 0
        self.groups = SiteGroups(self.interest, self.subscriptions)
        self.writer: Any = Writer(self.log)
        fail = self.world.fail
        log: Any = self
        nothing: Any = None
        self.routes = GroupRoutes(
            self.number,
            "default",
            Prefixes([]),
            self.groups,
            log,
            nothing,
            self.world.random.getrandbits(30),
            fail,
        )
        self.routes._partitions = PARTITIONS
        self.routes._there = set(self.neighbours)
        last = {one.key: one for one in self.log.records(ROUTES)}
        self.routes.resume(one for one in last.values() if one.value is not None)
        settings = FederationSettings.model_construct(
            host=FederationSettings().host.model_copy(update={"id": self.number}),
        )
        spreading: Any = self
        writer: Any = self.writer
        self.handing = Handing(
            settings,
            Prefixes([]),
            writer,
            lambda: self.inlet,
            self.groups,
            self.routes,
            spreading,
            fail,
        )
        wanted = NeighbourInterest()
        for one in self.neighbours:
            wanted.permit(one, ("f/#",))
        self.site_log = SiteLog(
            self.number,
            1,
            "default",
            "federator",
            16,
            Prefixes([]),
            wanted,
            lambda number, then: self.inlet.hear_offer(number, then),
        )
        self.outlets: dict[int, Outlet] = {}
        self.read: dict[int, int] = {}
        self.follow(everything=True)
        self.spread()

    def follow(self, *, everything: bool = False) -> bool:
        """Read who has subscribed, some of it or all."""
        records = self.log.records(ROUTES)[self.routes_read :]
        if not everything:
            records = records[: self.world.random.randint(0, 3)]
        self.routes_read += len(records)
        self.subscriptions.take(ROUTES, records)
        for record in records:
            self.groups_end = record.offset
        return bool(records)

    def spread(self) -> None:
        self.interest.want(self.subscriptions.groups(), NOW_MS)
        for one in self.outlets:
            news = self.interest.news_for(one)
            if news:
                self.world.send(self.number, one, ("news", news))
        self.routes.update()
        self.interest_saved = json.loads(json.dumps(self.interest.to_json()))

    def save(self) -> None:
        """Write a checkpoint, when nothing is on its way into the log."""
        if not self.inlet.pending:
            partitions = self.log.partitions(INBOUND)
            self.saved = {
                "streams": json.loads(json.dumps(self.inlet.streams.to_json())),
                "read": {number: len(one.records) for number, one in enumerate(partitions)},
                "handed": {one: position.handed for one, position in self.positions.items()},
            }

    def die(self) -> None:
        self.writer.queue.clear()
        if self.routes._timer is not None:
            self.routes._timer.cancel()

    # Links.

    def pair(self, neighbour: int) -> tuple[int, int]:
        return min(self.number, neighbour), max(self.number, neighbour)

    def open(self, neighbour: int) -> None:
        counters = OutletCounters()
        self.outlets[neighbour] = Outlet(
            self.site_log, neighbour, self.positions[neighbour], window=5, counters=counters
        )
        self.read[neighbour] = self.positions[neighbour].handed
        self.interest.open(neighbour)
        self.world.send(self.number, neighbour, ("news", self.interest.news_for(neighbour)))
        self.world.send(self.number, neighbour, ("hello", None))

    def close(self, neighbour: int) -> None:
        del self.outlets[neighbour]
        self.interest.close(neighbour)
        self.spread()

    def carry(self, neighbour: int, most: int) -> bool:
        """Send what the router has given to a neighbour."""
        outlet = self.outlets[neighbour]
        records = self.log.records(delivery_topic(way_name(self.number, neighbour)))
        found = records[self.read[neighbour] :][:most]
        self.read[neighbour] += len(found)
        outlet.take_handed(found, NOW_MS)
        publishes = outlet.ready()
        for publish in publishes:
            self.world.send(self.number, neighbour, ("publish", publish))
        return bool(found or publishes)

    def hear(self, neighbour: int, what: str, value: Any) -> None:
        if what == "news":
            self.interest.hear(neighbour, value)
            self.spread()
        elif what == "hello":
            self.interest.complete(neighbour)
            self.spread()
        elif what == "publish":
            connection = End(self, neighbour)
            link: Any = connection
            self.handing.take(link, link, value)
        elif what == "had":
            self.outlets[neighbour].acknowledge(value)
        else:
            outlet = self.outlets[neighbour]
            publish = outlet.sent(value)
            assert publish is not None
            self.handing.take_back(publish, partial(outlet.acknowledge, value))

    # Clients.

    def publish(self, topic: str, payload: bytes) -> None:
        message = LogMessage(
            "default",
            topic,
            payload,
            1,
            False,
            bytes(16),
            "c",
            NOW_MS,
            f"site-{self.number}/g",
        )
        key = message_key("default", topic)
        self.log.store(INBOUND, key, payload, message_headers(message), NOW_MS, len(payload) % 2)

    def share(self, group: str, members: int) -> None:
        self.members[group] = members
        route = Route("gateway-1", "default", group)
        value = b"%d" % members if members else None
        _, offset = self.log.store(ROUTES, route_key(route), value, [], NOW_MS, 0)
        key = barrier_key(Barrier("gateway-1", "i", 1, offset))
        for partition in range(PARTITIONS):
            self.log.store(INBOUND, key, b"", [], NOW_MS, partition)


class End:
    """Both a link and its connection, as the receiver of a message sees them."""

    def __init__(self, site: SimSite, neighbour: int) -> None:
        self.site = neighbour
        self._here = site
        self._connection = site.world.connections[site.pair(neighbour)]

    def may_bring(self, _topic: str) -> bool:
        return True

    def acknowledge(self, _connection: Any, publish: Publish) -> None:
        self._send("had", publish.packet_id)

    def give_back(self, packet_id: int) -> None:
        self._send("back", packet_id)

    def _send(self, what: str, packet_id: int) -> None:
        world = self._here.world
        if world.connections.get(self._here.pair(self.site)) is self._connection:
            world.send(self._here.number, self.site, (what, packet_id))


class World:
    """A federation and all that happens to it.

    Args:
        seed: Of everything.
    """

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.connections: dict[tuple[int, int], object] = {}
        self.packets: dict[tuple[int, int], deque[tuple[str, Any]]] = {}
        count = random.randint(2, 5)
        self.sites = {number: SimSite(number, self) for number in range(1, count + 1)}
        tree = [(random.randrange(1, number), number) for number in range(2, count + 1)]
        more = [(a, b) for a in self.sites for b in self.sites if a < b and random.random() < 0.3]
        self.pairs = list(dict.fromkeys(tree + more))
        for one, other in self.pairs:
            self.sites[one].neighbours.append(other)
            self.sites[other].neighbours.append(one)
            for ends in ((one, other), (other, one)):
                self.sites[ends[0]].log.create(delivery_topic(way_name(*ends)), 1)
        for site in self.sites.values():
            site.start()
        for pair in self.pairs:
            self.join(*pair)
        self.lasting = {name: self.sites[random.randint(1, count)] for name in GROUPS}
        for name, site in self.lasting.items():
            site.share(name, 1)
        self.settle()
        self.sent: list[tuple[str, bytes]] = []

    def fail(self, error: BaseException) -> None:
        raise error

    def send(self, sender: int, receiver: int, packet: tuple[str, Any]) -> None:
        self.packets[sender, receiver].append(packet)

    def join(self, one: int, other: int) -> None:
        self.connections[one, other] = object()
        self.packets[one, other], self.packets[other, one] = deque(), deque()
        self.sites[one].open(other)
        self.sites[other].open(one)

    def cut(self, one: int, other: int) -> None:
        del self.connections[one, other]
        self.packets[one, other], self.packets[other, one] = deque(), deque()
        for ends in ((one, other), (other, one)):
            self.sites[ends[0]].close(ends[1])
            self.sites[ends[0]].handing.close(ends[1])

    def restart(self, site: SimSite) -> None:
        for pair in [one for one in self.connections if site.number in one]:
            self.cut(*pair)
        site.die()
        site.start()

    def deliver(self, sender: int, receiver: int, most: int) -> bool:
        packets = self.packets[sender, receiver]
        count = min(most, len(packets))
        for _ in range(count):
            if packets:
                self.sites[receiver].hear(sender, *packets.popleft())
        return bool(count)

    def step(self) -> None:
        random = self.random
        site = random.choice(list(self.sites.values()))
        chance = random.random()
        if chance < 0.12:
            payload = b"%d" % len(self.sent)
            topic = random.choice(("f/1", "f/2"))
            self.sent.append((topic, payload))
            site.publish(topic, payload)
        elif chance < 0.2:
            name = random.choice(GROUPS)
            if site is not self.lasting[name]:
                site.share(name, int(not site.members[name]))
        elif chance < 0.27:
            pair = random.choice(self.pairs)
            (self.cut if pair in self.connections else self.join)(*pair)
        elif chance < 0.3:
            self.restart(site)
        elif chance < 0.32:
            site.router.crash(random.randint(0, 5))
        elif chance < 0.36:
            site.save()
        elif chance < 0.5:
            site.router.route()
        elif chance < 0.6:
            site.writer.run(random.randint(1, 3))
        elif chance < 0.7:
            if site.follow():
                site.spread()
        elif self.connections:
            ends = list(random.choice(list(self.connections)))
            random.shuffle(ends)
            self.sites[ends[0]].carry(ends[1], random.randint(1, 3))
            self.deliver(ends[0], ends[1], random.randint(1, 4))

    def settle(self) -> None:
        """Let everything happen that is to happen."""
        for pair in self.pairs:
            if pair not in self.connections:
                self.join(*pair)
        for _ in range(1000):
            moved = False
            for site in self.sites.values():
                before = [len(one.records) for one in site.log.partitions(INBOUND)]
                site.router.route()
                while site.follow(everything=True):
                    site.spread()
                    moved = True
                moved = site.writer.run(100) or moved
                for neighbour in list(site.outlets):
                    moved = site.carry(neighbour, 100) or moved
                    moved = self.deliver(site.number, neighbour, 100) or moved
                moved = moved or before != [len(o.records) for o in site.log.partitions(INBOUND)]
            if not moved:
                return
        raise AssertionError("messages circulate")

    def check(self) -> None:
        for name, topics in zip(GROUPS, (("f/1", "f/2"), ("f/1",)), strict=True):
            expected = Counter(payload for topic, payload in self.sent if topic in topics)
            given: Counter[bytes] = Counter()
            for site in self.sites.values():
                given.update(site.router.given[name])
            assert given - expected == Counter(), f"{name}: given twice"
            assert expected - given == Counter(), f"{name}: given to nobody"


def run(seed: int) -> None:
    world = World(seed)
    try:
        for _ in range(STEPS):
            world.step()
        world.settle()
        world.check()
    finally:
        for site in world.sites.values():
            site.die()


async def test_each_message_goes_to_one_member_of_all_sites() -> None:
    for seed in range(simulations_wanted(100)):
        try:
            run(seed)
        except AssertionError as exc:
            raise AssertionError(f"seed {seed}: {exc}") from exc


async def test_a_fault_that_was_found_stays_mended() -> None:
    """What one neighbour gave back hid what another one had been given before it."""
    run(3179)


def _give_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Inlet, "recover", lambda *_: None)


def _acknowledge_before_the_log(patch: pytest.MonkeyPatch) -> None:
    def take(self: Inlet, message: SiteMessage, acknowledge: Callable[[], None]) -> InletVerdict:
        verdict = taken(self, message, lambda: None)
        if verdict is not InletVerdict.DUPLICATE:
            acknowledge()
        return verdict

    taken = Inlet.take
    patch.setattr(Inlet, "take", take)


def _move_the_cursor_when_sending(patch: pytest.MonkeyPatch) -> None:
    def ready(self: Outlet) -> list[Publish]:
        found = made(self)
        for one in self._unacknowledged.values():
            self._settle_all(one.partition, one.sent)
        return found

    made = Outlet.ready
    patch.setattr(Outlet, "ready", ready)


def _one_stream_for_all_groups(patch: pytest.MonkeyPatch) -> None:
    named = GroupOrigin.named
    patch.setattr(GroupOrigin, "named", lambda self: named(self._replace(group="")))


def _no_barriers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupRoutes, "put_in_force", lambda *_: None)


def _only_members_here(patch: pytest.MonkeyPatch) -> None:
    """The failure of others: a site that has only an indirect member is chosen, and has none."""

    def take(self: Handing, link: Any, connection: Any, publish: Publish) -> None:
        origin = of_publish(publish, prefix="federator").handed
        assert origin is not None
        if not self._groups._subscriptions.has_members(origin.group):
            link.acknowledge(connection, publish)
            return
        taken(self, link, connection, publish)

    taken = Handing.take
    patch.setattr(Handing, "take", take)


def _any_neighbour_is_a_way(patch: pytest.MonkeyPatch) -> None:
    def ways(self: Interest) -> dict[str, Ways]:
        return {name: one._replace(nearest=set(self._heard)) for name, one in found(self).items()}

    found = Interest.ways
    patch.setattr(Interest, "ways", ways)


def _ways_are_withdrawn_while_a_link_is_down(patch: pytest.MonkeyPatch) -> None:
    def ways(self: Interest) -> dict[str, Ways]:
        return {
            name: one._replace(nearest=one.nearest & self._up) for name, one in found(self).items()
        }

    found = Interest.ways
    patch.setattr(Interest, "ways", ways)


def _old_ways_go_first(patch: pytest.MonkeyPatch) -> None:
    """A barrier of a gateway between the two leaves the group without a way."""

    def update(self: GroupRoutes) -> None:
        ways = self._groups.ways
        before = {(neighbour_of(self._site, one.gateway), one.topic_filter) for one in self._routes}
        patch.setattr(self._groups, "ways", lambda: ways() & before)
        updated(self)
        patch.setattr(self._groups, "ways", ways)
        updated(self)

    updated = GroupRoutes.update
    patch.setattr(GroupRoutes, "update", update)


DEFECTS: Final = (
    _give_twice,
    _acknowledge_before_the_log,
    _move_the_cursor_when_sending,
    _one_stream_for_all_groups,
    _no_barriers,
    _only_members_here,
    _any_neighbour_is_a_way,
    _ways_are_withdrawn_while_a_link_is_down,
    _old_ways_go_first,
)


@pytest.mark.parametrize("plant", DEFECTS, ids=lambda plant: plant.__name__.strip("_"))
async def test_a_planted_defect_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(200):
        try:
            run(seed)
        except AssertionError:
            return
        await asyncio.sleep(0)
    raise AssertionError("nothing was found")
