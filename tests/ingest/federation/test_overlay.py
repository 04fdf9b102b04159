"""The overlay of one site: what it grants, drops, remembers, believes, and draws."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from ingest.federation.overlay import Overlay
from ingest.federation.overlay_events import (
    TRANSITIONS,
    Bounds,
    NeighbourState,
    OverlayEvent,
    WayUp,
    diagram,
)
from ingest.federation.overlay_map import OverlayMap, SiteMember
from ingest.federation.overlay_packets import (
    OverlayPacket,
    Stance,
    decode,
    encode,
)
from ingest.federation.packets import InvalidPacket
from ingest.federation.settings import FederationSettings, OverlaySettings

ROOT = Path(__file__).parents[3]
URI = "mqtt://site.example:1883"


def member(site: int, links: tuple[int, ...] = (), *, sequence: int = 1) -> SiteMember:
    return SiteMember(site, 1, sequence, URI, "5.0", 1, 4, links)


def ask(overlay: Overlay, site: int, number: int = 1) -> Stance:
    """Let a site ask for a link; return the answer."""
    known = [member(site, sequence=number)]
    packet = OverlayPacket(site, overlay.site, 1, number, Stance.ASK, known)
    overlay.step(packet, 0.0)
    overlay.step(WayUp(site), 0.0)
    (answer,) = [
        one for one in overlay.ready(0.0) if isinstance(one, OverlayPacket) and one.to == site
    ]
    return answer.stance


def test_the_document_draws_the_automaton_as_it_is() -> None:
    drawn = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
    assert "```mermaid\n" + "\n".join(diagram()) + "\n```" in drawn


def test_the_automaton_knows_every_state_and_event() -> None:
    assert set(TRANSITIONS) == set(NeighbourState)
    assert {event for events in TRANSITIONS.values() for event in events} == set(OverlayEvent)


@pytest.mark.parametrize("seed", range(30))
def test_all_sites_drop_all_that_they_may_by_maps_of_any_age_and_stay_together(seed: int) -> None:
    random = Random(seed)
    count = random.randint(3, 12)
    edges = {(random.randrange(b), b) for b in range(1, count)}
    edges |= {tuple(sorted(random.sample(range(count), 2))) for _ in range(2 * count)}  # type: ignore[misc]

    def map_of(site: int) -> OverlayMap:
        found = OverlayMap(site, 100)
        for one in range(count):
            links = tuple(b if a == one else a for a, b in edges if one in (a, b))
            if one == site:
                found.have(frozenset(links))
            else:
                found.take(member(one, links), 0.0)
        return found

    maps = [map_of(site) for site in range(count)]
    before = len(edges)
    for a, b in random.sample(sorted(edges), len(edges)):
        if random.random() < 0.3:
            maps[a] = map_of(a)
        if maps[a].is_spare(b):
            edges.discard((a, b))
    assert map_of(0).reachable() == set(range(count))
    assert len(edges) < before
    final = [map_of(site) for site in range(count)]
    assert not [(a, b) for a, b in edges if final[a].is_spare(b)]


def test_a_link_is_on_the_map_when_both_ends_tell_of_it() -> None:
    found = OverlayMap(1, 100)
    found.have(frozenset((2,)))
    found.take(member(2, (1, 3)), 0.0)
    assert found.reachable() == {1, 2}
    found.take(member(3, (2,)), 0.0)
    assert found.reachable() == {1, 2, 3}
    assert not found.take(member(2, ()), 0.0)
    found.take(member(2, (1,), sequence=2), 0.0)
    assert found.parts() == [[1, 2], [3]]


def test_a_map_has_no_place_for_more_sites_than_it_may_have_and_forgets_old_ones() -> None:
    found = OverlayMap(1, 2)
    assert [found.take(member(site), float(site)) for site in (2, 3, 4)] == [True, True, False]
    assert found.overflowed == 1
    assert found.forget(2.5, but=()) == [2]
    assert found.take(member(4), 4.0)


def test_a_site_that_is_full_says_no_unless_who_asks_is_apart_and_there_is_a_circle() -> None:
    overlay = Overlay(1, 1, bounds=Bounds(1, 2))
    assert ask(overlay, 2) is Stance.LINKED
    assert ask(overlay, 3) is Stance.LINKED
    assert ask(overlay, 4) is Stance.NONE
    assert overlay.neighbours == [2, 3]
    for site, other in ((2, 3), (3, 2)):
        told = [member(site, (1, other), sequence=5)]
        overlay.step(OverlayPacket(site, 1, 1, 5, Stance.LINKED, told), 0.0)
    assert overlay.state_of(2) is NeighbourState.LINKED
    # Of the circle 1, 2, 3 the heaviest link may be between 2 and 3; then 1 has none to drop.
    may_drop = any(overlay.map.is_spare(site) for site in (2, 3))
    assert (ask(overlay, 4, 7) is Stance.LINKED) is may_drop
    assert len(overlay.neighbours) == 2


def test_who_may_not_be_linked_to_is_not_asked_and_gets_no_link() -> None:
    overlay = Overlay(1, 1, may_link=lambda site, _: site != 2)
    assert ask(overlay, 2) is Stance.NONE
    overlay.tick(100.0)
    assert overlay.contacts == set()
    assert overlay.state_of(2) is NeighbourState.KNOWN


def test_a_packet_that_has_come_before_or_is_for_somebody_else_counts_for_nothing() -> None:
    overlay = Overlay(1, 1)
    assert ask(overlay, 2, 5) is Stance.LINKED
    for to, number in ((1, 5), (1, 4), (9, 6)):
        overlay.step(OverlayPacket(2, to, 1, number, Stance.NONE), 0.0)
    assert overlay.neighbours == [2]
    assert overlay.counters.repeated == 3
    overlay.step(OverlayPacket(2, 1, 1, 6, Stance.NONE), 0.0)
    assert overlay.neighbours == []


def test_a_new_run_asks_those_that_the_one_before_knew() -> None:
    overlay = Overlay(1, 2)
    overlay.restore([member(2, (1,)), member(1)], 0.0)
    assert overlay.map.reachable() == {1}
    overlay.tick(10.0)
    assert overlay.state_of(2) is NeighbourState.ASKED
    assert overlay.contacts == {2}


def test_neighbours_that_are_set_stay_and_count() -> None:
    overlay = Overlay(1, 1, bounds=Bounds(1, 2))
    overlay.become((2, 3), 0.0)
    assert ask(overlay, 4) is Stance.NONE
    overlay.tick(1000.0)
    assert overlay.neighbours == [2, 3]
    overlay.become((2,), 1000.0)
    assert overlay.neighbours == [2]


def packet(**changes: Any) -> OverlayPacket:
    given = {"sender": 2, "to": 1, "epoch": 7, "number": 3, "stance": Stance.ASK}
    return OverlayPacket(**given | changes)  # type: ignore[arg-type]


def test_a_packet_is_read_as_it_was_written() -> None:
    sent = packet(members=[member(2, (1, 4)), member(4)])
    assert decode(encode(sent, b"secret"), b"secret") == sent


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        encode(packet(), b"another"),
        encode(packet(), b"secret")[:-1],
        encode(packet(sender=-1), b"secret"),
        encode(packet(members=[member(2)] * 101), b"secret"),
        encode(packet(members=[member(2)._replace(links=(-4,))]), b"secret"),
        encode(packet(members=[member(2)._replace(uri="x" * 1000)]), b"secret"),
    ],
    ids=lambda payload: str(payload[-30:]),
)
def test_what_is_no_packet_of_the_overlay_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidPacket):
        decode(payload, b"secret")


@pytest.mark.parametrize(
    ("site", "uri", "is_allowed"),
    [
        (2, "mqtts://a.example:8883", True),
        (2, "mqtts://a.example", True),
        (2, "mqtt://a.example:8883", False),
        (2, "mqtts://a.example:8884", False),
        (2, "mqtts://a.example.org", False),
        (2, "mqtts://10.0.0.1#.example", False),
        (2, "mqtts://u@a.example", False),
        (2, "http://a.example", False),
        (2, "", False),
        (5, "mqtts://a.example", False),
    ],
)
def test_only_what_the_settings_allow_is_connected_to(
    site: int, uri: str, is_allowed: bool
) -> None:
    settings = OverlaySettings(allow_uris=("mqtts://*.example",), allow_sites=(2, 3))
    assert settings.allows(site, uri) is is_allowed
    assert not OverlaySettings().allows(site, uri)


@pytest.mark.parametrize(
    ("overlay", "reason"),
    [
        ({}, "uri is not set"),
        ({"uri": URI, "least_links": 5, "most_links": 4}, "least_links is more"),
        ({"uri": URI, "seeds": [{"id": 2}]}, "has no uri"),
        ({"uri": URI, "seeds": [{"id": 1, "uri": URI}]}, "is this site"),
        ({"uri": URI, "seeds": [{"id": 2, "uri": URI}] * 2}, "the same id"),
    ],
)
def test_an_overlay_that_cannot_work_is_refused(overlay: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        FederationSettings.model_validate({"overlay": {"secret": "s", **overlay}})


def test_between_logs_nothing_is_found() -> None:
    given = {"log": {}, "overlay": {"secret": "s", "uri": URI}}
    with pytest.raises(ValidationError, match="set, not found"):
        FederationSettings.model_validate(given)
