"""Which queries of an application run, in which pool, and when a failed one starts again."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from mqlake.clock import ManualClock
from mqlake.errors import LogError
from streaming.application.supervision import (
    FIRST_BACK_OFF_SECONDS,
    STEADY_SECONDS,
    QueryJob,
    QuerySupervisor,
)
from streaming.engine.slots import QueryMode


@dataclass
class Query:
    """A streaming query as far as its supervisor knows it."""

    isActive: bool = True  # noqa: N815 - pyspark's name
    lastProgress: Any = None  # noqa: N815
    error: str = ""
    status: dict[str, bool] = field(default_factory=lambda: {"isTriggerActive": False})

    def exception(self) -> Exception | None:
        return PySparkException(self.error) if self.error else None

    def stop(self) -> None:
        self.isActive = False

    def fail(self, error: str) -> None:
        self.isActive, self.error = False, error


class World:
    """Two jobs, one of which has something to do now and then."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.started: list[tuple[str, str]] = []
        self.queries: dict[str, Query] = {}
        self.has_rules = False
        self.refuse: Callable[[], None] = lambda: None
        self._pool = ""
        self.supervisor = QuerySupervisor(
            self.clock,
            (
                QueryJob(
                    "router", self._start("router"), "first", mode=lambda: QueryMode(True, "")
                ),
                QueryJob("rules", self._start("rules"), "second", when=lambda: self.has_rules),
            ),
            self._use_pool,
        )

    def _use_pool(self, pool: str) -> None:
        self._pool = pool

    def _start(self, name: str) -> Callable[[], Any]:
        def start() -> Query:
            self.refuse()
            self.started.append((name, self._pool))
            self.queries[name] = Query()
            return self.queries[name]

        return start


def join_restarts() -> None:
    for thread in threading.enumerate():
        if thread.name == "restart":
            thread.join(60)


def test_each_runs_in_its_pool_while_it_has_something_to_do(tmp_path: Path) -> None:
    world = World()
    world.supervisor.check()
    assert world.started == [("router", "first")]
    world.has_rules = True
    world.supervisor.check()
    world.supervisor.check()
    assert world.started == [("router", "first"), ("rules", "second")]
    watched = world.supervisor.watched(tmp_path)
    assert [(one.name, one.checkpoint.name, one.real_time) for one in watched] == [
        ("router", "router", True),
        ("rules", "rules", False),
    ]
    world.has_rules = False
    world.supervisor.check()
    assert not world.queries["rules"].isActive
    assert world.queries["router"].isActive
    assert world.supervisor.trouble() == ""
    world.supervisor.stop()
    assert not world.queries["router"].isActive


def test_what_fails_is_told_and_starts_again_later_each_time() -> None:
    world = World()
    world.supervisor.check()
    for pause in (FIRST_BACK_OFF_SECONDS, 2 * FIRST_BACK_OFF_SECONDS):
        world.queries["router"].fail("no disk\n  at ...")
        world.supervisor.check()
        assert world.supervisor.trouble() == ("query router failed and is started again: no disk")
        before = len(world.started)
        world.clock.advance(pause * 0.9)
        world.supervisor.check()
        assert len(world.started) == before, "not yet"
        world.clock.advance(pause * 0.2)
        world.supervisor.check()
        assert len(world.started) == before + 1
        assert world.supervisor.trouble() == ""
    world.clock.advance(STEADY_SECONDS)
    world.queries["router"].fail("once more")
    world.supervisor.check()
    world.clock.advance(FIRST_BACK_OFF_SECONDS)
    world.supervisor.check()
    assert world.queries["router"].isActive, "it had run for long: it starts again soon"


def test_a_query_that_is_to_begin_anew_does_so_at_once_and_is_no_failure() -> None:
    world = World()
    world.supervisor.check()
    first = world.queries["router"]
    reports = logging.getLogger("py4j")
    before, meanwhile = reports.level, list[int]()
    is_over, may_end = threading.Event(), threading.Event()

    def stop() -> None:
        meanwhile.append(reports.level)
        may_end.wait(60)
        first.fail("interrupted")
        is_over.set()

    first.stop = stop  # type: ignore[method-assign]
    world.supervisor.restart("router")
    world.supervisor.restart("router")
    world.supervisor.check()
    assert len(world.started) == 1, "it goes on until it has ended"
    may_end.set()
    assert is_over.wait(60)
    world.supervisor.check()
    assert world.supervisor.trouble() == ""
    assert world.started == [("router", "first")] * 2
    world.supervisor.stop()
    assert meanwhile == [logging.CRITICAL], "a batch that is cut short is no error to report"
    join_restarts()
    assert reports.level == before


def test_a_query_that_did_not_stop_is_stopped_when_it_is_asked_again() -> None:
    world = World()
    world.supervisor.check()
    query = world.queries["router"]
    stop, refusals = query.stop, [PySparkException("batch still runs")]

    def refuse_once() -> None:
        if refusals:
            raise refusals.pop()
        stop()

    query.stop = refuse_once  # type: ignore[method-assign]
    for _ in range(2):
        world.supervisor.restart("router")
        join_restarts()
        world.supervisor.check()
    assert world.started == [("router", "first")] * 2
    assert world.supervisor.trouble() == ""


@pytest.mark.parametrize("error", [LogError("away", definite=False), PySparkException("no")])
def test_what_cannot_start_is_tried_again(error: Exception) -> None:
    world = World()

    def refuse() -> None:
        raise error

    world.refuse = refuse
    world.supervisor.check()
    assert not world.started
    assert world.supervisor.trouble()
    assert not world.supervisor.is_processing("router")
    world.refuse = lambda: None
    world.clock.advance(FIRST_BACK_OFF_SECONDS)
    world.supervisor.check()
    assert world.started == [("router", "first")]


def test_a_query_is_processing_in_a_batch_or_when_it_has_finished_one() -> None:
    world = World()
    world.supervisor.check()
    assert not world.supervisor.is_processing("router")
    world.queries["router"].status["isTriggerActive"] = True
    assert world.supervisor.is_processing("router")
    world.queries["router"].status["isTriggerActive"] = False
    world.queries["router"].lastProgress = object()
    assert world.supervisor.is_processing("router")
