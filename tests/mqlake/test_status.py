import os
from dataclasses import replace
from pathlib import Path

import pytest

from mqlake.errors import OperationalError
from mqlake.processes.status import (
    STALE_SECONDS,
    STATE_FILE,
    GatewayAddress,
    ProcessReport,
    SystemState,
    boot_id,
    load_state,
    read_state,
    replace_file,
    report,
    start_ticks,
    url_host,
)


def make_state() -> SystemState:
    """Return the state of a system whose supervisor is this very process."""
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    return SystemState(
        pid=os.getpid(),
        start_ticks=ticks,
        boot_id=boot_id(),
        started_at=1000.0,
        written_at=1010.0,
        phase="running",
        bootstrap_servers="127.0.0.1:9092",
        controller_port=9093,
        api_url="http://127.0.0.1:8080",
        connect_port=15002,
        gateways=(
            GatewayAddress("gateway-1", "0.0.0.0", 1883, ("ws://127.0.0.1:8083/mqtt",)),
            GatewayAddress("gateway-2", "0.0.0.0", 1884),
        ),
        processes=(
            ProcessReport("log", os.getpid(), healthy=True, detail="serving", start_ticks=ticks),
            ProcessReport("api", None, healthy=True, detail="", last_exit="exit code 1"),
        ),
    )


def test_state_survives_being_written_and_read(tmp_path: Path) -> None:
    state = make_state()
    replace_file(tmp_path / STATE_FILE, state.to_json())
    assert read_state(tmp_path) == state
    assert [entry.name for entry in tmp_path.iterdir()] == [STATE_FILE]


def test_nothing_runs_where_nothing_was_written(tmp_path: Path) -> None:
    assert load_state(tmp_path) is None
    with pytest.raises(OperationalError, match=r"^no system runs on .* with: bin/mqlake up --data"):
        read_state(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"boot_id": "another boot"},
        {"start_ticks": 1},
        {"pid": 2**22 + 1},
    ],
)
def test_state_of_a_supervisor_that_has_gone_counts_as_none(
    tmp_path: Path, change: dict[str, object]
) -> None:
    state = replace(make_state(), **change)  # type: ignore[arg-type]
    replace_file(tmp_path / STATE_FILE, state.to_json())
    assert load_state(tmp_path) == state
    with pytest.raises(OperationalError, match="no system runs"):
        read_state(tmp_path)


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"version": 99}', '{"version": 1, "gateways": 3}']
)
def test_damaged_state_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / STATE_FILE).write_text(text)
    with pytest.raises(OperationalError, match=r"is damaged .* delete that file and start again"):
        load_state(tmp_path)


def test_a_state_that_a_power_failure_left_empty_is_none(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).touch()
    assert load_state(tmp_path) is None


def test_report_is_healthy_when_every_process_is() -> None:
    system = report(make_state(), now=1011.0)
    assert system["healthy"]
    assert system["mqtt"] == ["mqtt://127.0.0.1:1883", "mqtt://127.0.0.1:1884"]
    assert system["listeners"] == {
        "gateway-1": ["mqtt://127.0.0.1:1883", "ws://127.0.0.1:8083/mqtt"],
        "gateway-2": ["mqtt://127.0.0.1:1884"],
    }
    assert [process["name"] for process in system["processes"]] == ["log", "api"]


def test_report_is_not_healthy_when_one_process_is_not() -> None:
    state = make_state()
    sick = replace(state.processes[0], healthy=False)
    assert not report(replace(state, processes=(sick,)), now=1011.0)["healthy"]


@pytest.mark.parametrize("change", [{"pid": 2**22 + 1}, {"start_ticks": 1}])
def test_report_is_not_healthy_when_a_process_has_ended_that_the_state_shows(
    change: dict[str, int],
) -> None:
    state = make_state()
    ended = replace(state.processes[0], **change)  # type: ignore[arg-type]
    system = report(replace(state, processes=(ended,)), now=1011.0)
    assert not system["healthy"]
    assert system["processes"][0]["detail"] == "has just ended"


@pytest.mark.parametrize("phase", ["starting", "stopping"])
def test_report_is_healthy_only_while_the_system_runs(phase: str) -> None:
    assert not report(replace(make_state(), phase=phase), now=1011.0)["healthy"]


def test_report_of_a_silent_supervisor_is_not_healthy() -> None:
    system = report(make_state(), now=1010.0 + STALE_SECONDS + 1)
    assert not system["healthy"]
    assert "has written nothing for 21 s" in system["processes"][0]["detail"]


@pytest.mark.parametrize(
    ("host", "shown"),
    [("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("::1", "[::1]"), ("10.0.0.7", "10.0.0.7")],
)
def test_address_is_shown_as_one_can_connect_to_it(host: str, shown: str) -> None:
    assert url_host(host) == shown


def test_start_of_a_process_that_does_not_run_is_none() -> None:
    assert start_ticks(2**22 + 1) is None
