"""Two links that each close the gaps of the other one do not wait for each other for ever."""

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingest.federation.sites import checkpoints, holding
from ingest.federation.sites.holding import HeldMessage, Holding
from ingest.federation.sites.streams import passing
from ingest.federation.sites.streams.inlet import Inlet, InletVerdict, stream_of
from ingest.federation.sites.streams.log_messages import of_publish
from ingest.federation.sites.streams.outlet import Outlet
from ingest.federation.sites.streams.streams import StreamKey, Streams
from mqlake.records.federation import LinkPosition
from tests.ingest.federation.sites.harness import Site, are_linked, until
from tests.ingest.federation.sites.test_outlet import NOW_MS, THIRD, outlet, stream_record

pytestmark = [pytest.mark.anyio, pytest.mark.promise]

MOST_GAPS = 20
WINDOW = 10


@pytest.fixture(autouse=True)
def _scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0.02)
    monkeypatch.setattr(passing, "MANY_GAPS", 5)
    monkeypatch.setattr(holding, "MOST_GAPS", MOST_GAPS)
    monkeypatch.setattr(holding, "RAISE_SECONDS", 0.2)


@pytest.fixture
async def sites() -> AsyncIterator[list[Site]]:
    """Two origins, two sites between and one behind: alarms come by one of these; nobody runs."""
    a, b, x, y, c = made = [Site(number, partitions=1) for number in range(1, 6)]
    for site, others in ((a, (x, y)), (b, (x, y)), (x, (a, b, c)), (y, (a, b, c)), (c, (x, y))):
        site.link(*others, max_inflight=WINDOW)
    for between, topic in ((x, "f/alarm"), (y, "f/telemetry")):
        limit(between, c, topic)
        limit(c, between, topic)
    yield made
    for site in made:
        if site.is_running:
            await site.stop()


def limit(site: Site, other: Site, topic: str) -> None:
    neighbours = tuple(
        one.model_copy(update={"filters_out": (topic,)}) if one.id == other.number else one
        for one in site.settings.neighbors
    )
    site.settings = site.settings.model_copy(update={"neighbors": neighbours})


async def publish(site: Site, count: int) -> list[bytes]:
    payloads: list[bytes] = []
    for number in range(count):
        for topic in ("telemetry", "alarm"):
            payloads.append(b"%d %s %d" % (site.number, topic.encode(), number))
            await site.publish(f"f/{topic}", payloads[-1])
    return payloads


def held(site: Site, other: Site) -> int:
    return 0 if site.service is None else site.service.taking.holding.held(other.number)


def reason(site: Site, other: Site) -> str:
    return "" if site.service is None else site.service.taking.holding.reason(other.number)


def is_whole(site: Site, payloads: list[bytes]) -> bool:
    return sorted(one.payload for one in site.messages()) == sorted(payloads)


async def come_together(sites: list[Site]) -> None:
    """Each site between has the backlog of one origin first, and that of the other behind it."""
    a, b, x, y, c = sites
    for site in sites:  # once all of them, to know the ways
        await site.start()
    await until(lambda: are_linked(*sites))
    for site in (b, y):
        await site.kill()
    sent = await publish(a, 10 * MOST_GAPS)
    await until(lambda: x.have(sent))
    await until(lambda: reason(c, x))
    await x.kill()
    await a.kill()
    for site in (b, y):
        await site.start()
    sent += (more := await publish(b, 10 * MOST_GAPS))
    await until(lambda: y.have(more))
    await until(lambda: reason(c, y))
    await x.start()
    await a.start()
    await until(lambda: x.have(sent) and y.have(sent))
    await until(lambda: is_whole(c, sent))
    await until(lambda: not (reason(c, x) or reason(c, y) or held(c, x) or held(c, y)))
    for site in (x, y):  # once more, and nothing is held back
        assert not site.repeated()
    await until(lambda: c.service is not None and not c.service.inlet.streams.gaps)


async def test_links_that_close_each_others_gaps_go_on(sites: list[Site]) -> None:
    await come_together(sites)


