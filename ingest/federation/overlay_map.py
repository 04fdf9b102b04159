"""The map of a federation that a site has learned: its sites, and the links between them.

Each site tells all others of itself (`SiteMember`), by way of its neighbours; a later word takes
the place of an earlier one. A link is on the map when both ends tell of it. So a site that has died
needs not be noticed by anybody but its neighbours: they tell of their links to it no more.

**Links that may be dropped.** Every link has a weight that all sites agree on. One that is the
heaviest of a circle may be dropped: both ends reach each other by the rest of it. Any number of
sites may do so at once, by maps of any age, and nothing is cut apart: when another link of the
circle has gone in the same way, then there was a circle of lighter ones around that. Only links
that have failed can make such a decision wrong; that heals as any other failure does.
"""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple
from zlib import crc32

Weight = tuple[int, int, int]


class SiteMember(NamedTuple):
    """Entry of a site, as it tells of itself."""

    site: int
    epoch: int
    """Epoch of its run, higher than that of any before."""
    sequence: int
    uri: str
    """Address that others connect to; empty: none, it connects to others."""
    protocol: str
    least: int
    """Links that it wants at least."""
    most: int
    """Links that it has at most."""
    links: tuple[int, ...]
    """Neighbours that are there."""

    @property
    def age(self) -> tuple[int, int]:
        """Order of the words of a site: the later one is greater."""
        return self.epoch, self.sequence


def weight(one: int, other: int) -> Weight:
    """Return the weight of a link, the same at both ends and at every site; no two are equal."""
    low, high = min(one, other), max(one, other)
    return crc32(b"%d %d" % (low, high)), low, high


NO_LINKS: Final[frozenset[int]] = frozenset()


class OverlayMap:
    """The sites that one site knows of.

    Args:
        site: That one; it announces its own links itself.
        most_sites: Further ones are not taken.
    """

    def __init__(self, site: int, most_sites: int) -> None:
        self.members: dict[int, SiteMember] = {}
        self.heard_at: dict[int, float] = {}
        """When each last announced something new."""
        self.overflowed = 0
        """Words of sites that there was no place for."""
        self._site = site
        self._most_sites = most_sites
        self._links: dict[int, frozenset[int]] = {}
        self._own: frozenset[int] = NO_LINKS

    def take(self, member: SiteMember, now: float) -> bool:
        """Take a site's entry; return whether it is new."""
        site = member.site
        known = self.members.get(site)
        if known is not None and known.age >= member.age:
            return False
        if known is None and len(self.members) >= self._most_sites:
            self.overflowed += 1
            return False
        self.members[site] = member
        self.heard_at[site] = now
        self._links.clear()
        return True

    def forget(self, before: float, but: Collection[int]) -> list[int]:
        """Forget sites that have announced nothing since; return them."""
        gone = [one for one, at in self.heard_at.items() if at < before and one not in but]
        for site in gone:
            del self.members[site], self.heard_at[site]
        self._links.clear()
        return gone

    def have(self, links: Collection[int]) -> None:
        """Hear which links the site itself has now."""
        if self._own != links:
            self._own = frozenset(links)
            self._links.clear()

    def links_of(self, site: int) -> frozenset[int]:
        """Return the sites that a site is linked to, as both ends tell."""
        known = self._links.get(site)
        if known is None:
            known = self._links[site] = frozenset(self._told_links(site))
        return known

    def _told_links(self, site: int) -> Iterator[int]:
        if site == self._site:
            yield from self._own
            return
        if site in self._own:
            yield self._site
        member = self.members.get(site)
        for other in () if member is None else member.links:
            there = self.members.get(other)
            if there is not None and site in there.links:
                yield other

    def reachable(self) -> set[int]:
        """Return the sites that there is a way to, this one among them."""
        return self._reach(self._site, None)

    def is_spare(self, neighbour: int) -> bool:
        """Tell whether the own link to a neighbour is the heaviest of a circle."""
        return neighbour in self._reach(self._site, weight(self._site, neighbour))

    def parts(self) -> list[list[int]]:
        """Return all sites, those that are connected together, the part of this one first."""
        parts, seen = [], set[int]()
        for start in (self._site, *sorted(self.members)):
            if start not in seen:
                part = self._reach(start, None)
                seen |= part
                parts.append(sorted(part))
        return parts

    def _reach(self, start: int, below: Weight | None) -> set[int]:
        """Return the sites that lighter links than `below` lead to."""
        found, todo = {start}, [start]
        while todo:
            site = todo.pop()
            for other in self.links_of(site) - found:
                if below is None or weight(site, other) < below:
                    found.add(other)
                    todo.append(other)
        return found
