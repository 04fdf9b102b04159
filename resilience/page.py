"""The report as one HTML page that needs nothing else: tables, plots as inline SVG, witnesses."""

import json
import math
from collections.abc import Sequence
from html import escape
from typing import Any, Final

from resilience import report

WIDTH: Final = 900
HEIGHT: Final = 220
LEFT: Final = 56
BOTTOM: Final = 24

_TAKEN: Final = (("memory", 1e6), ("disk", 1e6), ("files", 1))

_READING: Final = (
    "0 of <i>n</i> excludes, at 95 %, a rate above 3/<i>n</i>. Cases that a history leaves open are"
    " counted as unknown, for neither side."
)

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --good: #2a7d3c; --bad: #c0392b; --dim: #888; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; }
.holds { color: var(--good); } .broken { color: var(--bad); font-weight: 600; }
.not { color: var(--dim); }
pre { font-size: .75rem; overflow-x: auto; border-left: 3px solid var(--bad); padding-left: .8rem; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
.dot { fill: #3465a4; fill-opacity: .55; } .fault { fill: var(--bad); fill-opacity: .18; }
.line { fill: none; stroke: #3465a4; stroke-width: 1.5; }
.axis { stroke: var(--line); } .bar { fill: #3465a4; }
"""


def to_html(results: Sequence[report.Result]) -> str:
    """Return the page."""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Resilience of MQTT brokers</title><style>{_STYLE}</style></head><body>",
        "<h1>Resilience of MQTT brokers</h1>",
        f"<p>{_READING}</p>",
        "<h2>Scorecard</h2>",
        _table(report.scorecard(results)),
    ]
    parts.append("<h2>Figures beside published ones</h2>")
    for title, rows in report.comparison(results):
        parts += [f"<h3>{escape(title)}</h3>", _table(rows)]
    for result in results:
        parts.append(_section(result))
    parts.append("</body></html>")
    return "\n".join(parts)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = [f"<div class='wide'><table><tr>{cells}</tr>"]
    lines += ["<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in body]
    return "".join(lines) + "</table></div>"


def _cell(text: str) -> str:
    word = text.partition(":")[0].partition(" ")[0]
    kind = f" class='{word}'" if word in ("holds", "broken", "not") else ""
    return f"<td{kind}>{escape(text)}</td>"


def _section(result: report.Result) -> str:
    first = result["runs"][0]
    worst = next((run for run in result["runs"] if run["broken"]), first)
    about = escape(
        f"{result['title']}. {result['version']}, {len(result['runs'])} runs, driver"
        f" {result['driver']}, seeds from {first['seed']}, scale {result['scale']:g}."
    )
    parts = [
        f"<h2>{escape(result['target'])}, {escape(result['scenario'])}</h2>",
        f"<p>{about}</p>",
        f"<h3>Time to delivery, run of seed {worst['seed']}</h3>",
        _delays(worst["measures"]),
        "<h3>Longest gap in the service of each client</h3>",
        _gaps(worst["measures"]),
        _faults(worst["measures"]),
    ]
    series = [run["usage"] for run in result["runs"] if run.get("usage")]
    if len(series) > 1:
        parts.append("<h3>What the target takes, at the end of each run</h3>")
        parts += [_growth(name, unit, series) for name, unit in _TAKEN]
    parts += _verdicts(result)
    if audit := result.get("audit"):
        word = "holds" if audit["holds"] else "broken"
        parts.append(f"<h3>Audit of its own records at the end: {word}</h3>")
        parts.append(f"<pre>{escape(audit['text'])}</pre>")
    for run in result["runs"]:
        if run["faults"] or run["problems"]:
            told = "; ".join((*run["faults"], *run["problems"]))
            shrunk = "; ".join(run.get("shrunk", ()))
            small = f" Smallest that fails: {escape(shrunk)}." if shrunk else ""
            parts.append(f"<p>Seed {run['seed']}: {escape(told)}.{small}</p>")
    return "".join(parts)


def _verdicts(result: report.Result) -> list[str]:
    """Return a table of what the checkers say, and the witnesses of those that find a violation."""
    verdicts = report.verdicts(result)
    rows = [["checker", "verdict", "unknown"]]
    for row in verdicts:
        said = report.says(row, result["promises"])
        rows.append([f"{row['name']}: {row['clause']}", said, str(row["unknown"])])
    parts = [_table(rows)]
    for row in verdicts:
        if row["violations"]:
            lines = "\n".join(json.dumps(operation) for operation in row["witness"])
            parts.append(f"<h3>Witness: {escape(row['name'])}</h3><pre>{escape(lines)}</pre>")
    return parts


def _faults(measures: dict[str, Any]) -> str:
    """Return a table of the faults of a run: how long each took, and how long nothing came."""
    if not measures["faults"]:
        return ""
    rows = [["fault", "part", "at", "took", "longest time without a delivery"]]
    for fault in measures["faults"]:
        spans = (fault["at"], fault["seconds"], fault["silence"])
        seconds = ("-" if span is None else f"{span:.2f} s" for span in spans)
        rows.append([fault["fault"], fault["part"], *seconds])
    rate = f"<p>At {measures['rate_per_second']:g} acknowledged messages a second.</p>"
    return f"<h3>Faults</h3>{rate}{_table(rows)}"


def _delays(measures: dict[str, Any]) -> str:
    """Plot delay over time, logarithmic, with the faults as bands."""
    series = measures["series"]
    if not series:
        return "<p>Nothing was delivered.</p>"
    faults = measures["faults"]
    last = max(series[-1][0], *(f["at"] + (f["seconds"] or 0) for f in faults), 0.1)
    low = math.floor(math.log10(max(min(d for _, d in series), 1e-5)))
    high = max(low + 1, math.ceil(math.log10(max(max(d for _, d in series), 1e-5))))

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - 10) * max(0.0, at) / float(last)

    def y(delay: float) -> float:
        share = (math.log10(max(delay, 1e-5)) - low) / (high - low)
        return 10 + (HEIGHT - BOTTOM - 10) * (1 - share)

    parts = [f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img'>"]
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f"<line class='axis' x1='{LEFT}' x2='{WIDTH}' y1='{at:.1f}' y2='{at:.1f}'/>")
        parts.append(f"<text x='2' y='{at + 4:.1f}'>{10.0**power * 1000:g} ms</text>")
    for share in range(6):
        at = last * share / 5
        parts.append(f"<text x='{x(at) - 7 * share:.1f}' y='{HEIGHT - 4}'>{at:.1f} s</text>")
    for fault in faults:
        start, width = x(fault["at"]), x(fault["at"] + (fault["seconds"] or 0)) - x(fault["at"])
        name = escape(f"{fault['fault']} {fault['part']}")
        parts.append(
            f"<rect class='fault' x='{start:.1f}' y='10' width='{max(2.0, width):.1f}'"
            f" height='{HEIGHT - BOTTOM - 10}'><title>{name}</title></rect>"
            f"<text x='{start + 3:.1f}' y='22'>{name}</text>"
        )
    parts += [f"<circle class='dot' r='1.6' cx='{x(a):.1f}' cy='{y(d):.1f}'/>" for a, d in series]
    return "".join(parts) + "</svg>"


def _growth(name: str, unit: float, series: Sequence[dict[str, Any]]) -> str:
    """Plot one of the things that a target takes over time, from 0 on."""
    last = series[-1]["at"] or 1.0
    most = max(row[name] for row in series) or 1
    height = HEIGHT // 2

    def place(row: dict[str, Any]) -> str:
        x = LEFT + (WIDTH - LEFT - 10) * row["at"] / last
        y = 16 + (height - BOTTOM - 16) * (1 - row[name] / most)
        return f"{x:.1f},{y:.1f}"

    points = " ".join(map(place, series))
    ends = f"{series[0][name] / unit:,.0f} to {series[-1][name] / unit:,.0f}"
    word = name if unit == 1 else f"{name}, MB"
    return (
        f"<svg viewBox='0 0 {WIDTH} {height}' role='img'>"
        f"<text x='2' y='12'>{word}: {ends}, at most {most / unit:,.0f}</text>"
        f"<line class='axis' x1='{LEFT}' x2='{WIDTH}' y1='{height - BOTTOM}'"
        f" y2='{height - BOTTOM}'/><polyline class='line' points='{points}'/>"
        f"<text x='{WIDTH - 60}' y='{height - 6}'>{last:,.0f} s</text></svg>"
    )


def _gaps(measures: dict[str, Any]) -> str:
    rows = sorted(measures["outage_seconds"].items(), key=lambda row: -row[1]["longest"])[:12]
    if not rows:
        return "<p>No client published with QoS 1 or 2.</p>"
    longest = max(row["longest"] for _, row in rows) or 1.0
    height = 18 * len(rows) + 4
    parts = [f"<svg viewBox='0 0 {WIDTH} {height}' role='img'>"]
    for place, (name, row) in enumerate(rows):
        width = (WIDTH - 320) * row["longest"] / longest
        top = 18 * place + 3
        parts.append(
            f"<text x='2' y='{top + 11}'>{escape(name)}</text>"
            f"<rect class='bar' x='150' y='{top}' width='{width:.1f}' height='13'/>"
            f"<text x='{156 + width:.1f}' y='{top + 11}'>{row['longest']:.3f} s at"
            f" {row['at']:.1f} s</text>"
        )
    return "".join(parts) + "</svg>"
