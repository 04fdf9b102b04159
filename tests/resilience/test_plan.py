"""Scenarios and targets as TOML: those that come with the tool, and mistakes in one's own."""

import random
import tomllib
from pathlib import Path

import pytest

from resilience import definition as definitions
from resilience import plan
from resilience.campaign import WORKLOADS
from resilience.errors import ResilienceError, ScenarioError
from resilience.faults import FAULTS
from resilience.plan import Strike, fit, load, parse


@pytest.mark.parametrize("name", plan.names())
def test_a_scenario_of_the_tool_is_complete(name: str) -> None:
    scenario = load(name)
    assert scenario.title
    generated = scenario.generate and WORKLOADS[scenario.generate](random.Random(1), ("@1",), {})
    clients = {client.name for client in (generated or scenario.plan).clients}
    assert clients
    assert {strike.fault for strike in scenario.plan.strikes} <= set(FAULTS)
    for client in (generated or scenario.plan).clients:
        for step in client.steps:
            assert step.args.get("client", client.name) in clients
    for strike in scenario.plan.strikes:
        code = FAULTS[strike.fault].strike.__code__
        assert set(strike.args) <= set(code.co_varnames[: 2 + code.co_kwonlyargcount])
        assert strike.client in clients
    if scenario.random_faults is not None:
        assert set(scenario.random_faults.names) <= set(FAULTS)


@pytest.mark.parametrize("name", definitions.names())
def test_a_target_of_the_tool_says_what_it_promises(name: str) -> None:
    definition = definitions.load(name)
    assert definition.promises["durability"]
    assert any(part.port for part in definition.parts.values())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"client": [{"name": "a", "step": [{"do": "fly"}]}]}, "no step 'fly'"),
        ({"client": [{"name": "a", "step": [{"do": "abort", "x": 1}]}]}, "abort has no x"),
        ({"clients": []}, "clients not known"),
    ],
)
def test_a_mistake_in_a_scenario_is_named(data: dict[str, object], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        parse({"scenario": {"title": "x"}, **data}, "mine")


def test_mistakes_in_files_are_errors_of_the_tool(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[scenario]\ntitle = "x"\nspeed = 3\n')
    with pytest.raises(ScenarioError, match="speed"):
        load(str(path))
    path.write_text('[target]\nnote = "x"\n')
    with pytest.raises(ScenarioError, match="title"):
        definitions.load(str(path))
    for name in ("nowhere", str(tmp_path / "nowhere.toml")):
        with pytest.raises(ResilienceError, match="there are"):
            load(name)
        with pytest.raises(ResilienceError, match="there are"):
            definitions.load(name)


def test_a_quick_run_has_fewer_messages_and_the_same_moments() -> None:
    scaled = load("2").plan.scaled(0.1)
    publisher = next(client for client in scaled.clients if client.name == "publisher")
    assert [step.args["count"] for step in publisher.steps if step.do == "publish"] == [500]
    assert scaled.strikes[0].count == 250


def test_a_quick_run_has_shorter_faults_and_a_shorter_quiet_and_waits_for_what_is_missing() -> None:
    text = """
[scenario]
title = "x"

[plan]
quiet_seconds = 3.0
late_seconds = 10.0

[[fault]]
name = "pause"
part = "@1"
client = "a"
count = 10
seconds = 20.0
quick = { seconds = 2.0 }
"""
    whole = plan.parse(tomllib.loads(text), "x").plan
    quick = whole.hurried(0.5)
    assert whole.strikes[0].args == {"seconds": 20.0}
    assert (quick.strikes[0].args, quick.strikes[0].count) == ({"seconds": 2.0}, 5)
    assert quick.quiet_seconds == plan.QUICK_QUIET_SECONDS
    assert quick.quiet_seconds + quick.late_seconds == 13.0


def test_a_quick_run_waits_as_long_as_ever_for_what_nobody_acknowledges() -> None:
    """Packets of QoS 0 that were lost come seconds later: 6 of 400 counted as delivered."""
    plans = [load(f"1-loss-qos{qos}").plan for qos in (0, 1)]
    assert [each.quiet_seconds for each in plans] == [5.0, 5.0]
    assert [each.hurried(0.2).quiet_seconds for each in plans] == [5.0, 1.0]


def test_numbered_nodes_get_the_names_of_the_target() -> None:
    parts = ("@1", "@3", "log", "@store")
    made = plan.RunPlan((), tuple(Strike("kill", part) for part in parts))
    struck = [strike.part for strike in fit(made, ("a", "b"), "disk").strikes]
    assert struck == ["a", "a", "log", "disk"]
