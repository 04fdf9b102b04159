"""A subscription is known at all sites that can be reached before anybody says so."""

from collections import deque
from collections.abc import Callable
from itertools import combinations
from random import Random

import pytest

from ingest.federation.sites.interest.interest import Interest, News
from ingest.federation.sites.interest.reach import OURSELVES, Debt, SiteReach
from tests.cases import case
from tests.ingest.simulations import simulations_wanted

SEEDS = 100


class Node:
    """One site, as `Spreading` has it, without a log."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.interest = Interest(number, hop_limit=16)
        self.reach = SiteReach()
        self.links: set[int] = set()
        self.reached: list[int] = []


class Net:
    """Sites whose packets arrive when chance says so, in their order on each link."""

    def __init__(self, random: Random, count: int) -> None:
        self.random = random
        self.nodes = {number: Node(number) for number in range(1, count + 1)}
        self.packets: dict[tuple[int, int], deque[tuple[str, dict[int, object]]]] = {}
        tree = [(random.randrange(1, number), number) for number in range(2, count + 1)]
        more = [pair for pair in combinations(self.nodes, 2) if random.random() < 0.3]
        for one, other in dict.fromkeys(tree + more):
            self.link(one, other)

    def link(self, one: int, other: int) -> None:
        for site, neighbour in ((one, other), (other, one)):
            node = self.nodes[site]
            node.links.add(neighbour)
            self.packets[site, neighbour] = deque()
            node.interest.open(neighbour)
            node.reach.open(neighbour)
        for site in (one, other):
            self.spread(self.nodes[site])

    def cut(self, one: int, other: int) -> None:
        for site, neighbour in ((one, other), (other, one)):
            node = self.nodes[site]
            node.links.discard(neighbour)
            del self.packets[site, neighbour]
            node.interest.close(neighbour)
            node.reach.close(neighbour)
        for site in (one, other):
            self.spread(self.nodes[site])

    def want(self, site: int, version: int) -> None:
        node = self.nodes[site]
        assert node.interest.want([f"f/{version}"], version)
        node.reach.owe(OURSELVES, site, version)
        self.spread(node)

    def spread(self, node: Node) -> None:
        for neighbour in node.links:
            news = node.interest.news_for(neighbour)
            node.reach.tell(neighbour, news)
            if news:
                self.packets[node.number, neighbour].append(("news", dict(news)))
        node.reach.all_are_told()
        self.settle(node)

    def settle(self, node: Node) -> None:
        for asker, site, version in node.reach.settled():
            if asker == OURSELVES:
                node.reached.append(version)
            else:
                self.packets[node.number, asker].append(("reached", {site: version}))

    def step(self) -> bool:
        waiting = [pair for pair, packets in self.packets.items() if packets]
        owing = [node for node in self.nodes.values() if node.reach.is_owing]
        if not waiting and not owing:
            return False
        if owing and (not waiting or self.random.random() < 0.3):
            self.spread(self.random.choice(owing))
            return True
        sender, receiver = self.random.choice(waiting)
        kind, content = self.packets[sender, receiver].popleft()
        node = self.nodes[receiver]
        if kind == "reached":
            node.reach.hear(sender, content)  # type: ignore[arg-type]
            self.settle(node)
            return True
        news: News = content  # type: ignore[assignment]
        known = node.reach.take(sender, news, node.interest.version)
        if known:
            self.packets[receiver, sender].append(("reached", dict(known)))
        if node.interest.hear(sender, news) or node.reach.is_owing:
            self.spread(node)
        return True


def simulate(one: Callable[[int], None], seeds: int) -> None:
    for seed in range(seeds):
        with case(f"seed {seed}"):
            one(seed)


def test_all_that_can_be_reached_know_before_it_is_said() -> None:
    simulate(know_before_it_is_said, simulations_wanted(SEEDS))


def know_before_it_is_said(seed: int) -> None:
    random = Random(seed)
    net = Net(random, random.randint(2, 7))
    while net.step():
        pass
    for version in range(1, 7):
        root = random.choice(list(net.nodes))
        net.want(root, version)
        while version not in net.nodes[root].reached:
            assert net.step(), "it waits for ever"
        # No link has changed, so all are connected.
        assert all(node.interest.version(root) >= version for node in net.nodes.values())


def test_nobody_waits_for_who_goes_away_meanwhile() -> None:
    simulate(wait_for_nobody_who_goes_away, simulations_wanted(SEEDS))


def wait_for_nobody_who_goes_away(seed: int) -> None:
    random = Random(seed)
    net = Net(random, random.randint(3, 7))
    while net.step():
        pass
    for version in range(1, 7):
        root = random.choice(list(net.nodes))
        net.want(root, version)
        for _ in range(random.randint(0, 6)):
            net.step()
        links = [pair for pair in net.packets if pair[0] < pair[1]]
        if links and random.random() < 0.7:
            net.cut(*random.choice(links))
        elif random.random() < 0.5:
            missing = [pair for pair in combinations(net.nodes, 2) if pair not in net.packets]
            if missing:
                net.link(*random.choice(missing))
        while net.step():
            pass
        assert version in net.nodes[root].reached


@pytest.mark.parametrize("defect", ["nobody is waited for", "all are owed", "the away are awaited"])
def test_planted_defects_are_found(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if defect == "nobody is waited for":
        monkeypatch.setattr(SiteReach, "_is_awaited", lambda *_: False)
    elif defect == "all are owed":
        take = SiteReach.take
        monkeypatch.setattr(
            SiteReach, "take", lambda reach, one, news, _: take(reach, one, news, zero)
        )
    else:
        monkeypatch.setattr(SiteReach, "close", lambda *_: None)
    with pytest.raises(AssertionError):
        run_all()


def run_all() -> None:
    simulate(know_before_it_is_said, SEEDS)
    simulate(wait_for_nobody_who_goes_away, SEEDS)


def zero(_site: int) -> int:
    return 0


def test_an_answer_is_given_once_and_the_highest_number_counts() -> None:
    reach = SiteReach()
    reach.open(2)
    reach.owe(OURSELVES, 1, 5)
    assert reach.settled() == []  # nobody has been told yet
    interest = Interest(1, 16)
    interest.want(["f/1"], 5)
    reach.tell(2, {1: interest.own})
    reach.all_are_told()
    reach.hear(2, {1: 4})
    assert reach.settled() == []
    reach.hear(2, {1: 6})
    assert reach.settled() == [Debt(OURSELVES, 1, 5)]
    assert reach.settled() == []
