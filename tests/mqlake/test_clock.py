import time

from mqlake.clock import Clock, LogClock, ManualClock, SystemClock


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


def test_the_log_s_clock_goes_on_by_durations_whatever_becomes_of_the_calendar() -> None:
    clock = ManualClock(now_ms=10_000)
    log_clock = LogClock(clock)
    assert log_clock.now_ms() == 10_000
    log_clock.heard(50_000)
    clock.advance(0.25)
    clock.step_calendar(3_600_000)
    assert log_clock.now_ms() == 50_250
    log_clock.heard(50_200)
    assert log_clock.now_ms() == 50_200
