"""Interest between the sites of a federation: filters of each, and the neighbours on the way.

Each site tells its neighbours the few filters that cover those of its subscribers, under a number
that grows with each change. Neighbours pass that on, and with it the *path*: the sites from the one
that tells to the one that wants. No site hears of a path that it is on, so interest neither goes
round nor outlives its site, and a neighbour behind whom no site wants anything is asked for
nothing.

    site 3 wants f/#     site 2 hears  3: [3] f/#        site 1 hears  3: [2, 3] f/#

Interest that was heard stays while a link is down: the neighbour gets all of it when it is back.
This site tells the others also of a neighbour that was never there, that it is behind this site:
its messages may come by this way, and no site may count them among those that never come
(`passing`).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ingest.federation.filters import meet
from mqlake.errors import InvalidRecord, InvalidTopic
from mqlake.topics.matching import TopicFilterTrie
from mqlake.topics.names import SHARE_PREFIX, validate_topic_filter

MOST_FILTERS: Final = 10_000
"""Filters of one site."""


class InterestEntry(NamedTuple):
    """That a site wants something."""

    version: int
    """Version of its filters: the higher one counts."""
    path: tuple[int, ...]
    """From the site that tells of it to the one that wants."""
    filters: tuple[str, ...]
    """Filters in the federation's names; none: it wants nothing now."""
    away: int = 0
    """Links on the path that were down."""


class Ways(NamedTuple):
    """How members of a share group at other sites are reached."""

    far: tuple[int, int]
    """Links that are down on the way to the nearest site, and all links."""
    nearest: set[int]
    """The neighbours that lead to sites as near as that."""
    every: set[int]
    """All neighbours that lead to any."""


News = dict[int, InterestEntry | None]
"""By site that wants; None: it is reached on this way no longer."""


