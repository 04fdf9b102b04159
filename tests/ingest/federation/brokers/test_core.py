"""One site after the other: what others have failed at, and what a link may carry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from ingest.federation import packets
from ingest.federation.brokers.core import Federator
from ingest.federation.brokers.events import (
    Beacon,
    Deliver,
    Gone,
    LinkDown,
    LinkUp,
    Neighbours,
    PassedOn,
    PublishedHere,
    Send,
    SiteLimits,
    StepEvent,
)
from ingest.federation.brokers.meshes import MeshState
from ingest.federation.envelope import SiteMessage, from_mqtt, to_mqtt


@dataclass
class Net:
    """Sites that hear each other at once; packets go over the wire in alternating protocols."""

    edges: set[tuple[int, int]]
    limits: SiteLimits = field(default_factory=SiteLimits)
    now: float = 0.0
    cut: set[frozenset[int]] = field(default_factory=set)
    sites: dict[int, Federator] = field(default_factory=dict)
    delivered: dict[int, list[bytes]] = field(default_factory=dict)
    effects: list[Deliver] = field(default_factory=list)
    messages: list[tuple[int, int, bytes]] = field(default_factory=list)
    controls: int = 0
    todo: list[tuple[int, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for site in sorted({site for edge in self.edges for site in edge}):
            self.start(site)
        for edge in sorted(self.edges):
            self.up(*edge)
        self.drain()

    def start(self, site: int, epoch: int = 1) -> None:
        neighbours = [b for a, b in self.edges if a == site] + [
            a for a, b in self.edges if b == site
        ]
        self.sites[site] = Federator(
            site, epoch, neighbours, limits=self.limits, seed=site, now=self.now
        )
        self.delivered.setdefault(site, [])

    def up(self, a: int, b: int) -> None:
        self.cut.discard(frozenset((a, b)))
        self.step(a, LinkUp(b))
        self.step(b, LinkUp(a))

    def down(self, a: int, b: int) -> None:
        self.cut.add(frozenset((a, b)))
        self.step(a, LinkDown(b))
        self.step(b, LinkDown(a))

    def step(self, site: int, event: StepEvent) -> None:
        self.sites[site].step(event, self.now)
        self.drain()

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.1
            for site in self.sites.values():
                site.tick(self.now)
            self.drain()

    def drain(self) -> None:
        while True:
            for site in self.sites.values():
                for effect in site.ready(self.now):
                    self.take(site.site, effect)
            if not self.todo:
                return
            todo, self.todo = self.todo, []
            for to, event in todo:
                self.sites[to].step(event, self.now)

    def take(self, site: int, effect: Any) -> None:
        if isinstance(effect, Deliver):
            self.effects.append(effect)
            self.delivered[site].append(effect.message.payload)
        elif isinstance(effect, Send) and frozenset((site, effect.neighbour)) not in self.cut:
            packet = effect.packet
            if isinstance(packet, SiteMessage):
                self.messages.append((site, effect.neighbour, packet.payload))
                level = 4 + (site + effect.neighbour) % 2
                wire = to_mqtt(packet, site, prefix="f", protocol_level=level)
                message, sender = from_mqtt(wire[0], packet.payload, wire[1], prefix="f")
                self.todo.append((effect.neighbour, PassedOn(sender, message)))
            else:
                self.controls += 1
                self.todo.append((effect.neighbour, packets.decode(packets.encode(packet))))

    def want(self, site: int, *filters: str) -> None:
        for one in filters:
            self.step(site, Beacon(one, is_permanent=True))

    def publish(self, site: int, payload: bytes, topic: str = "t", **named: Any) -> None:
        at_ms = round(self.now * 1000)
        self.step(
            site, PublishedHere(topic, payload, 1, named.pop("retain", False), at_ms, **named)
        )


RING = {(1, 2), (2, 3), (3, 4), (1, 4)}
CHAIN = {(1, 2), (2, 3), (3, 4), (4, 5)}


def test_two_redundant_paths_bring_one_copy() -> None:
    net = Net(RING)
    net.want(3, "t")
    for number in range(20):
        net.publish(1, b"%d" % number)
    assert net.delivered[3] == [b"%d" % number for number in range(20)]
    assert net.sites[3].counters.duplicates == 20  # the second path is there


def test_interest_is_known_along_a_daisy_chain() -> None:
    net = Net(CHAIN)
    net.want(5, "t")
    net.publish(1, b"x")
    assert net.delivered[5] == [b"x"]
    assert [(a, b) for a, b, _ in net.messages] == [(1, 2), (2, 3), (3, 4), (4, 5)]


def test_nothing_goes_where_nobody_wants_it() -> None:
    net = Net(CHAIN)
    net.want(2, "t")
    net.publish(1, b"x")
    net.publish(1, b"y", topic="other")
    assert [(a, b) for a, b, _ in net.messages] == [(1, 2)]


@pytest.mark.parametrize("filters", [("t/a", "t/+"), ("t/#", "t/+"), ("+/a", "t/+"), ("#", "t/a")])
def test_filters_that_overlap_bring_one_copy_to_all(filters: tuple[str, str]) -> None:
    net = Net(RING | {(4, 5)})
    net.want(3, *filters)
    net.want(5, filters[0])
    net.want(2, filters[1])
    for number in range(5):
        net.publish(1, b"%d" % number, topic="t/a")
        net.publish(5, b"5-%d" % number, topic="t/a")
    for site in (2, 3):
        assert sorted(net.delivered[site]) == sorted(
            [b"%d" % n for n in range(5)] + [b"5-%d" % n for n in range(5)]
        )
    assert net.delivered[5] == [b"%d" % n for n in range(5)]


def test_a_site_that_joins_late_learns_at_once() -> None:
    net = Net({(1, 2)})
    net.want(1, "t")
    net.wait(3.3)
    net.edges.add((2, 3))
    net.start(3)
    net.step(2, Neighbours((1, 3)))
    net.up(2, 3)
    net.publish(3, b"x")
    assert net.delivered[1] == [b"x"]


def test_a_site_that_joins_late_gets_retained_messages() -> None:
    net = Net({(1, 2), (2, 3)})
    net.want(2, "t")
    net.publish(1, b"old", retain=True)
    net.publish(1, b"new", retain=True)
    net.wait(200)  # longer than messages are stored
    net.want(3, "t")
    net.wait(1)
    assert net.delivered[3] == [b"new"]
    assert net.effects[-1].retain


def test_an_old_retained_message_does_not_replace_a_later_one() -> None:
    net = Net({(1, 2), (2, 3)})
    for site in (1, 2, 3):
        net.want(site, "t")
    net.down(1, 2)
    net.publish(1, b"first", retain=True)
    net.wait(1)
    net.publish(3, b"second", retain=True)
    net.up(1, 2)
    net.wait(2)
    assert net.delivered[1] == [b"second"]
    assert {e.message.payload: e.retain for e in net.effects if e.message.payload == b"first"} == {
        b"first": False
    }


def test_a_core_that_dies_is_replaced_and_what_was_published_meanwhile_arrives() -> None:
    net = Net({(1, 2), (1, 3), (2, 3), (3, 4)})
    for site in (1, 2, 4):
        net.want(site, "t")
    net.wait(1)
    assert net.sites[4].meshes["t"].core is not None
    assert net.sites[4].meshes["t"].core.site == 1
    net.down(1, 2)
    net.down(1, 3)
    net.publish(4, b"meanwhile")
    net.wait(4)
    assert net.sites[4].meshes["t"].core.site == 2
    assert net.sites[2].meshes["t"].state is MeshState.CORE
    assert net.delivered[2] == [b"meanwhile"]


def test_a_neighbour_that_waits_for_a_message_is_not_taken_for_one_that_lacks_it() -> None:
    net = Net({(1, 2), (2, 3)})
    net.want(2, "t")
    net.want(3, "t")
    net.wait(1)
    net.cut.add(frozenset((1, 2)))  # unnoticed
    net.publish(1, b"first")
    net.cut.clear()
    net.publish(1, b"second")
    net.wait(0.3)
    assert net.delivered[2] == net.delivered[3] == [b"first", b"second"]


def test_a_site_between_fetches_what_was_published_before_it_knew_of_subscribers() -> None:
    net = Net({(1, 2), (1, 3)})
    net.want(2, "t")
    net.wait(1)
    net.down(1, 2)
    net.down(1, 3)
    net.publish(3, b"first")
    net.wait(1)
    net.start(1, epoch=2)
    net.want(1, "t")
    net.wait(1)
    net.publish(3, b"second")
    net.up(1, 3)
    net.up(1, 2)
    net.wait(2)
    assert net.delivered[1] == [b"second"]
    assert net.delivered[2] == [b"first", b"second"]


def test_a_site_that_was_alone_gets_what_it_wanted_meanwhile_though_others_began_later() -> None:
    net = Net({(1, 2), (2, 3)})
    net.down(2, 3)
    net.want(3, "f/#")
    net.wait(2)
    net.publish(1, b"early", "f/a")
    net.wait(8)
    net.want(2, "f/#")
    net.wait(8)
    net.up(2, 3)
    net.wait(20)
    assert net.delivered[3] == [b"early"]
    assert net.delivered[2] == []


def test_a_dead_neighbour_is_noticed_when_its_broker_says_so() -> None:
    net = Net(RING)
    net.step(1, Gone(2))
    assert net.sites[1].neighbours() == {2: False, 4: True}
    net.wait(6)  # it was not dead
    assert net.sites[1].neighbours() == {2: True, 4: True}


def test_three_beacons_missed_are_no_subscriber() -> None:
    net = Net({(1, 2)})
    net.step(2, Beacon("t"))
    net.wait(14)
    net.publish(1, b"x")
    net.wait(3)
    net.publish(1, b"y")
    net.wait(3)
    assert net.delivered[2] == [b"x"]
    assert net.sites[1].targets("t") == set()


def test_subscribers_that_come_back_are_heard_of_again() -> None:
    """The announcements of their mesh go on above the resignation that others remember."""
    net = Net(CHAIN)
    for _ in range(2):
        net.step(5, Beacon("t"))
        net.publish(1, b"x")
        net.wait(20)
        assert "t" not in net.sites[5].meshes
    assert net.delivered[5] == [b"x", b"x"]


def test_a_message_goes_no_farther_than_the_hop_limit() -> None:
    net = Net(CHAIN, SiteLimits(hop_limit=2))
    net.want(5, "t")
    net.want(3, "t")
    net.publish(1, b"x")
    assert net.delivered[3] == [b"x"]
    assert net.delivered[5] == []
    assert net.sites[3].counters.over_hop_limit == 1


def test_the_published_protocol_has_no_order_and_an_lru() -> None:
    net = Net(RING, SiteLimits(keep_order=False, cache_size=10))
    net.want(3, "t")
    for number in range(30):
        net.publish(1, b"%d" % number)
    assert net.delivered[3] == [b"%d" % number for number in range(30)]
    assert net.sites[3].marks.overflowed == 20  # type: ignore[attr-defined]


def test_strangers_are_not_heard() -> None:
    net = Net({(1, 2)})
    net.want(2, "t")
    stranger = Federator(9, 1, [2])
    stranger.step(PublishedHere("t", b"x", 1, False, 0), 0.0)
    message = stranger.store.between(next(iter(stranger.store.chains())), 0, 9, since=None, most=1)
    net.step(2, PassedOn(9, message[0]))
    net.step(2, packets.ControlPacket(9, 1))
    assert net.delivered[2] == []
    assert net.sites[2].counters.strangers == 2


def test_topics_that_begin_with_a_dollar_stay() -> None:
    net = Net({(1, 2)})
    net.want(2, "#")
    net.publish(1, b"x", topic="$SYS/uptime")
    assert net.sites[1].counters.published == 0


def test_ten_thousand_filters_cost_a_packet_now_and_then() -> None:
    net = Net(RING, SiteLimits(most_meshes=256))
    for site in net.sites:
        for number in range(2_500):
            net.sites[site].step(Beacon(f"dev/{site}-{number}/cmd", is_permanent=True), net.now)
    net.drain()
    net.wait(15)
    net.controls = 0
    net.wait(60)
    assert net.controls / 60 < 10  # a hello each 5 s and 4 announcements each 10 s on 8 links
    net.publish(1, b"x", topic="dev/3-77/cmd")
    assert net.delivered[3] == [b"x"]


def test_flooding_of_interest_is_bounded_without_a_summary() -> None:
    """10,000 different meshes: words are many, packets are not."""
    net = Net(RING, SiteLimits(most_meshes=20_000))
    for site in net.sites:
        for number in range(500):
            net.sites[site].step(Beacon(f"{number}/{site}", is_permanent=True), net.now)
    net.drain()
    net.wait(15)
    assert len(net.sites[1].meshes) == 2_000
    net.controls = 0
    net.wait(60)
    assert net.controls / 60 < 25


def test_a_malformed_control_packet_is_refused() -> None:
    for payload in (b"", b"{}", b"[]", b'{"v":2}', b'{"v":1,"from":-1,"epoch":0}', b"\xff", b"1"):
        with pytest.raises(packets.InvalidPacket):
            packets.decode(payload)
    word = b'{"v":1,"from":1,"epoch":0,"cores":[["a/#/b",[1,1,1],0,0,false,null]]}'
    with pytest.raises(packets.InvalidPacket):
        packets.decode(word)
