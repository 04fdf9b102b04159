"""The words of the published case, without brokers."""

from typing import Any

from bench.federation import to_lines
from bench.results.latencies import summary


def result(**changes: Any) -> dict[str, Any]:
    nodes = {"node 3": summary([1.0, 2.0, 900.0]), "node 8": summary([1.0, 1.0, 1500.0])}
    given = {"messages": 3, "rate": 100.0, "redundancy": 2, "protocol": "5.0", "killed": None}
    return {**given, "nodes": nodes, **changes}


def test_the_published_figures_stand_beside_ours() -> None:
    lines = to_lines(result())
    assert [line.split()[:3] for line in lines[3:5]] == [
        ["here,", "node", "3"],
        ["here,", "node", "8"],
    ]
    assert sum("published" in line for line in lines) == 4


def test_a_kill_is_told_with_the_longest_wait() -> None:
    lines = to_lines(result(killed="broker-5"))
    assert lines[-1].startswith("broker-5 killed half-way: none lost")
    assert lines[-1].endswith("waited 1.50 s")
    assert not any("published" in line for line in lines)
