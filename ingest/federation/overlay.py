"""Links of a site to others: found, kept and dropped by itself, within bounds.

The successor of the published protocol (Bevilaqua and Spohn, Self-Managed Federation of MQTT
Brokers with Dynamic Topology Control, J. Computer Science 19(11), 2023) builds and heals the
network that the meshes run on. Here no site manages the others. Each learns a map of all
(`overlay_map`) from its neighbours and has between `least` and `most` links:

- **Apart.** It asks sites that it knows and has no way to: seeds at first, lost sites later, each
  again after pauses that grow. The site that is asked says yes if there is room. A site that has no
  room itself tells them its map instead, so that they ask those that have.
- **Too few links.** It asks sites that have room, chosen by chance.
- **No room**, and the site that asks is apart, or has too few: a link that is the heaviest of a
  circle goes for it. Where all sites of a part are full there is a circle, so one of them can; the
  site that asks hears of all of them.
- **More than it wants.** Of two ends that both have more than `least`, one drops such a link.

Both ends tell each other with each packet the state in which they see the other (`Stance`), so no
answer needs to be waited for twice: an end that has forgotten the link says so with its next word.
`overlay_events` has the whole automaton of one other site as a table.

Like the rest of the core it has no socket and no clock: `step`, `tick`, `ready`. The host has a way
open to each site of `contacts`, says when that is up, and gives the mesh those of `neighbours`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

from ingest.federation.overlay_events import (
    COUNTED,
    STANCES,
    TRANSITIONS,
    Away,
    Bounds,
    LinkChange,
    NeighbourState,
    OverlayCounters,
    OverlayEvent,
    WayDown,
    WayUp,
)
from ingest.federation.overlay_map import OverlayMap, SiteMember, weight
from ingest.federation.overlay_packets import MOST_MEMBERS, OverlayPacket, Stance

MOST_ASKED: Final = 3
"""Sites asked at once, so that some that do not answer hold up no others."""
MOST_LINGERING: Final = 16
"""Ways kept open to say no."""
BEACONS_MISSED: Final = 3
PAUSE_BEACONS: Final = 0.2
"""Before a site is asked again, at first, in beacon intervals."""
LONGEST_PAUSE_BEACONS: Final = 3.0
REFRESH_BEACONS: Final = 12
TRIM_BEACONS: Final = 6


@dataclass(slots=True)
class _Peer:
    is_fixed: bool = False
    state: NeighbourState = NeighbourState.KNOWN
    since: float = float("-inf")
    is_up: bool = False
    changed_at: float = float("-inf")
    """When the way to it came up or went down."""
    heard_at: float = float("-inf")
    told_at: float = float("-inf")
    owes: bool = False
    """It is to hear where it stands."""
    news: dict[int, SiteMember] = field(default_factory=dict)
    heard: tuple[int, int] = (-1, -1)
    """Epoch and number of its last packet."""
    tries: int = 0
    next_at: float = float("-inf")
    """When it may be asked again."""
    lingers_until: float = float("-inf")


class SiteAddress(NamedTuple):
    """The address at which other sites reach a site, and the version of MQTT spoken there."""

    uri: str
    protocol: str = "5.0"


NOWHERE: Final = SiteAddress("")


class Overlay:
    """The links of one site, which has no neighbours that are set until `become`.

    Args:
        site: Identifier of the site.
        epoch: Number of this run, higher than that of any run before.
        address: Address at which other sites reach the site; `NOWHERE`: they cannot.
        seeds: Identifiers of the sites that are known from the start.
        may_link: Tells whether there may be a link to a site, by its identifier and the URI that it
            gives as its own.
        bounds: Least and most links and the interval of beacons; None: the defaults.
        seed: Seed of all random choices.
        now: Present time in seconds, by the clock of all later calls.
    """

    def __init__(
        self,
        site: int,
        epoch: int,
        *,
        address: SiteAddress = NOWHERE,
        seeds: Iterable[int] = (),
        may_link: Callable[[int, str], bool] = lambda *_: True,
        bounds: Bounds | None = None,
        seed: int = 0,
        now: float = 0.0,
    ) -> None:
        self.site = site
        self.epoch = epoch
        self.bounds = bounds = bounds or Bounds()
        self.counters = OverlayCounters()
        self.map = OverlayMap(site, bounds.most_sites)
        self._random = Random(seed)  # noqa: S311 - to spread, not to hide
        self._may_link = may_link
        self._seeds = frozenset(seeds)
        self._peers: dict[int, _Peer] = {one: _Peer() for one in sorted(self._seeds)}
        self._effects: list[OverlayPacket | LinkChange] = []
        self._number = 0
        self._own = SiteMember(
            site=site,
            epoch=epoch,
            sequence=0,
            uri=address.uri,
            protocol=address.protocol,
            least=bounds.least,
            most=max(bounds.most, bounds.least),
            links=(),
        )
        self._renewed_at = now
        self._apart_since: dict[int, float] = {}
        self._look_at = now
        self._trim_at = now + self._jitter(TRIM_BEACONS)

    # Events.

    def step(self, event: OverlayPacket | WayUp | WayDown | Away, now: float) -> None:
        """Take one event."""
        if isinstance(event, OverlayPacket):
            self._hear(event, now)
        elif (peer := self._peers.get(event.site)) is not None:
            is_up = isinstance(event, WayUp)
            if isinstance(event, Away):
                peer.heard_at = float("-inf")
            elif peer.is_up != is_up:
                peer.is_up, peer.changed_at = is_up, now
                peer.owes |= is_up and peer.state is not NeighbourState.KNOWN
        self._renew(now)

    def become(self, fixed: Iterable[int], now: float) -> None:
        """Have these neighbours set from now on; they stay, and count."""
        wanted = set(fixed)
        for site, peer in self._peers.items():
            if peer.is_fixed and site not in wanted:
                peer.is_fixed = False
                self._enter(site, peer, OverlayEvent.DROP, now)
        for site in sorted(wanted):
            peer = self._peers.setdefault(site, _Peer())
            peer.is_fixed, peer.state, peer.since = True, NeighbourState.LINKED, now

    def restore(self, members: Iterable[SiteMember], now: float) -> None:
        """Know the sites that a former run knew: they may be asked, if they may be there."""
        for member in members:
            if member.site != self.site and self.map.take(member._replace(links=()), now):
                self._peers.setdefault(member.site, _Peer())

    def tick(self, now: float) -> None:
        """Let time pass; some times a second is often enough."""
        self._expire(now)
        if now >= self._look_at:
            self._look_at = now + self._jitter(PAUSE_BEACONS)
            self._look(now)
        if now - self._renewed_at >= REFRESH_BEACONS * self.bounds.beacon_interval:
            self._renew(now, is_due=True)
            for site in self.map.forget(now - self.bounds.forget_seconds, self.contacts):
                if site not in self._seeds:
                    self._peers.pop(site, None)
        self._renew(now)

    def ready(self, now: float) -> list[OverlayPacket | LinkChange]:
        """Return packets to be sent and changes of links, and forget them."""
        effects, self._effects = self._effects, []
        for site, peer in self._peers.items():
            if not peer.is_up:
                continue
            speaks = peer.state is not NeighbourState.KNOWN
            is_due = speaks and now - peer.told_at >= self.bounds.beacon_interval
            if peer.owes or is_due or (peer.news and speaks):
                peer.owes, peer.told_at = False, now
                effects.extend(self._packets(site, peer))
        return effects

    def _packets(self, site: int, peer: _Peer) -> Iterator[OverlayPacket]:
        members = [one for one in peer.news.values() if one.site != site]
        peer.news = {}
        stance = STANCES[peer.state]
        for start in range(0, max(len(members), 1), MOST_MEMBERS):
            self._number += 1
            told = members[start : start + MOST_MEMBERS]
            yield OverlayPacket(self.site, site, self.epoch, self._number, stance, told)

    # Queries.

    @property
    def neighbours(self) -> list[int]:
        """The sites that it has links to, or is just having; never more than `most`."""
        return sorted(one for one, peer in self._peers.items() if peer.state in COUNTED)

    @property
    def contacts(self) -> set[int]:
        """The sites that a way is to be open to."""
        return {
            site
            for site, peer in self._peers.items()
            if peer.state is not NeighbourState.KNOWN or peer.lingers_until > float("-inf")
        }

    @property
    def degree(self) -> int:
        """How many neighbours there are."""
        return sum(peer.state in COUNTED for peer in self._peers.values())

    def state_of(self, site: int) -> NeighbourState:
        """Return the state of a site, as this one sees it."""
        peer = self._peers.get(site)
        return NeighbourState.KNOWN if peer is None else peer.state

    def figures(self) -> dict[str, Any]:
        """Return the map, fit for JSON."""
        parts = self.map.parts()
        members = {**self.map.members, self.site: self._own}
        return {
            "least": self.bounds.least,
            "most": self.bounds.most,
            "degree": self.degree,
            "apart": [site for part in parts[1:] for site in part],
            "sites": [
                {
                    "site": site,
                    "uri": members[site].uri,
                    "links": sorted(self.map.links_of(site)),
                    "state": "self" if site == self.site else self.state_of(site).value,
                }
                for site in sorted(members)
            ],
            "counters": {name: getattr(self.counters, name) for name in self.counters.__slots__},
        }

    # Packets.

    def _hear(self, packet: OverlayPacket, now: float) -> None:
        sender = packet.sender
        if packet.to != self.site or sender == self.site:
            self.counters.repeated += 1
            return
        for member in packet.members:
            if member.site != self.site and self.map.take(member, now):
                self._peers.setdefault(member.site, _Peer())
                self._tell_all(member, but=sender)
        peer = self._peers.get(sender)
        if peer is None or (packet.epoch, packet.number) <= peer.heard:
            self.counters.repeated += 1
            return
        peer.heard = packet.epoch, packet.number
        peer.heard_at = now
        _HEARD[packet.stance](self, sender, peer, now)

    def _hear_ask(self, site: int, peer: _Peer, now: float) -> None:
        if peer.state not in COUNTED:
            if self._is_allowed(site) and self._make_room(site, now):
                self.counters.granted += 1
                self._enter(site, peer, OverlayEvent.GRANT, now)
            else:
                self.counters.refused += 1
                self._say_no(peer, now)
                self._tell_map(peer)
        peer.owes = True

    def _hear_linked(self, site: int, peer: _Peer, now: float) -> None:
        if peer.state is NeighbourState.ASKED and not self._make_room(site, now):
            self._enter(site, peer, OverlayEvent.REFUSE, now)
        if peer.state is NeighbourState.KNOWN:
            self._say_no(peer, now)
        elif peer.state is not NeighbourState.LINKED:
            self._enter(site, peer, OverlayEvent.AGREE, now)

    def _hear_none(self, site: int, peer: _Peer, now: float) -> None:
        if peer.state is not NeighbourState.KNOWN:
            self._enter(site, peer, OverlayEvent.REFUSE, now)

    def _say_no(self, peer: _Peer, now: float) -> None:
        lingering = sum(one.lingers_until > float("-inf") for one in self._peers.values())
        if peer.lingers_until > float("-inf") or lingering < MOST_LINGERING:
            peer.lingers_until = now + self.bounds.beacon_interval
            peer.owes = True

    def _tell_all(self, member: SiteMember, *, but: int) -> None:
        for site, peer in self._peers.items():
            if peer.state in COUNTED and site != but:
                peer.news[member.site] = member

    def _tell_map(self, peer: _Peer) -> None:
        """Send a site all sites of the map, this one first."""
        peer.news = {self.site: self._own, **self.map.members}

    def _renew(self, now: float, *, is_due: bool = False) -> None:
        """Tell all of the own links when these are others."""
        silent = now - BEACONS_MISSED * self.bounds.beacon_interval
        links = tuple(
            site
            for site, peer in sorted(self._peers.items())
            if peer.state is NeighbourState.LINKED and peer.is_up and peer.heard_at > silent
        )
        if is_due or links != self._own.links:
            self._own = self._own._replace(sequence=self._own.sequence + 1, links=links)
            self._renewed_at = now
            self.map.have(frozenset(links))
            self._tell_all(self._own, but=self.site)

    # The automaton.

    def _enter(self, site: int, peer: _Peer, event: OverlayEvent, now: float) -> None:
        before = peer.state
        after = TRANSITIONS[before].get(event)
        if after is None or (peer.is_fixed and before is NeighbourState.LINKED):
            return
        peer.state, peer.since = after, now
        if after is NeighbourState.KNOWN:
            self._pause(peer, now)
            peer.news = {}
            self._say_no(peer, now)
        elif before not in COUNTED:
            peer.lingers_until = float("-inf")
            peer.owes = True
            if after is NeighbourState.ASKED:
                peer.heard_at = now
                peer.news = {self.site: self._own}
            else:
                self._tell_map(peer)
        if after is NeighbourState.LINKED:
            peer.tries = 0
        if NeighbourState.LINKED in (before, after):
            self._effects.append(LinkChange(site, event, after))

    def _pause(self, peer: _Peer, now: float) -> None:
        """Ask a site later, each time after a longer pause."""
        peer.tries += 1
        beacons = min(PAUSE_BEACONS * 2 ** min(peer.tries, 10), LONGEST_PAUSE_BEACONS)
        peer.next_at = now + self._jitter(beacons)

    def _expire(self, now: float) -> None:
        interval = self.bounds.beacon_interval
        for site, peer in self._peers.items():
            if float("-inf") < peer.lingers_until <= now:
                peer.lingers_until = float("-inf")
                if peer.state is NeighbourState.KNOWN:
                    peer.owes, peer.news = False, {}
            if peer.state is NeighbourState.KNOWN or peer.is_fixed:
                continue
            waits = peer.state is not NeighbourState.LINKED and now - peer.since > interval
            is_down = not peer.is_up and now - max(peer.changed_at, peer.since) > interval
            is_silent = now - peer.heard_at > BEACONS_MISSED * interval
            if waits or is_down or is_silent:
                self.counters.lost += peer.state is NeighbourState.LINKED
                self._enter(site, peer, OverlayEvent.LOSE, now)

    # Links to ask for and to drop.

    def _look(self, now: float) -> None:
        """Ask for missing links, and drop superfluous ones."""
        reachable = self.map.reachable()
        degree = self.degree
        asked = [one for one, peer in self._peers.items() if peer.state is NeighbourState.ASKED]
        free = MOST_ASKED - len(asked)
        candidates = [
            one
            for one, peer in self._peers.items()
            if peer.state is NeighbourState.KNOWN and peer.next_at <= now and self._is_allowed(one)
        ]
        apart = [one for one in candidates if one not in reachable]
        self._apart_since = {one: self._apart_since.get(one, now) for one in apart}
        if degree:  # a map that is just changing shows sites apart that are not
            waited = now - PAUSE_BEACONS * self.bounds.beacon_interval
            apart = [one for one in apart if self._apart_since[one] <= waited]
        if apart and free > 0:
            self._random.shuffle(apart)
            apart.sort(key=lambda one: self._peers[one].next_at)
            self._join(apart[:free], now)
            return
        missing = self.bounds.least - degree - len(asked)
        if missing > 0:
            near = [one for one in candidates if one in reachable]
            roomy = [one for one in near if self._spare_links(one) > 0] or [
                one for one in near if self._links_beyond_least(one) > 0
            ]
            self._random.shuffle(roomy)
            self._ask(roomy[: min(free, missing)], now)
        elif degree > self.bounds.least and now >= self._trim_at:
            self._trim_at = now + self._jitter(TRIM_BEACONS)
            self._drop(self._spare(keeps_least=True), now)

    def _join(self, sites: Iterable[int], now: float) -> None:
        """Get together with sites that are apart: ask them, or tell them of others to ask."""
        if self._has_room():
            self._ask(sites, now)
            return
        for site in sites:
            peer = self._peers[site]
            self._say_no(peer, now)
            self._tell_map(peer)
            self._pause(peer, now)

    def _ask(self, sites: Iterable[int], now: float) -> None:
        for site in sites:
            self.counters.asked += 1
            self._enter(site, self._peers[site], OverlayEvent.ASK, now)

    def _is_allowed(self, site: int) -> bool:
        member = self.map.members.get(site)
        if member is None:
            return site in self._seeds
        return self._may_link(site, member.uri)

    def _spare_links(self, site: int) -> int:
        member = self.map.members[site]
        return member.most - len(member.links)

    def _links_beyond_least(self, site: int) -> int:
        member = self.map.members[site]
        return len(member.links) - member.least

    def _has_room(self) -> bool:
        return self.degree < self.bounds.most or self._spare(keeps_least=False) is not None

    def _make_room(self, site: int, now: float) -> bool:
        """Have room for a site that asks, by dropping a link if that is worth it."""
        if self.degree < self.bounds.most:
            return True
        is_apart = site not in self.map.reachable()
        if not is_apart and self._links_beyond_least(site) >= 0:
            return False
        return self._drop(self._spare(keeps_least=not is_apart), now)

    def _spare(self, *, keeps_least: bool) -> int | None:
        """Return the neighbour of the heaviest link that may be dropped.

        Args:
            keeps_least: Only one whose other end then has as many links as it wants.
        """
        found = [
            site
            for site, peer in self._peers.items()
            if peer.state is NeighbourState.LINKED
            and not peer.is_fixed
            and (
                not keeps_least or (site in self.map.members and self._links_beyond_least(site) > 0)
            )
            and self.map.is_spare(site)
        ]
        return max(found, key=lambda one: weight(self.site, one), default=None)

    def _drop(self, site: int | None, now: float) -> bool:
        if site is None:
            return False
        self.counters.dropped += 1
        self._enter(site, self._peers[site], OverlayEvent.DROP, now)
        self._renew(now)
        return True

    def _jitter(self, beacons: float) -> float:
        return beacons * self.bounds.beacon_interval * self._random.uniform(0.75, 1.25)


_HEARD: Final[Mapping[Stance, Callable[[Overlay, int, _Peer, float], None]]] = {
    Stance.ASK: Overlay._hear_ask,
    Stance.LINKED: Overlay._hear_linked,
    Stance.NONE: Overlay._hear_none,
}
