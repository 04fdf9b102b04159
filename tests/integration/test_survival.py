"""`bin/mqlake prove`: parts of a system are killed, and not a message is missing."""

import subprocess
from pathlib import Path

import pytest

from mqlake.local.testing import PROGRAM

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

KILLS = ("gateway", "spark")
SEED = 2


def test_killing_processes_costs_time_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    only = [argument for kill in KILLS for argument in ("--only", kill)]
    command = [str(PROGRAM), "prove", *only, "--seed", str(SEED), "--data-dir", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=390, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()[1:]
    assert len(lines) == len(KILLS) * 2  # each for QoS 1 and 2
    assert all(line.split()[-1] == "ok" for line in lines)
