"""How much of the processors the lake takes, by how far behind it is."""

import threading
from collections.abc import Callable

import pytest

from mqlake.clock import ManualClock
from streaming.lake.urgency import CALM_SECONDS, Urgency

BATCH = 1_000
NICE = 5


class World:
    """A lake that is looked at once a second; it begins in the middle of its life."""

    def __init__(self, niceness: int = NICE, interval_seconds: float = 2.0) -> None:
        self.clock = ManualClock()
        self.niceness = 0
        self.urgency = Urgency(self.clock, self, niceness, interval_seconds, BATCH)

    def set(self, niceness: int) -> None:
        self.niceness = niceness

    def after(self, seconds: float, behind_ms: int | None, lag: int | None = 10) -> int:
        """Return the niceness when that has been so for a while."""
        for _ in range(round(seconds)):
            self.clock.advance(1.0)
            self.urgency.take(behind_ms, lag)
        return self.niceness


def test_who_is_in_time_gives_way() -> None:
    assert World().after(100, 3_000) == NICE


def test_the_longer_the_table_stands_still_the_more_the_lake_gets() -> None:
    world = World()
    assert world.after(1, 0) == NICE
    assert world.after(1, 6_000) == 0
    assert world.after(1, 9_000) == -5
    assert world.after(1, 12_000) == -10


def test_others_of_the_lake_hear_that_it_is_late_whatever_its_priority_may_be() -> None:
    for niceness in (0, NICE):
        world = World(niceness)
        world.after(1, 4_000)
        assert not world.urgency.is_late()
        world.after(1, 6_000)
        assert world.urgency.is_late()
        world.after(CALM_SECONDS, 0)
        assert not world.urgency.is_late()


def test_who_has_caught_up_steps_back_after_a_while() -> None:
    world = World()
    world.after(1, 12_000)
    assert world.after(CALM_SECONDS - 1, 0) == -10
    assert world.after(1, 0) == -5
    assert world.after(CALM_SECONDS - 1, 0) == -5
    assert world.after(1, 0) == 0
    assert world.after(1, 6_000) == 0, "and has to begin the while anew"
    assert world.after(CALM_SECONDS - 1, 0) == 0
    assert world.after(1, 0) == NICE


def test_who_is_behind_by_more_than_a_batch_comes_before_nobody() -> None:
    world = World()
    assert world.after(1, 60_000, BATCH + 1) == 0
    assert world.after(1, 60_000, BATCH) == -10
    assert world.after(1, 60_000, BATCH + 1) == 0


def test_an_interval_that_was_asked_for_is_no_delay() -> None:
    world = World(interval_seconds=60.0)
    assert world.after(1, 60_000) == NICE
    assert world.after(1, 64_000) == 0


def test_what_is_not_known_changes_nothing() -> None:
    world = World()
    world.after(1, 9_000)
    assert world.after(100, None, None) == -5


def test_without_niceness_it_stays_a_process_like_others() -> None:
    world = World(niceness=0)
    assert world.after(1, 60_000) == 0


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What is to be called later, in order."""
    found: list[Callable[[], None]] = []

    class Timer:
        daemon = False

        def __init__(self, _seconds: float, function: Callable[[], None]) -> None:
            found.append(function)

        def start(self) -> None:
            pass

    monkeypatch.setattr(threading, "Timer", Timer)
    return found


def test_a_start_that_takes_long_gives_way_no_more(timers: list[Callable[[], None]]) -> None:
    world = World()
    world.urgency.begin()
    assert world.niceness == NICE
    seen = []
    for timer in timers:
        timer()
        seen.append(world.niceness)
    assert seen == [0, -5]
    assert world.after(CALM_SECONDS - 1, 3_000) == -5, "others are as busy as before"
    assert world.after(1, 3_000) == 0
    assert world.after(CALM_SECONDS, 3_000) == NICE


def test_the_time_of_the_start_is_nothing_to_who_has_started(
    timers: list[Callable[[], None]],
) -> None:
    world = World()
    world.urgency.begin()
    world.after(1, 0)
    for timer in timers:
        timer()
    assert world.niceness == NICE
