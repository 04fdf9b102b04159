import pytest

from mqlake.clock import ManualClock
from streaming.engine.calendar_watch import STEP_SECONDS, CalendarWatch


def test_time_that_passes_is_no_step() -> None:
    clock = ManualClock()
    watch = CalendarWatch(clock)
    for _ in range(100):
        clock.advance(3600)
        assert watch.stepped_seconds() == 0


@pytest.mark.parametrize("seconds", [3600, -3600, STEP_SECONDS, -STEP_SECONDS])
def test_a_calendar_that_is_set_is_told(seconds: float) -> None:
    clock = ManualClock()
    watch = CalendarWatch(clock)
    clock.advance(5)
    clock.step_calendar(round(seconds * 1000))
    assert watch.stepped_seconds() == pytest.approx(seconds)


def test_small_corrections_are_told_when_they_have_added_up() -> None:
    clock = ManualClock()
    watch = CalendarWatch(clock)
    for _ in range(10):
        assert watch.stepped_seconds() == 0
        clock.step_calendar(-1000)
    assert watch.stepped_seconds() == pytest.approx(-STEP_SECONDS)


class StandingStill(ManualClock):
    """One whose process stands still for a minute between two looks, once."""

    stands_still = False

    def monotonic(self) -> float:
        if self.stands_still:
            self.stands_still = False
            self.advance(60)
        return super().monotonic()


def test_a_process_that_stood_still_between_its_looks_sees_no_step() -> None:
    clock = StandingStill()
    watch = CalendarWatch(clock)
    clock.stands_still = True
    assert watch.stepped_seconds() == 0
    assert not clock.stands_still
