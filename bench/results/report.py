"""Figures, measured once or several times, as a table for people and as JSON for programs."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import psutil
from rich.table import Table

from bench.results.figures import Figure, Figures

PERCENTILES: Final = ("p50", "p95", "p99", "p99.9", "max")


@dataclass(frozen=True, slots=True)
class Summary:
    figure: Figure
    values: tuple[float, ...]
    """One each time it was measured."""

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def is_met(self) -> bool | None:
        return self.figure.is_met(self.median)


def summarise(runs: Sequence[Figures]) -> list[Summary]:
    """Bring the measurements together, in the order in which figures first came."""
    figures = dict.fromkeys(figure for run in runs for figure in run)
    return [
        Summary(figure, tuple(run[figure] for run in runs if figure in run)) for figure in figures
    ]


def to_json(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Return everything, with the machine on which the figures were measured."""
    return {
        "machine": {
            "cores": os.cpu_count(),
            "memory_mib": psutil.virtual_memory().total // 1024**2,
            "processor": _processor(),
            "system": platform.platform(),
        },
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


def to_table(summaries: Sequence[Summary]) -> Table:
    """Return one table: a line for each quantity, percentiles beside each other."""
    several = any(len(summary.values) > 1 for summary in summaries)
    title = f"mqlake on {os.cpu_count()} cores, load side included"
    table = Table(
        title=f"{title}; median (low to high) where measured several times" if several else title
    )
    table.add_column("measured")
    table.add_column("unit")
    table.add_column("value or p50", justify="right")
    for part in PERCENTILES[1:]:
        table.add_column(part, justify="right")
    table.add_column("goal", justify="right")
    lines: dict[str, dict[str, Summary]] = {}
    for summary in summaries:
        quantity, _, part = summary.figure.name.rpartition(", ")
        if part not in PERCENTILES:
            quantity, part = summary.figure.name, PERCENTILES[0]
        lines.setdefault(quantity, {})[part] = summary
    subject = ""
    for quantity, parts in lines.items():
        if subject and not quantity.startswith(subject):
            table.add_section()
        subject = quantity.partition(",")[0].partition(" to ")[0]
        cells = [_value(parts[part]) if part in parts else "" for part in PERCENTILES]
        goals = [_goal(part, parts[part]) for part in PERCENTILES if part in parts]
        unit = next(iter(parts.values())).figure.unit
        table.add_row(quantity, unit, *cells, ", ".join(filter(None, goals)))
    return table


def _value(summary: Summary) -> str:
    if len(summary.values) == 1:
        return _number(summary.median)
    low, high = _number(min(summary.values)), _number(max(summary.values))
    return f"{_number(summary.median)} ({low} to {high})"


def _goal(part: str, summary: Summary) -> str:
    figure = summary.figure
    if figure.goal is None:
        return ""
    percentile = f"{part} " if figure.name.endswith(f", {part}") else ""
    sign = "≥" if figure.at_least else "≤"
    text = f"{percentile}{sign} {_number(figure.goal).removesuffix('.00').removesuffix('.0')}"
    return f"[green]{text}[/green]" if summary.is_met else f"[red]{text} missed[/red]"


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
