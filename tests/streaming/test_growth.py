"""The part of router and lake in a growth, without Spark and log."""

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.log.growth import OTHERS_SECONDS, Growth, GrowthStep, Heard, decode_growth
from mqlake.records.messages import GATEWAYS, GROWTH_KEY, INBOUND, OUTPUTS
from streaming.log.checkpoints import Offsets
from streaming.reading import growth as module
from streaming.reading.growth import Cut, Finish, LogGrowth, QueryPositions
from streaming.reading.log_retention import RetainingReader


@dataclass
class Log:
    growth: Growth | None = None
    made_with: int = 4
    gateways: dict[str, Heard] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(8), 10))
    clock: ManualClock = field(default_factory=ManualClock)
    unread: list[tuple[str, Heard]] = field(default_factory=list)
    refuses: bool = False
    newer: Growth | None = None
    """What the log has, and whoever has looked does not know yet."""

    def look(self, timeout_seconds: float = 0.0) -> None:
        pass

    def read_to_end(self) -> None:
        self.gateways.update(self.unread)
        if self.newer is not None:
            self.growth, self.newer = self.newer, None

    def heard(self) -> dict[str, Heard]:
        return self.gateways

    def append(self, records: list[Any]) -> None:
        if self.refuses:
            raise LogError("away", definite=False)
        (record,) = records
        assert (record.log_topic, record.key) == (GATEWAYS, GROWTH_KEY)
        self.growth = decode_growth(record.value)

    def cut(self) -> Cut:
        return Cut(self, lambda _: self.ends, self.append, self.clock)

    def step(self) -> GrowthStep:
        assert self.growth is not None
        return self.growth.step

    def word(self, partitions: int) -> Heard:
        return Heard(partitions, True, 10.0, self.clock.monotonic())

    def says(self, partitions: int) -> None:
        self.gateways["one"] = self.word(partitions)


def at(*offsets: int) -> Offsets:
    return {INBOUND: dict(enumerate(offsets))}


def always(found: Offsets) -> QueryPositions:
    return lambda: found


def test_without_a_growth_the_partitions_are_read_that_the_log_was_made_with() -> None:
    growth = LogGrowth(Log())
    assert (growth.used, growth.shards, growth.is_under_way, growth.told()) == (4, 4, False, "")
    assert growth.begin("router", None) == growth.reads("router") == 4
    assert growth.due({"router": always(at(99, 99, 99, 99)), "late": always({})}) == []


def test_messages_go_into_all_before_anybody_reads_them() -> None:
    log = Log(Growth(4, 8))
    growth = LogGrowth(log)
    assert (growth.used, growth.is_under_way) == (4, True)
    assert growth.told() == "; the log grows from 4 to 8 partitions: announced"
    log.growth = Growth(4, 8).moved()
    assert (growth.used, growth.begin("router", at(10, 10, 10, 10))) == (8, 4)
    assert growth.due({"router": always(at(99, 99, 99, 99))}) == []


def test_the_cut_waits_for_gateways_and_for_those_who_say_nothing() -> None:
    log = Log(Growth(4, 8))
    cut = log.cut()
    log.says(4)
    cut.look()
    assert log.growth == Growth(4, 8), "that is the command's"
    log.growth = Growth(4, 8).moved()
    cut.look()
    log.clock.advance(OTHERS_SECONDS)
    cut.look()
    assert log.step() is GrowthStep.MOVED, "a gateway has not moved"
    log.says(8)
    log.unread = [("two", log.word(4))]
    cut.look()
    assert log.step() is GrowthStep.MOVED, "another one, of whom nothing was read before"
    log.unread = [("two", log.word(8))]
    cut.look()
    assert log.growth == Growth(4, 8, GrowthStep.CUT, (10, 10, 10, 10))
    cut.look()
    assert log.step() is GrowthStep.CUT


def test_those_who_say_nothing_have_their_time_from_the_step_on() -> None:
    log = Log(Growth(4, 8))
    cut = log.cut()
    cut.look()
    log.clock.advance(2 * OTHERS_SECONDS)
    log.growth = Growth(4, 8).moved()
    cut.look()
    cut.look()
    assert log.step() is GrowthStep.MOVED
    log.clock.advance(OTHERS_SECONDS)
    cut.look()
    assert log.step() is GrowthStep.CUT


def test_a_gateway_that_is_silent_for_its_lease_is_not_waited_for() -> None:
    log = Log(Growth(4, 8).moved())
    cut = log.cut()
    log.says(4)
    cut.look()
    log.clock.advance(9.9)
    cut.look()
    assert log.step() is GrowthStep.MOVED
    log.clock.advance(0.2)
    cut.look()
    assert log.step() is GrowthStep.CUT


