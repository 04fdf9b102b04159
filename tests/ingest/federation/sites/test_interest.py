"""What is wanted is known where it has to be: random federations, and defects that they find."""

from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from ingest.federation.filters import covers, meet
from ingest.federation.sites.interest import interest
from ingest.federation.sites.interest.interest import (
    Interest,
    InterestEntry,
    NeighbourInterest,
    News,
)
from tests.ingest.simulations import simulations_wanted

FILTERS = ("f/#", "f/1", "f/+", "g/1/x", "g/+/x", "g/#", "h")
HOP_LIMIT = 16
EVENTS = 25

SEEDS = 600
MOST_PACKETS_PER_CHANGE = 3
"""Of one change, for each link: what is more is flooding."""


class Federation:
    """Sites and links on which packets wait, are lost with the connection, or arrive in order."""

    def __init__(self, random: Random) -> None:
        self.random = random
        count = random.randint(2, 6)
        self.sites = list(range(1, count + 1))
        pairs = [random.sample(self.sites, 2) for _ in range(random.randint(1, 12))]
        self.links = {(min(pair), max(pair)) for pair in pairs}
        self.up: set[tuple[int, int]] = set()
        self.now_ms = 1
        self.wants: dict[int, set[str]] = {site: set() for site in self.sites}
        self.known = {site: Interest(site, HOP_LIMIT) for site in self.sites}
        self.waiting: dict[tuple[int, int], deque[News | None]] = {}
        self.packets = 0
        self.is_whole = random.random() < 0.5
        """Whether all links come back in the end."""
        for site in self.sites:
            self.want(site)

    def neighbours(self, site: int) -> Iterator[int]:
        for a, b in self.links:
            if site in (a, b):
                yield a + b - site

    def want(self, site: int) -> None:
        self.now_ms += 1
        wanted = self.random.sample(FILTERS, self.random.choice((0, 1, 1, 3)))
        self.wants[site] = set(wanted)
        self.known[site].want(wanted, self.now_ms)
        self.spread(site)

    def connect(self, pair: tuple[int, int]) -> None:
        self.up.add(pair)
        for one, other in (pair, pair[::-1]):
            self.waiting[one, other] = deque()
            self.known[one].open(other)
        for one, other in (pair, pair[::-1]):
            self.tell(one, other)
            self.waiting[one, other].append(None)

    def disconnect(self, pair: tuple[int, int]) -> None:
        self.up.discard(pair)
        for one, other in (pair, pair[::-1]):
            self.waiting.pop((one, other), None)
            self.known[one].close(other)
            self.spread(one)

    def unlink(self, pair: tuple[int, int]) -> None:
        """Two sites are neighbours no longer."""
        self.disconnect(pair)
        self.links.discard(pair)
        for one, other in (pair, pair[::-1]):
            self.known[one].forget(other)
            self.spread(one)

    def restart(self, site: int) -> None:
        """A run ends and another begins with what was kept; its clock may have gone back."""
        for pair in [one for one in self.up if site in one]:
            self.disconnect(pair)
        kept = self.known[site].to_json()
        self.known[site] = Interest(site, HOP_LIMIT)
        self.known[site].restore(kept)
        self.known[site].want(self.wants[site], self.random.choice((0, self.now_ms)))

    def tell(self, site: int, neighbour: int) -> None:
        news = self.known[site].news_for(neighbour)
        if news:
            self.packets += 1
            self.waiting[site, neighbour].append(news)

    def spread(self, site: int) -> None:
        for other in self.neighbours(site):
            if (min(site, other), max(site, other)) in self.up:
                self.tell(site, other)

    def deliver(self) -> bool:
        ways = [way for way, packets in self.waiting.items() if packets]
        if not ways:
            return False
        way = self.random.choice(ways)
        site, listener = way
        news = self.waiting[way].popleft()
        known = self.known[listener]
        if known.complete(site) if news is None else known.hear(site, news):
            self.spread(listener)
        return True

    def happen(self) -> None:
        pair = self.random.choice(sorted(self.links))
        what = self.random.random()
        if what < 0.3:
            self.want(self.random.choice(self.sites))
        elif what < 0.4:
            self.restart(self.random.choice(self.sites))
        elif what < 0.45 and len(self.links) > 1:
            self.unlink(pair)
        elif pair in self.up:
            self.disconnect(pair)
        else:
            self.connect(pair)
        for _ in range(self.random.randint(0, 20)):
            self.deliver()

    def settle(self) -> None:
        """Bring the links up that come back, the ones that were there anew; deliver everything."""
        for pair in sorted(self.links):
            self.disconnect(pair)
        back = {pair for pair in self.links if self.is_whole or self.random.random() < 0.7}
        for pair in sorted(back):
            self.connect(pair)
        self.packets = 0
        while self.deliver():
            assert self.packets < MOST_PACKETS_PER_CHANGE * 2 * len(self.links) * len(self.sites)

    def lead(self, site: int, neighbour: int) -> set[int]:
        """Return the sites that are reached by a neighbour without coming back."""
        found: set[int] = set()
        looked = [neighbour]
        while looked:
            one = looked.pop()
            if one not in found:
                found.add(one)
                looked += [other for other in self.neighbours(one) if other != site]
        return found

    def check(self) -> None:
        for site in self.sites:
            for other in self.neighbours(site) if self.is_whole else ():
                asked = self.known[site].behind(other)
                behind = {one for far in self.lead(site, other) for one in self.wants[far]}
                assert asked <= behind, f"{site} sends {other} what nobody wants"
            assert self.reached(site) >= self.connected(site), f"{site} does not reach all"

    def connected(self, site: int) -> set[tuple[int, str]]:
        """Return who gets what of a message that is published here, were it sent everywhere."""
        found, looked = {site}, [site]
        while looked:
            for other in self.there(looked.pop()):
                if other not in found:
                    found.add(other)
                    looked.append(other)
        return {(far, one) for far in found for one in self.wants[far]}

    def there(self, site: int) -> list[int]:
        """Return the neighbours to which there is a connection."""
        return [other for one, other in self.waiting if one == site]

    def reached(self, site: int) -> set[tuple[int, str]]:
        """Likewise, by what each site knows of what its neighbours want."""
        found = set()
        for one in FILTERS:
            had, looked = {site}, [site]
            while looked:
                at = looked.pop()
                for other in self.there(at):
                    wanted = self.known[at].behind(other)
                    if other not in had and any(covers(f, one) for f in wanted):
                        had.add(other)
                        looked.append(other)
            found |= {(far, one) for far in had for f in self.wants[far] if f == one}
        return found