class Interest:
    """Interest of all sites, as one site knows it.

    Args:
        site: This one.
        hop_limit: Sites that a message may pass: longer paths lead nowhere.
    """

    def __init__(self, site: int, hop_limit: int) -> None:
        self.own = InterestEntry(0, (site,), ())
        self._is_untold = True
        """In each run the interest gets a number of its own, be it empty: others may know another
        one under the last number."""
        self._site = site
        self._hop_limit = hop_limit
        self._heard: dict[int, dict[int, InterestEntry]] = {}
        self._told: dict[int, dict[int, InterestEntry]] = {}
        self._repeated: dict[int, set[int]] = {}
        self._up: set[int] = set()
        self._linked: set[int] = set()
        self._found: dict[str, Ways] | None = None

    def link(self, neighbour: int) -> None:
        """Hear that a site is a neighbour, there or not."""
        self._linked.add(neighbour)

    def want(self, filters: Iterable[str], now_ms: int) -> bool:
        """Hear the filters of this site's subscribers; return whether they are new."""
        wanted = tuple(sorted(filters))
        if wanted == self.own.filters and not self._is_untold:
            return False
        self._is_untold = False
        self.own = InterestEntry(max(now_ms, self.own.version + 1), (self._site,), wanted)
        return True

    def open(self, neighbour: int) -> None:
        """Hear that there is a new connection: both sides say all they know."""
        self._told[neighbour] = {}
        self._repeated[neighbour] = set()
        self._up.add(neighbour)
        self._found = None

    def close(self, neighbour: int) -> None:
        """Hear that a neighbour is away: its interest stays, ways by others come first."""
        self._up.discard(neighbour)
        self._found = None

    def hear(self, neighbour: int, news: Mapping[int, InterestEntry | None]) -> bool:
        """Hear a neighbour's news; return whether they change anything here."""
        heard = self._heard.setdefault(neighbour, {})
        has_changed = False
        for site, told in news.items():
            self._repeated.setdefault(neighbour, set()).add(site)
            entry = told if told is not None and self._leads(neighbour, site, told) else None
            if entry == heard.get(site):
                continue
            has_changed = True
            self._found = None
            if entry is None:
                del heard[site]
            else:
                heard[site] = entry
        return has_changed

    def complete(self, neighbour: int) -> bool:
        """Hear that a neighbour has said all since `open`; return whether it has less than before.

        Interest from before that it has not repeated does not count any more.
        """
        heard = self._heard.setdefault(neighbour, {})
        gone = heard.keys() - self._repeated.get(neighbour, set())
        for site in gone:
            del heard[site]
        self._found = None
        return bool(gone)

    def forget(self, neighbour: int) -> None:
        """Hear that a site is no neighbour any more."""
        for known in (self._heard, self._told, self._repeated):
            known.pop(neighbour, None)
        self._up.discard(neighbour)
        self._linked.discard(neighbour)
        self._found = None

    def news_for(self, neighbour: int) -> News:
        """Return the news for a neighbour, and count them as sent."""
        told = self._told.setdefault(neighbour, {})
        news: News = {}
        for site in {*told, *self._sites(), *self._linked}:
            best = self._best(site, neighbour)
            if best != told.get(site):
                news[site] = best
                if best is None:
                    del told[site]
                else:
                    told[site] = best
        return news

    def version(self, site: int) -> int:
        """Return the number of a site's interest as it is known; 0: it is not."""
        if site == self._site:
            return self.own.version
        return max(
            (heard[site].version for heard in self._heard.values() if site in heard), default=0
        )

    def knows(self, neighbour: int) -> bool:
        """Tell whether a neighbour has ever announced its interest."""
        return neighbour in self._heard

    def may_bring(self, origin: int, neighbours: Iterable[int]) -> set[int]:
        """Return the neighbours that messages of a site may come from.

        Neighbours whose sites overlap are linked without this one, and so are all of whom one leads
        to the origin. From one that never announced its interest anything may come.
        """
        sites = {one: {one, *self._heard.get(one, ())} for one in neighbours}
        found = {one for one, behind in sites.items() if origin in behind or not self.knows(one)}
        if not any(origin in behind for behind in sites.values()):
            return set(sites)  # it has gone: its messages may be anywhere
        while True:
            reached = set().union(*(sites[one] for one in found if self.knows(one)))
            more = {one for one, behind in sites.items() if behind & reached} - found
            if not more:
                return found
            found |= more

    def behind(self, neighbour: int) -> set[str]:
        """Return the filters of the sites that a neighbour leads to, its own included."""
        heard = self._heard.get(neighbour, {})
        found = {one for site in heard for one in self._newest(site).filters}
        return {one for one in found if not one.startswith(SHARE_PREFIX)}

    def ways(self) -> dict[str, Ways]:
        """Return by share group the neighbours that lead to sites with members."""
        if self._found is None:
            self._found = self._find_ways()
        return self._found

    def _find_ways(self) -> dict[str, Ways]:
        found: dict[str, Ways] = {}
        for site in self._sites() - {self._site}:
            groups = [one for one in self._newest(site).filters if one.startswith(SHARE_PREFIX)]
            if not groups:
                continue
            for neighbour, heard in self._heard.items():
                entry = heard.get(site)
                if entry is None:
                    continue
                far = (entry.away + (neighbour not in self._up), len(entry.path))
                for group in groups:
                    best, nearest, every = found.get(group, Ways(far, set(), set()))
                    if far < best:
                        best, nearest = far, set()
                    if far == best:
                        nearest.add(neighbour)
                    every.add(neighbour)
                    found[group] = Ways(best, nearest, every)
        return found

    def _sites(self) -> set[int]:
        return {self._site, *(site for heard in self._heard.values() for site in heard)}

    def _leads(self, neighbour: int, site: int, entry: InterestEntry) -> bool:
        """Tell whether a path may be true and is of use here."""
        path = entry.path
        return (
            0 < len(path) <= self._hop_limit
            and (path[0], path[-1]) == (neighbour, site)
            and self._site not in path
            and len(set(path)) == len(path)
        )

    def _newest(self, site: int) -> InterestEntry:
        """Return the last entry of a site, from any neighbour; of one never heard an empty one."""
        found = (heard[site] for heard in self._heard.values() if site in heard)
        return max(found, default=InterestEntry(0, (site,), ()))

    def _best(self, site: int, listener: int) -> InterestEntry | None:
        """Return the entry of a site for a neighbour: the nearest way that it is not on."""
        if site == self._site:
            return self.own if self.own.version else None
        # Fewest links that are down, then shortest: both grow along a path, so all sites settle.
        # A site that took any that is up before one that is near could change its mind for ever.
        ways = [
            (heard[site].away + (neighbour not in self._up), len(heard[site].path), neighbour)
            for neighbour, heard in self._heard.items()
            if neighbour != listener and site in heard and listener not in heard[site].path
        ]
        if site in self._linked and site != listener and not self.knows(site):
            ways.append((1, 1, site))
        if not ways:
            return None
        away, _, neighbour = min(ways)
        entry = self._heard.get(neighbour, {}).get(site)
        path = (self._site, *((site,) if entry is None else entry.path))
        return self._newest(site)._replace(path=path, away=away)

    # State for a new run, and the wire.

    def to_json(self) -> dict[str, Any]:
        """Return the state for `restore`."""
        heard = {n: {s: [*one] for s, one in told.items()} for n, told in self._heard.items()}
        return {"version": self.own.version, "heard": heard}

    def restore(self, found: Any) -> None:
        """Begin with the state of the run before; the own filters are announced again.

        Raises:
            InvalidRecord: It is nothing that `to_json` makes.
        """
        try:
            self.own = self.own._replace(version=int(found["version"]))
            for neighbour, told in found["heard"].items():
                self._heard[int(neighbour)] = {
                    site: entry for site, entry in read_news(told).items() if entry is not None
                }
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise InvalidRecord(f"interest of other sites cannot be read: {exc!r}") from exc


