"""Figures of one or several runs as a table for people and as JSON for programs."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import psutil
from rich.table import Table

from mqlake.bench.measurements import Figure, Figures


@dataclass(frozen=True, slots=True)
class Summary:
    figure: Figure
    values: tuple[float, ...]
    """One a run."""

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def is_met(self) -> bool | None:
        return self.figure.is_met(self.median)


def summarise(runs: Sequence[Figures]) -> list[Summary]:
    """Bring the runs together, in the order in which figures first came."""
    figures = dict.fromkeys(figure for run in runs for figure in run)
    return [
        Summary(figure, tuple(run[figure] for run in runs if figure in run)) for figure in figures
    ]


def to_json(summaries: Sequence[Summary], *, loader: str) -> dict[str, Any]:
    """Return everything, with what the figures were measured on."""
    return {
        "machine": {
            "cores": os.cpu_count(),
            "memory_mib": psutil.virtual_memory().total // 1024**2,
            "processor": _processor(),
            "system": platform.platform(),
        },
        "loader": loader,
        "figures": [
            {
                "name": summary.figure.name,
                "unit": summary.figure.unit,
                "median": round(summary.median, 3),
                "low": round(min(summary.values), 3),
                "high": round(max(summary.values), 3),
                "values": [round(value, 3) for value in summary.values],
                "goal": summary.figure.goal,
                "met": summary.is_met,
            }
            for summary in summaries
        ],
    }


def to_table(summaries: Sequence[Summary], *, loader: str) -> Table:
    """Return one table; spread only where there were several runs."""
    several = any(len(summary.values) > 1 for summary in summaries)
    table = Table(title=f"mqlake on {os.cpu_count()} cores, load side included ({loader} loader)")
    table.add_column("measured")
    table.add_column("median" if several else "value", justify="right")
    if several:
        table.add_column("low to high", justify="right")
    table.add_column("unit")
    table.add_column("goal", justify="right")
    section = ""
    for summary in summaries:
        figure = summary.figure
        if section and figure.name.partition(",")[0] != section:
            table.add_section()
        section = figure.name.partition(",")[0]
        cells = [figure.name, _number(summary.median)]
        if several:
            cells.append(f"{_number(min(summary.values))} to {_number(max(summary.values))}")
        table.add_row(*cells, figure.unit, _goal(summary))
    return table


def _goal(summary: Summary) -> str:
    figure = summary.figure
    if figure.goal is None:
        return ""
    sign = "≥" if figure.at_least else "≤"
    colour = "green" if summary.is_met else "red"
    word = "" if summary.is_met else " missed"
    return f"[{colour}]{sign} {_number(figure.goal)}{word}[/{colour}]"


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].strip() if names else platform.processor()
