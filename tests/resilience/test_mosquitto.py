"""The real thing, small: both drivers, a broker that is killed, the limit that Mosquitto has."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from resilience.command import main
from resilience.machines.machine import DISK, PACKETS, missing

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        shutil.which("mosquitto", path="/usr/sbin:/usr/bin") is None, reason="no mosquitto here"
    ),
]


def run(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["run", *arguments, "--runs", "1", "--out", str(tmp_path)])
    report = json.loads((tmp_path / "report.json").read_text())
    (result,) = report["results"]
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    return code, result


def verdict(result: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in result["verdicts"] if row["name"] == name)


@pytest.mark.parametrize(
    ("scenario", "driver", "most"), [("2", "raw", 1), ("2-at-rest", "paho", 0)]
)
def test_a_killed_broker_comes_back_and_its_sessions_with_it(
    tmp_path: Path, scenario: str, driver: str, most: int
) -> None:
    """Mosquitto writes its file after PUBACK: the message whose PUBACK is the last may be gone.

    Killed when nothing is under way it loses nothing, which is its published figure.
    """
    _, result = run(tmp_path, scenario, "--target", "mosquitto", "--quick", "--driver", driver)
    assert result["problems"] == []
    assert "2.0" in result["version"]
    (row,) = json.loads(next(tmp_path.rglob("result.json")).read_text())["runs"]
    assert row["usage"]["memory"] > 1_000_000
    assert row["usage"]["files"] > 3
    assert row["usage"]["disk"] > 0
    lost = verdict(result, "lost")
    assert lost["checked"] == 1_000
    assert lost["violations"] <= most
    for name in ("never-acknowledged", "phantom", "order", "session-present", "packet-id"):
        assert (verdict(result, name)["violations"], verdict(result, name)["unknown"]) == (0, 0)
        assert verdict(result, name)["checked"]


def test_the_limit_of_a_queue_is_found(tmp_path: Path) -> None:
    code, result = run(tmp_path, "queue-limit", "--target", "mosquitto-defaults")
    lost = verdict(result, "lost")
    assert (code, lost["violations"], lost["checked"]) == (1, 1_000, 2_000)
    assert [each["f"] for each in lost["witness"]] == ["subscribe", "publish", "publish"]


def test_every_feature_is_judged_and_nothing_is_blamed(tmp_path: Path) -> None:
    code, result = run(tmp_path, "features", "--target", "mosquitto", "--seed", "28")
    assert (code, result["problems"]) == (0, [])
    tested = [row["name"] for row in result["verdicts"] if row["checked"]]
    assert {"lost", "order", "retained", "session-present", "share-group", "will"} <= set(tested)


def test_a_bit_of_its_file_that_changes_reaches_the_client_that_comes_back(tmp_path: Path) -> None:
    """Mosquitto does not check what it reads; it does not promise to, so nobody is blamed."""
    code, result = run(tmp_path, "damage-bit", "--target", "mosquitto", "--quick")
    assert (code, result["problems"]) == (0, [])
    damaged = verdict(result, "phantom")
    assert damaged["kinds"] == {"damaged": 1}
    assert verdict(result, "lost")["violations"] == 1


@pytest.mark.skipif(bool(missing([PACKETS])), reason=missing([PACKETS]) or "-")
def test_lost_packets_are_the_matter_of_tcp(tmp_path: Path) -> None:
    code, result = run(tmp_path, "1-loss-qos1", "--target", "mosquitto", "--quick")
    assert (code, result["problems"]) == (0, [])
    assert verdict(result, "lost")["checked"] == 400


@pytest.mark.skipif(bool(missing([DISK])), reason=missing([DISK]) or "-")
def test_power_loss_takes_what_was_acknowledged_and_not_synced(tmp_path: Path) -> None:
    """Sessions go back to where the file on the disk is: some come again, some never.

    It does not promise otherwise, so nobody is blamed.
    """
    code, result = run(tmp_path, "6-power-loss", "--target", "mosquitto", "--quick")
    assert (code, result["problems"]) == (0, [])
    found = [verdict(result, name)["violations"] for name in ("lost", "duplicate-qos2", "order")]
    assert any(found)
