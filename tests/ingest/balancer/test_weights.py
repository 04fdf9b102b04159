import math

import pytest

from ingest.balancer.weights import CpuWindow, damped, weight_of


@pytest.mark.parametrize(
    ("cpu", "weight"),
    [
        (0, 100),
        (87, 13),
        (30, 70),
        (5, 95),
        (22, 78),
        (99.6, 1),
        (100, 1),
        (250, 1),
        (-3, 100),
        (None, 1),
        (math.nan, 1),
        (math.inf, 1),
    ],
)
def test_weight_is_what_is_free(cpu: float | None, weight: int) -> None:
    assert weight_of(cpu) == weight


def test_published_weights_give_the_published_shares() -> None:
    weights = [weight_of(100 - free) for free in (13, 70, 95, 78)]
    shares = [round(weight / sum(weights) * 100, 1) for weight in weights]
    assert shares == [5.1, 27.3, 37.1, 30.5]


def test_a_weight_stays_until_it_is_wrong_enough() -> None:
    assert damped(None, 40, 15) == 40
    assert damped(40, 54, 15) == 40
    assert damped(40, 55, 15) == 55
    assert damped(40, 25, 15) == 25


def test_a_counter_gives_the_mean_of_its_window() -> None:
    window = CpuWindow(10.0, is_counter=True)
    assert window.mean(0) is None
    window.add(0, 100.0)
    assert window.mean(0) is None
    window.add(5, 102.5)
    assert window.mean(5) == 50
    window.add(12, 102.5)  # the first sample is out of the window
    assert window.mean(12) == 0
    assert window.mean(40) is None


def test_a_counter_that_begins_anew_is_a_new_window() -> None:
    window = CpuWindow(60.0, is_counter=True, cores=2)
    window.add(0, 100.0)
    window.add(1, 0.5)
    assert window.mean(1) is None
    window.add(2, 1.5)
    assert window.mean(2) == 50


def test_percentages_have_a_mean_and_no_number_says_nothing() -> None:
    window = CpuWindow(10.0, is_counter=False)
    for at, value in enumerate((10.0, math.nan, 30.0)):
        window.add(at, value)
    assert window.mean(3) == 20
