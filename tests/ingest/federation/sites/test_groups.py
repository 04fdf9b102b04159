"""Share groups over sites: each message goes to one member, wherever that is."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from ingest.federation.prefixes import Prefixes
from ingest.federation.sites.interest.group_names import neighbour_of
from ingest.federation.sites.interest.groups import SiteGroups
from ingest.federation.sites.interest.interest import Interest, InterestEntry
from ingest.federation.sites.interest.subscriptions import SiteSubscriptions
from mqlake.records.messages import (
    FLAG_UNSHARED,
    INBOUND,
    ROUTES,
    LogRecord,
    Route,
    decode_barrier_key,
    decode_route_key,
)
from mqlake.records.versions import HEADER_MQTT
from tests.ingest.federation.sites.harness import TURN_SECONDS, Site, are_linked, until

pytestmark = pytest.mark.anyio

Make = Callable[..., Awaitable[list[Site]]]
GROUP = "$share/g/f/#"


@pytest.fixture
async def sites() -> AsyncIterator[Make]:
    """Make sites with routers, and links between those of the given pairs."""
    made: list[Site] = []

    async def pump() -> None:
        while True:
            for site in made:
                site.router.route()
            await asyncio.sleep(TURN_SECONDS)

    async def make(count: int, *edges: tuple[int, int], **changes: Any) -> list[Site]:
        made.extend(Site(number) for number in range(1, count + 1))
        for site in made:
            neighbours = [made[b - 1] for a, b in edges if a == site.number]
            neighbours += [made[a - 1] for a, b in edges if b == site.number]
            site.link(*neighbours, **{"interests": ()} | changes)
            await site.start()
        await until(lambda: are_linked(*made))
        return made

    pumping = asyncio.create_task(pump())
    yield make
    for site in made:
        if site.is_running:
            await site.stop()
    pumping.cancel()
    with suppress(asyncio.CancelledError):
        await pumping


def has_way(site: Site, group: str = GROUP) -> bool:
    """Tell whether the router of a site knows a way to members elsewhere."""
    return group in _groups_with_ways(site) and _are_in_force(site)


def has_no_way(site: Site, group: str = GROUP) -> bool:
    """Tell whether it knows none any more; while a change is on its way it may."""
    return group not in _groups_with_ways(site) and _are_in_force(site)


def _way_records(site: Site) -> dict[Route, LogRecord]:
    """Return what the log says last of each way to a neighbour."""
    last = {decode_route_key(one.key or b""): one for one in site.log.records(ROUTES)}
    return {
        route: one
        for route, one in last.items()
        if neighbour_of(site.number, route.gateway) is not None
    }


def _groups_with_ways(site: Site) -> set[str]:
    return {
        route.topic_filter for route, one in _way_records(site).items() if one.value is not None
    }


def _are_in_force(site: Site) -> bool:
    return all(one.offset <= site.router.in_force for one in _way_records(site).values())


def ways(site: Site) -> set[int]:
    """Return the neighbours that the group's messages go to."""
    assert site.service is not None
    return {neighbour for neighbour, _ in site.service.spreading.groups.ways()}


def given(*sites: Site, group: str = GROUP) -> list[bytes]:
    return sorted(one for site in sites for one in site.router.given[group])


async def test_a_message_for_a_group_goes_to_a_member_behind_another_site(sites: Make) -> None:
    """Others choose a site that knows of a member only, and drop the message there."""
    a, b, c = await sites(3, (1, 2), (2, 3))
    await c.share(GROUP)
    await until(lambda: has_way(a) and has_way(b))
    assert not has_way(c)
    message_id = await a.publish("f/x", b"1", qos=2)
    await until(lambda: given(a, b, c))
    assert c.router.given[GROUP] == [b"1"]
    assert given(a, b) == []
    assert [one.payload for one in b.messages() + c.messages()] == [], "it is for the group alone"
    (record,) = (one for one in c.log.records(INBOUND) if (one.key or b"").endswith(b"/f/x"))
    assert dict(record.headers)["id"] == message_id
    assert a.service is not None
    assert [link.counters.handed for link in a.service.links.values()] == [1]


