"""The measurement of the first hour, without a system."""

from pathlib import Path

from bench.load.programs import LoadPrograms
from bench.measurements import COLD, FIRST_HOUR, MEASUREMENTS
from bench.results.figures import GOALS
from bench.systems.system import Bench
from bench.whole.first_hour import NAME, measure_first_hour

ROOT = Path(__file__).parents[2]


def test_a_system_of_somebody_else_is_not_stopped() -> None:
    notes: list[str] = []
    bench = Bench(Path("/nowhere"), LoadPrograms((), ()), note=notes.append)
    assert measure_first_hour(bench) == []
    assert notes == ["first hour: only a system of the bench's own is stopped and started"]


def test_it_comes_before_anything_is_warmed_up() -> None:
    assert MEASUREMENTS[FIRST_HOUR] is measure_first_hour
    assert FIRST_HOUR in COLD


def test_each_goal_is_of_a_figure_that_is_measured() -> None:
    source = (ROOT / "bench" / "whole" / "first_hour.py").read_text(encoding="utf-8")
    for goal in GOALS:
        if goal.startswith(f"{NAME}, "):
            what = goal.removeprefix(f"{NAME}, ").split(", p")[0].removesuffix(", max")
            assert what.split(", 8 at")[0] in source, goal
