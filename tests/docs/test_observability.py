"""What `docs/observability.md` and the dashboard say is what processes tell."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.system import grafana
from mqlake.metrics.names import BY_PROCESS, EVERY_PROCESS, NAMES, TENANTS, Metric

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads(grafana.render())
SUFFIXES = ("", "_bucket", "_sum", "_count")
TARGET_LABELS = {"instance", "job", "le"}
"""That come from Prometheus itself."""


def row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.words} |"


def rows(heading: str) -> list[str]:
    """Return the rows of the table below a heading."""
    section = TEXT.partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    return [line for line in section.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("of", [*BY_PROCESS, "tenants", "every process"])
def test_every_metric_is_described_and_no_other(of: str) -> None:
    metrics = {**BY_PROCESS, "tenants": TENANTS}.get(of, EVERY_PROCESS)
    assert rows(of.capitalize()) == [row(metric) for metric in metrics]


def expressions() -> list[str]:
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    variables = DASHBOARD["templating"]["list"]
    return asked + [one["query"]["query"] for one in variables if one["type"] == "query"]


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    known = {
        name + suffix
        for name, metric in NAMES.items()
        for suffix in (SUFFIXES if metric.kind == "histogram" else ("",))
    }
    found = {name for text in expressions() for name in re.findall(r"mqlake_\w+", text)}
    assert len(found) > 30
    assert found <= known


def test_the_dashboard_asks_for_labels_that_there_are() -> None:
    for text in expressions():
        names = [
            re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"mqlake_\w+", text)
        ]
        labels = {label for name in names for label in NAMES[name].labels} | TARGET_LABELS
        asked = [
            one.strip() for group in re.findall(r"by \(([^)]*)\)", text) for one in group.split(",")
        ]
        asked += re.findall(r"(\w+)=", text)
        assert set(asked) <= labels, text


def test_the_legends_name_labels_that_are_left() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            if grouped:
                left = {one.strip() for group in grouped for one in group.split(",")}
                assert shown <= left, target["expr"]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_alerts_ask_for_metrics_that_are_told() -> None:
    text = (ROOT / "conf" / "prometheus" / "alerts.yaml").read_text(encoding="utf-8")
    rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        asked = re.findall(r"mqlake_[a-z_]+", rule["expr"])
        assert asked
        assert all(name in NAMES for name in asked), rule["expr"]
