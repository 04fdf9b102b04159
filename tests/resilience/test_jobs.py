"""Scenarios side by side: who shares a system, and what is left of a job that fails."""

from pathlib import Path

import pytest

from resilience import definition as definitions
from resilience import plan
from resilience.campaign import Settings, order_of
from resilience.jobs import Work, run_all, split
from resilience.machines.machine import CLOCK, missing


def work(folder: Path, *names: str) -> Work:
    return [(plan.load(name), Settings(folder / name, runs=1, seed=1)) for name in names]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_scenarios_that_share_a_system_are_in_one_job(tmp_path: Path, count: int) -> None:
    all_of_them = work(tmp_path, *plan.names())
    parts = split(all_of_them, count)
    assert len(parts) == count
    assert sorted(name.name for part in parts for name, _ in part) == plan.names()
    needs = [{str(order_of(scenario)) for scenario, _ in part} for part in parts]
    assert sum(map(len, needs)) == len(set().union(*needs))
    # The largest group has a job of its own.
    assert count == 1 or len(needs[0]) == 1


def test_a_part_that_would_be_empty_is_none(tmp_path: Path) -> None:
    assert len(split(work(tmp_path, "0", "2"), 2)) == 1
    assert split([], 2) == []


@pytest.mark.skipif(bool(missing([CLOCK])), reason=missing([CLOCK]) or "-")
def test_jobs_run_beside_each_other_and_their_results_are_kept(tmp_path: Path) -> None:
    """Neither starts: there is no such program; an old result is not taken for a new one."""
    listing = """
[target]
title = "nothing"
status = "works"

[parts.broker]
command = ["/bin/false"]
port = "{port:mqtt}"
"""
    (tmp_path / "nothing.toml").write_text(listing)
    definition = definitions.load(str(tmp_path / "nothing.toml"))
    some = work(tmp_path, "0", "5-clock")
    for _, settings in some:
        settings.folder.mkdir()
        (settings.folder / "result.json").write_text('"old"')
    results = run_all(definition, some, 2, print)
    assert [result["scenario"] for result in results] == ["0", "5-clock"]
    for result in results:
        assert "ended with code 1" in result["runs"][0]["problems"][0]
