import json
from io import StringIO

import pytest
from rich.console import Console

from bench.results.figures import Figure
from bench.results.report import summarise, to_json, to_table

P50 = Figure("publish to PUBACK, p50", "ms", goal=3)
P99 = Figure("publish to PUBACK, p99", "ms")
RATE = Figure("acknowledged", "messages/s", goal=40_000, at_least=True)
RUNS = [{P50: 1.0, P99: 9.0, RATE: 30_000.0}, {P50: 5.0, P99: 7.0}, {P50: 2.0, P99: 8.0}]


def test_runs_come_together_as_medians_with_their_spread() -> None:
    answer = to_json(summarise(RUNS))
    assert json.loads(json.dumps(answer)) == answer
    assert answer["machine"]["cores"] > 0
    figures = {figure["name"]: figure for figure in answer["figures"]}
    assert list(figures) == [P50.name, P99.name, RATE.name]
    assert figures[P50.name] == {
        "name": P50.name,
        "unit": "ms",
        "median": 2.0,
        "low": 1.0,
        "high": 5.0,
        "values": [1.0, 5.0, 2.0],
        "goal": 3,
        "met": True,
    }
    assert figures[P99.name]["met"] is None
    assert figures[RATE.name]["met"] is False


@pytest.mark.parametrize(
    ("figure", "value", "met"),
    [(P50, 3.0, True), (P50, 3.1, False), (RATE, 40_000, True), (RATE, 39_999, False)],
)
def test_a_goal_is_a_most_or_a_least(figure: Figure, value: float, met: bool) -> None:
    assert figure.is_met(value) is met


def test_the_table_has_a_line_for_each_quantity() -> None:
    console = Console(width=200, record=True, file=StringIO())
    console.print(to_table(summarise(RUNS)))
    lines = console.export_text().splitlines()
    (latency,) = (line for line in lines if "PUBACK" in line)
    assert "2.00 (1.00 to 5.00)" in latency
    assert "8.00 (7.00 to 9.00)" in latency
    assert "p50 ≤ 3 " in latency
    (rate,) = (line for line in lines if "acknowledged" in line)
    assert "30,000" in rate
    assert "≥ 40,000 missed" in rate
