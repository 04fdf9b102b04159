"""`bin/mqlake prove`: a part of its usual set, each message and each will looked at."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from mqlake.local.testing import PROGRAM
from mqlake.survival.faults import FAULTS, USUAL

pytestmark = [pytest.mark.system, pytest.mark.timeout(1_860)]

FIRST_SEED = 1
RUNS = 1
SAMPLED = tuple(fault for fault in USUAL if fault in {"takeover", "all"})
"""Those that kill most. The command has the rest of the usual set. In the suite, simulations pause
gateways; tests on the log in memory double their names and fill the disks of their stores; brokers
are killed in `test_resilience.py`."""


def test_nothing_that_was_promised_is_lost_whatever_happens(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    result = subprocess.run(
        [
            str(PROGRAM),
            *("prove", "--json", "--data-dir", str(data_dir)),
            *("--times", str(RUNS), "--seed", str(FIRST_SEED)),
            *(word for fault in SAMPLED for word in ("--only", fault)),
        ],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=1_800,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    outcomes = json.loads(result.stdout)
    assert {(one["fault"], one["flow"], one["seed"]) for one in outcomes} == {
        (fault, flow, seed)
        for fault in SAMPLED
        for flow in ("qos 1", "qos 2", "shared", "retained", "wills")
        for seed in range(FIRST_SEED, FIRST_SEED + RUNS)
    }
    for one in outcomes:
        assert one["problems"] == []
        fault = FAULTS[one["fault"]]
        if one["flow"] == "wills":
            assert (one["clients"], one["missing"], one["twice"]) == (20, 0, 0)
            # Half of the clients are at the gateway, and half of these stay away for long.
            strikes_one = one["fault"] == "takeover"
            broken, due = (10, 5) if strikes_one else (0, 0)
            assert one["due"] >= due
            assert one["broken"] >= broken
            assert one["wills"] == 0 or not fault.is_quiet
            continue
        if one["flow"] == "retained":
            assert (one["missing"], one["back_in_time"]) == (0, 0)
            assert one["looks"] > one["last"] >= 1
            continue
        if one["flow"] == "shared":
            assert one["sent"] == one["acknowledged"] == one["received"] >= 1_000
            assert (one["lost"], one["duplicates"]) == (0, 0)
            continue
        assert (one["sent"], one["acknowledged"], one["received"]) == (5_000, 5_000, 10_000)
        assert (one["lost"], one["out_of_order"]) == (0, 0)
        # Spark's death alone makes nobody send anything again, and so does what nobody notices.
        may_repeat = one["flow"] == "qos 1" and one["fault"] != "spark" and not fault.is_quiet
        assert one["duplicates"] <= (10 if may_repeat else 0)