async def test_who_has_a_link_that_was_never_up_may_still_bring_something(
    sites: list[Site],
) -> None:
    """Of an origin that came later, a site between has not heard yet; what it is to bring waits."""
    a, b, x, y, c = sites
    for site in (a, x, c):
        await site.start()
    await until(lambda: is_up(x, a) and is_up(c, x))
    for site in (a, x):
        await site.kill()
    for site in (b, y):
        await site.start()
    sent = await publish(b, MOST_GAPS // 2)
    await until(lambda: c.have([one for one in sent if b"telemetry" in one]))
    before = asked(c)
    await until(lambda: asked(c) > before + 10)  # it lacks the rest, and asks in vain
    for site in (x, a):
        await site.start()
    await until(lambda: is_whole(c, sent))


def is_up(site: Site, other: Site) -> bool:
    return site.service is not None and site.service.links[other.number].is_up


def asked(site: Site) -> int:
    return 0 if site.service is None else site.service.taking.sent


class Sides:
    """The site behind, and the links of the two between, with their logs as they are given.

    Args:
        logs: Of each, its messages: stream and number.
    """

    def __init__(self, logs: dict[int, list[tuple[StreamKey, int]]]) -> None:
        self.inlet = Inlet(Streams(), {})
        self.holding = Holding(WINDOW, cast("Any", SimpleNamespace(add=lambda *_: None)))
        self.appended: list[tuple[StreamKey, int]] = []
        self.records = {
            site: [stream_record(at, one[0].partition, one[1]) for at, one in enumerate(log)]
            for site, log in logs.items()
        }
        self.positions = {site: LinkPosition({0: 0}) for site in logs}
        self.outlets: dict[int, Outlet] = {}
        for site in logs:
            self.holding.note(site, knows_limits=True)
            self.begin(site)

    def begin(self, site: int) -> None:
        self.holding.close(site)
        limits = self.holding.limits(site)
        self.outlets[site] = made = outlet(self.positions[site], window=WINDOW, limits=limits)
        made.take(self.records[site][self.positions[site].cursor[0] :], NOW_MS)

    def carry(self) -> bool:
        """Bring what is sent; return whether there was something."""
        found = False
        for site, made in self.outlets.items():
            for publish in made.ready():
                found = True
                carried = of_publish(publish, prefix="federator")
                one = HeldMessage(site, cast("Any", made), publish, carried)
                if not self.take(one):
                    self.holding.hold(stream_of(carried.message), one)
        return found

    def take(self, one: HeldMessage) -> bool:
        message, made = one.carried.message, self.outlets[one.site]
        key = stream_of(message)
        most = self.holding.most(key, 0)
        verdict = self.inlet.take(message, lambda: made.acknowledge(one.publish.packet_id), most)
        if verdict is InletVerdict.NEW:
            self.appended.append((key, message.sequence))
            self.inlet.appended(message, 0, len(self.appended))
            self.holding.resume(key, self.take)
        elif verdict is InletVerdict.DUPLICATE:
            made.acknowledge(one.publish.packet_id)
        return verdict is not InletVerdict.FULL

    def run(self) -> None:
        """Go on until all is settled, or for too long."""
        ends = {site: len(records) for site, records in self.records.items()}
        for second in range(0, 1_000 * int(RAISE_SECONDS), int(RAISE_SECONDS)):
            while self.carry():
                pass
            if all(self.positions[site].cursor[0] == end for site, end in ends.items()):
                return
            keys, anew = self.holding.look(self.inlet.streams, float(second))
            for key in keys:
                self.holding.resume(key, self.take)
            for site in anew:
                self.begin(site)
        raise AssertionError("the links wait for each other")


RAISE_SECONDS = 10.0
P, Q = StreamKey(THIRD, 1, 0), StreamKey(THIRD, 1, 1)
ORDERS = st.lists(st.sampled_from([P, Q]), max_size=120)


@settings(max_examples=40)
@given(kinds=st.lists(st.booleans(), min_size=240, max_size=240), x=ORDERS, y=ORDERS)
@example(kinds=[True, False] * 120, x=[P] * 60 + [Q] * 60, y=[Q] * 60 + [P] * 60)
def test_both_sides_bring_all_of_theirs_in_whatever_order(
    kinds: list[bool], x: list[StreamKey], y: list[StreamKey]
) -> None:
    """Of each stream an alarm is in one log, and what is none in the other; each number once."""
    bring(kinds, x, y)


def bring(kinds: list[bool], x: list[StreamKey], y: list[StreamKey]) -> None:
    sides = Sides(logs_of(kinds, x, y))
    sides.run()
    had = [one for log in logs_of(kinds, x, y).values() for one in log]
    assert sorted(sides.appended) == sorted(had)


def logs_of(
    kinds: list[bool], x: list[StreamKey], y: list[StreamKey]
) -> dict[int, list[tuple[StreamKey, int]]]:
    logs: dict[int, list[tuple[StreamKey, int]]] = {}
    for site, order, is_alarm in ((3, x, True), (4, y, False)):
        left = {
            key: [
                number
                for number in range(1, 121)
                if kinds[number - 1 + 120 * (key == Q)] is is_alarm
            ]
            for key in (P, Q)
        }
        keys = (*order, *[P] * 120, *[Q] * 120)
        logs[site] = [(key, left[key].pop(0)) for key in keys if left[key]]
    return logs


Patch = Callable[[pytest.MonkeyPatch], None]


def never_limit(patch: pytest.MonkeyPatch) -> None:
    """What waits stays in the window of its link."""
    patch.setattr(Holding, "_may_limit", lambda *_: False)


def limit_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A limit stays when the gaps are filled."""
    change = Holding._change_limits

    def stay(self: Holding, streams: Streams, now: float) -> set[int]:
        self._seen = dict.fromkeys((P, Q), 2 * MOST_GAPS)
        return change(self, streams, now)

    patch.setattr(Holding, "_change_limits", stay)
    patch.setattr(holding, "RAISE_SECONDS", 1e9)


def pass_over_what_is_left(patch: pytest.MonkeyPatch) -> None:
    """The cursor goes on over messages above a limit."""
    settle = Outlet._settle

    def pass_over(self: Outlet, partition: int, end: int, clock: int) -> None:
        self._left_at.clear()
        settle(self, partition, end, clock)

    patch.setattr(Outlet, "_settle", pass_over)


@pytest.mark.parametrize(
    "defect", [never_limit, limit_for_ever, pass_over_what_is_left], ids=lambda one: one.__name__
)
def test_a_planted_defect_is_found(defect: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    defect(monkeypatch)
    with pytest.raises(AssertionError):
        bring([True, False] * 120, [P] * 60 + [Q] * 60, [Q] * 60 + [P] * 60)
