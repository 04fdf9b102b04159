from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.log.room import LogRoomFinding
from launcher.metrics import SupervisorMetrics, metrics_url, state_of
from mqlake.metrics.families import Families
from mqlake.metrics.names import SUPERVISOR
from mqlake.processes.heart import ProcessState
from tests.mqlake.test_status import make_state


def state_with(room: LogRoomFinding | None) -> Any:
    state = make_state()
    figures = {} if room is None else {"room": room.figures}
    processes = tuple(
        replace(one, figures=figures) if one.name == "log" else one for one in state.processes
    )
    return replace(state, processes=processes)


def read(state: Any, folder: Path) -> dict[str, float]:
    families = Families()
    SupervisorMetrics(lambda: state, folder).read(families)
    return {one.name: one.samples[0].value for one in families}


def test_a_log_that_does_not_grow_lasts_for_ever(tmp_path: Path) -> None:
    found = read(state_with(LogRoomFinding(5, 7, -1.0)), tmp_path)
    assert found["mqlake_log_lasts_seconds"] == float("inf")
    found = read(state_with(LogRoomFinding(5, 7, 2.0)), tmp_path)
    assert found["mqlake_log_lasts_seconds"] == 3.5
    assert (found["mqlake_log_taken_bytes"], found["mqlake_log_room_bytes"]) == (5, 7)
    assert found["mqlake_log_full"] == 0
    found = read(state_with(LogRoomFinding(5, 0, 2.0, "0 MiB free")), tmp_path)
    assert found["mqlake_log_full"] == 1


@pytest.mark.parametrize("room", [None, LogRoomFinding(5, 7)])
def test_what_is_not_known_of_the_log_is_left_out(
    tmp_path: Path, room: LogRoomFinding | None
) -> None:
    found = read(state_with(room), tmp_path)
    assert "mqlake_log_lasts_seconds" not in found
    assert ("mqlake_log_taken_bytes" in found) == (room is not None)


def test_every_process_tells_all_that_is_in_the_table(tmp_path: Path) -> None:
    state = state_with(LogRoomFinding(5, 7, 2.0))
    shown = SupervisorMetrics(lambda: state, tmp_path)
    families = Families()
    shown.read(families)
    found = list(families)
    assert {one.name for one in found} == {one.name.removesuffix("_total") for one in SUPERVISOR}
    up = next(one for one in found if one.name == "mqlake_process_up")
    assert {one.labels["process"]: one.value for one in up.samples} == {"log": 1, "api": 0}


def test_a_system_is_healthy_when_all_of_it_is() -> None:
    state = make_state()
    assert state_of(state) == ProcessState(healthy=True, detail="running")
    stopping = replace(state, phase="stopping")
    assert state_of(stopping) == ProcessState(healthy=False, detail="stopping")


def test_what_listens_everywhere_is_reached_here() -> None:
    assert metrics_url("0.0.0.0", 9_100) == "http://127.0.0.1:9100/metrics"
