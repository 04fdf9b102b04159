"""The proof of the checkers; the full number of runs is `bin/mqlake resilience prove`."""

import pytest

from resilience.checkers import CHECKERS, check
from resilience.double.defects import DEFECTS
from resilience.double.proof import (
    COMBINATIONS,
    false_alarms,
    history,
    in_scenario,
    judge,
    seeds_until_found,
)


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found(defect: str) -> None:
    assert seeds_until_found([defect], range(60))[1] == []


@pytest.mark.parametrize("defects", COMBINATIONS)
def test_defects_do_not_hide_each_other(defects: tuple[str, ...]) -> None:
    assert seeds_until_found(defects, range(100, 200))[1] == []


def test_every_checker_has_a_defect_that_it_finds() -> None:
    assert {checker.name for checker in CHECKERS} == {
        defect.found_by[0] for defect in DEFECTS.values()
    }
    assert len(DEFECTS) >= 20


def test_a_correct_broker_is_not_blamed() -> None:
    assert false_alarms(range(60)) == {}


def test_one_seed_makes_one_history() -> None:
    assert history(5, ["drop"]).operations == history(5, ["drop"]).operations
    assert history(5).operations != history(6).operations


def test_a_clean_run_decides_what_the_checkers_ask() -> None:
    judgements = [judge(seed) for seed in range(12)]
    for checker in CHECKERS:
        if checker.name not in ("two-holders", "expired"):
            assert sum(judgement[checker.name].checked for judgement in judgements) > 0


def test_plans_of_the_double_come_to_their_end() -> None:
    assert [history(seed).header["problems"] for seed in range(20)] == [[]] * 20


@pytest.mark.parametrize("name", sorted({one.scenario for one in DEFECTS.values()} - {""}))
def test_a_correct_broker_is_not_blamed_in_a_scenario(name: str) -> None:
    for seed in range(4):
        recorder = history(seed, **in_scenario(name))
        assert recorder.header["problems"] == []
        assert check(recorder.header, recorder.operations).violated == []
