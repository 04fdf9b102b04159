from launcher.supervision.restarts import (
    FIRST_DELAY_SECONDS,
    GOOD_RUN_SECONDS,
    LONGEST_DELAY_SECONDS,
    Restarts,
)


def test_each_quick_end_doubles_the_wait_up_to_the_longest() -> None:
    restarts = Restarts()
    delays = [restarts.ended(now=float(n), healthy_since=float(n)) for n in range(11)]
    assert delays == [0.1 * 2**n for n in range(9)] + [30.0, 30.0]


def test_a_thousand_ends_do_not_overflow() -> None:
    restarts = Restarts()
    for _ in range(2000):
        assert restarts.ended(now=0.0, healthy_since=None) <= LONGEST_DELAY_SECONDS


def test_a_good_run_makes_the_next_end_the_first() -> None:
    restarts = Restarts()
    restarts.ended(now=1.0, healthy_since=0.0)
    assert restarts.ended(now=2.0, healthy_since=1.0) > FIRST_DELAY_SECONDS
    assert restarts.ended(now=2.0 + GOOD_RUN_SECONDS, healthy_since=2.0) == FIRST_DELAY_SECONDS


def test_a_start_that_fails_late_each_time_is_tried_ever_more_seldom() -> None:
    restarts = Restarts()
    delays = [restarts.ended(now=100.0 * n, healthy_since=None) for n in range(3)]
    assert delays == [0.1, 0.2, 0.4]


def test_it_is_due_when_the_wait_is_over_and_only_then() -> None:
    restarts = Restarts()
    assert not restarts.is_due(now=100.0)
    restarts.ended(now=10.0, healthy_since=9.0)
    assert not restarts.is_due(now=10.09)
    assert restarts.is_due(now=10.1)
    restarts.restarted()
    assert not restarts.is_due(now=100.0)
    assert restarts.count == 1
