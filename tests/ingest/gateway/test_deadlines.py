import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ingest.gateway.base.deadlines import FEW_SLOTS, SLOT_SECONDS, UNWATCHED, Deadlines
from tests.memory import kept_bytes
from tests.mqlake.event_loop import SteppedLoop


class Watched:
    def __init__(self, loop: SteppedLoop, act: Callable[[], None] = lambda: None) -> None:
        self.loop = loop
        self.slot = UNWATCHED
        self.passed: list[float] = []
        self.act = act

    def deadline_passed(self) -> None:
        self.passed.append(self.loop.now)
        self.act()


@pytest.fixture
def loop() -> SteppedLoop:
    return SteppedLoop()


@pytest.fixture
def deadlines(loop: Any) -> Deadlines:
    return Deadlines(loop)


@pytest.mark.parametrize("seconds", [0.001, 0.2, 1.0, 1.5, 60.0, 98_302.5])
def test_a_deadline_is_met_within_a_slot_and_never_early(
    loop: SteppedLoop, deadlines: Deadlines, seconds: float
) -> None:
    watched, begin = Watched(loop), loop.now
    deadlines.set(watched, seconds)
    loop.advance(seconds + 2 * SLOT_SECONDS)
    (at,) = watched.passed
    assert begin + seconds <= at <= begin + seconds + SLOT_SECONDS
    assert watched.slot == UNWATCHED
    assert not loop.armed


def test_one_timer_waits_for_the_earliest(loop: SteppedLoop, deadlines: Deadlines) -> None:
    many = [Watched(loop) for _ in range(100)]
    for number, watched in enumerate(many):
        deadlines.set(watched, 50 - number % 7)
    assert len(loop.armed) == 1
    loop.advance(44.5)
    assert sum(len(watched.passed) for watched in many) == 14
    loop.advance(10)
    assert all(len(watched.passed) == 1 for watched in many)


def test_the_last_deadline_counts(loop: SteppedLoop, deadlines: Deadlines) -> None:
    sooner, later, dropped = Watched(loop), Watched(loop), Watched(loop)
    deadlines.set(sooner, 10)
    deadlines.set(sooner, 1)
    deadlines.set(later, 1)
    deadlines.set(later, 10)
    deadlines.set(dropped, 1)
    deadlines.forget(dropped)
    deadlines.forget(dropped)
    loop.advance(2)
    assert (len(sooner.passed), len(later.passed), len(dropped.passed)) == (1, 0, 0)
    loop.advance(10)
    assert (len(sooner.passed), len(later.passed), len(dropped.passed)) == (1, 1, 0)


def test_who_is_told_may_watch_anew_and_drop_others(
    loop: SteppedLoop, deadlines: Deadlines
) -> None:
    again = Watched(loop, lambda: deadlines.set(again, 1))
    pair = [Watched(loop), Watched(loop)]
    for watched, other in (pair, pair[::-1]):
        watched.act = lambda other=other: deadlines.forget(other)  # type: ignore[misc]
    for watched in (again, *pair):
        deadlines.set(watched, 1)
    loop.advance(5)
    assert len(again.passed) == 4
    assert sum(len(watched.passed) for watched in pair) == 1


def test_a_deadline_of_no_time_does_not_keep_the_loop_busy(
    loop: SteppedLoop, deadlines: Deadlines
) -> None:
    again = Watched(loop, lambda: deadlines.set(again, 0))
    deadlines.set(again, 0)
    loop.advance(1)
    assert 3 <= len(again.passed) <= 5


def test_an_error_of_one_leaves_the_others_their_deadline(
    loop: SteppedLoop, deadlines: Deadlines
) -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    failing, others = Watched(loop, fail), [Watched(loop) for _ in range(5)]
    for watched in (failing, *others):
        deadlines.set(watched, 1)
    with pytest.raises(RuntimeError):
        loop.advance(2)
    loop.advance(2)
    assert all(len(watched.passed) == 1 for watched in (failing, *others))


def test_those_who_come_and_go_leave_little(loop: SteppedLoop, deadlines: Deadlines) -> None:
    stays = Watched(loop)
    deadlines.set(stays, 90_000)

    def come_and_go() -> None:
        for seconds in range(1, 20_000):
            watched = Watched(loop)
            deadlines.set(watched, seconds)
            deadlines.forget(watched)

    assert kept_bytes(come_and_go) < FEW_SLOTS * 1_000
    last = Watched(loop)
    deadlines.set(last, 30_000)
    loop.advance(90_001)
    assert len(stays.passed) == len(last.passed) == 1


def test_slots_are_removed_while_deadlines_pass(loop: SteppedLoop, deadlines: Deadlines) -> None:
    def come_and_go() -> None:
        for seconds in range(1, 5_000):
            watched = Watched(loop)
            deadlines.set(watched, seconds)
            deadlines.forget(watched)

    watched = [Watched(loop, come_and_go) for _ in range(3)]
    for one in watched:
        deadlines.set(one, 1)
    assert kept_bytes(lambda: loop.advance(2)) < FEW_SLOTS * 1_000
    assert [len(one.passed) for one in watched] == [1, 1, 1]


@pytest.mark.anyio
async def test_the_event_loop_counts() -> None:
    told = asyncio.Event()
    watched = Watched(SteppedLoop(), told.set)
    Deadlines(asyncio.get_running_loop()).set(watched, 0.01)
    async with asyncio.timeout(60):
        await told.wait()


def test_a_loop_that_stood_still_reads_before_deadlines_pass(
    loop: SteppedLoop, deadlines: Deadlines
) -> None:
    heard, silent = Watched(loop), Watched(loop)
    for watched in (heard, silent):
        deadlines.set(watched, 1)
    loop.stand_still(5)
    loop.advance(0)
    deadlines.set(heard, 1)  # what came meanwhile is read only now
    loop.advance(2 * SLOT_SECONDS)
    assert not heard.passed
    assert silent.passed


def test_a_loop_that_is_always_late_meets_deadlines_all_the_same(
    loop: SteppedLoop, deadlines: Deadlines
) -> None:
    watched = Watched(loop)
    deadlines.set(watched, 1)
    for _ in range(2):
        loop.stand_still(5)
        loop.advance(0)
    assert watched.passed
