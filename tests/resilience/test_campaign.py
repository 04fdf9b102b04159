"""What a campaign keeps of a failure can be run again."""

import json
import shutil
import tomllib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from resilience import definition as definitions
from resilience.campaign import (
    Stage,
    is_promised,
    make_plan,
    needed,
    obstacle,
    promises_in,
    to_toml,
)
from resilience.checkers import check_file
from resilience.command import main
from resilience.machines.machine import DISK, missing
from resilience.plan import Scenario, Strike, apart, load, parse

pytestmark = pytest.mark.programs

NODES = ("broker",)
MOSQUITTO = definitions.load("mosquitto")


def of_seed(scenario: Scenario, seed: int) -> tuple[object, tuple[Strike, ...]]:
    plan = make_plan(scenario, MOSQUITTO, NODES, seed)
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
        for client in make_plan(load("features"), MOSQUITTO, NODES, seed).clients
    }
    assert {"flow-stays", "worker-0"} <= names
    assert not {"red-sub", "admin", "route-sub-0"} & names


def test_what_a_target_does_not_speak_of_is_promised_by_mqtt() -> None:
    assert is_promised({}, "no_loss")
    assert is_promised({"no_loss": "some words"}, "no_loss")
    assert not is_promised({"no_loss": False}, "no_loss")


def test_a_power_loss_may_take_what_a_target_does_not_promise_to_keep() -> None:
    promises = {"survives_power_loss": False}
    assert not is_promised(promises_in(promises, ["kill", "power-loss"]), "no_loss")
    assert is_promised(promises_in(promises, ["power-loss"]), "no_phantoms")
    assert is_promised(promises_in(promises, ["kill"]), "no_loss")
    assert is_promised(promises_in({}, ["power-loss"]), "no_loss")


def test_damage_may_take_what_a_target_does_not_promise_to_keep() -> None:
    promises = {"survives_damage": False}
    assert not is_promised(promises_in(promises, ["bit-flip"]), "no_phantoms")
    assert not is_promised(promises_in(promises, ["truncate"]), "no_loss")
    assert is_promised(promises_in(promises, ["power-loss", "kill"]), "no_phantoms")
    assert is_promised(promises_in({}, ["bit-flip"]), "no_phantoms")


def test_files_are_struck_where_a_target_says_that_they_are() -> None:
    scenario = load("damage-bit")
    (strike,) = make_plan(scenario, MOSQUITTO, NODES, 1).strikes
    assert strike.part == "broker"
    nowhere = replace(MOSQUITTO, parts={"broker": definitions.TargetPart(port="1")})
    assert "does not say where they are" in obstacle(scenario, nowhere)


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


SYSTEM = """
[target]
title = "Mosquitto, started as a system"

[system]
start = ["/bin/sh", "-c", "/usr/sbin/mosquitto -d -c {dir}/mosquitto.conf && echo x >> DIR/started"]
stop = ["/bin/sh", "-c", "kill $(cat {dir}/pid) && echo x >> DIR/stopped"]
pids = ["/bin/sh", "-c", "echo '{\\"processes\\": []}'"]

[parts.broker]
process = "broker"
port = "{port:mqtt}"

[files]
"mosquitto.conf" = \"\"\"
listener {port:mqtt} 127.0.0.1
user {user}
allow_anonymous true
pid_file {dir}/pid
max_queued_messages 0
\"\"\"
"""


@pytest.mark.skipif(
    shutil.which("mosquitto", path="/usr/sbin:/usr/bin") is None, reason="no mosquitto here"
)
@pytest.mark.parametrize("needs", [(), (DISK,)])
def test_runs_on_one_system_find_nothing_of_each_other(
    tmp_path: Path, needs: tuple[str, ...]
) -> None:
    if missing(needs):
        pytest.skip(missing(needs))
    listing = SYSTEM.replace("DIR", str(tmp_path))
    (tmp_path / "system.toml").write_text(listing)
    definition = definitions.load(str(tmp_path / "system.toml"))
    plan = load("2").plan.scaled(0.01)
    calm = replace(plan, strikes=(), quiet_seconds=0.5)
    with closing(Stage(definition, needs)) as stage:
        for number, strikes in enumerate(((), (), (Strike("reset", "broker", at=0.1),))):
            path = tmp_path / f"{number}.jsonl"
            run = replace(calm, strikes=strikes)
            assert stage.run(run, {"promises": {}}, path, number, "raw") == []
            judgement = check_file(path)
            assert judgement.violated == []
            assert judgement["lost"].checked == 100
            assert stage.target is not None
            assert stage.target.machine("broker").has_disk == (DISK in needs)
    # Messages that were kept for a client of one run are none of the next one's.
    assert (tmp_path / "started").read_text() == "x\n"
    assert (tmp_path / "stopped").read_text() == "x\n"


