import time

from mqlake.clock import Clock, ManualClock, SystemClock


def test_a_manual_clock_moves_only_when_told() -> None:
    clock: Clock = ManualClock(now_ms=1_000)
    assert (clock.monotonic(), clock.now_ms()) == (0.0, 1_000)
    assert isinstance(clock, ManualClock)
    clock.advance(1.5)
    assert (clock.monotonic(), clock.now_ms()) == (1.5, 2_500)


def test_setting_the_calendar_lets_no_time_pass() -> None:
    clock = ManualClock(now_ms=10_000)
    clock.step_calendar(-4_000)
    assert (clock.monotonic(), clock.now_ms()) == (0.0, 6_000)


def test_the_system_clock_reads_the_machine() -> None:
    clock: Clock = SystemClock()
    before = time.time_ns() // 1_000_000
    assert before <= clock.now_ms() <= time.time_ns() // 1_000_000
    assert clock.monotonic() <= time.monotonic()
