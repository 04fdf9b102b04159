"""Spark is warmed up once in each of its lives, by one query, in the back."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from api.spark.connect import SparkAway
from api.sql.warming import WarmUp
from launcher.testing.systems import await_condition

SECONDS = 20.0


@dataclass
class Engine:
    """Stands for Spark, and for what runs queries on it."""

    java_pid: int = 7
    is_away: bool = False
    queries: list[str] = field(default_factory=list)
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_go_on.set()

    @contextmanager
    def use(self, _seconds: float, is_cancelled: Callable[[], bool]) -> Iterator["Engine"]:
        if self.is_away:
            raise SparkAway("no query application answers")
        await_condition(
            lambda: self.may_go_on.is_set() or is_cancelled(), "go on", timeout_seconds=SECONDS
        )
        if is_cancelled():
            raise SparkAway("nobody wants it")
        yield self

    @contextmanager
    def run(self, query: Any, *_: object) -> Iterator[None]:
        self.queries.append(query.sql)
        yield


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def warm_up(engine: Engine) -> Iterator[WarmUp]:
    either: Any = engine
    made = WarmUp(either, either)
    yield made
    made.close()


def under_way() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "warm-up"]


def finish(warm_up: WarmUp) -> None:
    warm_up.begin()
    for thread in under_way():
        thread.join(SECONDS)
    assert not under_way()


def test_each_spark_is_warmed_up_once(engine: Engine, warm_up: WarmUp) -> None:
    finish(warm_up)
    finish(warm_up)
    (query,) = engine.queries
    assert "messages" in query
    engine.java_pid = 8
    finish(warm_up)
    assert len(engine.queries) == 2


def test_many_who_ask_at_once_have_it_done_once(engine: Engine, warm_up: WarmUp) -> None:
    engine.may_go_on.clear()
    for _ in range(4):
        warm_up.begin()
    assert len(under_way()) == 1
    engine.may_go_on.set()
    finish(warm_up)
    assert len(engine.queries) == 1


def test_without_spark_that_is_said_and_tried_again(
    engine: Engine, warm_up: WarmUp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "api.sql.warming")
    engine.is_away = True
    finish(warm_up)
    assert [record.message for record in caplog.records] == ["Spark is not warmed up"]
    engine.is_away = False
    finish(warm_up)
    assert len(engine.queries) == 1


def test_it_does_not_hold_up_the_end_of_the_process(engine: Engine, warm_up: WarmUp) -> None:
    engine.may_go_on.clear()
    warm_up.begin()
    assert under_way()
    warm_up.close()
    assert not under_way()
    assert engine.queries == []
    warm_up.begin()
    assert not under_way(), "nothing begins any more"
