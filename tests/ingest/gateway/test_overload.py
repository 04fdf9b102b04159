import pytest

from ingest.gateway.overload import OverloadMeter
from mqlake.log.contract import MOST_QUEUED_RECORDS

TICK = 0.25


def meter(queued: int = 0, held: int = 0) -> OverloadMeter:
    return OverloadMeter(lambda: queued, lambda: held)


def run(made: OverloadMeter, seconds: float, *, late: float = 0.0, busy: float = 0.0) -> int:
    for _ in range(int(seconds / TICK)):
        made.note(TICK + late, late, busy * (TICK + late))
    return made.level


def test_an_idle_gateway_has_no_load() -> None:
    assert meter().level == 0
    assert run(meter(), 60, busy=0.4, late=0.001) == 0


@pytest.mark.parametrize(
    ("late", "level"), [(0.005, 0), (0.026, 3), (0.101, 5), (0.202, 6), (1.7, 9), (50.0, 10)]
)
def test_a_late_loop_is_one_level_more_with_each_doubling(late: float, level: int) -> None:
    assert run(meter(), 60, late=late) == level


@pytest.mark.parametrize(("busy", "level"), [(0.5, 0), (0.65, 1), (0.85, 3), (1.0, 5)])
def test_a_loop_that_always_works_is_above_the_threshold(busy: float, level: int) -> None:
    made = meter()
    for _ in range(10_000):
        made.note(TICK, 0.0, busy * TICK)
    assert made.level == level


def test_a_burst_is_no_overload_and_is_forgotten() -> None:
    made = meter()
    run(made, 60)
    assert run(made, 1, busy=1.0) <= 2
    made.note(TICK + 0.5, 0.5, 0.1)
    assert made.level <= 4
    assert run(made, 30) == 0


@pytest.mark.parametrize(
    ("queued", "level"), [(999, 0), (MOST_QUEUED_RECORDS // 2, 5), (MOST_QUEUED_RECORDS, 10)]
)
def test_the_queue_to_the_log_counts_as_it_fills(queued: int, level: int) -> None:
    assert meter(queued).level == level


def test_a_log_that_takes_no_more_is_the_highest_level() -> None:
    made = meter(held=1)
    assert made.level == 10
    assert made.levels() == {"loop_lag": 0, "inbound_work": 0, "log_queue": 10}
