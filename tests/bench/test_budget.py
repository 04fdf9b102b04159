import pytest

from bench.whole.budget import LOAD_PROGRAM, Cost, stages

PROCESSES = {
    "gateway-1": 0.009,
    "gateway-2": 0.006,
    "log": 0.036,
    "router": 0.040,
    "lake": 0.004,
    "api": 0.001,
    "supervisor": 0.001,
}
THREADS = {
    "gateway-1": {"python": 0.005, "rdk:broker1": 0.003, "rdk:main": 0.001},
    "gateway-2": {"python": 0.005, "rdk:broker1": 0.001},
    "log": {"data-plane-kafk": 0.030, "GC Thread#0": 0.001, "GC Thread#1": 0.001},
    # Spark calls a thread that has no task otherwise: what it has used goes from name to name.
    "lake": {"Executor task l": 0.003, "VM Thread": 0.001},
    "router": {
        "Executor task l": -0.010,
        "Executor task i": 0.040,
        "C1 CompilerThre": 0.002,
        "VM Thread": 0.004,
    },
}
COST = Cost(2000, PROCESSES, THREADS, 0.010)
WAY_IN = Cost(1000, {"log": 0.010, "router": 0.012}, {}, 0.001)


def price(stage: str, gateway_out: str = "gateway-2") -> float:
    """Return the microseconds of a stage of the way of a message of `COST`."""
    figures = stages(COST, WAY_IN, "gateway-1", gateway_out)
    found = {figure.name: value for figure, value in figures.items()}
    return found[f"processor time of a message, {stage}"]


@pytest.mark.parametrize(
    ("stage", "microseconds"),
    [
        ("gateway in", 4.5),
        ("gateway in's log client", 2.0),
        ("gateway out", 3.0),
        ("gateway out's log client", 0.5),
        ("log", 18.0),
        ("log in", 10.0),
        ("log out", 8.0),
        ("log's requests", 15.0),
        ("log's collector", 1.0),
        ("router", 20.0),
        ("router in", 12.0),
        ("router out", 8.0),
        ("router's tasks", 15.0),
        ("router's compilers", 1.0),
        ("router's collector", 2.0),
        ("lake", 2.0),
        ("lake's tasks", 1.5),
        ("other processes", 1.0),
        ("all stages", 48.5),
        (LOAD_PROGRAM, 5.0),
    ],
)
def test_each_stage_has_its_part_of_a_message(stage: str, microseconds: float) -> None:
    assert price(stage) == pytest.approx(microseconds)


def test_a_gateway_that_is_way_in_and_way_out_counts_once() -> None:
    assert price("gateway in", gateway_out="gateway-1") == pytest.approx(4.5)
    assert price("other processes", gateway_out="gateway-1") == pytest.approx(4.0)
    assert price("all stages", gateway_out="gateway-1") == pytest.approx(48.5)