def read_news(found: Any) -> News:
    """Read a neighbour's news: by site a list of the fields of `InterestEntry`, or null.

    Raises:
        InvalidRecord: It is something else.
    """
    news: News = {}
    try:
        for site, told in found.items():
            if told is None:
                news[int(site)] = None
                continue
            version, path, filters, away = told
            if any(type(one) is not int for one in (version, away, *path)):
                raise ValueError(f"version {version!r}, path {path!r} or links away {away!r}")
            if len(filters) > MOST_FILTERS:
                raise ValueError(f"{len(filters)} filters, expected at most {MOST_FILTERS}")
            for one in filters:
                validate_topic_filter(one)
            news[int(site)] = InterestEntry(version, tuple(path), tuple(filters), away)
    except (TypeError, ValueError, AttributeError, InvalidTopic) as exc:
        raise InvalidRecord(f"interest cannot be read: {exc!r}") from exc
    return news


class NeighbourInterest:
    """Topics that each neighbour gets: of those that it may get, those wanted behind it.

    It gets all retained messages that it may get, for later subscribers are to have them.
    """

    def __init__(self) -> None:
        self._permitted = _ByNeighbour()
        self._interested = _ByNeighbour()

    def permit(self, neighbour: int, filters: Iterable[str]) -> None:
        """Hear the filters that a neighbour may get: all of them, until it tells its interest."""
        permitted = set(filters)
        self._permitted.set(neighbour, permitted)
        self._interested.set(neighbour, permitted)

    def may_get(self, neighbour: int, topic: str) -> bool:
        """Tell whether a neighbour may get messages of a topic, wanted or not."""
        return neighbour in self._permitted.match(topic)

    def want(self, neighbour: int, filters: Iterable[str]) -> None:
        """Hear the filters that are wanted behind a neighbour."""
        self._interested.set(neighbour, set(common(self._permitted.of(neighbour), filters)))

    def forget(self, neighbour: int) -> None:
        """Give a neighbour nothing more."""
        self._permitted.set(neighbour, set())
        self._interested.set(neighbour, set())

    def by(self, topic: str, *, retain: bool) -> list[int]:
        """Return the neighbours that get a message; one may stand there more than once."""
        return (self._permitted if retain else self._interested).match(topic)

    def of(self, neighbour: int) -> set[str]:
        """Return the filters by which a neighbour gets messages that are not retained."""
        return self._interested.of(neighbour)


class _ByNeighbour:
    """Filters of neighbours, by topic."""

    def __init__(self) -> None:
        self._trie: TopicFilterTrie[int] = TopicFilterTrie()
        self._filters: dict[int, set[str]] = {}
        self.match = self._trie.match

    def of(self, neighbour: int) -> set[str]:
        return self._filters.get(neighbour, set())

    def set(self, neighbour: int, filters: set[str]) -> None:
        before = self.of(neighbour)
        for one in before - filters:
            self._trie.remove(one, neighbour)
        for one in filters - before:
            self._trie.insert(one, neighbour)
        self._filters[neighbour] = filters


def common(some: Iterable[str], others: Iterable[str]) -> Iterator[str]:
    """Yield filters of the topics that both have."""
    several = list(others)
    for one in some:
        for other in several:
            found = meet(one, other)
            if found is not None:
                yield found
