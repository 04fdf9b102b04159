"""`bin/mqlake prove`: the whole set of kills, twice, each message looked at."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from mqlake.local.testing import PROGRAM
from mqlake.survival.kills import KILLS

pytestmark = [pytest.mark.system, pytest.mark.timeout(1_560)]

FIRST_SEED = 1
RUNS = 2


def test_nothing_acknowledged_is_lost_whatever_is_killed(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    result = subprocess.run(
        [
            str(PROGRAM),
            *("prove", "--json", "--data-dir", str(data_dir)),
            *("--times", str(RUNS), "--seed", str(FIRST_SEED)),
        ],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=1_500,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    outcomes = json.loads(result.stdout)
    assert {(one["kill"], one["qos"], one["seed"]) for one in outcomes} == {
        (kill, qos, seed)
        for kill in KILLS
        for qos in (1, 2)
        for seed in range(FIRST_SEED, FIRST_SEED + RUNS)
    }
    for one in outcomes:
        assert one["problems"] == []
        assert (one["sent"], one["acknowledged"], one["received"]) == (5_000, 5_000, 10_000)
        assert (one["lost"], one["out_of_order"]) == (0, 0)
        # Spark's death alone makes nobody send anything again.
        may_repeat = one["qos"] == 1 and one["kill"] != "spark"
        assert one["duplicates"] <= (10 if may_repeat else 0)
