"""How a log grows: its steps, and, as a property, that topics keep their order meanwhile."""

import json
import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import InvalidRecord, OperationalError
from mqlake.log.growth import (
    MOST_PARTITIONS,
    Growth,
    GrowthStep,
    Heard,
    check_growth,
    decode_growth,
    encode_growth,
    generations,
    waits_for,
)
from mqlake.log.partitioning import partition_of

SIZES = st.tuples(st.integers(1, 16), st.integers(2, 8)).map(lambda one: (one[0], one[0] * one[1]))


def a_word(partitions: int | None, *, is_fixed: bool = True, at: float = 0.0) -> Heard:
    return Heard(partitions, is_fixed, 10.0, at)


@given(SIZES, st.binary(min_size=1, max_size=30))
def test_a_topic_stays_or_moves_to_a_new_partition_of_its_old_one(
    sizes: tuple[int, int], key: bytes
) -> None:
    before, after = sizes
    old, new = partition_of(key, before), partition_of(key, after)
    assert new % before == old
    assert new == old or new >= before


@given(st.integers(1, 6), st.lists(st.integers(2, 4), max_size=4), st.binary(min_size=1))
def test_a_topic_was_in_earlier_generations_before_however_the_log_has_grown(
    made_with: int, times: list[int], key: bytes
) -> None:
    sizes = [made_with]
    for one in times:
        sizes.append(sizes[-1] * one)
    found = list(generations(made_with, sizes[-1]))
    assert [one for partitions in found for one in partitions] == list(range(sizes[-1]))
    assert found[0] == range(made_with), "a log that has not grown is read at once"
    places = dict.fromkeys(partition_of(key, size) for size in sizes)
    passed = [number for one in places for number, each in enumerate(found) if one in each]
    assert passed == sorted(set(passed))


@given(SIZES, st.data())
def test_steps_come_back_as_they_went_in(sizes: tuple[int, int], data: st.DataObject) -> None:
    growth = Growth(*sizes)
    ends = {one: data.draw(st.integers(0, 2**50)) for one in range(growth.after)}
    cut = growth.moved().cut_at(ends)
    for one in (growth, growth.moved(), cut, cut.finished()):
        assert decode_growth(encode_growth(one)) == one
    assert [one.used for one in (growth, growth.moved(), cut, cut.finished())] == [
        growth.before,
        *[growth.after] * 3,
    ]
    assert cut.readable({}) == (growth.after if not any(cut.cut) else growth.before)
    assert cut.readable(ends) == cut.finished().readable(ends) == growth.after
    assert growth.readable(ends) == growth.moved().readable(ends) == growth.before


@pytest.mark.parametrize(
    "changes",
    [
        {"v": None},
        {"step": "gone"},
        {"after": 10},
        {"before": 0},
        {"before": 8},
        {"cut": [1]},
        {"cut": [1, 2, 3, "x"]},
        {"cut": None},
        {"step": "cut", "cut": []},
    ],
)
def test_what_is_no_growth_is_refused(changes: dict[str, object]) -> None:
    members = json.loads(encode_growth(Growth(4, 8))) | changes
    with pytest.raises(InvalidRecord):
        decode_growth(json.dumps(members).encode())


@pytest.mark.parametrize("value", [None, b"", b"[]", b"{"])
def test_what_is_no_record_is_refused(value: bytes | None) -> None:
    with pytest.raises(InvalidRecord):
        decode_growth(value)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (4, "more than that"),
        (2, "more than that"),
        (6, "a multiple, 8 say"),
        (MOST_PARTITIONS + 4, "at most 1024"),
    ],
)
def test_a_log_only_grows_to_a_multiple(wanted: int, reason: str) -> None:
    with pytest.raises(OperationalError, match=reason):
        check_growth(4, wanted)
    check_growth(4, 12)


def test_gateways_that_live_are_waited_for() -> None:
    growth = Growth(4, 8)
    heard = {
        "ready": a_word(4),
        "moved": a_word(8, is_fixed=False),
        "late": a_word(4, is_fixed=False),
        "old": a_word(None, is_fixed=False),
        "dead": a_word(4, is_fixed=False, at=-10.0),
    }
    assert waits_for(growth, heard, 0.0) == ["late", "old"]
    assert waits_for(growth.moved(), heard, 0.0) == ["late", "old", "ready"]
    assert waits_for(growth.moved(), heard, 10.0) == []
    assert waits_for(growth.moved().cut_at(dict.fromkeys(range(4), 1)), heard, 0.0) == []


