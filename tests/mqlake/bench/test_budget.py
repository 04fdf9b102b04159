import pytest

from mqlake.bench.budget import LOAD_PROGRAM, Cost, stages

COST = Cost(
    2000,
    {
        "gateway-1": 0.009,
        "gateway-2": 0.006,
        "log": 0.036,
        "streaming": 0.040,
        "api": 0.001,
        "supervisor": 0.001,
    },
    {"compilers": 0.002, "collector": 0.004, "tasks": 0.030},
    0.010,
)


def price(stage: str, gateway_out: str = "gateway-2") -> float:
    """Return the microseconds of a stage of the way of a message of `COST`."""
    found = {figure.name: value for figure, value in stages(COST, "gateway-1", gateway_out).items()}
    return found[f"processor time of a message, {stage}"]


@pytest.mark.parametrize(
    ("stage", "microseconds"),
    [
        ("gateway in", 4.5),
        ("gateway out", 3.0),
        ("log", 18.0),
        ("Spark", 20.0),
        ("Spark's collector", 2.0),
        ("other processes", 1.0),
        ("all stages", 46.5),
        (LOAD_PROGRAM, 5.0),
    ],
)
def test_each_stage_has_its_part_of_a_message(stage: str, microseconds: float) -> None:
    assert price(stage) == pytest.approx(microseconds)


def test_a_gateway_that_is_way_in_and_way_out_counts_once() -> None:
    assert price("gateway in", gateway_out="gateway-1") == pytest.approx(4.5)
    assert price("other processes", gateway_out="gateway-1") == pytest.approx(4.0)
    assert price("all stages", gateway_out="gateway-1") == pytest.approx(46.5)
