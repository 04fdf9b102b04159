"""When a process counts as hanging, on clocks that the test moves."""

import os

import pytest

from launcher.supervision.hanging import (
    LEAST_PACE,
    MOST_STEP_SECONDS,
    START_TIMES,
    HangWatch,
    pace_of_machine,
)

PATIENCE = 60.0


class Process:
    """One that is looked at each second, on a machine on which time goes so fast."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self.now = 100.0
        self.pace = 1.0
        self.beat: float | None = 0.0
        self.may_write = True
        self.watch = HangWatch(patience, self.now, lambda: self.pace)

    def look(self, after: float = 1.0) -> bool:
        self.now += after
        return self.watch.hangs(self.beat, self.now, may_write=self.may_write)

    def hangs_after(self, most: int = 10_000) -> int | None:
        """Return how many seconds it takes until it hangs; None: it does not."""
        return next((second for second in range(1, most) if self.look()), None)


def test_what_gives_no_sign_of_life_hangs() -> None:
    process = Process()
    process.beat = 7.0
    process.look()
    assert process.hangs_after() == PATIENCE


def test_what_gives_signs_of_life_does_not() -> None:
    process = Process()
    for number in range(1, 1_000):
        if not number % 59:
            process.beat = float(-number)  # its clock may be set, back too
        assert not process.look()


def test_a_start_may_take_longer() -> None:
    assert Process().hangs_after() == PATIENCE * START_TIMES


def test_what_writes_no_heartbeat_never_hangs() -> None:
    process = Process()
    process.beat = None
    assert process.hangs_after() is None


def test_with_no_patience_nothing_hangs() -> None:
    assert Process(patience=0.0).hangs_after() is None


def test_nothing_hangs_for_want_of_a_disk_to_write_to() -> None:
    process = Process()
    process.may_write = False
    assert process.hangs_after() is None
    process.may_write = True
    assert process.hangs_after() is not None


def test_a_machine_that_was_suspended_ends_nothing() -> None:
    process = Process()
    process.beat = 7.0
    process.look()
    assert not process.look(after=86_400.0)
    assert process.hangs_after() == PATIENCE - MOST_STEP_SECONDS


def test_on_a_loaded_machine_it_takes_longer() -> None:
    process = Process()
    process.beat = 7.0
    process.look()
    process.pace = 0.5
    assert process.hangs_after() == 2 * PATIENCE


@pytest.mark.parametrize(
    ("load", "pace"), [(0.0, 1.0), (2.0, 1.0), (8.0, 0.25), (500.0, LEAST_PACE)]
)
def test_the_pace_is_that_of_the_load(
    monkeypatch: pytest.MonkeyPatch, load: float, pace: float
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert pace_of_machine() == pace
