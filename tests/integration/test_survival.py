"""`bin/mqlake prove`: every kind of kill, twice, and not a message is missing."""

import subprocess
from pathlib import Path

import pytest

from mqlake.local.testing import PROGRAM

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def test_killing_processes_costs_time_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    command = [str(PROGRAM), "prove", "--times", "2", "--data-dir", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=590, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()[1:]
    assert len(lines) == 2 * 5 * 2  # times, kills, QoS
    assert all(line.split()[-1] == "ok" for line in lines)