def test_a_query_reads_what_is_new_when_it_has_passed_the_cut() -> None:
    log = Log(Growth(4, 8, GrowthStep.CUT, (10, 10, 10, 10)))
    growth = LogGrowth(log)
    positions = {"router": at(10, 9, 10, 10), "state": at(10, 3, 10, 10)}
    running = {name: always(found) for name, found in positions.items()}
    for name, found in positions.items():
        assert growth.begin(name, found) == 4
    assert growth.due(running) == []
    positions["router"][INBOUND][1] = 12
    assert growth.due(running) == ["router"]
    assert growth.begin("router", positions["router"]) == 8
    assert growth.due(running) == []
    log.growth = log.growth and log.growth.finished()
    positions["state"][INBOUND][1] = 10
    assert growth.due(running) == ["state"], "also when everybody else is done"
    assert growth.begin("late", at(1, 1, 1, 1)) == 4, "the cut counts for whoever comes later, too"


def test_a_query_that_begins_behind_the_cut_reads_all() -> None:
    growth = LogGrowth(Log(Growth(4, 8, GrowthStep.CUT, (10, 10, 10, 10))))
    assert growth.begin("router", at(10, 10, 10, 10, 5)) == 8
    assert growth.begin("new", None) == 4


def test_a_query_that_has_not_begun_anew_by_then_does_so_while_the_log_grows_again() -> None:
    log = Log(Growth(4, 8, GrowthStep.DONE, (10, 10, 10, 10)))
    growth = LogGrowth(log)
    assert growth.begin("state", at(10, 3, 10, 10)) == 4
    log.growth = Growth(8, 16)
    assert growth.due({"state": always(at(10, 10, 10, 10))}) == ["state"]
    assert growth.begin("state", at(10, 10, 10, 10)) == 8


def test_it_is_done_when_all_who_read_messages_have_passed_the_cut() -> None:
    log = Log(Growth(4, 8).moved())
    readers: list[RetainingReader] | None = None
    finish = Finish(log, lambda: readers, log.append)
    finish.look()
    log.growth = Growth(4, 8, GrowthStep.CUT, (10, 10, 10, 10))
    finish.look()
    assert log.step() is GrowthStep.CUT, "it is not known who reads"
    past, behind = (
        RetainingReader("router", at(10, 11, 12, 13)),
        RetainingReader("rules", at(10, 11, 9, 13)),
    )
    for last in (behind, RetainingReader("rules", {INBOUND: None})):
        readers = [past, last]
        finish.look()
        assert (log.step(), finish.waits_for) == (GrowthStep.CUT, ["rules"])
    readers = [past, past]
    log.refuses = True
    with pytest.raises(LogError):
        finish.look()
    log.refuses = False
    finish.look()
    assert log.growth == Growth(4, 8, GrowthStep.DONE, (10, 10, 10, 10))
    readers = [behind]
    finish.look()
    assert finish.waits_for == []


def test_a_step_that_the_log_has_by_then_is_not_taken_again() -> None:
    log = Log(Growth(4, 8).moved())
    cut = log.cut()
    cut.look()
    log.clock.advance(OTHERS_SECONDS)
    log.newer = Growth(4, 8, GrowthStep.CUT, (9, 9, 9, 9))
    cut.look()
    assert log.growth == Growth(4, 8, GrowthStep.CUT, (9, 9, 9, 9))
    log.newer = Growth(8, 16)
    Finish(log, lambda: [RetainingReader("router", at(9, 9, 9, 9))], log.append).look()
    assert log.growth == Growth(8, 16), "somebody has had it grow again"


def test_what_goes_wrong_at_the_end_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FINISH_SECONDS", 0.0)
    log = Log(Growth(4, 8, GrowthStep.CUT, (10, 10, 10, 10)))
    stopping = threading.Event()
    wrong = [LogError("away", definite=False), ValueError("odd")]

    def readers() -> list[RetainingReader]:
        if wrong:
            raise wrong.pop(0)
        return [
            RetainingReader("router", at(10, 10, 10, 10)),
            RetainingReader("x", {OUTPUTS: {}, **at(*[10] * 4)}),
        ]

    def append(records: list[Any]) -> None:
        log.append(records)
        stopping.set()

    Finish(log, readers, append).run(stopping)
    assert log.step() is GrowthStep.DONE


def test_it_ends_quietly_when_what_it_asks_is_gone() -> None:
    stopping = threading.Event()

    def gone() -> list[RetainingReader]:
        stopping.set()
        raise ValueError("closed")

    log = Log(Growth(4, 8, GrowthStep.CUT, (10, 10, 10, 10)))
    thread = threading.Thread(target=Finish(log, gone, log.append).run, args=(stopping,))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
