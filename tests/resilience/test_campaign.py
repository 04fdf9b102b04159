"""What a campaign keeps of a failure can be run again."""

import tomllib
from dataclasses import replace

import pytest

from resilience import definition as definitions
from resilience.campaign import is_promised, make_plan, needed, obstacle, to_toml
from resilience.plan import Scenario, Strike, load, parse

NODES = ("broker",)
MOSQUITTO = definitions.load("mosquitto")


def of_seed(scenario: Scenario, seed: int) -> tuple[object, tuple[Strike, ...]]:
    plan = make_plan(scenario, MOSQUITTO, NODES, seed, 1.0)
    return plan.clients, plan.strikes


@pytest.mark.parametrize("workload_seed", [None, 3])
def test_a_shrunk_schedule_is_a_scenario_with_the_same_clients(workload_seed: int | None) -> None:
    scenario = replace(load("random-faults"), workload_seed=workload_seed)
    clients, strikes = of_seed(scenario, 7)
    kept = parse(tomllib.loads(to_toml(scenario, 7, strikes[:2], ["lost"])), "shrunk")
    # Whatever seed it is run with.
    assert of_seed(kept, 99) == (clients, strikes[:2])
    assert kept.plan.quiet_seconds == scenario.plan.quiet_seconds


def test_a_seed_draws_one_run() -> None:
    scenario = load("random-faults")
    assert of_seed(scenario, 1) == of_seed(scenario, 1)
    assert of_seed(scenario, 1) != of_seed(scenario, 2)


def test_groups_that_a_target_cannot_be_put_to_are_left_out() -> None:
    names = {
        client.name
        for seed in range(20)
        for client in make_plan(load("features"), MOSQUITTO, NODES, seed, 1.0).clients
    }
    assert {"flow-stays", "worker-0"} <= names
    assert not {"red-sub", "admin", "route-sub-0"} & names


def test_what_a_target_does_not_speak_of_is_promised_by_mqtt() -> None:
    assert is_promised({}, "no_loss")
    assert is_promised({"no_loss": "some words"}, "no_loss")
    assert not is_promised({"no_loss": False}, "no_loss")


def test_a_scenario_that_needs_more_does_not_apply() -> None:
    scenario = replace(load("2"), needs=("cluster",))
    assert obstacle(scenario, MOSQUITTO) == "needs cluster, not promised"
    assert not obstacle(scenario, definitions.load("mqlake-3"))


def test_faults_say_what_they_need_of_a_machine() -> None:
    assert needed(["kill", "reset", "loss", "power-loss"]) == {"proxy", "packets", "disk"}


def test_a_scenario_that_a_machine_cannot_give_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilience.machines.switch.missing", lambda: "no network")
    assert obstacle(load("1-loss-qos1"), MOSQUITTO) == "no network"
    assert not obstacle(load("2"), MOSQUITTO)
