from mqlake.local.restarts import GOOD_RUN_SECONDS, LONGEST_DELAY_SECONDS, Restarts


def test_each_quick_end_doubles_the_wait_up_to_the_longest() -> None:
    restarts = Restarts()
    delays = [restarts.ended(now=float(n), started_at=float(n)) for n in range(9)]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_thousand_ends_do_not_overflow() -> None:
    restarts = Restarts()
    for _ in range(2000):
        assert restarts.ended(now=0.0, started_at=0.0) <= LONGEST_DELAY_SECONDS


def test_a_good_run_makes_the_next_end_the_first() -> None:
    restarts = Restarts()
    restarts.ended(now=1.0, started_at=0.0)
    restarts.ended(now=2.0, started_at=1.0)
    assert restarts.ended(now=2.0 + GOOD_RUN_SECONDS, started_at=2.0) == 0.5


def test_it_is_due_when_the_wait_is_over_and_only_then() -> None:
    restarts = Restarts()
    assert not restarts.is_due(now=100.0)
    restarts.ended(now=10.0, started_at=9.0)
    assert not restarts.is_due(now=10.4)
    assert restarts.is_due(now=10.5)
    restarts.restarted()
    assert not restarts.is_due(now=100.0)
    assert restarts.count == 1
