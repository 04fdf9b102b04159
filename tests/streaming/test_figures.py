"""What is told of queries; without Spark."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.records.messages import EVENTS, INBOUND
from streaming.application.figures import READ_SECONDS, QueryFigures, Watched, parse_positions
from tests.streaming.test_rule_position import batch

if TYPE_CHECKING:
    from streaming.log.checkpoints import Offsets

pytestmark = pytest.mark.programs


class World:
    """The queries, the log's ends and how far real-time queries have come."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.watched: list[Watched] = []
        self.ends: dict[str, dict[int, int]] = {INBOUND: {0: 100, 1: 50}}
        self.positions: dict[str, Offsets] = {}
        self.asked: list[str] = []
        self.figures = QueryFigures(
            self.clock, lambda: self.watched, self._ends, lambda: self.positions
        )

    def _ends(self, log_topic: str) -> dict[int, int]:
        self.asked.append(log_topic)
        if log_topic not in self.ends:
            raise LogError("no answer", definite=False)
        return self.ends[log_topic]

    def read(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.figures.read()[name]
        return found


def progress(ends: Any, **more: Any) -> dict[str, Any]:
    ticks = {"endOffset": 7}
    return {"batchId": 4, "batchDuration": 120, "sources": [ticks, {"endOffset": ends}], **more}


def watched(name: str, found: dict[str, Any] | None, folder: Path, **more: Any) -> Watched:
    return Watched(name, lambda: found, folder, restarts=2, **more)


def test_a_query_is_as_far_as_its_last_batch(tmp_path: Path) -> None:
    world = World()
    states = [{"numRowsTotal": 3}, {"numRowsTotal": 4}]
    ends = {INBOUND: {"0": 90, "1": 50}}
    world.watched = [watched("history", progress(ends, stateOperators=states), tmp_path)]
    assert world.read("history") == {
        "active": True,
        "real_time": False,
        "lag_records": 10,
        "complete_until_ms": None,
        "behind_ms": 0,
        "input_rows_per_second": 0.0,
        "batch_id": 4,
        "batch_ms": 120,
        "state_rows": 7,
        "restarts": 2,
    }


def test_a_table_is_complete_up_to_when_the_log_ended_where_its_query_is(tmp_path: Path) -> None:
    world = World()
    done = {"0": 100, "1": 50}
    world.watched = [watched("history", progress({INBOUND: done}), tmp_path)]
    begin = world.clock.now_ms()

    def read(ends: dict[int, int]) -> tuple[int | None, int | None]:
        """Return both figures, the first since the beginning; 3 s later than before."""
        world.clock.advance(3.0)
        world.ends[INBOUND] = ends
        found = world.read("history")
        until = found["complete_until_ms"]
        return None if until is None else until - begin, found["behind_ms"]

    assert read({0: 100, 1: 51}) == (None, 0)
    assert read({0: 120, 1: 60}) == (None, 3_000)
    done["1"] = 51
    assert read({0: 150, 1: 60}) == (3_000, 3_000), "as it ended at the first reading"
    done |= {"0": 149, "1": 60}
    assert read({0: 150, 1: 60}) == (6_000, 3_000)
    assert read({0: 150, 1: 60}) == (6_000, 6_000), "one message is missing"
    # The log is away: nobody knows more than before.
    del world.ends[INBOUND]
    found = world.read("history")
    assert (found["complete_until_ms"], found["behind_ms"]) == (begin + 6_000, None)
    done["0"] = 150
    assert read({0: 150, 1: 60}) == (18_000, 0)
    # That the clock is set is no delay.
    done["0"] = 149
    world.clock.step_calendar(3_600_000)
    assert read({0: 150, 1: 60}) == (18_000, 0)


def test_a_reading_that_is_late_counts_as_a_delay(tmp_path: Path) -> None:
    world = World()
    done = {"0": 100, "1": 50}
    world.watched = [watched("history", progress({INBOUND: done}), tmp_path)]
    figures = world.figures
    assert figures.behind_ms("history") is None

    class Once(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            self.set()
            return True

    world.clock.advance(100.0)
    figures.run(Once())
    assert figures.behind_ms("history") == 0
    world.clock.advance(READ_SECONDS)
    assert figures.behind_ms("history") == 0
    world.clock.advance(7.0)
    assert figures.behind_ms("history") == 7_000
    figures.run(Once())
    assert figures.behind_ms("history") == 0
    del world.ends[INBOUND]
    figures.run(Once())
    assert figures.behind_ms("history") is None, "nobody knows"


def test_of_a_query_that_is_far_behind_a_few_ends_are_known(tmp_path: Path) -> None:
    world = World()
    done = {"0": 0}
    world.watched = [watched("history", progress({INBOUND: done}), tmp_path)]
    begin = world.clock.now_ms()
    for second in range(10_000):
        world.ends[INBOUND] = {0: 1 + second}
        world.read("history")
        world.clock.advance(1.0)
    found = world.read("history")
    assert found["behind_ms"] == 10_000_000
    done["0"] = 5_000
    until = world.read("history")["complete_until_ms"] - begin
    assert 4_800_000 < until < 4_999_000, "the very end is not among those that are kept"


def test_without_a_batch_the_checkpoint_says_how_far(tmp_path: Path) -> None:
    world = World()
    world.watched = [watched("history", None, tmp_path)]
    assert world.read("history")["lag_records"] is None, "nobody knows"
    batch(tmp_path, 3, {INBOUND: {"0": 99}})
    assert world.read("history")["lag_records"] == 51


def test_a_real_time_query_is_as_far_as_its_function(tmp_path: Path) -> None:
    world = World()
    batch(tmp_path, 3, {INBOUND: {"0": 10, "1": 45}})
    world.positions = {"router": {INBOUND: {0: 98}}}
    world.watched = [watched("router", progress({INBOUND: {"0": 10, "1": 45}}), tmp_path)]
    assert world.read("router")["lag_records"] == 95
    world.watched = [watched("router", None, tmp_path, real_time=True)]
    found = world.read("router")
    assert found["lag_records"] == 7
    assert found["batch_ms"] is None


def test_rates_are_over_ten_seconds(tmp_path: Path) -> None:
    world = World()
    rates = []
    for step in range(8):
        world.positions = {"router": {INBOUND: {0: 1_000 + step * step * 30}}}
        world.watched = [watched("router", None, tmp_path, real_time=True)]
        rates.append(world.read("router")["input_rows_per_second"])
        world.clock.advance(3)
    assert rates == [0.0, 10.0, 20.0, 30.0, 40.0, 60.0, 80.0, 100.0]
    world.positions = {"router": {INBOUND: {0: 500}}}
    assert world.read("router")["input_rows_per_second"] == 0.0, "it began again"
    world.positions = {"router": {INBOUND: {0: 500, 1: 9_000}}}
    world.clock.advance(3)
    assert world.read("router")["input_rows_per_second"] == 0.0, "one more partition"


def test_a_log_that_does_not_answer_is_asked_once(tmp_path: Path) -> None:
    world = World()
    ends = {INBOUND: {"0": 90}, EVENTS: {"0": 1}}
    world.watched = [
        watched("state", progress(ends), tmp_path),
        watched("rules", progress(ends), tmp_path),
    ]
    assert world.read("state")["lag_records"] is None
    assert sorted(world.asked) == sorted([INBOUND, EVENTS])


def test_a_query_that_does_not_run_has_no_lag(tmp_path: Path) -> None:
    world = World()
    run = Watched("w", None, tmp_path, 0, more={"tenant": "acme", "rule": "hot"})
    world.watched = [run]
    found = world.read("w")
    assert (found["active"], found["lag_records"], found["rule"]) == (False, None, "hot")
    world.watched = []
    assert world.figures.read() == {}


def test_functions_tell_how_far_they_are(routing_jvm: Any) -> None:
    positions = routing_jvm.mqlake.log.Positions
    positions.of("q", INBOUND).reach(1, 41)
    positions.of("q", INBOUND).reach(3, 7)
    positions.of("q", EVENTS).reach(0, 0)
    positions.of("q", INBOUND).reach(5_000, 1)
    assert parse_positions(positions.reached())["q"] == {INBOUND: {1: 42, 3: 8}, EVENTS: {0: 1}}
