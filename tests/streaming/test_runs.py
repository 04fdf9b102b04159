"""When queries of stateful rules start, start again, end and are given up; without Spark."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.records.messages import EVENTS, INBOUND
from mqlake.records.outputs import run_name
from mqlake.records.rules import LeftUnread, OffsetRange, Span
from rules.errors import RuleError
from rules.language.compiler import compile_rule
from rules.language.plan import encode_plan
from streaming.rules.plans import StatefulRun
from streaming.rules.runs import MOST_FAILURES, STANDSTILL_SECONDS, Runs
from streaming.tables.events import rule_unread

SQL = "SELECT count(*) AS n FROM \"a/#\" GROUP BY topic, tumble(timestamp, '1 minute')"


def a_run(change: int = 3, *, rule: str = "r", ended: bool = False) -> StatefulRun:
    plan = compile_rule(SQL).plan
    assert plan is not None
    span = Span(
        *(1, ("a/#",), None, (), None),
        {INBOUND: OffsetRange((5,), (9,) if ended else None)},
        plan=encode_plan(plan),
        change=change,
        ended_at_ms=100 if ended else None,
    )
    return StatefulRun("default", rule, span)


@dataclass
class Query:
    """A streaming query as far as `Runs` knows it."""

    isActive: bool = True  # noqa: N815 - pyspark's name
    lastProgress: Any = None  # noqa: N815
    error: str = ""

    def exception(self) -> Exception | None:
        return PySparkException(self.error) if self.error else None

    def stop(self) -> None:
        self.isActive = False

    def fail(self, error: str) -> None:
        self.isActive, self.error = False, error


@dataclass
class World:
    """What `Runs` is told, and what it does."""

    wanted: tuple[StatefulRun, ...] | None = ()
    done: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    next: int = 5
    """Where the queries are."""
    tries: dict[str, int] = field(default_factory=dict)
    told: list[LeftUnread] = field(default_factory=list)
    left: dict[str, LeftUnread | None] = field(default_factory=dict)
    """What is noted at the end of each run."""
    known: set[str] = field(default_factory=set)
    failed: list[tuple[str, str]] = field(default_factory=list)
    started: list[tuple[str, float, Query]] = field(default_factory=list)
    refuse: Callable[[], None] = lambda: None
    clock: ManualClock = field(default_factory=ManualClock)

    def runs(self) -> Runs:
        return Runs(
            self.clock,
            lambda: self.wanted,
            self.start,  # type: ignore[arg-type]
            self,
            1.0,
            self.tell,
        )

    def start(self, run: StatefulRun, interval_seconds: float) -> Query:
        self.refuse()
        query = Query()
        self.started.append((run.name, interval_seconds, query))
        return query

    def has_done(self, run: StatefulRun) -> bool:
        return run.name in self.done

    def reached(self, run: StatefulRun) -> object:
        return self.next

    def unread(self, run: StatefulRun) -> dict[str, dict[int, tuple[int, int]]]:
        return {INBOUND: {0: (self.next, 9)}}

    def note_try(self, run: StatefulRun) -> int:
        self.tries[run.name] = self.tries.get(run.name, 0) + 1
        return self.tries[run.name]

    def forget_tries(self, name: str) -> None:
        del self.tries[name]

    def tell(self, run: StatefulRun, unread: LeftUnread) -> None:
        self.refuse()
        self.told.append(unread)

    def end(self, name: str, unread: LeftUnread | None) -> None:
        self.ended.add(name)
        self.left[name] = unread

    def fail(self, name: str, reason: str) -> None:
        self.failed.append((name, reason))

    def is_ended(self, name: str) -> bool:
        return name in self.ended

    def forget(self, known: set[str]) -> None:
        self.known = known

    @property
    def query(self) -> Query:
        return self.started[-1][2]


def test_a_query_runs_while_its_version_counts_and_until_it_is_done() -> None:
    world = World(wanted=None)
    runs = world.runs()
    runs.check()
    assert not world.started, "nothing is known yet"
    run = a_run()
    world.wanted = (run,)
    runs.check()
    runs.check()
    assert [name for name, _, _ in world.started] == [run.name]
    assert world.known == {run.name}
    assert runs.figures()[run.name]["active"]
    ended = a_run(ended=True)
    world.wanted = (ended, a_run(4))
    runs.check()
    assert len(world.started) == 2, "the next version does not wait for the last one"
    assert world.started[0][2].isActive, "windows that ended before are still to come"
    world.done.add(run.name)
    runs.check()
    assert not world.started[0][2].isActive
    assert world.ended == {run.name}
    runs.check()
    assert len(world.started) == 2
    world.wanted = ()
    runs.check()
    assert not world.query.isActive
    assert world.known == set()


def away() -> None:
    raise LogError("asking for the brokers: no answer", definite=True)


def test_an_ended_version_goes_on_while_its_query_gets_further() -> None:
    world = World(wanted=(a_run(ended=True),))
    runs = world.runs()
    for world.next in range(5, 9):
        runs.check()
        assert world.query.isActive
        world.clock.advance(STANDSTILL_SECONDS)
    world.next = 9
    world.done.add(a_run().name)
    runs.check()
    assert world.left == {a_run().name: None}
    assert not world.told


def test_an_ended_version_that_gets_no_further_is_given_up_and_says_what_it_leaves() -> None:
    world = World(wanted=(a_run(ended=True),))
    runs = world.runs()
    runs.check()
    world.next = 7
    runs.check()
    world.clock.advance(STANDSTILL_SECONDS)
    runs.check()
    assert world.query.isActive
    world.clock.advance(1.0)
    world.refuse = away
    runs.check()
    assert not world.query.isActive
    assert not world.ended, "it is told first"
    world.refuse = lambda: None
    world.clock.advance(60.0)
    runs.check()
    (left,) = world.told
    assert world.left == {a_run().name: left}
    assert (left.version, left.change, left.count) == (1, 3, 2)
    assert left.offsets == {INBOUND: {0: (7, 9)}}
    assert left.reason == "no batch was finished for 60 minutes"


def test_what_is_left_is_an_event() -> None:
    left = LeftUnread(2, 3, 1000, "why", {INBOUND: {0: (7, 9), 4: (0, 5)}})
    record = rule_unread("ours", "r", left)
    assert (record.log_topic, record.key, record.timestamp_ms) == (EVENTS, b"ours/", 1000)
    assert record.value is not None
    found = json.loads(record.value)
    assert (found["event"], found["tenant"], found["ts"]) == ("rule.unread", "ours", 1000)
    assert (found["rule"], found["rule_version"], found["reason"]) == ("r", 2, "why")
    assert (found["count"], found["offsets"]) == (7, {INBOUND: {"0": [7, 9], "4": [0, 5]}})


def test_an_ended_version_waits_for_the_log() -> None:
    world = World(wanted=(a_run(ended=True),), refuse=away)
    runs = world.runs()
    for _ in range(5):
        runs.check()
        world.clock.advance(STANDSTILL_SECONDS)
    world.refuse = lambda: None
    runs.check()
    world.clock.advance(STANDSTILL_SECONDS)
    runs.check()
    assert world.query.isActive
    assert not world.told


def test_an_ended_version_of_which_processes_die_is_given_up() -> None:
    world = World(wanted=(a_run(ended=True),))
    for _ in range(MOST_FAILURES):
        world.runs().check()
        assert world.query.isActive
    assert len(world.started) == MOST_FAILURES
    runs = world.runs()
    runs.check()
    runs.check()
    assert len(world.started) == MOST_FAILURES
    (left,) = world.told
    assert left.reason == "its query has ended the lake 4 times"
    assert world.ended == {a_run().name}


def test_a_process_that_ends_in_order_has_not_died_of_a_run() -> None:
    world = World(wanted=(a_run(ended=True),))
    stopping = threading.Event()
    runs = world.runs()
    runs.check()
    assert world.tries
    stopping.set()
    runs.run(stopping)
    assert not world.tries


def test_what_fails_starts_again_later_each_time_and_pauses_its_rule() -> None:
    world = World(wanted=(a_run(), a_run(5, rule="other")))
    runs = world.runs()
    runs.check()
    other = world.query
    for failure in range(MOST_FAILURES):
        query = next(q for name, _, q in reversed(world.started) if name == a_run().name)
        query.fail("[DIVIDE_BY_ZERO] by zero\n  at …")
        runs.check()
        assert len(world.started) == 2 + failure, "not at once"
        world.clock.advance(60.0)
        runs.check()
    assert world.failed == [(a_run().name, "paused: its query fails: [DIVIDE_BY_ZERO] by zero")]
    assert len(world.started) == 1 + MOST_FAILURES
    assert other.isActive


@pytest.mark.parametrize("error", ["org.apache.kafka.common.errors.TimeoutException: no", ""])
def test_that_the_log_is_away_or_a_batch_was_done_pauses_nothing(error: str) -> None:
    world = World(wanted=(a_run(),))
    runs = world.runs()
    runs.check()
    for _ in range(3 * MOST_FAILURES):
        if not error:
            world.query.lastProgress = object()
            runs.check()
        world.query.fail(error or "some error")
        runs.check()
        world.clock.advance(60.0)
        runs.check()
    assert not world.failed
    assert world.query.isActive


def test_what_cannot_start_is_paused_at_once_if_it_is_the_rules_fault() -> None:
    world = World(wanted=(a_run(),))

    def refuse() -> None:
        raise RuleError("there is no reference table 'x'")

    world.refuse = refuse
    runs = world.runs()
    runs.check()
    world.clock.advance(60.0)
    runs.check()
    assert [name for name, _ in world.failed] == [a_run().name]
    assert "no reference table" in world.failed[0][1]
    # Paused, its version ends; there is nothing to wait for.
    world.wanted = (a_run(ended=True),)
    world.refuse = lambda: None
    runs.check()
    assert world.ended == {a_run().name}
    assert [(one.count, "no reference table" in one.reason) for one in world.told] == [(4, True)]


def test_while_the_log_is_away_nothing_starts_and_nothing_is_paused() -> None:
    world = World(wanted=(a_run(rule="a"), a_run(rule="b")), refuse=away)
    runs = world.runs()
    for _ in range(3 * MOST_FAILURES):
        runs.check()
        world.clock.advance(60.0)
    world.refuse = lambda: None
    runs.check()
    assert not world.failed
    assert len(world.started) == 2


def test_many_take_turns_less_often() -> None:
    world = World(wanted=tuple(a_run(number, rule=f"r{number}") for number in range(30)))
    world.runs().check()
    assert {interval for _, interval, _ in world.started} == {15.0}


def test_names_of_runs_tell_rules_tenants_and_changes_apart() -> None:
    assert run_name("a", "r", 3) == replace(a_run(3), tenant="a").name
    names = {run_name("a", "r", 3), run_name("b", "r", 3), run_name("a", "s", 3)}
    assert len({*names, run_name("a", "r", 4)}) == 4
