"""Gaps are closed when nobody can fill them, and never before: random federations of logs."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest

from ingest.federation.envelope import ChainKey, SiteMessage
from ingest.federation.sites.holding import Holding
from ingest.federation.sites.interest.interest import Interest
from ingest.federation.sites.streams import passing
from ingest.federation.sites.streams.inlet import Inlet, InletVerdict
from ingest.federation.sites.streams.passing import Passing
from ingest.federation.sites.streams.streams import StreamKey, Streams
from tests.cases import case
from tests.ingest.simulations import simulations_wanted

SEEDS = 100
STEPS = 600
ROUNDS = 200
"""In which all that is missing has come, when all links are up again."""
KINDS = 4
WINDOW = 4
MOST_GAPS = 20
KEY = StreamKey(1, 1, 0)
Record = tuple[int, int, int, int, int] | None
"""Number, `after`, hops, kind and sender of a message of site 1; None: something else."""


class Link:
    """One direction: a cursor in the log of one site, and what is unacknowledged behind it."""

    def __init__(self, random: Random) -> None:
        self.kinds = {kind for kind in range(KINDS) if random.random() < 0.7}
        self.never = random.random() < 0.5
        """Whether each fifth message is too large for it."""
        self.is_up = True
        self.cursor = self.read = 0
        self.told: int | None = None
        self.sent: dict[int, Record] = {}
        self.arriving: deque[tuple[int, Record]] = deque()
        self.words: deque[Any] = deque()

    def lets(self, record: Record) -> bool:
        return record is not None and record[3] in self.kinds

    def brings(self, record: Record) -> bool:
        return self.lets(record) and not (self.never and record is not None and not record[0] % 5)

    def cut(self) -> None:
        self.is_up, self.read, self.told = False, self.cursor, None
        self.sent.clear()
        self.arriving.clear()
        self.words.clear()

    def acknowledge(self, at: int) -> None:
        self.sent.pop(at, None)
        self.cursor = min(self.sent, default=self.read)


class Site:
    def __init__(self, number: int) -> None:
        self.number = number
        self.log: list[Record] = []
        self.interest = Interest(number, 16)
        self.interest.want((), number)
        self.kept: tuple[list[Any], int] = ([], 0)
        self.begin()

    def begin(self) -> None:
        """Go on as a run does that finds the checkpoint and the log."""
        streams, read = self.kept
        self.inlet = Inlet(Streams.from_json(streams), {})
        for record in self.log[read:]:
            if record is not None and self.number != KEY.origin:
                self.inlet.streams.add(KEY, record[1], record[0])
        self.passing = Passing(self.number, self.interest)
        self.holding = Holding(WINDOW, cast("Any", None))
        self.holding.most_gaps = MOST_GAPS
        self.appending: deque[Record] = deque()

    def has(self, number: int) -> bool:
        return any(record is not None and record[0] == number for record in self.log)


class Federation:
    def __init__(self, random: Random) -> None:
        self.random = random
        count = random.randint(3, 5)
        self.sites = {number: Site(number) for number in range(1, count + 1)}
        pairs = {(random.randint(1, one - 1), one) for one in range(2, count + 1)}
        pairs |= {(min(two), max(two)) for two in (random.sample(list(self.sites), 2),) * 2}
        pairs |= {(1, count)}
        self.links = {
            way: Link(random) for a, b in sorted(pairs) for way in ((a, b), (b, a)) if a != b
        }
        for _ in range(2 * count):
            for one, other in self.links:
                self.sites[one].interest.open(other)
                self.sites[other].interest.hear(one, self.sites[one].interest.news_for(other))

    def neighbours(self, site: int) -> list[int]:
        return [other for one, other in self.links if one == site]

    # What may happen.

    def publish(self) -> None:
        log = self.sites[1].log
        number = len(log) + 1
        is_message = self.random.random() < 0.8
        kind = self.random.randrange(KINDS)
        log.append((number, number - 1, 0, kind, 1) if is_message else None)

    def send(self, way: tuple[int, int]) -> None:
        link, site = self.links[way], self.sites[way[0]]
        if not link.is_up or len(link.sent) >= WINDOW or link.read >= len(site.log):
            return
        at, link.read = link.read, link.read + 1
        record = site.log[at]
        if record is not None:
            number, after, hops, kind, sender = record
            if way[0] == 1 and any(
                one.lets(record) for ends, one in self.links.items() if ends[0] == 1
            ):
                after = after if link.told is None else link.told
                link.told = number
            if link.brings(record) and way[1] not in (1, sender):
                link.sent[at] = record
                link.arriving.append((at, (number, after, hops + 1, kind, way[0])))
        link.cursor = min(link.sent, default=link.read)

    def arrive(self, way: tuple[int, int]) -> None:
        link = self.links[way]
        # What has to wait lets pass what is behind it.
        for one in list(link.arriving):
            if self.take(way, *one):
                link.arriving.remove(one)
                break

    def take(self, way: tuple[int, int], at: int, record: Record) -> bool:
        link, site = self.links[way], self.sites[way[1]]
        assert record is not None
        message = SiteMessage(
            ChainKey(1, 1, "t"),
            record[0],
            record[1],
            0,
            0,
            b"",
            0,
            retain=False,
            hops=record[2] - 1,
        )
        if way[0] == 1:
            site.passing.came(1, KEY, record[0])
        present = link.arriving

        def acknowledge() -> None:
            if self.links[way].arriving is present and at in link.sent:
                link.acknowledge(at)

        most = site.holding.most(KEY, message.hops)
        verdict = site.inlet.take(message, acknowledge, most)
        if verdict is InletVerdict.NEW:
            site.appending.append(record)
        elif verdict is InletVerdict.DUPLICATE:
            assert site.has(record[0]), f"site {site.number} takes {record[0]} for had: it is lost"
            acknowledge()
        return verdict is not InletVerdict.FULL

    def append(self, number: int) -> None:
        site = self.sites[number]
        if site.appending:
            record = site.appending.popleft()
            assert record is not None
            site.log.append(record)
            message = SiteMessage(
                ChainKey(1, 1, "t"), record[0], record[1], 0, 0, b"", 0, retain=False
            )
            site.inlet.appended(message, 0, len(site.log) - 1)

    def look(self, number: int) -> None:
        """Let a second pass at a site."""
        site, ends = self.sites[number], {0: len(self.sites[number].log)}
        site.kept = (site.inlet.streams.to_json(), len(site.log))

        def has_all(other: int) -> Callable[[Any], bool]:
            link = self.links[number, other]
            return lambda ends: link.is_up and link.cursor >= ends[0]

        near = {other: has_all(other) for other in self.neighbours(number)}
        answers = site.passing.answers(site.inlet, lambda _: len(site.log), ends, near)
        for other, numbers in answers.items():
            self.say(number, other, ("passed", numbers))
        for other, keys in site.passing.settle(site.inlet, near).items():
            self.say(number, other, ("asked", keys))
        site.holding.look(site.inlet.streams, 0.0)

    def say(self, number: int, other: int, word: Any) -> None:
        if self.links[number, other].is_up:
            self.links[number, other].words.append(word)

    def hear(self, way: tuple[int, int]) -> None:
        if self.links[way].words:
            kind, said = self.links[way].words.popleft()
            if kind == "asked":
                self.sites[way[1]].passing.ask(way[0], said)
            else:
                self.sites[way[1]].passing.hear(way[0], said)

    def cut(self, way: tuple[int, int]) -> None:
        for one, other in (way, way[::-1]):
            self.links[one, other].cut()
            self.sites[one].passing.close(other)

    def kill(self, number: int) -> None:
        for other in self.neighbours(number):
            self.cut((number, other))
        self.sites[number].begin()

    def connect(self, way: tuple[int, int]) -> None:
        for one in (way, way[::-1]):
            self.links[one].is_up = True

    # All of it.

    def step(self) -> None:
        way = self.random.choice(list(self.links))
        number = self.random.choice(list(self.sites))
        steps: list[tuple[float, Callable[[], object]]] = [
            (30, lambda: self.send(way)),
            (30, lambda: self.arrive(way)),
            (10, lambda: self.hear(way)),
            (20, lambda: self.append(number)),
            (10, lambda: self.look(number)),
            (15, self.publish),
            (1, lambda: self.connect(way)),
            (1, lambda: self.cut(way)),
            (0.3, lambda: self.kill(number)),
        ]
        (chosen,) = self.random.choices([one for _, one in steps], [one for one, _ in steps])
        chosen()

    def wanted(self, number: int) -> set[int]:
        """Return the messages that come to a site in the end."""
        found: set[int] = set()
        for record in self.sites[1].log:
            if record is None:
                continue
            reached, before = {1}, set[int]()
            while reached != before:
                before = set(reached)
                reached |= {
                    b for (a, b), one in self.links.items() if a in before and one.brings(record)
                }
            if number in reached:
                found.add(record[0])
        return found

    def settle(self) -> None:
        for way in self.links:
            self.connect(way)
        for _ in range(ROUNDS):
            for way in self.links:
                for _ in range(WINDOW):
                    self.send(way)
                    self.arrive(way)
                while self.links[way].words:
                    self.hear(way)
            for number, site in self.sites.items():
                while site.appending:
                    self.append(number)
                self.look(number)

    def check(self) -> None:
        for number, site in self.sites.items():
            had = [record[0] for record in site.log if record is not None]
            assert len(had) == len(set(had)), f"site {number} has doubles"
            assert set(had) == self.wanted(number), f"site {number} lacks messages"
            stream = site.inlet.streams.get(KEY)
            assert stream is None or len(stream) <= passing.MANY_GAPS, f"site {number} keeps gaps"


def run(seed: int) -> None:
    federation = Federation(Random(seed))
    for _ in range(STEPS):
        federation.step()
    federation.settle()
    federation.check()


@pytest.fixture(autouse=True)
def few_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "MANY_GAPS", 2)


@pytest.mark.promise
def test_gaps_are_closed_when_nobody_can_fill_them_and_never_before() -> None:
    for seed in range(simulations_wanted(SEEDS)):
        with case(f"seed {seed}"):
            run(seed)


def with_gaps() -> Inlet:
    """Return what a site has had of site 1: each tenth number; the 25th is on its way."""
    inlet = Inlet(Streams(), {})
    for number in range(10, 60, 10):
        inlet.streams.add(KEY, number - 1, number)
    message = SiteMessage(ChainKey(1, 1, "t"), 25, 24, 0, 0, b"", 0, retain=False)
    assert inlet.take(message, lambda: None) is InletVerdict.NEW
    return inlet


def test_what_is_on_its_way_into_the_log_is_not_taken_for_had() -> None:
    known, inlet = Passing(9, Interest(9, 16)), with_gaps()
    known.came(1, KEY, 50)
    known.settle(inlet, [1])
    assert [one for one in range(1, 51) if not inlet.streams.has(KEY, one)] == [
        *range(25, 30),
        *range(31, 40),
        *range(41, 50),
    ]


def test_what_a_neighbour_brought_on_a_connection_before_does_not_count() -> None:
    known, inlet = Passing(9, Interest(9, 16)), with_gaps()
    known.came(1, KEY, 50)
    known.close(1)
    known.settle(inlet, [1])
    assert inlet.streams.gaps == 5


Patch = Callable[[pytest.MonkeyPatch], None]


def answer_at_once(patch: pytest.MonkeyPatch) -> None:
    """An answer does not wait until the asker has what the log has."""
    answers = Passing.answers

    def at_once(self: Passing, inlet: Inlet, own: Any, ends: Any, has_all: Any) -> Any:
        return answers(self, inlet, own, ends, dict.fromkeys(has_all, lambda _: True))

    patch.setattr(Passing, "answers", at_once)


def ask_nobody_else(patch: pytest.MonkeyPatch) -> None:
    """A site answers by what it has itself."""
    patch.setattr(Passing, "_ways", lambda _s, question, _n: {1} - set(question.through))


def wait_for_each_other(patch: pytest.MonkeyPatch) -> None:
    """Sites that lack the same each wait for the other."""
    patch.setattr(
        Passing,
        "_ways",
        lambda self, question, near: (
            self._interest.may_bring(question.key.origin, near) - set(question.through[-2:])
        ),
    )


@pytest.mark.parametrize(
    "defect",
    [
        answer_at_once,
        ask_nobody_else,
        wait_for_each_other,
    ],
    ids=lambda one: one.__name__,
)
def test_a_planted_defect_is_found(defect: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    defect(monkeypatch)

    def run_all() -> None:
        for seed in range(10 * SEEDS):
            run(seed)

    with pytest.raises(AssertionError):
        run_all()
