"""Redundant paths between sites carry each message whole once; defects in that are found."""

import asyncio
from collections.abc import Callable, Collection, Sequence

import pytest

from ingest.federation.sites.links.words import DeliveryWays
from ingest.federation.sites.streams import bodies
from ingest.federation.sites.streams.bodies import Bodies
from ingest.federation.sites.streams.outlet import Outlet
from ingest.federation.sites.taking import Taking
from mqlake.records.messages import INBOUND
from tests import waiting
from tests.ingest.federation.sites.harness import Site, are_linked, until

pytestmark = pytest.mark.anyio

PAYLOAD_BYTES = 64
MOST_BYTES = 1.2
"""Of all paths, in those of one."""


def sent_bytes(site: Site, to: Site) -> int:
    assert site.service is not None
    return site.service.links[to.number].sent_bytes


def offered(site: Site, to: Site) -> int:
    assert site.service is not None
    return site.service.links[to.number].counters.offered


async def start(*sites: Site) -> None:
    for one in sites:
        one.link(*(other for other in sites if other is not one))
    for one in sites:
        await one.start()
    await until(lambda: are_linked(*sites))


async def stop(*sites: Site) -> None:
    for one in sites:
        await one.stop()


async def publish(site: Site, numbers: Sequence[int], *to: Site) -> None:
    payloads = [(b"%d " % number).ljust(PAYLOAD_BYTES, b".") for number in numbers]
    for payload in payloads:
        await site.publish("f/x", payload)
    await until(lambda: all(one.have(payloads) for one in to))


async def test_all_paths_together_carry_little_more_than_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "PATIENCE_SECONDS", 60.0)  # a busy machine is no broken path
    a, b, c = ring = (Site(1), Site(2), Site(3))
    await start(*ring)
    number = 0
    while not (offered(a, c) or offered(b, c)):
        await publish(a, [number], b, c)
        number += 1
    before = {one: sent_bytes(one, c) for one in (a, b)}
    await publish(a, range(1_000, 1_300), b, c)
    await until(lambda: all(not link.waiting for one in ring for link in links(one)))
    carried = [sent_bytes(one, c) - before[one] for one in (a, b)]
    assert sum(carried) <= MOST_BYTES * max(carried), carried
    assert c.repeated() == []
    await stop(*ring)


async def test_a_path_that_breaks_is_made_up_for_at_once() -> None:
    a, b, c = ring = (Site(1), Site(2), Site(3))
    await start(*ring)
    number = 0
    while not offered(b, c):
        await publish(a, [number], b, c)
        number += 1
    a.link(b)
    assert a.service is not None
    a.service.reload(a.settings.neighbors)
    await publish(a, range(1_000, 1_050), b, c)
    assert c.repeated() == []
    await stop(*ring)


async def test_a_message_comes_by_the_shortest_path_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "PATIENCE_SECONDS", 60.0)  # nobody is asked for it
    a, b, c = ring = (Site(1), Site(2), Site(3))
    await start(*ring)
    # By chance a message has come to b by way of c first: so it would stay.
    assert a.service is not None
    assert b.service is not None
    b.service.taking.bodies.brought(c.number, a.number)
    assert b.service.taking.bodies.repeated(a.number, a.number, 0.0)
    a.service.links[b.number].direct(DeliveryWays(spare=(a.number,)))
    for number in range(1_000):
        await publish(a, [number], b, c)
        if offered(c, b):
            break
    before = a.service.links[b.number].counters.sent
    await publish(a, range(1_000, 1_050), b, c)
    assert a.service.links[b.number].counters.sent == before + 50
    assert b.repeated() == c.repeated() == []
    await stop(*ring)


async def bring_on_one_path_only() -> None:
    """The path that is first lacks filters: what only the spare one has must come on that."""
    a, b, c = ring = (Site(1), Site(2), Site(3))
    for one in ring:
        one.link(*(other for other in ring if other is not one))
    narrow = [
        one.model_copy(update={"filters_out": ("f/a",)}) if one.id == c.number else one
        for one in a.settings.neighbors
    ]
    a.settings = a.settings.model_copy(update={"neighbors": tuple(narrow)})
    for one in ring:
        await one.start()
    await until(lambda: are_linked(*ring))
    try:
        number = 0
        b.log.hold_reports(INBOUND)
        await a.publish("f/a", b"first")
        await until(lambda: c.have([b"first"]))
        b.log.release_reports()
        while not offered(b, c):
            await a.publish("f/a", b"%d" % number)
            await until(lambda: b.have([b"%d" % number]) and c.have([b"%d" % number]))  # noqa: B023
            await asyncio.sleep(0)
            number += 1
        await a.publish("f/b", b"on the spare path")
        await until(lambda: c.have([b"on the spare path"]))
        assert c.repeated() == []
    finally:
        for one in ring:
            await one.kill()


async def test_what_only_a_spare_path_has_comes_on_that() -> None:
    await bring_on_one_path_only()


Patch = Callable[[pytest.MonkeyPatch], None]


def never_ask(patch: pytest.MonkeyPatch) -> None:
    """What is offered and does not come is waited for."""
    patch.setattr(Bodies, "overdue", lambda *_: set())


def acknowledge_offers(patch: pytest.MonkeyPatch) -> None:
    """An offer is taken for the message."""
    patch.setattr(
        Taking, "hear_offer", lambda _s, _l, connection, p: connection.acknowledge(p.packet_id)
    )


def keep_back_what_is_offered(patch: pytest.MonkeyPatch) -> None:
    """Who is to send whole again does so with what comes later only."""
    direct = Outlet.direct

    def later(self: Outlet, spare: Collection[int], whole: Collection[int]) -> None:
        self._offered.clear()
        direct(self, spare, whole)

    patch.setattr(Outlet, "direct", later)


def offer_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Who is spare stays so."""
    direct = Outlet.direct
    patch.setattr(Outlet, "direct", lambda self, spare, _: spare and direct(self, spare, ()))


DEFECTS: tuple[Patch, ...] = (
    never_ask,
    acknowledge_offers,
    keep_back_what_is_offered,
    offer_for_ever,
)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.__name__)
async def test_a_planted_defect_is_found(defect: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    defect(monkeypatch)
    monkeypatch.setattr(waiting, "DEADLINE_SECONDS", 3.0)
    with pytest.raises(TimeoutError):
        await bring_on_one_path_only()


def links(site: Site) -> list:  # type: ignore[type-arg]
    assert site.service is not None
    return list(site.service.links.values())
