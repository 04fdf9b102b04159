"""Federations on a virtual clock: sites, links and clients in one process, everything from a seed.

A `World` runs real `Federator`s. Its links are slow, cut, cut silently and healed; sites crash and
come back with the marks that they had written; subscribers come and go; clocks run at rates that
differ by up to a tenth. Each message goes over the wire as its link's protocol has it, 3.1.1 or
5.0, each control packet as bytes. A `Violation` has the name of the promise that was broken:

- `twice`: a subscriber got a message again (a site that crashed may repeat the last it had not
  noted);
- `order`: two messages of a chain came the other way round;
- `lost`: a site that wanted a topic all the time, and was there, did not get a message that its
  origin had passed on, though all is healed;
- `stray`: a site got what nobody there wants;
- `circulates`: a site passed a message on twice to the same neighbour without being asked to;
- `repair`: the sites do not agree on cores, or a member cannot be reached, when `REPAIR_SECONDS`
  have passed since the last fault;
- `retained`: sites that want a topic ended with different retained messages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any, Final

from ingest.federation import packets
from ingest.federation.brokers.core import Federator
from ingest.federation.brokers.events import (
    Beacon,
    Deliver,
    LinkDown,
    LinkUp,
    PassedOn,
    PublishedHere,
    SavedSite,
    Send,
    SiteLimits,
    SiteNote,
    StepEvent,
)
from ingest.federation.brokers.meshes import MeshState, Timing
from ingest.federation.envelope import ChainKey, SiteMessage, from_mqtt, to_mqtt
from mqlake.topics.matching import filter_matches

if TYPE_CHECKING:
    from collections.abc import Callable

TICK_SECONDS: Final = 0.2
BEACON_SECONDS: Final = 5.0
TIMING: Final = Timing()
SKEW: Final = 0.05
LIMITS: Final = SiteLimits(beacon_interval=BEACON_SECONDS)

REPAIR_SECONDS: Final = 30.0
"""`docs/federation.md`: three beacons to notice a silent failure, a core's interval and patience,
and what clocks differ."""

WARM_SECONDS: Final = 8.0
FAULTS_UNTIL: Final = 45.0
END_SECONDS: Final = 85.0
MOST_PACKETS: Final = 30_000
"""Several times what the busiest topology sends."""

FILTERS: Final = ("f/a", "f/b", "f/+", "f/#", "f/a/x", "f/+/x")
TOPICS: Final = ("f/a", "f/b", "f/c", "f/a/x", "f/b/x")
PREFIX: Final = "federator"


class Violation(AssertionError):  # noqa: N818 - it is a broken promise
    def __init__(self, promise: str, seed: int, words: str) -> None:
        super().__init__(f"{promise}: {words} (seed {seed})")
        self.promise = promise


Name = tuple[int, int, int]
"""Origin, epoch and sequence."""


@dataclass
class Disk:
    """What a site has saved: at each tick."""

    marks: dict[ChainKey, int]
    messages: list[SiteMessage]
    stamp: int


@dataclass
class Site:
    number: int
    rate: float
    offset: float
    federator: Any
    wants: dict[str, float] = field(default_factory=dict)
    """Filter -> since when."""
    is_up: bool = True
    up_since: float = 0.0
    runs: int = 0
    saved: Disk = field(default_factory=lambda: Disk({}, [], 0))
    unwritten: set[Name] = field(default_factory=set)
    retained: dict[str, bytes] = field(default_factory=dict)


@dataclass
class Link:
    level: int
    delay: float
    is_up: bool = False
    is_silent: bool = False
    generation: int = 0
    arrives_at: float = 0.0


class World:
    """One topology with its faults.

    Args:
        seed: All that happens.
        make: Makes the federators: tests plant defects here.
    """

    meshed_at = FAULTS_UNTIL + REPAIR_SECONDS
    """When all meshes are to be as they should."""
    ends_at = END_SECONDS

    def __init__(self, seed: int, make: Callable[..., Any] = Federator) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self._make = make
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.last_fault = 0.0
        count = self.lay_out(random)
        self.sites = [
            Site(n, 1 + random.uniform(-SKEW, SKEW), random.uniform(0, 1000), None)
            for n in range(count)
        ]
        # What the judge knows.
        self.published: dict[Name, tuple[float, str, int]] = {}
        self.passed_on: set[Name] = set()
        self.delivered: list[dict[Name, list[float]]] = [{} for _ in range(count)]
        self.sent: Counter[tuple[int, int, Name, int]] = Counter()
        self.is_answering = False
        self.extinct: set[Name] = set()
        """Of which all copies died unsaved with their site."""
        self.orders: list[dict[ChainKey, int]] = [{} for _ in range(count)]
        self.pending: dict[int, list[tuple[str, int]]] = defaultdict(list)
        self.packets = 0
        self.repeatable: dict[int, set[Name]] = defaultdict(set)

    def lay_out(self, random: Random) -> int:
        """Make links and names of sites; return how many there are."""
        count = random.randint(2, 8)
        self.redundancy = random.choice((1, 2, 2, 3))
        self.links: dict[tuple[int, int], Link] = {}
        edges = {(random.randrange(b), b) for b in range(1, count)}
        for _ in range(random.randint(0, count)):
            a, b = sorted(random.sample(range(count), 2))
            edges.add((a, b))
        slow = random.random() < 0.3
        for a, b in sorted(edges):
            delay = random.choice((0.001, 0.01, 0.15)) if slow else random.uniform(0.001, 0.01)
            for pair in ((a, b), (b, a)):
                self.links[pair] = Link(random.choice((4, 5)), delay * random.uniform(1, 2))
        self.edges = sorted(edges)
        self.names = random.sample(range(1, 100), count)
        return count

    # Running.

    def at(self, time: float, do: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heappush(self._events, (time, self._count, do, arguments))

    def run(self) -> World:
        random = self.random
        self.begin(random)
        for number in range(random.randint(20, 60)):
            when = random.uniform(1.0, FAULTS_UNTIL + 15)
            burst = random.randint(1, 4)
            for step in range(burst):
                self.at(when + step * 0.01, self.publish, random.choice(self.sites), number)
        for _ in range(random.randint(0, 5)):
            fault = random.choice(self.faults())
            self.at(random.uniform(WARM_SECONDS, FAULTS_UNTIL - 15), fault)
        self.at(FAULTS_UNTIL, self.heal)
        repaired = False
        while self._events and self._events[0][0] <= self.ends_at:
            self.now, _, do, arguments = heappop(self._events)
            if self.packets > MOST_PACKETS:
                raise Violation("circulates", self.seed, f"{self.packets} packets")
            if not repaired and self.now >= self.meshed_at:
                repaired = True
                self.judge_meshes()
            do(*arguments)
        self.judge()
        return self

    def begin(self, random: Random) -> None:
        """Start all sites and links."""
        for site in self.sites:
            self.start(site)
            if random.random() < 0.6 or site.number == 0:
                self.subscribe(site, random.choice(FILTERS))
        for edge in self.edges:
            self.connect(edge)

    def faults(self) -> tuple[Callable[[], None], ...]:
        """Return what may happen, as often as it is likely."""
        return self.cut, self.cut, self.cut_silently, self.crash, self.crash, self.change

    @property
    def living(self) -> list[Site]:
        """The sites that are there in the end."""
        return self.sites

    def neighbours_of(self, site: Site) -> list[int]:
        """Return the names of those that a site begins with."""
        return [self.names[b] for a, b in self.links if a == site.number]

    def clock(self, site: Site) -> float:
        return site.offset + self.now * site.rate

    def start(self, site: Site) -> None:
        site.runs += 1
        site.is_up = True
        site.up_since = self.now
        rates = [one.rate for one in self.sites]
        site.federator = self._make(
            self.names[site.number],
            site.runs,
            self.neighbours_of(site),
            limits=replace(
                LIMITS, redundancy=self.redundancy, clock_skew=max(rates) / min(rates) - 1
            ),
            timing=TIMING,
            seed=self.seed + site.number,
            now=self.clock(site),
        )
        saved = site.saved
        site.federator.restore(
            SavedSite(
                list(saved.marks.items()),
                saved.messages,
                {one: (self.now - since) * site.rate for one, since in site.wants.items()},
                saved.stamp,
            ),
            self.clock(site),
        )
        self.at(self.now + self.random.uniform(0, TICK_SECONDS), self.tick, site, site.runs)
        for one in site.wants:
            self.at(self.now, self.beacon, site, site.runs, one)

    def tick(self, site: Site, run: int) -> None:
        if site.runs == run and site.is_up:
            now = self.clock(site)
            site.federator.tick(now)
            self.carry_out(site)
            unsaved = site.federator.unsaved(now)
            site.saved.marks.update(unsaved.marks)
            site.saved.messages += unsaved.messages
            site.saved.stamp = unsaved.stamp
            site.unwritten.clear()
            self.at(self.now + TICK_SECONDS, self.tick, site, run)

    def beacon(self, site: Site, run: int, topic_filter: str) -> None:
        if site.runs == run and site.is_up and topic_filter in site.wants:
            self.step(site, Beacon(topic_filter))
            self.at(self.now + BEACON_SECONDS, self.beacon, site, run, topic_filter)

    def step(self, site: Site, event: StepEvent) -> None:
        if site.is_up:
            site.federator.step(event, self.clock(site))
            self.carry_out(site)

    def carry_out(self, site: Site) -> None:
        for effect in site.federator.ready(self.clock(site)):
            if isinstance(effect, Send):
                self.send(site, self.names.index(effect.neighbour), effect.packet)
            elif isinstance(effect, Deliver):
                self.deliver(site, effect)
            else:
                assert isinstance(effect, SiteNote)

    def send(self, site: Site, to: int, packet: Any) -> None:
        link = self.links[site.number, to]
        if not link.is_up:
            return
        self.packets += 1
        if isinstance(packet, SiteMessage):
            name = identity(packet)
            if packet.key.origin == self.names[site.number]:
                self.passed_on.add(name)
            if not self.is_answering:
                self.sent[site.number, site.runs, name, to] += 1
            sender = self.names[site.number]
            topic, properties = to_mqtt(packet, sender, prefix=PREFIX, protocol_level=link.level)
            wire: Any = (topic, packet.payload, properties)
        else:
            wire = packets.encode(packet)
        link.arrives_at = max(link.arrives_at, self.now + link.delay)
        self.at(link.arrives_at, self.arrive, site.number, to, link.generation, wire)

    def arrive(self, origin: int, to: int, generation: int, wire: Any) -> None:
        link = self.links[origin, to]
        if link.generation != generation or link.is_silent:
            return
        if isinstance(wire, bytes):
            control = packets.decode(wire)
            self.is_answering = any(isinstance(word, packets.Want) for word in control.words)
            self.step(self.sites[to], control)
            self.is_answering = False
        else:
            message, sender = from_mqtt(*wire, prefix=PREFIX)
            self.step(self.sites[to], PassedOn(sender, message))

    # Clients.

    def subscribe(self, site: Site, topic_filter: str) -> None:
        if topic_filter not in site.wants:
            site.wants[topic_filter] = self.now
            self.at(self.now, self.beacon, site, site.runs, topic_filter)

    def publish(self, site: Site, number: int) -> None:
        if not site.is_up:
            return
        federator = site.federator
        topic = self.random.choice(TOPICS)
        retain = self.random.random() < 0.2
        payload = f"{site.number}-{number}".encode()
        at_ms = round(self.clock(site) * 1000)
        name = (self.names[site.number], site.runs, federator.counters.published + 1)
        self.published[name] = (self.now, topic, site.number)
        if retain:
            site.retained[topic] = payload
        self.step(site, PublishedHere(topic, payload, 1, retain, at_ms))

    def deliver(self, site: Site, effect: Deliver) -> None:
        message = effect.message
        name = identity(message)
        times = self.delivered[site.number].setdefault(name, [])
        times.append(self.now)
        if len(times) > 1 and name not in self.repeatable[site.number]:
            raise Violation("twice", self.seed, f"{message.topic} {name} at {site.number}")
        if not any(filter_matches(one, message.topic) for one in site.federator.interests):
            raise Violation("stray", self.seed, f"{message.topic} at {site.number}")
        last = self.orders[site.number].get(message.key, 0)
        if message.sequence < last and name not in self.repeatable[site.number]:
            raise Violation("order", self.seed, f"{message.topic} {name} after {last}")
        self.orders[site.number][message.key] = message.sequence
        site.unwritten.add(name)
        if effect.retain:
            site.retained[message.topic] = message.payload

    # Faults.

    def connect(self, edge: tuple[int, int]) -> None:
        a, b = edge
        if self.links[edge].is_up or not (self.sites[a].is_up and self.sites[b].is_up):
            return
        for one, other in ((a, b), (b, a)):
            link = self.links[one, other]
            link.generation += 1
            link.is_up, link.is_silent = True, False
            link.arrives_at = self.now
        for one, other in ((a, b), (b, a)):
            self.step(self.sites[one], LinkUp(self.names[other]))

    def disconnect(self, edge: tuple[int, int]) -> None:
        a, b = edge
        for one, other in ((a, b), (b, a)):
            link = self.links[one, other]
            link.generation += 1  # what is on its way is lost
            link.is_up = False
        for one, other in ((a, b), (b, a)):
            self.step(self.sites[one], LinkDown(self.names[other]))

    def cut(self) -> None:
        edge = self.random.choice(self.edges)
        self.disconnect(edge)
        self.at(self.now + self.random.uniform(0.1, 20), self.connect, edge)

    def cut_silently(self) -> None:
        a, b = self.random.choice(self.edges)
        for pair in ((a, b), (b, a)):
            if self.random.random() < 0.7:
                self.links[pair].is_silent = True
        self.at(self.now + self.random.uniform(2, 25), self.reconnect, (a, b))

    def reconnect(self, edge: tuple[int, int]) -> None:
        self.disconnect(edge)
        self.connect(edge)

    def crash(self) -> None:
        site = self.random.choice(self.sites)
        if not site.is_up:
            return
        site.is_up = False
        self.extinct.update(
            identity(one) for one in site.federator.store.unsaved if not self.is_held(one)
        )
        self.repeatable[site.number].update(site.unwritten)
        site.unwritten.clear()
        for edge in self.edges:
            if site.number in edge and self.links[edge].is_up:
                self.disconnect(edge)
        self.at(self.now + self.random.uniform(0.2, 20), self.restart, site)

    def restart(self, site: Site) -> None:
        if site.is_up:
            return
        self.start(site)
        for edge in self.edges:
            if site.number in edge:
                self.connect(edge)

    def change(self) -> None:
        """Let a subscriber come or go."""
        site = self.random.choice(self.sites)
        if site.wants and self.random.random() < 0.5:
            del site.wants[self.random.choice(sorted(site.wants))]
        else:
            self.subscribe(site, self.random.choice(FILTERS))

    def heal(self) -> None:
        for site in self.sites:
            self.restart(site)
        for edge in self.edges:
            if not self.links[edge].is_up or any(
                self.links[pair].is_silent for pair in (edge, edge[::-1])
            ):
                self.reconnect(edge)

    # The judge.

    def judge_meshes(self) -> None:
        wanted: dict[str, list[Site]] = defaultdict(list)
        for site in self.living:
            for one in site.federator.summary:
                wanted[one].append(site)
        for one, members in wanted.items():
            cores = {self.core_of(site, one) for site in members}
            if len(cores) != 1 or None in cores:
                raise Violation("repair", self.seed, f"{one} has cores {cores}")
            for site in self.living:
                reached = self.flood(site.number, one)
                missing = [m.number for m in members if m.number not in reached]
                if missing:
                    raise Violation("repair", self.seed, f"{one}: {site.number} not to {missing}")

    def core_of(self, site: Site, topic_filter: str) -> int | None:
        mesh = site.federator.meshes.get(topic_filter)
        if mesh is None or mesh.state in (MeshState.UNKNOWN, MeshState.ORPHAN):
            return None
        return int(mesh.core.site)

    def flood(self, start: int, topic_filter: str) -> set[int]:
        reached, todo = {start}, [start]
        while todo:
            mesh = self.sites[todo.pop()].federator.meshes.get(topic_filter)
            for name in mesh.targets() if mesh is not None else ():
                to = self.names.index(name)
                if to not in reached:
                    reached.add(to)
                    todo.append(to)
        return reached

    def judge(self) -> None:
        for name, (time, topic, origin) in self.published.items():
            died_with_it = self.sites[origin].runs != name[1]
            if name not in self.passed_on and (
                died_with_it or not self.is_wanted(origin, topic, time)
            ):
                continue
            for site in self.living:
                if site.number == origin or name in self.delivered[site.number]:
                    continue
                if self.must_have(site, topic, time):
                    if name in self.extinct:
                        continue
                    words = f"{topic} {name} of {time:.2f} at {site.number}"
                    raise Violation("lost", self.seed, words)
        for (number, _, name, to), count in self.sent.items():
            if count > 1:
                words = f"{name} went {count} times from {number} to {to}"
                raise Violation("circulates", self.seed, words)
        for topic in TOPICS:
            found = {
                site.retained.get(topic)
                for site in self.living
                if self.must_have(site, topic, 2.0) and self.is_settled(topic)
            }
            if len(found) > 1:
                raise Violation("retained", self.seed, f"{topic} is {found}")

    def is_settled(self, topic: str) -> bool:
        """Whether all that was published to a topic has got somewhere."""
        return all(
            one == topic and name in self.passed_on
            for name, (_, one, _) in self.published.items()
            if one == topic
        )

    def is_held(self, message: SiteMessage) -> bool:
        """Whether a site that is up, or the disk of any, has a message."""
        sequence = message.sequence
        return any(
            (
                site.is_up
                and site.federator.store.between(
                    message.key, sequence - 1, sequence, since=None, most=1
                )
            )
            or any(identity(one) == identity(message) for one in site.saved.messages)
            for site in self.sites
        )

    def must_have(self, site: Site, topic: str, time: float) -> bool:
        """Whether a site was there and wanted a topic long enough before."""
        return any(
            since + 1.0 < time and filter_matches(one, topic) for one, since in site.wants.items()
        )

    def is_wanted(self, origin: int, topic: str, time: float) -> bool:
        return any(
            site.number != origin and self.must_have(site, topic, time) for site in self.sites
        )


def identity(message: SiteMessage) -> Name:
    return message.key.origin, message.key.epoch, message.sequence


def run(seed: int, make: Callable[..., Any] = Federator) -> World:
    return World(seed, make).run()
