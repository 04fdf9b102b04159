"""Sites that are federated through their logs: each message once at each, whatever dies."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from ingest.federation.settings import PrefixSettings
from ingest.federation.sites import spreading
from ingest.federation.sites.streams.log_messages import site_message_of
from ingest.federation.sites.streams.retained import SiteRetained
from mqlake.errors import LogError, OperationalError
from mqlake.log.memory import MemoryLogReader
from mqlake.records.federation import FEDERATION, KEY, decode_checkpoint, decode_reach
from mqlake.records.messages import GATEWAYS, INBOUND, REACH_KEY, Message
from tests.ingest.federation.sites.harness import Site, are_linked, until

pytestmark = pytest.mark.anyio

Make = Callable[..., Awaitable[list[Site]]]


@pytest.fixture
async def sites() -> AsyncIterator[Make]:
    """Make sites with links between those of the given pairs, and start them."""
    made: list[Site] = []

    async def make(count: int, *edges: tuple[int, int], **changes: Any) -> list[Site]:
        made.extend(Site(number) for number in range(1, count + 1))
        for site in made:
            neighbours = [made[b - 1] for a, b in edges if a == site.number]
            neighbours += [made[a - 1] for a, b in edges if b == site.number]
            site.link(*neighbours, **changes)
            await site.start()
        await until(lambda: are_linked(*made))
        return made

    yield make
    for site in made:
        if site.is_running:
            await site.stop()


async def test_a_message_crosses_with_all_that_is_of_it(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    properties = {"content_type": "text/plain", "user_property": [("unit", "°C")]}
    message_id = await a.publish(
        "f/x",
        b"21",
        qos=2,
        retain=True,
        properties=properties,
        protocol_level=5,
        username="u",
    )
    await until(lambda: b.messages())
    assert b.messages() == [
        Message(
            tenant="default",
            topic_name="f/x",
            payload=b"21",
            qos=2,
            retain=True,
            message_id=message_id,
            client_id="c",
            received_at_ms=b.messages()[0].received_at_ms,
            origin="site-1/gateway-1",
            protocol_level=5,
            username="u",
            properties=properties,
        )
    ]
    (record,) = b.log.records(INBOUND)
    message = site_message_of(record)
    (source,) = a.log.records(INBOUND)
    assert message is not None
    assert (message.key.origin, message.partition) == (1, source.partition)
    assert message.sequence == source.offset + 1
    assert a.service is not None
    assert message.key.epoch == a.service.figures()["epoch"]


async def test_only_what_is_federated_crosses(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    await a.publish("private/x", b"1")
    await a.publish("$SYS/f/x", b"2")
    await a.publish("f/x", b"3")
    await until(lambda: b.messages())
    assert [one.payload for one in b.messages()] == [b"3"]


async def test_nothing_goes_round(sites: Make) -> None:
    ring = await sites(3, (1, 2), (2, 3), (1, 3))
    for number in range(20):
        for site in ring:
            await site.publish(f"f/{number % 3}", b"%d-%d" % (site.number, number))
    everything = {b"%d-%d" % (site, number) for site in (1, 2, 3) for number in range(20)}
    await until(lambda: all(site.have(everything) for site in ring))
    await until(lambda: all(link.waiting == 0 for site in ring for link in links(site)))
    for site in ring:
        assert site.repeated() == []
        assert len(site.messages()) == len(everything)


async def test_interest_is_known_along_a_chain(sites: Make) -> None:
    chain = await sites(4, (1, 2), (2, 3), (3, 4))
    await chain[0].publish("f/x", b"1")
    await until(lambda: chain[3].messages())
    (record,) = chain[3].log.records(INBOUND)
    message = site_message_of(record)
    assert message is not None
    assert (message.key.origin, message.hops) == (1, 3)
    assert chain[3].messages()[0].origin == "site-1/gateway-1"


async def test_only_what_somebody_wants_crosses(sites: Make) -> None:
    chain = await sites(4, (1, 2), (2, 3), (2, 4), interests=())
    a, b, c, d = chain
    for topic in ("f/1", "f/2"):
        await a.publish(topic, b"nobody")
    await c.subscribe("f/+")
    await c.subscribe("f/1")
    await d.subscribe("f/2/#")
    await until(lambda: wanted(a, 2) == {"f/+", "f/2/#"})
    for topic in ("f/1", "f/2", "f/2/x", "f/3/x"):
        await a.publish(topic, topic.encode())
    await until(lambda: c.have([b"f/1", b"f/2"]) and d.have([b"f/2", b"f/2/x"]))
    assert {one.payload for one in b.messages()} == {b"f/1", b"f/2", b"f/2/x"}
    assert {one.payload for one in c.messages()} == {b"f/1", b"f/2"}
    assert {one.payload for one in d.messages()} == {b"f/2", b"f/2/x"}


async def test_a_gateway_is_answered_when_the_farthest_site_knows(
    sites: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So slow that an answer which does not wait for the others comes before them.
    monkeypatch.setattr(spreading, "SPREAD_SECONDS", 0.1)
    a, b, c, d = await sites(4, (1, 2), (2, 3), (3, 4), interests=())
    offset = await d.subscribe("f/1", asks_sites=True)
    await until(lambda: answers(d))
    assert answers(d) == [offset]
    for site, neighbour in ((a, 2), (b, 3), (c, 4)):
        assert site.service is not None
        assert site.service.spreading.wanted.of(neighbour) == {"f/1"}
    await a.publish("f/1", b"at once")
    await until(lambda: d.have([b"at once"]))
    # What is covered already is answered, too; who does not ask is not.
    await d.subscribe("f/2")
    offset = await d.subscribe("f/1", 2, asks_sites=True)
    await until(lambda: answers(d)[-1] == offset)
    assert len(answers(d)) == 2
    # A site that is away is not waited for, and one that begins anew answers what was asked.
    await c.kill()
    offset = await d.subscribe("f/3", asks_sites=True)
    await until(lambda: answers(d)[-1] == offset)
    await d.stop()
    offset = await d.subscribe("f/4", asks_sites=True)
    await d.start()
    await until(lambda: answers(d)[-1] == offset)


async def test_what_is_wanted_no_longer_crosses_no_longer(
    sites: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spreading, "NARROW_SECONDS", 0.01)
    a, b, c = await sites(3, (1, 2), (2, 3), (1, 3), interests=())
    await b.subscribe("f/1")
    await c.subscribe("f/2")
    await until(lambda: wanted(a, 2) == wanted(a, 3) == {"f/1", "f/2"})
    await b.subscribe("f/1", members=0)
    await until(lambda: wanted(a, 2) == wanted(a, 3) == {"f/2"})


async def test_interest_outlives_the_link_and_the_run_of_who_passes_it_on(sites: Make) -> None:
    a, b, c = await sites(3, (1, 2), (2, 3), interests=())
    await c.subscribe("f/1")
    await until(lambda: wanted(a, 2) == {"f/1"})
    await c.kill()
    await b.kill()
    await b.start()
    await until(lambda: are_linked(a) and wanted(a, 2) == {"f/1"})
    for number in range(10):
        await a.publish("f/1", b"%d" % number)
    await until(lambda: b.have([b"9"]))
    await c.start()
    await until(lambda: c.have([b"9"]))
    assert c.payloads("f/1") == [b"%d" % number for number in range(10)]


async def test_a_site_that_comes_later_learns_what_is_wanted(sites: Make) -> None:
    a, b, late = Site(1), Site(2), Site(3)
    a.link(b, interests=())
    b.link(a, late, interests=())
    late.link(b, interests=())
    await a.subscribe("f/1")
    for one in (a, b):
        await one.start()
    await until(lambda: are_linked(a))
    await late.start()
    await until(lambda: wanted(late, 2) == {"f/1"})
    await late.publish("f/1", b"1")
    await until(lambda: a.have([b"1"]))
    for one in (a, b, late):
        await one.stop()


async def test_who_comes_back_to_a_session_has_nothing_new_to_tell(sites: Make) -> None:
    """So CONNACK waits for no other site: it would be told nothing."""
    a, b = await sites(2, (1, 2), interests=())
    await b.store_session("away", "f/session")
    await until(lambda: wanted(a, 2) == {"f/session"})
    assert b.service is not None
    spreading = b.service.spreading
    before = spreading.interest.own
    await b.subscribe("f/session")
    await until(lambda: len(spreading.subscriptions._by_key) == 2)
    spreading.spread()
    assert spreading.interest.own == before


async def test_sessions_that_are_away_and_rules_want_what_they_have_asked_for(sites: Make) -> None:
    a, b = await sites(2, (1, 2), interests=())
    await b.store_session("away", "f/session", "elsewhere")
    await b.run_rule("r", "f/rule/+")
    await until(lambda: wanted(a, 2) == {"f/session", "f/rule/+"})
    await b.kill()
    await b.start()
    await until(lambda: are_linked(a) and wanted(a, 2) == {"f/session", "f/rule/+"})


async def test_retained_messages_cross_for_who_subscribes_later(sites: Make) -> None:
    a, b = await sites(2, (1, 2), interests=())
    await a.publish("f/x", b"live")
    await a.publish("f/x", b"kept", retain=True)
    await until(lambda: b.messages())
    assert [(one.payload, one.retain) for one in b.messages()] == [(b"kept", True)]


async def test_many_filters_are_told_by_few(sites: Make) -> None:
    a, b = await sites(2, (1, 2), interests=(), max_meshes=2)
    for number in range(20):
        await b.subscribe(f"f/{number}/cmd")
    await until(lambda: wanted(a, 2) == {"f/+/cmd"})


async def test_ten_thousand_filters_are_told_in_few_packets(sites: Make) -> None:
    a, b, c = chain = await sites(3, (1, 2), (2, 3), interests=())
    before = control_packets(*chain)
    for number in range(10_000):
        await c.subscribe(f"f/{number % 50}/dev/{number}/cmd")
    await until(lambda: wanted(a, 2) == {f"f/{number}/dev/+/cmd" for number in range(50)})
    # At most one for each change until the summary is full, on two links.
    told = control_packets(*chain)
    assert told - before < 2 * 300
    for number in range(1_000):
        await c.subscribe(f"f/{number % 50}/dev/new-{number}/cmd")
    await c.subscribe("f/last")
    await until(lambda: "f/last" in wanted(a, 2))
    assert len(c.service.spreading.subscriptions) == 11_001  # type: ignore[union-attr]
    assert control_packets(*chain) == told + 2
    assert b.messages() == []


async def test_topics_are_wanted_by_their_federated_names(sites: Make) -> None:
    a, b = Site(1), Site(2)
    prefixes = (PrefixSettings(local="plant/", federated="f/plant-b/"),)
    a.link(b, interests=())
    b.link(a, interests=(), prefixes=prefixes)
    await a.start()
    await b.start()
    await b.subscribe("plant/#")
    await b.subscribe("+/line")
    await until(lambda: wanted(a, 2) == {"f/plant-b/#", "f/line"})
    await a.publish("f/plant-b/oven", b"1")
    await until(lambda: b.payloads("plant/oven"))
    await a.stop()
    await b.stop()


async def test_a_message_goes_no_further_than_the_hop_limit(sites: Make) -> None:
    chain = await sites(4, (1, 2), (2, 3), (3, 4), hop_limit=2)
    await chain[0].publish("f/x", b"1")
    await until(lambda: chain[2].messages())
    await until(lambda: any(link.counters.over_hop_limit for link in links(chain[2])))
    assert chain[3].messages() == []


async def test_a_neighbour_that_is_away_gets_all_of_it_once(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    await a.publish("f/x", b"0")
    await until(lambda: b.have([b"0"]))
    await b.kill()
    for number in range(1, 1500):
        await a.publish("f/x", b"%d" % number)
    await a.stop()
    await b.publish("f/x", b"b")
    await a.start()
    await b.start()
    await until(lambda: b.have([b"1499"]) and a.have([b"b"]))
    of_a = [one for one in b.payloads("f/x") if one != b"b"]
    assert of_a == [b"%d" % number for number in range(1500)]
    assert a.repeated() == b.repeated() == []


async def test_a_site_that_was_named_before_it_was_there_gets_what_was_published_since(
    sites: Make,
) -> None:
    a, late = Site(1), Site(2)
    await a.publish("f/x", b"before")
    a.link(late)
    late.link(a)
    await a.start()
    await a.publish("f/x", b"since")
    await late.start()
    await until(lambda: late.messages())
    assert late.payloads("f/x") == [b"since"]
    await a.stop()
    await late.stop()


async def test_what_was_appended_and_not_acknowledged_does_not_come_twice(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    b.log.delay_reports()
    for number in range(10):
        await a.publish("f/x", b"%d" % number)
    await until(lambda: len(b.messages()) == 10)
    await b.kill()
    b.log.release_reports()
    await b.start()
    await a.publish("f/x", b"10")
    await until(lambda: b.have([b"10"]))
    assert b.payloads("f/x") == [b"%d" % number for number in range(11)]


async def test_a_message_that_came_while_a_checkpoint_asked_does_not_come_twice(
    sites: Make,
) -> None:
    a, b = await sites(2, (1, 2))

    class AnsweredLate(MemoryLogReader):
        """Is told where the log ends when that is behind a message whose report is on its way."""

        async def end_offsets(self, log_topic: str) -> dict[int, int]:
            b.open_reader = MemoryLogReader
            b.log.delay_reports()
            await a.publish("f/x", b"1")
            await until(b.messages)
            return await super().end_offsets(log_topic)

    b.open_reader = AnsweredLate
    written = len(b.log.records(FEDERATION))
    await until(lambda: b.messages() and len(b.log.records(FEDERATION)) > written)
    await b.kill()
    b.log.release_reports()
    await b.start()
    await a.publish("f/x", b"2")
    await until(lambda: b.have([b"2"]))
    assert b.payloads("f/x") == [b"1", b"2"]


async def test_what_was_not_appended_comes_again(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    b.log.hold_reports(INBOUND)
    await a.publish("f/x", b"1")
    await until(lambda: b.service is not None and b.service.inlet.pending)
    await b.kill()
    b.log.release_reports()
    assert b.messages() == []
    await b.start()
    await until(lambda: b.messages())
    assert b.payloads("f/x") == [b"1"]


@pytest.mark.parametrize("definite", [True, False])
async def test_a_log_that_fails_ends_the_run_and_the_next_one_knows_what_it_has(
    sites: Make, definite: bool
) -> None:
    a, b = await sites(2, (1, 2))
    b.log.fail_next(LogError("planted", definite=definite))
    await a.publish("f/x", b"1")
    await until(lambda: not b.is_running)
    with pytest.raises(LogError, match="planted"):
        await b.stop()
    await b.start()
    await a.publish("f/x", b"2")
    await until(lambda: b.have([b"1", b"2"]))
    assert b.payloads("f/x") == [b"1", b"2"]


async def test_a_log_that_begins_anew_gets_another_epoch(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    for number in range(5):
        await a.publish("f/x", b"%d" % number)
    await until(lambda: b.have([b"4"]))
    await a.stop()
    checkpoint = [one for one in a.log.records(FEDERATION) if one.key == KEY][-1]
    fresh = Site(1)
    fresh.port, fresh.settings = a.port, a.settings
    fresh.log.store(FEDERATION, checkpoint.key, checkpoint.value, [], 0, 0)
    await fresh.start()
    await fresh.publish("f/x", b"new")
    await until(lambda: b.have([b"new"]))
    last = [one for one in fresh.log.records(FEDERATION) if one.key == KEY][-1]
    assert decode_checkpoint(last.value or b"").epoch > (
        decode_checkpoint(checkpoint.value or b"").epoch
    )
    await fresh.stop()


async def test_partitions_that_appear_later_are_read_from_their_start(sites: Make) -> None:
    a, b = Site(1, partitions=1), Site(2)
    a.link(b)
    b.link(a)
    await a.start()
    await b.start()
    await until(lambda: are_linked(a, b))
    a.log.grow(INBOUND, 4)
    for number in range(20):
        await a.publish(f"f/{number}", b"%d" % number)
    assert {one.partition for one in a.log.records(INBOUND)} == {0, 1, 2, 3}
    await until(lambda: b.have([b"%d" % number for number in range(20)]))
    assert b.repeated() == []
    await a.stop()
    await b.stop()


async def test_what_the_log_has_no_more_is_said(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    await b.stop()
    await a.stop()
    for number in range(4):
        await a.publish("f/x", b"%d" % number)
    (partition,) = {one.partition for one in a.log.records(INBOUND)}
    a.log.remove_before(INBOUND, partition, 2)
    await a.start()
    await b.start()
    await until(lambda: b.have([b"3"]))
    assert b.payloads("f/x") == [b"2", b"3"]
    assert [link.gone for link in links(a)] == [1]
    # It is in the log a moment after.
    await until(lambda: "federation.records_gone" in [event for event, _, _ in a.events()])
    assert [event for event, _, _ in a.events()].count("federation.records_gone") == 1


async def test_what_becomes_of_links_is_told_as_events(sites: Make) -> None:
    a, b, _ = await sites(3, (1, 2), (1, 3))
    # They are in the log a moment after the links are there.
    links = {("federation.link_up", 2), ("federation.link_up", 3)}
    await until(lambda: {(event, site) for event, site, _ in a.events()} == links)
    await b.stop()
    await until(lambda: len(a.events()) == 3)
    event, site, reason = a.events()[-1]
    assert (event, site) == ("federation.link_down", 2)
    assert reason
    await b.start()
    await until(lambda: len(a.events()) == 4)
    assert a.events()[-1] == ("federation.link_up", 2, None)


async def test_a_link_brings_and_takes_only_its_own_filters(sites: Make) -> None:
    a, b = Site(1), Site(2)
    a.link(b)
    b.link(a)
    # The neighbour asks for more than it may get, and brings more than it may.
    limits = {"filters_out": ("f/out/#",), "filters_in": ("f/in/#",)}
    (neighbour,) = a.settings.neighbors
    a.settings = a.settings.model_copy(update={"neighbors": (neighbour.model_copy(update=limits),)})
    await a.start()
    await b.start()
    for topic in ("f/out/1", "f/other", "f/out/2"):
        await a.publish(topic, topic.encode())
    for topic in ("f/in/1", "f/other", "f/in/2"):
        await b.publish(topic, b"b " + topic.encode())
    await until(lambda: b.have([b"f/out/2"]) and a.have([b"b f/in/2"]))
    assert not b.have([b"f/other"])
    assert not a.have([b"b f/other"])
    await a.stop()
    await b.stop()


async def test_a_site_takes_no_topic_with_more_levels_than_its_clients_may_use() -> None:
    a, b = Site(1), Site(2)
    a.link(b)
    # By its name here it has a level more.
    prefixes = (PrefixSettings(local="f/of-a/", federated="f/"),)
    b.link(a, prefixes=prefixes, interests=("f/of-a/#",), max_topic_levels=4)
    await a.start()
    await b.start()
    for topic in ("f/1/2", "f/1/2/3", "f/1"):
        await a.publish(topic, topic.encode())
    await until(lambda: b.have([b"f/1/2", b"f/1"]))
    assert {one.topic_name for one in b.messages()} == {"f/of-a/1/2", "f/of-a/1"}
    await until(lambda: all(link.waiting == 0 for link in links(a)))
    assert b.service is not None
    assert b.service.inlet.counters.refused == 1
    await a.stop()
    await b.stop()


@pytest.mark.parametrize(
    ("at", "rate"),
    [
        ("a", "messages_out_per_second"),
        ("a", "bytes_out_per_second"),
        ("b", "messages_in_per_second"),
        ("b", "bytes_in_per_second"),
    ],
)
async def test_a_link_with_a_rate_brings_all_and_no_faster(at: str, rate: str) -> None:
    a, b = Site(1), Site(2)
    a.link(b)
    b.link(a, max_inflight=10)
    limited = {"a": a, "b": b}[at]
    (neighbour,) = limited.settings.neighbors
    # Of 60 messages some 10 may be on their way and a second's rate at once.
    each = len("federator/routed/f/x") + len(b"00") if rate.startswith("bytes") else 1
    changed = neighbour.model_copy(update={rate: 40 * each})
    limited.settings = limited.settings.model_copy(update={"neighbors": (changed,)})
    await a.start()
    await b.start()
    await until(lambda: are_linked(a, b))
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    payloads = [b"%02d" % number for number in range(60)]
    for one in payloads:
        await a.publish("f/x", one)
    await until(lambda: b.have(payloads))
    assert loop.time() - began_at > (60 - 40 - 10 - 1) / 40
    assert b.payloads("f/x") == payloads
    # Control words are no messages: they do not wait.
    assert (links(a)[0].counters.slowed > 0) == (at == "a")
    await a.stop()
    await b.stop()


async def test_logs_with_other_numbers_of_partitions_have_each_message_once() -> None:
    a, b, c = ring = [Site(number, partitions=number) for number in (1, 2, 3)]
    a.link(b, c)
    b.link(a, c)
    c.link(a, b)
    for one in ring:
        await one.start()
    await until(lambda: are_linked(*ring))
    published = [b"%d" % number for number in range(200)]
    for number, payload in enumerate(published):
        await ring[number % 3].publish(f"f/{number % 7}", payload)
    await until(lambda: all(one.have(published) for one in ring))
    await until(lambda: all(link.waiting == 0 for one in ring for link in links(one)))
    for one in ring:
        assert one.repeated() == []
        assert len(one.messages()) == len(published)
        await one.stop()


async def test_what_one_path_leaves_out_comes_on_the_other(sites: Make) -> None:
    a, b, c = Site(1), Site(2), Site(3)
    a.link(b, c)
    b.link(a, c)
    c.link(a, b)
    # The first site gives the last one less than it gives the one between.
    narrow = [
        one.model_copy(update={"filters_out": ("f/a",)}) if one.id == c.number else one
        for one in a.settings.neighbors
    ]
    a.settings = a.settings.model_copy(update={"neighbors": tuple(narrow)})
    for one in (a, b, c):
        await one.start()
    await until(lambda: are_linked(a, b, c))
    b.log.hold_reports(INBOUND)
    for number in range(20):
        await a.publish("f/a" if number % 2 else "f/b", b"%d" % number)
    await until(lambda: c.have([b"%d" % number for number in range(1, 20, 2)]))
    b.log.release_reports()
    await until(lambda: c.have([b"%d" % number for number in range(20)]))
    assert c.repeated() == []
    for one in (a, b, c):
        await one.stop()


async def test_one_side_is_enough_to_connect(sites: Make) -> None:
    edge, centre = Site(1), Site(2)
    edge.link(centre, listen={"port": 0})
    centre.link(edge, connects=False)
    await centre.start()
    await edge.start()
    await centre.publish("f/x", b"down")
    await edge.publish("f/x", b"up")
    await until(lambda: edge.have([b"down"]) and centre.have([b"up"]))
    await edge.stop()
    await centre.stop()


async def test_neighbours_are_read_again_without_cutting_links(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    c = Site(3)
    c.link(a)
    await c.start()
    assert a.service is not None
    (to_b,) = a.service.links.values()
    connection = to_b.connection
    a.link(b, c)
    a.service.reload(a.settings.neighbors)
    await until(lambda: are_linked(a, c))
    assert to_b.connection is connection
    await a.publish("f/x", b"1")
    await until(lambda: b.have([b"1"]) and c.have([b"1"]))
    a.link(c)
    a.service.reload(a.settings.neighbors)
    await until(lambda: not are_linked(b))
    await a.publish("f/x", b"2")
    await until(lambda: c.have([b"2"]))
    assert b.payloads("f/x") == [b"1"]
    await c.stop()


async def test_rates_are_read_again_without_cutting_the_link(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    assert a.service is not None
    (to_b,) = links(a)
    connection = to_b.connection
    (neighbour,) = a.settings.neighbors

    def set_rate(per_second: int) -> None:
        changed = neighbour.model_copy(update={"messages_out_per_second": per_second})
        assert a.service is not None
        a.service.reload((changed,))

    set_rate(1)
    payloads = [b"%d" % number for number in range(200)]
    for one in payloads:
        await a.publish("f/x", one)
    await until(lambda: to_b.counters.slowed)
    set_rate(0)  # at one a second the rest would take minutes
    await until(lambda: b.have(payloads))
    assert b.payloads("f/x") == payloads
    assert to_b.connection is connection
    set_rate(0)
    assert links(a) == [to_b]


async def test_who_does_not_know_the_password_is_refused(sites: Make) -> None:
    a, b = Site(1), Site(2)
    a.link(b, connects=False)
    b.link(a)
    (neighbour,) = b.settings.neighbors
    stranger = neighbour.model_validate(neighbour.model_dump() | {"password": "guess"})
    b.settings = b.settings.model_copy(update={"neighbors": (stranger,)})
    await a.start()
    await b.start()
    await a.publish("f/x", b"secret")
    await until(lambda: a.service is not None and a.service.strangers > 1)
    assert b.messages() == []
    assert b.service is not None
    assert "BAD_USER_NAME_OR_PASSWORD" in b.service.figures()["links"][0]["reason"]
    await a.stop()
    await b.stop()


async def test_of_two_federators_for_one_site_the_first_ends(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    second = Site(1)
    second.log = a.log
    second.link(b, connects=False)
    await second.start()
    await a.publish("f/x", b"1")
    await until(lambda: not a.is_running)
    with pytest.raises(OperationalError, match="another federator of site 1"):
        await a.stop()
    assert second.is_running
    await second.stop()


async def test_a_port_that_is_taken_is_said() -> None:
    a, b = Site(1), Site(2)
    a.link(b)
    b.link(a, listen={"port": a.port})
    await a.start()
    await b.start()
    with pytest.raises(OperationalError, match="cannot listen on"):
        await b.stop()
    await a.stop()


@pytest.mark.parametrize("seed", range(12))
async def test_random_faults_lose_and_repeat_nothing(sites: Make, seed: int) -> None:
    """Sites in a ring with a chord are killed and come back while all of them publish."""
    random = Random(seed)
    edges = ((1, 2), (2, 3), (3, 4), (1, 4), (1, 3))
    ring = await sites(4, *edges[: random.randint(3, 5)])
    published: list[bytes] = []
    for step in range(60):
        site = random.choice(ring)
        happens = random.random()
        if happens < 0.12 and site.is_running:
            if random.random() < 0.5:
                site.log.delay_reports()
            await asyncio.sleep(0)
            await site.kill()
            site.log.release_reports()
        elif happens < 0.3:
            for one in ring:
                if not one.is_running and random.random() < 0.7:
                    await one.start()
        else:
            for part in range(random.randint(1, 5)):
                payload = b"%d.%d.%d" % (site.number, step, part)
                published.append(payload)
                await site.publish(f"f/{random.randint(0, 3)}", payload)
    for one in ring:
        if not one.is_running:
            await one.start()
    await until(lambda: all(one.have(published) for one in ring))
    for one in ring:
        assert one.repeated() == []
        assert len(one.messages()) == len(published)
        for topic in {message.topic_name for message in one.messages()}:
            for origin in ring:
                order = [
                    published.index(message.payload)
                    for message in one.messages(topic)
                    if message.origin.startswith(f"site-{origin.number}/")
                ]
                assert all(before < after for before, after in pairwise(order))


def answers(site: Site) -> list[int]:
    """Return up to where the site's gateways have been told that all know."""
    records = site.log.records(GATEWAYS)
    return [decode_reach(one.value or b"") for one in records if one.key == REACH_KEY]


