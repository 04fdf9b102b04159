import pytest

from ingest.gateway.load.overload import LEAST_RECORDS_OF_MANY, OverloadMeter
from mqlake.log.contract import MOST_QUEUED_RECORDS

TICK = 0.25


def meter(
    queued: int = 0,
    held: int = 0,
    memory: float = 0.0,
    connections: float = 0.0,
    round_trip: float = 0.0,
) -> OverloadMeter:
    return OverloadMeter(
        lambda: queued, lambda: held, lambda: memory, lambda: connections, lambda: round_trip
    )


def run(made: OverloadMeter, seconds: float, *, late: float = 0.0, busy: float = 0.0) -> int:
    for _ in range(int(seconds / TICK)):
        made.note(TICK + late, late, busy * (TICK + late))
    return made.level


def test_an_idle_gateway_has_no_load() -> None:
    assert meter().level == 0
    assert meter().pressure() == 0
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


@pytest.mark.parametrize(
    ("part", "level"), [(0.5, 0), (0.86, 0), (0.9, 3), (0.95, 6), (1.0, 10), (3.0, 10)]
)
def test_memory_and_connections_count_when_they_are_almost_full(part: float, level: int) -> None:
    assert meter(memory=part).levels()["memory"] == level
    assert meter(connections=part).levels()["connections"] == level
    assert meter(connections=part).pressure() == 0, "to whom is here it makes no difference"
    assert int(meter(memory=part).pressure()) == level


def test_a_log_that_takes_no_more_is_the_highest_level() -> None:
    made = meter(held=1)
    assert made.level == 10
    assert made.pressure() == 10
    assert made.levels().pop("log_queue") == 10


@pytest.mark.parametrize(
    ("queued", "pressure"), [(0, 0), (300, 0), (500, 3), (1_000, 8), (59_000, 8.9), (60_000, 9)]
)
def test_a_queue_presses_long_before_it_is_full(queued: int, pressure: int) -> None:
    assert meter(queued).pressure() == pytest.approx(pressure, abs=0.05)


@pytest.mark.parametrize(
    ("per_second", "round_trip", "at_3"),
    [(50_000, 0.002, 500), (50_000, 0.01, 2_000), (40_000, 0.05, 8_000), (40_000, 1.0, 10_000)],
)
def test_a_log_that_takes_long_may_have_more_under_way(
    per_second: float, round_trip: float, at_3: int
) -> None:
    for queued, pressure in ((at_3, 3), (2 * at_3, 8)):
        made = meter(queued, round_trip=round_trip)
        made.per_second = per_second
        assert made.pressure() == pytest.approx(pressure, abs=0.05)


def test_more_is_under_way_while_nobody_waits_behind_others() -> None:
    made = meter(LEAST_RECORDS_OF_MANY)
    assert made.pressure() > 8
    made.has_modest = False
    assert made.pressure() == pytest.approx(3, abs=0.05)


def test_lateness_presses_as_far_as_the_loop_has_worked() -> None:
    starved, busy = meter(), meter()
    run(starved, 60, late=0.21, busy=0.02)
    assert starved.level == 6, "it is late"
    assert starved.pressure() < 2, "others have the processor"
    run(busy, 60, late=0.2, busy=1.0)
    assert busy.pressure() == pytest.approx(5.3, abs=0.1)
    run(busy, 60, late=9.0, busy=1.0)
    assert busy.pressure() < 8, "to be late stops nobody"