def run(seed: int) -> None:
    random = Random(seed)
    federation = Federation(random)
    for _ in range(EVENTS):
        federation.happen()
    federation.settle()
    federation.check()
    if random.random() < 0.5:
        for site in federation.sites:
            federation.wants[site] = set()
            federation.known[site].want((), federation.now_ms + 1)
            federation.spread(site)
        while federation.deliver():
            pass
        federation.check()


def test_everybody_is_sent_what_is_wanted_behind_him_and_nothing_else() -> None:
    for seed in range(simulations_wanted(SEEDS)):
        run(seed)


Patch = Callable[[pytest.MonkeyPatch], None]


def keep_interest_to_oneself(patch: pytest.MonkeyPatch) -> None:
    """It is not passed on along a chain."""
    best = Interest._best
    patch.setattr(
        Interest, "_best", lambda self, s, to: best(self, s, to) if s == self._site else None
    )


def tell_everybody_of_every_path(patch: pytest.MonkeyPatch) -> None:
    """A neighbour is told of paths that he is on, and believes them."""

    def best(self: Interest, site: int, listener: int) -> InterestEntry | None:
        if site == self._site:
            return self.own
        ways = [heard[site] for heard in self._heard.values() if site in heard]
        found = min(ways, key=lambda one: len(one.path), default=None)
        return None if found is None else found._replace(path=(self._site, *found.path))

    patch.setattr(Interest, "_best", best)
    patch.setattr(Interest, "_leads", lambda *_: True)


def take_the_oldest(patch: pytest.MonkeyPatch) -> None:
    """Of two versions the older one counts."""

    def oldest(self: Interest, site: int) -> InterestEntry:
        return min(heard[site] for heard in self._heard.values() if site in heard)

    patch.setattr(Interest, "_newest", oldest)


def prefer_who_is_there(patch: pytest.MonkeyPatch) -> None:
    """A way by a neighbour that is there counts before a shorter one: some never settle."""

    def best(self: Interest, site: int, listener: int) -> InterestEntry | None:
        if site == self._site:
            return self.own
        ways = [
            (neighbour not in self._up, len(heard[site].path), heard[site].path)
            for neighbour, heard in self._heard.items()
            if neighbour != listener and site in heard and listener not in heard[site].path
        ]
        return (
            InterestEntry(0, (self._site, *min(ways)[2]), self._newest(site).filters)
            if ways
            else None
        )

    patch.setattr(Interest, "_best", best)


