from collections import Counter

from tests.gate.campaign import costs_now
from tests.gate.classes import ROOT
from tests.gate.full_run import FullRun, file_of, is_of_the_campaign
from tests.gate.plan import BUDGET, SLICES, STATIC, left_out_of, slices

CORE = {"tests/a.py": 50.0, "tests/b.py": 30.0}
CAMPAIGN = {f"tests/c{number}.py::test_it": float(number) for number in range(1, 41)}
COSTS = CORE | CAMPAIGN
ROOM = 80 + sum(CAMPAIGN.values()) / 4


def test_all_runs_within_eight_changes() -> None:
    for first in range(SLICES):
        turns = range(first, first + SLICES)
        never = set.intersection(*(set(left_out_of(COSTS, ROOM, turn)) for turn in turns))
        assert not never


def test_what_runs_keeps_within_the_budget_and_uses_it() -> None:
    for turn in range(SLICES):
        runs = set(COSTS) - set(left_out_of(COSTS, ROOM, turn))
        assert ROOM - 10 < sum(COSTS[name] for name in runs) <= ROOM


def test_a_slow_machine_runs_the_core_alone() -> None:
    assert left_out_of(COSTS, 60, 3) == sorted(CAMPAIGN)


def test_with_room_for_all_nothing_is_left_out() -> None:
    assert left_out_of(COSTS, sum(COSTS.values()), 5) == []


def test_slices_are_of_about_the_same_cost() -> None:
    made = slices(CAMPAIGN)
    flat = [[name for tests in one for name in tests] for one in made]
    sums = [sum(CAMPAIGN[name] for name in one) for one in flat]
    assert len(made) == SLICES
    assert sorted(name for one in flat for name in one) == sorted(CAMPAIGN)
    assert max(sums) - min(sums) <= max(CAMPAIGN.values())


def test_tests_of_a_file_run_in_the_same_turn() -> None:
    """What they share is started once."""
    costs = {f"tests/d{file}.py::test_{number}": 1.0 for file in range(9) for number in range(5)}
    for turn in range(SLICES):
        left_out = left_out_of(costs, 12, turn)
        counts = Counter(file_of(name) for name in costs if name not in left_out)
        assert set(counts.values()) == {5}


def test_the_gate_has_room_for_its_core_and_any_slice() -> None:
    """Else a part of the campaign would never run but in full runs."""
    costs = costs_now(FullRun.read().costs)
    campaign = {name: cost for name, cost in costs.items() if is_of_the_campaign(name)}
    core = sum(costs.values()) - sum(campaign.values())
    dearest = max(
        sum(campaign[name] for tests in one for name in tests) for one in slices(campaign)
    )
    by_cost = sorted(
        (name for name in costs if name not in campaign), key=lambda name: -costs[name]
    )
    assert core + STATIC + dearest <= BUDGET, (
        f"the core costs {core:.0f} and a slice of the campaign {dearest:.0f} processor seconds, "
        f"more than {BUDGET:.0f}; the dearest of the core: {', '.join(by_cost[:10])}"
    )


def test_each_cost_is_that_of_a_file_that_is_there() -> None:
    assert not [name for name in FullRun.read().costs if not (ROOT / file_of(name)).is_file()]
