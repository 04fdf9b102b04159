"""A sample of what `bin/mqlake resilience run all --target mqlake…` does at length."""

import json
from pathlib import Path

import pytest

from resilience.command import main

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def test_any_of_three_brokers_may_die(tmp_path: Path) -> None:
    """`up --log-servers` with durability D2: each broker leads some partitions."""
    arguments = ("4-kill", "--target", "mqlake-3-brokers", "--quick", "--runs", "1")
    code = main(["run", *arguments, "--out", str(tmp_path)])
    (result,) = json.loads((tmp_path / "report.json").read_text())["results"]
    assert (code, result["problems"]) == (0, [])
    verdicts = {row["name"]: row for row in result["verdicts"]}
    assert verdicts["lost"]["checked"] == 3 * 600
    for name in ("lost", "never-acknowledged", "duplicate-qos2", "order", "session-present"):
        assert verdicts[name]["checked"]
        assert (verdicts[name]["violations"], verdicts[name]["unknown"]) == (0, 0)