async def test_a_copy_for_all_is_for_no_group(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    await b.subscribe("f/#")
    await b.share(GROUP)
    await a.share(GROUP)
    await until(lambda: wants_all(a))
    await a.publish("f/x", b"1")
    await until(lambda: b.messages())
    await until(lambda: given(a))
    (record,) = (one for one in b.log.records(INBOUND) if (one.key or b"").endswith(b"/f/x"))
    assert dict(record.headers)[HEADER_MQTT][2] & FLAG_UNSHARED
    assert given(b) == []


def wants_all(site: Site) -> bool:
    assert site.service is not None
    return all(site.service.spreading.wanted.of(one) for one in site.service.links)


async def test_members_of_the_own_site_come_first(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    await b.share(GROUP)
    await until(lambda: has_way(a))
    await a.share(GROUP)
    for number in range(20):
        await a.publish(f"f/{number}", b"%d" % number)
    await until(lambda: len(given(a, b)) == 20)
    assert given(b) == []
    await a.share(GROUP, 0)
    for number in range(20):
        await a.publish(f"f/{number}", b"again %d" % number)
    await until(lambda: len(given(b)) == 20)
    assert len(given(a)) == 20


async def test_what_a_session_is_away_for_waits_for_it(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    await b.share(GROUP)
    await until(lambda: has_way(a))
    await a.store_session("away", GROUP)
    await until(lambda: has_no_way(a))
    await a.publish("f/x", b"1")
    a.router.route()
    await a.store_session("away")
    await until(lambda: has_way(a))
    await a.publish("f/x", b"2")
    await until(lambda: given(b))
    assert given(a, b) == [b"2"], "the first one is the session's, which reads it from the log"


async def test_a_message_comes_back_when_the_site_has_no_member_any_more(sites: Make) -> None:
    a, b, c = await sites(3, (1, 2), (1, 3))
    await b.share(GROUP)
    await until(lambda: has_way(a))
    await b.stop()
    for number in range(10):
        await a.publish(f"f/{number}", b"%d" % number)
    await until(lambda: handed(a, b.number) == 10)
    await b.share(GROUP, 0)
    await c.share(GROUP)
    await until(lambda: ways(a) == {c.number})
    await b.start()
    await until(lambda: len(given(a, b, c)) == 10)
    assert given(b) == []
    assert a.service is not None
    assert a.service.links[2].counters.returned == 10
    assert a.service.inlet.counters.unclaimed == 0


def handed(site: Site, neighbour: int) -> int:
    """Count what the router of a site has given to a neighbour."""
    log_topic = f"mqlake.delivery.federation-{site.number}-{neighbour}"
    return len(site.log.records(log_topic))


async def test_a_message_that_nobody_takes_ends(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    await b.share(GROUP)
    await until(lambda: has_way(a))
    await b.stop()
    await a.publish("f/x", b"1")
    await until(lambda: handed(a, b.number))
    await b.share(GROUP, 0)
    await b.start()
    service = a.service
    assert service is not None
    await until(lambda: service.inlet.counters.unclaimed)
    assert service.links[2].waiting == 0
    assert given(a, b) == []


async def test_only_permitted_messages_are_handed_over(sites: Make) -> None:
    a, b = await sites(2, (1, 2), filters_out=("f/open/#",))
    await b.share(GROUP)
    await until(lambda: has_way(a))
    await a.publish("f/x", b"secret")
    await a.publish("f/open/x", b"open")
    await until(lambda: given(b))
    assert given(a, b) == [b"open"]


async def test_a_neighbour_that_knows_nothing_of_groups_gets_none(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    assert a.service is not None
    a.service.spreading.groups.note(2, knows_groups=False)
    await b.share(GROUP)
    await until(lambda: a.service is not None and a.service.spreading.interest.ways())
    a.service.routes.update()
    assert not has_way(a)


async def test_ways_of_a_run_before_are_withdrawn_when_they_lead_nowhere(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    await b.share(GROUP)
    await until(lambda: has_way(a))
    await a.kill()
    await b.share(GROUP, 0)
    await a.start()
    await until(lambda: a.log.records(ROUTES)[-1].value is None)


async def test_a_new_run_has_the_ways_of_the_one_before_in_force(sites: Make) -> None:
    """That one may have died between a route and the barriers behind it."""
    a, b = await sites(2, (1, 2))
    await b.share(GROUP)
    await until(lambda: has_way(a))
    await a.kill()
    before = len(a.log.records(INBOUND))
    await a.start()
    await until(lambda: len(a.log.records(INBOUND)) >= before + 2)
    last = decode_barrier_key(a.log.records(INBOUND)[-1].key or b"")
    assert last.routes_offset == a.log.records(ROUTES)[-1].offset


def test_a_farther_way_counts_when_the_nearest_one_is_where_the_message_comes_from() -> None:
    interest = Interest(1, 16)
    for neighbour, path in ((2, (2,)), (3, (3, 4))):
        interest.open(neighbour)
        interest.hear(neighbour, {path[-1]: InterestEntry(1, path, (GROUP,))})
    groups = SiteGroups(interest, SiteSubscriptions("default", Prefixes([]), ("f/#",), (), 256))
    assert groups.ways() == {(2, GROUP)}
    assert groups.has_receiver(GROUP, 2)
    interest.hear(3, {4: None})
    assert not groups.has_receiver(GROUP, 2)
    assert groups.has_receiver(GROUP)


@pytest.mark.parametrize("seed", range(3))
async def test_each_message_goes_to_one_member_whatever_is_killed(seed: int, sites: Make) -> None:
    random = Random(seed)
    ring = await sites(4, (1, 2), (2, 3), (3, 4), (4, 1))
    groups = (GROUP, "$share/h/f/1/+")
    await ring[2].share(groups[0])
    await ring[3].share(groups[1])
    await until(lambda: all(has_way(ring[0], one) for one in groups))
    sent = []
    for number in range(120):
        sent.append(b"%d" % number)
        await ring[0].publish(f"f/{number % 2}/x", sent[-1])
        if number % 15 == 5:
            victim = random.choice(ring)
            await victim.kill()
            await victim.start()
    expected = Counter(sent)
    await until(lambda: len(given(*ring)) >= len(sent))
    await until(lambda: len(given(*ring, group=groups[1])) >= len(sent) // 2)
    assert Counter(given(*ring)) == expected
    assert Counter(given(*ring, group=groups[1])) == Counter(sent[1::2])
