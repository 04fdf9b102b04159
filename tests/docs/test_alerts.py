"""Alerts and the dashboard of Grafana, as Prometheus itself reads it (promtool)."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from cli.system import grafana

pytestmark = pytest.mark.tools

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "conf" / "prometheus" / "alerts.yaml"
CASES = Path(__file__).parent / "alerts.yaml"


def promtool(*words: str | Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.fail("promtool is missing: apt install prometheus", pytrace=False)
    done = subprocess.run(
        [program, *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_raises_each_alert_when_it_should_and_no_sooner(tmp_path: Path) -> None:
    text = CASES.read_text(encoding="utf-8")
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    asked = [one for case in yaml.safe_load(text)["tests"] for one in case["alert_rule_test"]]
    assert {one["alertname"] for one in asked if one.get("exp_alerts")} == names
    assert {one["alertname"] for one in asked if not one.get("exp_alerts")} == names
    cases = tmp_path / "cases.yaml"
    cases.write_text(text.replace("ALERTS", str(ALERTS)), encoding="utf-8")
    promtool("test", "rules", cases)


def test_prometheus_takes_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    panels = json.loads(grafana.render())["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(asked) > 30
    rules = [
        # Grafana's own variables stand for times.
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(asked)
    ]
    file = tmp_path / "panels.yaml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    promtool("check", "rules", file)
