"""A sample of what `bin/mqlake resilience run all --target mqlake…` does at length."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from resilience.command import main
from resilience.definition import ROOT
from tests.integration.thrift import NO_STATE_TABLES

pytestmark = [pytest.mark.promise, pytest.mark.system, pytest.mark.timeout(1_200)]

SAMPLE = ("6-power-loss", "7-rolling-restart", "damage-bit")
"""Of the scenarios for one gateway: with those below, parts that are killed, restarted and moved, a
disk that loses and one that lies.

All together take several hundred seconds of a processor: `run all`, before a release.
"""
REPEATED = 3
"""Messages that a gateway's death may repeat to each client (`max_repeated_messages`)."""
REPEATED_PERCENT = 0.7
"""So many to ten clients, and one that each of three publishers repeats to them all."""


@pytest.fixture(autouse=True)
def _without_state_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NO_STATE_TABLES.items():
        monkeypatch.setenv(name, value)


def run(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run scenarios in which nothing promised may break; return their results."""
    code = main(["run", *arguments, "--quick", "--out", str(folder)])
    results = json.loads((folder / "report.json").read_text())["results"]
    assert [problem for result in results for problem in result["problems"]] == []
    broken = [row for result in results for row in result["verdicts"] if row["violations"]]
    assert (broken, code) == ([], 0)
    return [{**result, "by": by_name(result["verdicts"])} for result in results]


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in rows}


@pytest.mark.campaign("the crash of all gateways has the same checkers")
def test_scenarios_in_small_break_nothing(tmp_path: Path) -> None:
    command = [str(ROOT / "bin" / "mqlake"), "resilience", "run", *SAMPLE, "--target", "mqlake"]
    # One system at a time: another test has one, too.
    command += ["--quick", "--jobs", "1", "--out", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = {result["scenario"]: result for result in json.loads(done.stdout)["results"]}
    assert len(results) + done.stderr.count(": not run: ") == len(SAMPLE)
    restarted = by_name(results["7-rolling-restart"]["verdicts"])
    assert restarted["lost"]["checked"] == 1_800
    # What the disk gives back reaches the client: docs/resilience.md, "A disk that gives back".
    damaged = by_name(results["damage-bit"]["verdicts"])
    assert damaged["phantom"]["kinds"] == {"damaged": 1}
    assert damaged["lost"]["violations"] == 1


@pytest.mark.campaign("tests/mqlake/log/test_durability.py kills brokers under the log")
def test_any_of_three_brokers_may_die(tmp_path: Path) -> None:
    """`up --log-servers` with durability D2: each broker leads some partitions."""
    (result,) = run(tmp_path, "4-kill", "--target", "mqlake-3-brokers")
    verdicts = result["by"]
    assert verdicts["lost"]["checked"] == 3 * 300
    for name in ("lost", "never-acknowledged", "duplicate-qos2", "order", "session-present"):
        assert verdicts[name]["checked"]
        assert verdicts[name]["unknown"] == 0


@pytest.mark.campaign("tests/ingest/session and tests/ingest/gateway freeze, delete and pause, too")
def test_what_freezes_what_is_deleted_and_what_pauses_is_noticed(tmp_path: Path) -> None:
    scenarios = ["freeze", "deliveries-gone", "leader-pause"]
    results = run(tmp_path, *scenarios, "--target", "mqlake-3-brokers", "--jobs", "1")
    of = {result["scenario"]: result["by"] for result in results}
    assert of["freeze"]["duplicate-qos2"]["checked"] == 2 * 900
    assert of["freeze"]["will"]["checked"]
    assert of["deliveries-gone"]["share-group"]["checked"] == 650
    assert of["leader-pause"]["lost"]["checked"] == 2 * 7_500
    assert of["leader-pause"]["order"]["checked"]


@pytest.mark.campaign("tests/ingest/gateway/test_receiving.py and tests/launcher fill a log, too")
def test_a_log_that_was_full_has_lost_nothing(tmp_path: Path) -> None:
    (result,) = run(tmp_path, "full-log", "--target", "mqlake")
    verdicts = result["by"]
    assert verdicts["lost"]["checked"]
    assert verdicts["never-acknowledged"]["checked"] >= 2 * 600
    assert verdicts["never-acknowledged"]["unknown"] == 0


def test_a_gateway_that_stays_dead_and_a_crash_of_all_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One system of three gateways, all kinds of clients, and the faults that kill most."""
    monkeypatch.setenv("MQLAKE_GATEWAY_MAX_REPEATED_MESSAGES", str(REPEATED))
    scenarios = ["takeover", "crash"]
    results = run(tmp_path, *scenarios, "--target", "mqlake-3")
    assert [result["scenario"] for result in results] == scenarios
    for result in results:
        verdicts = result["by"]
        # Per QoS two publishers of 400 messages and two subscribers; the rest are retained values.
        assert verdicts["lost"]["checked"] >= 2 * 2 * 800
        assert verdicts["duplicate-qos2"]["checked"] == 2 * 800 + 400
        assert verdicts["share-group"]["checked"] == 400
        # Two clients subscribe again and again; each loss of a connection may cut off a request.
        answers = verdicts["never-acknowledged"]
        assert answers["unknown"] <= answers["checked"] / 100
        for name in ("order", "retained", "session-present", "will"):
            assert verdicts[name]["checked"]
        assert result["figures"]["doubled_percent"] <= REPEATED_PERCENT
