"""Federations that find their own links, on the virtual clock of `simulation`.

A `HealingWorld` has no links but those that its sites' overlays make. Sites come late and know one
other; sites die for good, crash and come back; ways between two, or between two parts, are cut and
healed, with and without notice; one pair of sites may never reach each other. All that `simulation`
judges is judged here too, and:

- `bound`: a site has more links than it may have;
- `apart`: the sites that are there are not connected when `HEAL_SECONDS` have passed since the last
  fault;
- `cut`: two sites that had a link dropped it and were apart then, though nothing had failed;
- `few`: a site has fewer links than it wants then, though others have room.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ingest.federation import overlay_packets
from ingest.federation.brokers.core import Federator
from ingest.federation.brokers.events import LinkDown, LinkUp, Neighbours
from ingest.federation.overlay import Overlay, SiteAddress
from ingest.federation.overlay_events import Bounds, OverlayEvent, WayDown, WayUp
from ingest.federation.overlay_packets import OverlayPacket
from tests.ingest.federation.brokers.simulation import (
    BEACON_SECONDS,
    FAULTS_UNTIL,
    FILTERS,
    REPAIR_SECONDS,
    Link,
    Site,
    Violation,
    World,
    identity,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

HEAL_SECONDS: Final = 60.0
"""`docs/federation.md`: until all that can reach each other are connected."""
SETTLED_SECONDS: Final = 20.0
"""Until a failure is noticed: three beacons, and what clocks differ."""
SECRET: Final = b"of the overlay"
RECONNECT_SECONDS: Final = 1.0
Pair = tuple[int, int]


@dataclass
class Host:
    """What stands around an overlay: ways to other sites, as the service has them."""

    overlay: Any
    ways: set[int] = field(default_factory=set)
    """Sites that a way is open to, or is being opened."""
    neighbours: list[int] = field(default_factory=list)


class HealingWorld(World):
    """One federation that begins with seeds alone.

    Args:
        seed: All that happens.
        make: Makes the federators.
        make_overlay: Makes the overlays: tests plant defects here.
    """

    meshed_at = FAULTS_UNTIL + HEAL_SECONDS + REPAIR_SECONDS
    ends_at = meshed_at + 10.0

    def __init__(
        self,
        seed: int,
        make: Callable[..., Any] = Federator,
        make_overlay: Callable[..., Any] = Overlay,
    ) -> None:
        self._make_overlay = make_overlay
        self.hosts: dict[int, Host] = {}
        self.blocked: dict[Pair, int] = defaultdict(int)
        self.silenced: set[Pair] = set()
        self.killed: set[int] = set()
        self.is_healed = False
        self.failed_at = float("-inf")
        self.healed_after: float | None = None
        """Seconds after the last fault until all were connected."""
        super().__init__(seed, make)

    def lay_out(self, random: Random) -> int:
        count = random.randint(3, 9)
        self.redundancy = random.choice((1, 2, 2, 3))
        self.least = random.choice((2, 2, 3))
        self.most = self.least + random.choice((0, 1, 2))
        self.names = random.sample(range(1, 100), count)
        self.edges = [(a, b) for b in range(count) for a in range(b)]
        self.links = {
            pair: Link(random.choice((4, 5)), random.uniform(0.001, 0.02))
            for edge in self.edges
            for pair in (edge, edge[::-1])
        }
        self.seeds = {b: random.randrange(b) if b else 1 for b in range(count)}
        self.never: Pair | None = None
        if count > 4 and random.random() < 0.3:
            pair = random.choice(self.edges)
            if pair[0] != self.seeds[pair[1]] and pair != (0, 1):
                self.never = pair
                self.blocked[pair] += 1
        return count

    def begin(self, random: Random) -> None:
        for site in self.sites:
            site.is_up = False
            wants = random.random() < 0.6 or site.number == 0
            is_late = site.number > 1 and random.random() < 0.4
            when = random.uniform(5.0, FAULTS_UNTIL - 5) if is_late else 0.0
            topic_filter = random.choice(FILTERS) if wants else None
            self.at(when, self.join, site, topic_filter)
        self.at(FAULTS_UNTIL + HEAL_SECONDS, self.judge_overlay)

    def join(self, site: Site, topic_filter: str | None) -> None:
        if site.number not in self.killed and not site.is_up:
            self.start(site)
            if topic_filter is not None:
                self.subscribe(site, topic_filter)

    def faults(self) -> tuple[Callable[[], None], ...]:
        return (
            self.kill,
            self.kill,
            self.crash,
            self.part,
            self.part_silently,
            self.cut,
            self.cut_silently,
            self.change,
        )

    @property
    def living(self) -> list[Site]:
        return [site for site in self.sites if site.number not in self.killed]

    def neighbours_of(self, site: Site) -> list[int]:
        now = self.clock(site)
        before = self.hosts.get(site.number)
        host = self.hosts[site.number] = Host(
            self._make_overlay(
                self.names[site.number],
                site.runs,
                address=SiteAddress(f"mqtt://site-{site.number}:1883"),
                seeds=[self.names[self.seeds[site.number]]],
                bounds=Bounds(self.least, self.most, BEACON_SECONDS),
                seed=self.seed * 1000 + site.number * 10 + site.runs,
                now=now,
            )
        )
        if before is not None:
            host.overlay.restore(before.overlay.map.members.values(), now)
        return []

    # The host of an overlay.

    def tick(self, site: Site, run: int) -> None:
        if site.runs == run and site.is_up:
            self.hosts[site.number].overlay.tick(self.clock(site))
            self.follow(site)
        super().tick(site, run)

    def tell(self, site: Site, event: OverlayPacket | WayUp | WayDown) -> None:
        if site.is_up:
            self.hosts[site.number].overlay.step(event, self.clock(site))
            self.follow(site)

    def follow(self, site: Site) -> None:
        """Do as an overlay says."""
        host, a = self.hosts[site.number], site.number
        for effect in host.overlay.ready(self.clock(site)):
            if isinstance(effect, OverlayPacket):
                self.send_bytes(a, self.names.index(effect.to), effect)
            elif effect.event is OverlayEvent.DROP:
                self.judge_drop(a, self.names.index(effect.site))
        contacts = {self.names.index(one) for one in host.overlay.contacts}
        for b in sorted(host.ways - contacts):
            host.ways.discard(b)
            self.close(a, b)
        for b in sorted(contacts - host.ways):
            host.ways.add(b)
            self.at(self.now + self.links[a, b].delay, self.open, a, b, site.runs)
        neighbours = host.overlay.neighbours
        if len(neighbours) > self.most:
            words = f"{a} has {len(neighbours)} links, {self.most} are allowed"
            raise Violation("bound", self.seed, words)
        if neighbours != host.neighbours:
            host.neighbours = neighbours
            self.step(site, Neighbours(tuple(neighbours)))
            for name in neighbours:
                if self.links[a, self.names.index(name)].is_up:
                    self.step(site, LinkUp(name))

    def send_bytes(self, a: int, b: int, packet: OverlayPacket) -> None:
        link = self.links[a, b]
        if link.is_up:
            self.packets += 1
            link.arrives_at = max(link.arrives_at, self.now + link.delay)
            wire = overlay_packets.encode(packet, SECRET)
            self.at(link.arrives_at, self.hear_bytes, a, b, link.generation, wire)

    def hear_bytes(self, a: int, b: int, generation: int, wire: bytes) -> None:
        link = self.links[a, b]
        if link.generation == generation and not self.is_silent(a, b):
            self.tell(self.sites[b], overlay_packets.decode(wire, SECRET))

    def arrive(self, origin: int, to: int, generation: int, wire: Any) -> None:
        if not self.is_silent(origin, to):
            super().arrive(origin, to, generation, wire)

    def is_silent(self, a: int, b: int) -> bool:
        return (a, b) in self.silenced

    def open(self, a: int, b: int, run: int) -> None:
        """Open the way from one site to another, or try it again later."""
        site = self.sites[a]
        host = self.hosts[a]
        if site.runs != run or not site.is_up or b not in host.ways or self.links[a, b].is_up:
            return
        if not self.sites[b].is_up or self.blocked[min(a, b), max(a, b)]:
            self.at(self.now + RECONNECT_SECONDS, self.open, a, b, run)
            return
        link = self.links[a, b]
        link.generation += 1
        link.is_up, link.arrives_at = True, self.now
        self.tell(site, WayUp(self.names[b]))
        if self.names[b] in host.neighbours:
            self.step(site, LinkUp(self.names[b]))

    def close(self, a: int, b: int) -> None:
        """Close the way from one site to another; what is on its way still comes."""
        link = self.links[a, b]
        if link.is_up:
            link.is_up = False
            self.tell(self.sites[a], WayDown(self.names[b]))
            self.step(self.sites[a], LinkDown(self.names[b]))

    def fail(self, a: int, b: int) -> None:
        """Break both ways between two sites."""
        self.failed_at = self.now
        for one, other in ((a, b), (b, a)):
            link = self.links[one, other]
            if link.is_up:
                link.generation += 1  # what is on its way is lost
                self.close(one, other)
                site = self.sites[one]
                self.at(self.now + RECONNECT_SECONDS, self.open, one, other, site.runs)

    # Faults.

    def block(self, pairs: list[Pair], seconds: float, *, silently: bool) -> None:
        for a, b in pairs:
            if silently:
                self.failed_at = self.now
                self.silenced |= {(a, b), (b, a)}
            else:
                self.blocked[a, b] += 1
                self.fail(a, b)
        self.at(self.now + seconds, self.unblock, pairs, silently)

    def unblock(self, pairs: list[Pair], silently: bool) -> None:
        for a, b in pairs:
            if not silently:
                self.blocked[a, b] -= not self.is_healed
            elif (a, b) in self.silenced:
                self.silenced -= {(a, b), (b, a)}
                self.fail(a, b)

    def cut(self) -> None:
        self.block([self.random.choice(self.edges)], self.random.uniform(0.1, 20), silently=False)

    def cut_silently(self) -> None:
        self.block([self.random.choice(self.edges)], self.random.uniform(2, 20), silently=True)

    def part(self, *, silently: bool = False) -> None:
        """Part the sites into two."""
        count = len(self.sites)
        one = set(self.random.sample(range(count), self.random.randint(1, count - 1)))
        pairs = [(a, b) for a, b in self.edges if (a in one) != (b in one)]
        self.block(pairs, self.random.uniform(2, 25), silently=silently)

    def part_silently(self) -> None:
        self.part(silently=True)

    def kill(self) -> None:
        """Let a site die for good, if the others need it not to know of each other."""
        site = self.random.choice(self.sites)
        if site.number not in self.killed and self.know_each_other(but=site.number):
            self.killed.add(site.number)
            if site.is_up:
                self.stop(site)
            site.saved.messages.clear()
            self.extinct.update(identity(one) for one in self.stored(site) if not self.is_held(one))

    def know_each_other(self, but: int) -> bool:
        """Tell whether the living without one could get together by what they know."""
        living = {site.number for site in self.living} - {but}
        known: dict[int, set[int]] = defaultdict(set)
        for a in living:
            host = self.hosts.get(a)
            names = [] if host is None else host.overlay.map.members
            for b in {self.seeds[a], *map(self.names.index, names)} & living:
                known[a].add(b)
                known[b].add(a)
        found = set(sorted(living)[:1])
        todo = list(found)
        while todo:
            new = known[todo.pop()] - found
            found |= new
            todo += new
        return len(found) > 1 and found == living

    def crash(self) -> None:
        site = self.random.choice(self.sites)
        if site.is_up:
            unsaved = list(site.federator.store.unsaved)
            self.stop(site)
            self.extinct.update(identity(one) for one in unsaved if not self.is_held(one))
            self.at(self.now + self.random.uniform(0.2, 20), self.restart, site)

    def stop(self, site: Site) -> None:
        site.is_up = False
        self.repeatable[site.number].update(site.unwritten)
        site.unwritten.clear()
        for other in range(len(self.sites)):
            if other != site.number:
                self.fail(site.number, other)

    def stored(self, site: Site) -> list[Any]:
        if site.federator is None:
            return []
        store = site.federator.store
        everything = 1 << 62
        return [
            one
            for key in store.chains()
            for one in store.between(key, 0, everything, since=None, most=everything)
        ]

    def restart(self, site: Site) -> None:
        if site.number not in self.killed and not site.is_up:
            self.start(site)

    def heal(self) -> None:
        """End all faults, but that the dead are dead, and that one pair never meets."""
        for site in self.living:
            self.restart(site)
        lasting = [pair for pair, count in self.blocked.items() if count]
        self.unblock([one for one in sorted(self.silenced) if one[0] < one[1]], silently=True)
        self.blocked.clear()
        self.is_healed = True
        for a, b in lasting:
            if (a, b) == self.never:
                self.blocked[a, b] = 1
        self.at(self.now, self.watch)

    def watch(self) -> None:
        """Note when all are connected."""
        if self.is_connected():
            self.healed_after = self.now - FAULTS_UNTIL
        else:
            self.at(self.now + 0.5, self.watch)

    # The judge.

    def linked(self, number: int) -> set[int]:
        """Return the sites that a site has a link to at both ends, which works."""
        name = self.names[number]
        return {
            other.number
            for other in self.living
            if other.is_up
            and other.number != number
            and self.names[other.number] in self.hosts[number].neighbours
            and name in self.hosts[other.number].neighbours
            and self.links[number, other.number].is_up
            and self.links[other.number, number].is_up
        }

    def reached(self, start: int) -> set[int]:
        found, todo = {start}, [start]
        while todo:
            new = self.linked(todo.pop()) - found
            found |= new
            todo += new
        return found

    def is_connected(self) -> bool:
        living = [site.number for site in self.living]
        return self.reached(living[0]) == set(living)

    def judge_drop(self, a: int, b: int) -> None:
        """Two ends of a link that goes have another way, unless something has just failed."""
        if self.now > self.failed_at + SETTLED_SECONDS and b not in self.reached(a):
            raise Violation("cut", self.seed, f"{a} dropped its link to {b}")

    def judge_overlay(self) -> None:
        if not self.is_connected():
            links = {site.number: self.linked(site.number) for site in self.living}
            raise Violation("apart", self.seed, f"{links}")
        few = [s.number for s in self.living if len(self.linked(s.number)) < self.least]
        roomy = [s.number for s in self.living if len(self.linked(s.number)) < self.most]
        for a in few:
            free = set(roomy) - {a} - self.linked(a)
            if {b for b in free if (min(a, b), max(a, b)) != self.never}:
                raise Violation("few", self.seed, f"{a} has {self.linked(a)}, room at {free}")

    def is_settled(self, topic: str) -> bool:
        return super().is_settled(topic) and not any(
            one == topic and name in self.extinct for name, (_, one, _) in self.published.items()
        )


def heal(seed: int, make_overlay: Callable[..., Any] = Overlay) -> HealingWorld:
    world = HealingWorld(seed, make_overlay=make_overlay)
    world.run()
    return world