def links(site: Site) -> list:  # type: ignore[type-arg]
    assert site.service is not None
    return list(site.service.links.values())


def control_packets(*sites: Site) -> int:
    return sum(one.service.spreading.sent for one in sites if one.service is not None)


def wanted(site: Site, neighbour: int) -> set[str]:
    """Return the filters by which a neighbour gets messages of a site."""
    return set() if site.service is None else site.service.spreading.wanted.of(neighbour)


def shown(site: Site, topic: str) -> bytes:
    """Return what a subscriber gets as retained: the last in the log with RETAIN."""
    return next((one.payload for one in reversed(site.messages(topic)) if one.retain), b"")


async def a_millisecond() -> None:
    """Wait until a record has a later time."""
    now = time.time_ns() // 1_000_000
    await until(lambda: time.time_ns() // 1_000_000 > now)


async def test_sites_that_set_a_topic_while_apart_retain_the_same(sites: Make) -> None:
    ring = await sites(3, (1, 2), (2, 3), (1, 3))
    for site in ring:
        await site.kill()
    for number, site in enumerate(reversed(ring)):
        await a_millisecond()
        await site.publish("f/x", b"%d" % site.number, retain=True)
        await site.publish("f/y", b"" if number == 2 else b"y", retain=True)
    for site in ring:
        await site.start()
    await until(lambda: all(site.have([b"1", b"2", b"3"]) for site in ring))
    await until(lambda: all((shown(s, "f/x"), shown(s, "f/y")) == (b"1", b"") for s in ring))
    assert all(site.repeated() == [] for site in ring)


async def test_what_is_retained_is_known_after_a_restart(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    await a.stop()
    await a.publish("f/x", b"older", retain=True)
    await a_millisecond()
    await b.publish("f/x", b"newer", retain=True)
    await b.stop()
    for site in (b, a):
        await site.start()
    await until(lambda: a.have([b"newer"]) and b.have([b"older"]))
    assert (shown(a, "f/x"), shown(b, "f/x")) == (b"newer", b"newer")
    assert b.service is not None
    assert b.service.inlet.counters.outdated == 1


async def test_a_message_that_a_neighbours_older_one_has_overtaken_is_shown_again(
    sites: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await sites(2, (1, 2))
    await b.kill()
    await a.publish("f/x", b"older", retain=True)
    await a_millisecond()
    # A client publishes at the moment in which the federator has decided.
    is_latest = SiteRetained.is_latest

    def decide(self: SiteRetained, topic: str, message: Any) -> bool:
        found = is_latest(self, topic, message)
        if message.payload == b"older":
            b.hand_over("f/x", b"newer", retain=True)
        return found

    monkeypatch.setattr(SiteRetained, "is_latest", decide)
    await b.start()
    await until(lambda: shown(a, "f/x") == shown(b, "f/x") == b"newer")
    assert b.payloads("f/x") == [b"newer", b"older", b"newer"]
    assert b.repeated() == []
    assert a.payloads("f/x") == [b"older", b"newer"]


async def test_a_site_that_comes_later_gets_what_is_retained(sites: Make) -> None:
    a, b = await sites(2, (1, 2))
    await a.publish("f/x", b"of a", retain=True, properties={"content_type": "t"})
    await b.publish("f/y", b"of b", retain=True)
    await a.publish("f/gone", b"no more", retain=True)
    await until(lambda: shown(b, "f/x") and shown(a, "f/y") and shown(b, "f/gone"))
    await a.publish("f/gone", b"", retain=True)
    await a.publish("f/live", b"not retained")
    await until(lambda: b.have([b"not retained"]) and not shown(b, "f/gone"))
    assert b.service is not None
    known = b.service.retaining.retained.position.cursor
    await until(lambda: all(known[p] == one.end for p, one in enumerate(b.log.partitions(INBOUND))))
    for partition, held in enumerate(b.log.partitions(INBOUND)):  # the log forgets what is old
        b.log.remove_before(INBOUND, partition, held.end)
    c = Site(3)
    c.link(b)
    b.link(a, c)
    b.service.reload(b.settings.neighbors)
    await c.start()
    link = b.service.links[3]
    try:
        await until(lambda: shown(c, "f/x") and shown(c, "f/y") and c.have([b""]))
        (found,) = c.messages("f/x")
        assert (found.payload, found.properties) == (b"of a", {"content_type": "t"})
        assert c.payloads("f/live") == []
        await until(lambda: not link.position.is_new)
        await a.publish("f/x", b"next", retain=True)
        await until(lambda: shown(c, "f/x") == b"next")
        assert c.repeated() == []
    finally:
        await c.kill()


async def test_a_new_site_that_dies_gets_the_rest_of_what_is_retained(sites: Make) -> None:
    (a,) = await sites(1)
    topics = [f"f/{number}" for number in range(50)]
    for topic in topics:
        await a.publish(topic, topic.encode(), retain=True)
    b = Site(2)
    b.link(a)
    a.link(b)
    assert a.service is not None
    await b.start()
    b.log.delay_reports()
    a.service.reload(a.settings.neighbors)
    await until(lambda: len(b.messages()) == len(topics))
    await b.kill()
    b.log.release_reports()
    await a.stop()
    await a.start()
    link = a.service.links[2]
    assert link.position.is_new
    await b.start()
    await until(lambda: not link.position.is_new)
    assert [shown(b, topic) for topic in topics] == [topic.encode() for topic in topics]
    assert b.repeated() == []
    await b.stop()


async def test_each_site_learns_the_map_of_all() -> None:
    a, b, c = Site(1), Site(2), Site(3)
    a.link(b)
    b.link(a, c)
    c.link(b)
    for site in (a, b, c):
        await site.start()

    def links_at(site: Site) -> dict[int, list[int]]:
        assert site.service is not None
        found = site.service.figures()["overlay"]
        return {one["site"]: one["links"] for one in found["sites"]}

    whole = {1: [2], 2: [1, 3], 3: [2]}
    await until(lambda: all(links_at(one) == whole for one in (a, b, c)))
    await c.stop()
    await until(lambda: links_at(a) == {1: [2], 2: [1], 3: []})
    assert a.service is not None
    assert a.service.figures()["overlay"]["apart"] == [3]
    await a.stop()
    await b.stop()