def begin_versions_anew(patch: pytest.MonkeyPatch) -> None:
    """A run forgets under which number it has told what it wants."""
    restore = Interest.restore

    def forget(self: Interest, found: Any) -> None:
        restore(self, found | {"version": 0})

    patch.setattr(Interest, "restore", forget)


def say_less_to_who_comes_back(patch: pytest.MonkeyPatch) -> None:
    """A new connection begins with what is new only: who has missed something never learns."""
    patch.setattr(Interest, "open", lambda self, n: self._repeated.__setitem__(n, set()))


def keep_what_is_not_repeated(patch: pytest.MonkeyPatch) -> None:
    """What was withdrawn while a link was down stays."""
    patch.setattr(Interest, "complete", lambda *_: False)


def hide_what_is_over(patch: pytest.MonkeyPatch) -> None:
    """Neighbours hear of what is wanted, not of what is wanted no longer."""
    news_for = Interest.news_for

    def only_more(self: Interest, neighbour: int) -> News:
        news = news_for(self, neighbour)
        return {site: one for site, one in news.items() if one is not None and one.filters}

    patch.setattr(Interest, "news_for", only_more)


def drop_what_was_heard(patch: pytest.MonkeyPatch) -> None:
    """Who passes interest on forgets the first site of it."""
    hear = Interest.hear
    patch.setattr(
        Interest,
        "hear",
        lambda self, n, news: hear(self, n, {s: e for s, e in news.items() if s != min(news)}),
    )


DEFECTS: tuple[Patch, ...] = (
    keep_interest_to_oneself,
    tell_everybody_of_every_path,
    take_the_oldest,
    prefer_who_is_there,
    begin_versions_anew,
    say_less_to_who_comes_back,
    keep_what_is_not_repeated,
    hide_what_is_over,
    drop_what_was_heard,
)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.__name__)
def test_a_planted_defect_is_found(defect: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    defect(monkeypatch)
    for seed in range(SEEDS):
        try:
            run(seed)
        except AssertionError:
            return
    pytest.fail("not found")


def test_a_neighbour_gets_of_what_it_may_get_what_is_wanted() -> None:
    wanted = NeighbourInterest()
    wanted.permit(2, ("f/#",))
    assert wanted.by("f/x", retain=False) == [2]
    wanted.want(2, ("f/+/x", "g/#", "+/y"))
    assert wanted.by("f/1/x", retain=False) == [2]
    assert wanted.by("f/y", retain=False) == [2]
    assert wanted.by("f/1", retain=False) == []
    assert wanted.by("g/1", retain=False) == []
    assert wanted.by("f/1", retain=True) == [2]
    wanted.want(2, ())
    assert wanted.by("f/1/x", retain=False) == []
    wanted.forget(2)
    assert wanted.by("f/1", retain=True) == []


def test_what_two_sites_have_in_common_is_found_for_each_pair() -> None:
    assert set(interest.common(("a/#", "b/+"), ("+/x", "b/y"))) == {"a/x", "b/x", "b/y"}
    assert meet("a/#", "b/#") is None


def test_a_new_run_gives_what_it_wants_a_number_that_nobody_knows() -> None:
    """Its neighbours may know other filters under the number that the run before had told last."""
    before = Interest(1, 16)
    before.want(["f/1"], 5)
    after = Interest(1, 16)
    after.restore(before.to_json())
    assert after.want([], 5)
    assert after.own.version > before.own.version
    assert not after.want([], 5)


def test_messages_of_a_site_may_come_from_all_that_are_linked_with_it() -> None:
    """Site 9 has neighbours 1, 2 and 4; 3 is linked with 1 and 2, and 5 with 4."""
    known = Interest(9, HOP_LIMIT)
    assert known.may_bring(1, (1, 2, 4)) == {1, 2, 4}, "of nobody anything is known"
    behind = {1: [(1,), (1, 3)], 2: [(2,), (2, 3)], 4: [(4,), (4, 5)]}
    for neighbour, paths in behind.items():
        known.hear(neighbour, {path[-1]: InterestEntry(1, path, ()) for path in paths})
    assert known.may_bring(1, (1, 2, 4)) == {1, 2}
    assert known.may_bring(5, (1, 2, 4)) == {4}
    assert known.may_bring(7, (1, 2, 4)) == {1, 2, 4}, "it has gone"
    known.forget(4)
    assert known.may_bring(1, (1, 2, 4)) == {1, 2, 4}, "who has told nothing"