@dataclass
class Writer:
    """A gateway: it hears of steps late, and what it appends is in the log later."""

    name: str
    steps: list[Growth] = field(default_factory=list)
    used: int = 4
    is_fixed: bool = False
    said: int = 4
    waiting: list[tuple[int, tuple[str, str, int]]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class Site:
    """Writers and a reader on one log that grows, in an order that chance makes."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log: list[list[tuple[str, str, int]]] = [[] for _ in range(4)]
        self.writers = [Writer(f"w{number}") for number in range(3)]
        self.growth = Growth(4, 8)
        self.next = [0] * 8
        self.reads = 4
        self.seen: dict[tuple[str, str], int] = defaultdict(int)
        self.taken = 0
        for one in self.writers:
            one.steps.append(self.growth)

    def say(self, growth: Growth) -> None:
        self.growth = growth
        for one in self.writers:
            one.steps.append(growth)

    def run(self) -> None:
        acts = [self.publish, self.publish, self.store, self.store, self.hear, self.act, self.read]
        for _ in range(600):
            self.chance.choice(acts)()
        while not self.growth.is_done or any(one.waiting for one in self.writers):
            for act in (self.hear, self.store, self.act, self.read):
                act()
        for _ in range(40):
            self.publish()
        while any(one.waiting for one in self.writers):
            self.store()
        while self.taken < sum(map(len, self.log)):
            self.read()

    def publish(self) -> None:
        writer = self.chance.choice(self.writers)
        topic = f"t{self.chance.randrange(12)}"
        writer.numbers[topic] += 1
        place = partition_of(topic.encode(), writer.used)
        writer.waiting.append((place, (writer.name, topic, writer.numbers[topic])))

    def store(self) -> None:
        """Put one record of a writer into the log, in the order of its partition."""
        writer = self.chance.choice(self.writers)
        if writer.waiting:
            place = self.chance.choice(writer.waiting)[0]
            at = next(n for n, one in enumerate(writer.waiting) if one[0] == place)
            self.log[place].append(writer.waiting.pop(at)[1])

    def hear(self) -> None:
        writer = self.chance.choice(self.writers)
        if writer.steps and (writer.steps[0].step is GrowthStep.ANNOUNCED or len(self.log) == 8):
            step = writer.steps.pop(0)
            writer.is_fixed, writer.used = True, step.used
            # Of what was appended before, for which the word waits.
            writer.said = 4
        if writer.used == 8 and not any(place < 4 for place, _ in writer.waiting):
            writer.said = 8

    def act(self) -> None:
        """Be the command, router and lake."""
        heard = {one.name: a_word(one.said, is_fixed=one.is_fixed) for one in self.writers}
        if waits_for(self.growth, heard, 0.0):
            return
        match self.growth.step:
            case GrowthStep.ANNOUNCED:
                self.log += [[] for _ in range(4)]
                self.say(self.growth.moved())
            case GrowthStep.MOVED:
                self.say(self.growth.cut_at(dict(enumerate(map(len, self.log)))))
            case GrowthStep.CUT if self.reads == 8:
                self.say(self.growth.finished())

    def read(self) -> None:
        self.reads = self.growth.readable(dict(enumerate(self.next)))
        place = self.chance.randrange(self.reads)
        if place < len(self.log) and self.next[place] < len(self.log[place]):
            writer, topic, number = self.log[place][self.next[place]]
            self.next[place] += 1
            self.taken += 1
            assert number == self.seen[writer, topic] + 1, f"{topic} of {writer} at {self.growth}"
            self.seen[writer, topic] = number


@given(st.integers(0, 2**32))
def test_whatever_comes_in_between_each_topic_is_read_in_its_order(seed: int) -> None:
    site = Site(seed)
    site.run()
    assert {(one.name, topic): last for one in site.writers for topic, last in one.numbers.items()}
    for writer in site.writers:
        for topic, last in writer.numbers.items():
            assert site.seen[writer.name, topic] == last, "nothing is lost"
    assert any(site.log[4:]), "topics have moved"
