"""A site that lacks too much of a stream holds links back: what it acknowledges it has."""

from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ingest.federation.envelope import ChainKey, SiteMessage
from ingest.federation.sites import checkpoints, holding
from ingest.federation.sites.holding import HeldMessage, Holding
from ingest.federation.sites.interest.interest import Interest
from ingest.federation.sites.links.link import SiteLink
from ingest.federation.sites.streams import passing
from ingest.federation.sites.streams.log_messages import Carried
from ingest.federation.sites.streams.streams import StreamKey, Streams
from ingest.protocol.packets import Publish
from tests import waiting
from tests.ingest.federation.sites.harness import Site, are_linked, until

if TYPE_CHECKING:
    from ingest.federation.sites.links.connection import SiteConnection

pytestmark = [pytest.mark.anyio, pytest.mark.promise]

MOST_GAPS = 20

Make = Callable[..., Awaitable[list[Site]]]


@pytest.fixture
async def ring(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Make a ring of sites; of two of them the link lets alarms through alone, as by satellite."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0.02)
    monkeypatch.setattr(passing, "MANY_GAPS", 5)
    # Before a site starts: it takes what has waited for it at once.
    monkeypatch.setattr(holding, "MOST_GAPS", MOST_GAPS)
    made: list[Site] = []

    async def make(count: int, narrow: tuple[int, int], **changes: Any) -> list[Site]:
        made.extend(Site(number, partitions=1) for number in range(1, count + 1))
        for at, site in enumerate(made):
            site.link(made[at - 1], made[(at + 1) % count], **changes)
        for one, other in (narrow, narrow[::-1]):
            limit(made[one - 1], made[other - 1])
        for site in made:
            await site.start()
        await until(lambda: are_linked(*made))
        return made

    yield make
    for site in made:
        if site.is_running:
            await site.stop()


def limit(site: Site, other: Site) -> None:
    neighbours = tuple(
        one.model_copy(update={"filters_out": ("f/alarm",)}) if one.id == other.number else one
        for one in site.settings.neighbors
    )
    site.settings = site.settings.model_copy(update={"neighbors": neighbours})


async def publish(site: Site, count: int, begin: int = 0, **telemetry: Any) -> list[bytes]:
    """Publish alarms and telemetry in turn; return the payloads."""
    payloads: list[bytes] = []
    for number in range(begin, begin + count):
        payloads += [b"t%d" % number, b"a%d" % number]
        await site.publish("f/telemetry", payloads[-2], **telemetry)
        await site.publish("f/alarm", payloads[-1])
    return payloads


def link(site: Site, other: Site) -> SiteLink:
    assert site.service is not None
    return site.service.links[other.number]


def held(site: Site, other: Site) -> int:
    return 0 if site.service is None else site.service.taking.holding.held(other.number)


def reason(site: Site, other: Site) -> str:
    return "" if site.service is None else site.service.taking.holding.reason(other.number)


def gaps(site: Site) -> int:
    return 0 if site.service is None else site.service.inlet.streams.gaps


def is_whole(site: Site, payloads: list[bytes]) -> bool:
    """Tell whether it has each once; they are also in order if they came on one path."""
    return sorted(one.payload for one in site.messages()) == sorted(payloads)


def in_order(site: Site) -> bool:
    """Tell whether it has the messages of each topic in the order in which they were published."""
    return all(
        numbers == sorted(numbers)
        for topic in ("f/alarm", "f/telemetry")
        for numbers in [[int(one[1:]) for one in site.payloads(topic)]]
    )


async def bring_on_a_path_that_was_away(ring: Make) -> None:
    a, b, c = await ring(3, (1, 3))
    await b.kill()
    payloads = await publish(a, 10 * MOST_GAPS)
    await until(lambda: held(c, a) or c.have([payloads[-1]]))
    await b.start()
    await until(lambda: is_whole(c, payloads) and not held(c, a))


async def test_what_comes_on_a_path_that_was_away_is_not_lost(ring: Make) -> None:
    a, b, c = await ring(3, (1, 3))
    await b.kill()
    payloads = await publish(a, 10 * MOST_GAPS)
    await until(lambda: reason(c, a))
    assert c.service is not None
    assert gaps(c) <= MOST_GAPS
    (shown,) = [one for one in c.service.figures()["links"] if one["site"] == a.number]
    assert shown["held"] > 0
    assert shown["held_because"].startswith("20 ranges are missing of partition 0 of site 1")
    assert c.service.health()[1].endswith("held back for messages that are missing: 1")
    await until(lambda: ("federation.link_held", 1, shown["held_because"]) in c.events())
    await b.start()
    await until(lambda: is_whole(c, payloads))
    await until(lambda: all(not link(a, one).waiting for one in (b, c)))
    assert is_whole(b, payloads)
    assert in_order(b)
    assert in_order(c)
    assert (held(c, a), gaps(c)) == (0, 0)
    await until(lambda: ("federation.link_resumed", 1, None) in c.events())
    assert reason(c, a) == ""


async def test_runs_that_end_while_a_link_is_held_back_lose_nothing(ring: Make) -> None:
    """Of four sites the last two are linked by satellite; the wide path is away for long."""
    a, b, c, d = await ring(4, (3, 4))
    await b.kill()
    payloads = await publish(a, 5 * MOST_GAPS)
    await until(lambda: reason(c, d))
    for site in (c, d):
        await site.kill()
        payloads += await publish(a, MOST_GAPS, len(payloads) // 2)
        await site.start()
        await until(lambda: reason(c, d))
    await b.start()
    sites = (b, c, d)
    await until(lambda: all(is_whole(site, payloads) for site in sites))
    await until(lambda: not any(gaps(site) or held(c, d) for site in sites))
    assert all(in_order(site) for site in sites)


async def test_gaps_that_nobody_can_fill_are_closed(ring: Make) -> None:
    """Telemetry is too large for the path that would bring it."""
    a, b, c = await ring(3, (1, 3))
    await b.stop()
    b.settings = b.settings.model_copy(update={"max_packet_bytes": 1024})
    await b.start()
    await until(lambda: are_linked(a, b, c))
    alarms = []
    for number in range(10 * MOST_GAPS):
        await a.publish("f/telemetry", bytes(2_000))
        alarms.append(b"%d" % number)
        await a.publish("f/alarm", alarms[-1])
    await until(lambda: c.payloads("f/alarm") == b.payloads("f/alarm") == alarms)
    await until(lambda: gaps(c) <= 5)


async def test_a_site_that_is_away_holds_no_link_that_it_cannot_fill(
    ring: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sites are linked with a third alone; one is away and wants what the other does not."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0.02)
    a, b, c = Site(1, partitions=1), Site(2), Site(3)
    a.link(b, c)
    b.link(a)
    c.link(a)
    limit(a, c)
    for one in (a, b, c):
        await one.start()
    await until(lambda: are_linked(a, b, c))
    await b.kill()
    await publish(a, 10 * MOST_GAPS)
    await until(lambda: len(c.payloads("f/alarm")) == 10 * MOST_GAPS)
    await c.stop()
    await a.stop()


def a_message(site: int, number: int, closed: list[str]) -> HeldMessage:
    message = SiteMessage(ChainKey(site, 1, "t"), number, 0, 0, 0, b"", 0, retain=False)
    connection = cast("SiteConnection", SimpleNamespace(close=closed.append))
    return HeldMessage(site, connection, Publish("t", b"", 1), Carried(message, 5, [], site))


def test_a_neighbour_that_does_not_keep_to_its_window_is_cut_off() -> None:
    holding, closed = Holding(2, cast("Any", None)), list[str]()
    for number in range(2):
        holding.hold(StreamKey(1, 1, number), a_message(1, 5, closed))
    holding.hold(StreamKey(2, 1, 0), a_message(2, 5, closed))
    assert closed == []
    holding.hold(StreamKey(1, 1, 2), a_message(1, 5, closed))
    assert closed == ["more than 2 unacknowledged messages"]
    assert (holding.held(1), holding.held(2)) == (2, 1)
    holding.close(1)
    assert (holding.held(1), holding.held(2)) == (0, 1)


def test_what_waits_goes_on_in_its_order_as_far_as_there_is_room() -> None:
    holding, key, other = (
        Holding(9, cast("Any", None)),
        StreamKey(1, 1, 0),
        StreamKey(1, 1, 1),
    )
    for number in range(4):
        holding.hold(key, a_message(1, number, []))
    holding.hold(other, a_message(1, 9, []))
    taken: list[int] = []

    def take(one: HeldMessage) -> bool:
        if len(taken) == 2:
            return False
        taken.append(one.carried.message.sequence)
        return True

    holding.resume(key, take)
    assert (taken, holding.held(1)) == ([0, 1], 3)
    taken.clear()
    holding.resume(key, take)
    assert (taken, holding.held(1)) == ([2, 3], 1)


def test_the_second_half_of_the_gaps_is_given_little_by_little() -> None:
    holding, streams, key = Holding(9, cast("Any", None)), Streams(), StreamKey(1, 1, 0)
    holding.most_gaps = 100
    assert (holding.most(key, 0), holding.most(key, 1)) == (55, 110)
    for number in range(2, 2 * 55 + 2, 2):
        streams.add(key, number - 1, number)
    assert len(streams.get(key) or ()) == 55
    assert holding.most(key, 0) == 55
    holding.look(streams, 0.0)
    assert (holding.most(key, 0), holding.most(key, 1)) == (60, 110)
    for number in range(200, 400, 2):
        streams.add(key, number - 1, number)
    holding.look(streams, 0.0)
    assert (holding.most(key, 0), holding.most(key, 1)) == (100, 165)


class Told:
    """Takes what is told of links."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def add(self, event: str, _site: int, _reason: str | None = None) -> None:
        self.events.append(event)


def with_gaps(count: int, last: int) -> Streams:
    streams = Streams()
    streams.add(StreamKey(1, 1, 0), last - 1, last)
    for number in range(2, 2 * count, 2):
        streams.add(StreamKey(1, 1, 0), number - 1, number)
    return streams


def test_what_fills_half_of_a_window_is_left_where_it_is_until_there_are_few_gaps() -> None:
    told, key, other = Told(), StreamKey(1, 1, 0), StreamKey(1, 1, 1)
    holding = Holding(4, cast("Any", told))
    holding.most_gaps = MOST_GAPS
    holding.hold(key, a_message(5, 200, []))
    many = with_gaps(MOST_GAPS, 100)
    assert holding.look(many, 0.0) == ({key}, set())
    assert holding.look(many, 1.0) == ({key}, set())  # half of the window is free
    holding.hold(other, a_message(5, 7, []))
    assert holding.look(many, 2.0) == ({key, other}, set())  # it knows nothing of limits
    holding.note(5, knows_limits=True)
    assert holding.look(many, 3.0) == ({key, other}, {5})
    assert holding.limits(5) == {key: 100, other: 0}
    holding.close(5)  # the connection begins anew
    assert holding.reason(5)
    later = with_gaps(MOST_GAPS, 300)
    assert holding.look(later, 4.0) == (set(), {5})  # of the other stream nothing is missing
    assert holding.limits(5) == {key: 300}
    later.add(key, 399, 400)
    assert holding.look(later, 5.0) == (set(), set())
    assert holding.look(later, 14.0) == (set(), {5})
    assert holding.limits(5) == {key: 400}
    assert holding.look(with_gaps(MOST_GAPS // 2, 500), 15.0) == (set(), {5})
    assert holding.limits(5) == {}
    assert told.events == ["federation.link_held"]
    holding.look(Streams(), 16.0)
    assert told.events == ["federation.link_held", "federation.link_resumed"]
    assert not holding.reason(5)


Patch = Callable[[pytest.MonkeyPatch], None]


def forget_gaps(patch: pytest.MonkeyPatch) -> None:
    """Of too many gaps the lowest is forgotten."""
    add = Streams.add

    def forget(self: Streams, key: StreamKey, after: int, number: int) -> None:
        add(self, key, after, number)
        stream = self.get(key)
        if stream is not None and len(stream) > MOST_GAPS:
            stream.close(stream.gaps[0][1])

    patch.setattr(Streams, "has_room", lambda *_: True)
    patch.setattr(Streams, "add", forget)


def acknowledge_what_is_held(patch: pytest.MonkeyPatch) -> None:
    """What has no room is acknowledged."""
    patch.setattr(
        Holding, "hold", lambda _s, _k, one: one.connection.acknowledge(one.publish.packet_id)
    )


def never_resume(patch: pytest.MonkeyPatch) -> None:
    """What is held stays so."""
    patch.setattr(Holding, "resume", lambda *_: None)


def close_at_once(patch: pytest.MonkeyPatch) -> None:
    """A gap is closed though a neighbour that is away may fill it."""
    patch.setattr(Interest, "may_bring", lambda *_: {1})


@pytest.mark.parametrize(
    "defect",
    [forget_gaps, acknowledge_what_is_held, never_resume, close_at_once],
    ids=lambda one: one.__name__,
)
async def test_a_planted_defect_is_found(
    defect: Patch, ring: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    monkeypatch.setattr(waiting, "DEADLINE_SECONDS", 2.0)
    with pytest.raises(TimeoutError):
        await bring_on_a_path_that_was_away(ring)
