"""Reports of results: a table, JSON, and a scorecard of each target beside the others."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from resilience.campaign import RESULT, is_promised
from resilience.errors import ResilienceError

FIGURES: Final[dict[str, str]] = {
    "rate_per_second": "acknowledged/s",
    "lost_percent": "lost %",
    "doubled_percent": "doubled %",
    "out_of_order_percent": "out of order %",
    "delivered_percent": "delivered %",
}
"""Figures by which published results and ours are compared."""

SILENCE: Final = "nothing delivered at a fault, p50 / longest"

Result = dict[str, Any]
Row = dict[str, Any]


def load(folder: Path) -> list[Result]:
    """Read all results below a folder.

    Raises:
        ResilienceError: There are none.
    """
    results = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob(RESULT))
    ]
    if not results:
        raise ResilienceError(f"{folder}: no {RESULT} here; make one with `resilience run`")
    return results


def merged(rows: Iterable[Row]) -> list[Row]:
    """Add verdicts up by checker; the smallest witness stays."""
    found: dict[str, Row] = {}
    for row in rows:
        known = found.get(row["name"])
        if known is None:
            found[row["name"]] = {**row, "kinds": dict(row["kinds"])}
            continue
        for count in ("checked", "violations", "unknown"):
            known[count] += row[count]
        known["kinds"] = dict(Counter(known["kinds"]) + Counter(row["kinds"]))
        smaller = not known["witness"] or len(row["witness"]) < len(known["witness"])
        if row["witness"] and smaller:
            known["witness"] = row["witness"]
    for row in found.values():
        clean = row["checked"] and not row["violations"]
        row["at_most"] = min(1.0, 3 / row["checked"]) if clean else None
    return list(found.values())


def verdicts(result: Result) -> list[Row]:
    """Return the verdicts of a result, added up over its runs."""
    return merged(verdict for run in result["runs"] for verdict in run["verdicts"])


def says(row: Row, promises: dict[str, Any]) -> str:
    """Say in words the meaning of a verdict for a target with these promises."""
    if row["violations"]:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(row["kinds"].items()))
        word = "broken" if is_promised(promises, row["promise"]) else "not promised"
        return f"{word}: {row['violations']} of {row['checked']} ({kinds})"
    if not row["checked"]:
        return "not tested"
    return f"holds: 0 of {row['checked']}, ≤ {percent(row['at_most'])} at 95 %"


def percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{100 * share:.3g} %"


def figures(result: Result) -> dict[str, float | None]:
    """Return the means over the runs, named as published ones are."""
    rows = {row["name"]: row for row in verdicts(result)}
    measures = [run["measures"] for run in result["runs"]]
    delivered = [sum(each["delivered_by_qos"]) for each in measures]
    due = [sum(each["due_by_qos"]) for each in measures]
    doubled = sum(each["doubled"] for each in measures)

    def share(part: float, whole: float) -> float | None:
        return round(100 * part / whole, 4) if whole else None

    return {
        "rate_per_second": round(_mean([each["rate_per_second"] for each in measures]), 1),
        "lost_percent": share(rows["lost"]["violations"], rows["lost"]["checked"]),
        "doubled_percent": share(doubled, sum(delivered)),
        "out_of_order_percent": share(rows["order"]["violations"], rows["order"]["checked"]),
        "delivered_percent": share(sum(delivered), sum(due)),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def comparison(results: Sequence[Result]) -> list[tuple[str, list[list[str]]]]:
    """Return for each scenario a table: ours per target, then published figures."""
    tables: list[tuple[str, list[list[str]]]] = []
    for name in dict.fromkeys(result["scenario"] for result in results):
        mine = [result for result in results if result["scenario"] == name]
        published = mine[0]["published"]
        head = ["target", "runs", *FIGURES.values(), "delay p50 / p99", "longest outage", SILENCE]
        rows = [head]
        for result in mine:
            values = figures(result)
            rows.append(
                [
                    f"{result['target']} ({result['driver']})",
                    str(len(result["runs"])),
                    *(_shown(values[key]) for key in FIGURES),
                    _delays(result),
                    _outage(result),
                    _silence(result),
                ]
            )
        rows.extend(
            [
                f"published: {row['broker']}",
                "",
                *(_shown(row.get(key)) for key in FIGURES),
                f"{row['delay_ms']:g} ms" if "delay_ms" in row else "",
                "",
                "",
            ]
            for row in published
        )
        tables.append((f"{name}: {mine[0]['title']}", rows))
    return tables


def _shown(value: Any) -> str:
    return "-" if value is None else f"{value:g}"


def _delays(result: Result) -> str:
    found = [run["measures"]["delay_seconds"] for run in result["runs"]]
    parts = []
    for key in ("p50", "p99"):
        values = [each[key] for each in found if each[key] is not None]
        parts.append(f"{1000 * _mean(values):.1f}" if values else "-")
    return f"{parts[0]} / {parts[1]} ms"


def _outage(result: Result) -> str:
    longest = max(
        (
            each["longest"]
            for run in result["runs"]
            for each in run["measures"]["outage_seconds"].values()
        ),
        default=0.0,
    )
    return f"{longest:.2f} s"


def _silence(result: Result) -> str:
    """Say how long it took until something came again when a fault had struck."""
    found = sorted(
        fault["silence"]
        for run in result["runs"]
        for fault in run["measures"]["faults"]
        if fault["silence"] is not None
    )
    return f"{found[len(found) // 2]:.2f} / {found[-1]:.2f} s" if found else "-"


def scorecard(results: Sequence[Result]) -> list[list[str]]:
    """Return promise by target: one row for each checker, all scenarios of a target added up."""
    targets = {
        name: [result for result in results if result["target"] == name]
        for name in dict.fromkeys(result["target"] for result in results)
    }
    rows = [["promise", *targets]]
    rows.append(["version", *(str(mine[0]["version"]) for mine in targets.values())])
    durability = (mine[0]["promises"].get("durability", "not stated") for mine in targets.values())
    rows.append(["durability", *map(str, durability)])
    for row in merged(row for result in results for row in verdicts(result)):
        cells = (_says_of_all(row["name"], mine) for mine in targets.values())
        rows.append([f"{row['name']}: {row['clause']}", *cells])
    return rows


def _says_of_all(name: str, results: Sequence[Result]) -> str:
    """Return the findings of one checker in all scenarios of a target, each with its promises."""
    blamed: list[Row] = []
    excused: list[Row] = []
    for result in results:
        for row in verdicts(result):
            if row["name"] == name:
                counts = not row["violations"] or is_promised(result["promises"], row["promise"])
                (blamed if counts else excused).append(row)
    found = [says(row, {}) for row in merged(blamed) if row["checked"] or not excused]
    found += [says(row, {row["promise"]: False}) for row in merged(excused)]
    return "; ".join(found) or "-"


def to_text(results: Sequence[Result]) -> str:
    """Return all results as tables of text."""
    parts = []
    for title, rows in comparison(results):
        parts += [title, _table(rows), ""]
    for result in results:
        parts.append(f"{result['target']} {result['scenario']}, {result['version']}")
        rows = [["checker", "verdict", "unknown"]]
        rows += [
            [row["name"], says(row, result["promises"]), str(row["unknown"])]
            for row in verdicts(result)
            if row["checked"] or row["unknown"]
        ]
        parts += [_table(rows)]
        for run in result["runs"]:
            parts += [f"  seed {run['seed']}: {problem}" for problem in run["problems"]]
        parts.append("")
    return "\n".join(parts)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def to_json(results: Sequence[Result]) -> dict[str, Any]:
    """Return the report for programs."""
    return {
        "report": 1,
        "scorecard": scorecard(results),
        "results": [
            {
                "target": result["target"],
                "scenario": result["scenario"],
                "version": result["version"],
                "driver": result["driver"],
                "runs": len(result["runs"]),
                "figures": figures(result),
                "audit": result.get("audit"),
                "published": result["published"],
                "verdicts": verdicts(result),
                "problems": [problem for run in result["runs"] for problem in run["problems"]],
                "shrunk": [run["shrunk"] for run in result["runs"] if "shrunk" in run],
            }
            for result in results
        ],
    }