@pytest.mark.skipif(
    shutil.which("mosquitto", path="/usr/sbin:/usr/bin") is None, reason="no mosquitto here"
)
def test_a_system_that_a_run_has_spoiled_is_used_by_no_other(tmp_path: Path) -> None:
    listing = SYSTEM.replace("DIR", str(tmp_path)).replace(
        "[parts.broker]", '[parts.broker]\nsegments = "{dir}/log/*"'
    )
    (tmp_path / "system.toml").write_text(listing)
    definition = definitions.load(str(tmp_path / "system.toml"))
    plan = replace(load("2").plan.scaled(0.01), strikes=(), quiet_seconds=0.5)
    with closing(Stage(definition)) as stage:
        assert stage.run(plan, {"promises": {}}, tmp_path / "0.jsonl", 1, "raw") == []
        assert stage.target is not None
        log = stage.target.folder / "log"
        log.mkdir()
        for name in ("1", "2"):
            (log / name).write_bytes(b"x")
        run = replace(plan, strikes=(Strike("bit-flip", "broker"),))
        assert stage.run(run, {"promises": {}}, tmp_path / "1.jsonl", 1, "raw") == []
        assert stage.target is None


CALM = """
[scenario]
title = "nothing fails"

[plan]
quiet_seconds = 0.5

[[client]]
name = "pub"
step = [{ do = "connect" }, { do = "publish", topic = "t", qos = 1, count = 5 }]
"""


@pytest.mark.skipif(
    shutil.which("mosquitto", path="/usr/sbin:/usr/bin") is None, reason="no mosquitto here"
)
@pytest.mark.parametrize(
    ("audit", "holds", "text"),
    [
        ("echo audited", True, "audited\n"),
        ("echo audited; false", False, "audited\n"),
        ("echo no answer >&2; exit 2", False, "no answer\n"),
    ],
)
def test_a_soak_ends_with_the_target_s_own_audit(
    tmp_path: Path, audit: str, *, holds: bool, text: str
) -> None:
    command = f'audit = ["/bin/sh", "-c", "{audit}"]\n\n[parts.broker]'
    listing = SYSTEM.replace("DIR", str(tmp_path)).replace("[parts.broker]", command)
    (tmp_path / "system.toml").write_text(listing)
    (tmp_path / "calm.toml").write_text(CALM)
    words = ["run", str(tmp_path / "calm.toml"), "--target", str(tmp_path / "system.toml")]
    words += ["--out", str(tmp_path)]
    assert main([*words, "--minutes", "0.0001"]) == (0 if holds else 1)
    (result,) = json.loads((tmp_path / "report.json").read_text())["results"]
    assert result["audit"]["holds"] is holds
    assert result["audit"]["text"].endswith(text)
    word = "holds" if holds else "broken"
    assert f"at the end: {word}" in (tmp_path / "report.html").read_text()


def test_a_target_that_does_not_start_is_told_of_and_the_next_one_is_run(tmp_path: Path) -> None:
    (tmp_path / "calm.toml").write_text(CALM)
    for name in ("first", "second"):
        (tmp_path / f"{name}.toml").write_text(
            SYSTEM.replace("DIR", str(tmp_path)).replace(
                "/usr/sbin/mosquitto -d", "echo sorry >&2; false"
            )
        )
    targets = [
        word
        for name in ("first", "second")
        for word in ("--target", str(tmp_path / f"{name}.toml"))
    ]
    words = ["run", str(tmp_path / "calm.toml"), *targets, "--out", str(tmp_path)]
    assert main(words) == 1
    results = json.loads((tmp_path / "report.json").read_text())["results"]
    assert [result["target"] for result in results] == ["first", "second"]
    for result in results:
        (problem,) = result["problems"]
        assert problem.startswith("not started: ")
        assert "sorry" in problem
        assert not any(row["checked"] for row in result["verdicts"])


def test_a_plan_of_its_own_has_other_clients_and_topics() -> None:
    data = {
        "scenario": {"title": "x"},
        "client": [
            {
                "name": "a",
                "will": {"topic": "w"},
                "step": [
                    {"do": "subscribe", "filter": "$share/g/t/#", "qos": 1},
                    {"do": "publish", "topic": "t/1", "count": 5},
                ],
            }
        ],
    }
    plan = apart(parse(data, "mine").plan, "run-2")
    (client,) = plan.clients
    assert (client.name, client.client_id) == ("a", "run-2-a")
    assert client.will is not None
    assert client.will.topic == "run-2/w"
    assert client.steps[0].args == {"filter": "$share/g/run-2/t/#", "qos": 1}
    assert client.steps[1].args == {"topic": "run-2/t/1", "count": 5}
