"""Scenarios side by side: who shares a system, and what is left of a job that fails."""

import multiprocessing
from pathlib import Path

import pytest

from resilience import definition as definitions
from resilience import plan
from resilience.campaign import CampaignSettings, order_of
from resilience.jobs import Work, _work, run_all, split
from resilience.machines.machine import CLOCK, missing


def work(folder: Path, *names: str) -> Work:
    return [(plan.load(name), CampaignSettings(folder / name, runs=1, seed=1)) for name in names]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_scenarios_that_share_a_system_are_in_one_job(tmp_path: Path, count: int) -> None:
    parts, free = split(work(tmp_path, *plan.names()), count)
    assert len(parts) == count
    bound = [scenario for part in parts for scenario, _ in part]
    assert sorted([one.name for one in bound] + [one.name for one, _ in free]) == plan.names()
    assert all(order_of(scenario) for scenario in bound)
    assert not any(order_of(scenario) for scenario, _ in free)
    needs = [{str(order_of(scenario)) for scenario, _ in part} for part in parts]
    assert sum(map(len, needs)) == len(set().union(*needs))
    # The largest group has a job of its own.
    assert count == 1 or len(needs[0]) == 1


def test_there_are_no_more_jobs_than_kinds_of_systems(tmp_path: Path) -> None:
    parts, free = split(work(tmp_path, "0", "2"), 2)
    assert (len(parts), len(free)) == (1, 2)
    parts, free = split(work(tmp_path, "0", "2", "1-loss-qos1"), 3)
    assert ([len(part) for part in parts], len(free)) == ([1, 0], 2)
    assert split([], 2) == ([], [])


def test_any_job_takes_what_any_system_can_do(tmp_path: Path) -> None:
    some = work(tmp_path, "0", "2", "kills", "1-loss-qos1")
    (first, second), free = split(some, 2)
    assert [scenario.name for scenario, _ in free] == ["kills", "2", "0"]
    taken = multiprocessing.get_context("spawn").Value("i", 0)
    one, other = _work(first, free, taken), _work(second, free, taken)
    assert next(other)[0].name == "kills"
    assert [scenario.name for scenario, _ in one] == ["1-loss-qos1", "2", "0"]
    assert list(other) == []


@pytest.mark.skipif(bool(missing([CLOCK])), reason=missing([CLOCK]) or "-")
def test_jobs_run_beside_each_other_and_their_results_are_kept(tmp_path: Path) -> None:
    """Neither starts: there is no such program; an old result is not taken for a new one."""
    listing = """
[target]
title = "nothing"

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
