"""The supervisor over real, tiny processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqlake.local.testing import await_condition
from mqlake.status import ProcessReport, load_state, start_ticks

TOY_SYSTEM = Path(__file__).parent / "toy_system.py"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(timeout: str = "20", **sources: str) -> "subprocess.Popen[str]":
        parts = {name.replace("_", "-"): source for name, source in sources.items()}
        process = subprocess.Popen(
            [sys.executable, "-P", str(TOY_SYSTEM), str(tmp_path), json.dumps(parts)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "READY_TIMEOUT": timeout},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def await_ready(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready now\n"


def pids(folder: Path, name: str) -> list[int]:
    path = folder / f"{name}.pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def reported(folder: Path, name: str) -> ProcessReport:
    state = load_state(folder)
    assert state is not None
    return next(process for process in state.processes if process.name == name)


def test_parts_stop_in_order_and_none_is_left(start: Start, tmp_path: Path) -> None:
    names = ("log", "streaming", "rules", "api", "gateway-1", "gateway-2", "haproxy")
    process = start(**{name.replace("-", "_"): "serve()" for name in names})
    await_ready(process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    stops = (tmp_path / "stops").read_text().split()
    assert stops[0] == "api"
    assert set(stops[1:4]) == {"gateway-1", "gateway-2", "rules"}, "side by side"
    assert stops[4:] == ["haproxy", "streaming", "log"]
    assert all(start_ticks(pid) is None for name in names for pid in pids(tmp_path, name))


def test_gateways_start_after_the_log_topics_are_made(start: Start, tmp_path: Path) -> None:
    wait = "while not os.path.exists('log.well'): time.sleep(0.01)\npathlib.Path('made').touch()"
    gateway = "assert os.path.exists('made')\nserve()"
    await_ready(start(topics=wait, log="serve()", gateway_1=gateway))
    assert reported(tmp_path, "gateway-1").restarts == 0


def test_failure_to_make_the_log_topics_fails_the_start(start: Start, tmp_path: Path) -> None:
    process = start(topics="sys.exit('no room')", log="serve()")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "failed: the log topics could not be made, exit code 1: no room: see" in errors
    assert all(start_ticks(pid) is None for pid in pids(tmp_path, "log"))


def test_part_that_does_not_start_fails_the_start_with_its_last_words(start: Start) -> None:
    process = start(log="serve()", api="sys.exit('mqlake: setting port: too small')")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "failed: api does not start, exit code 1: mqlake: setting port: too small; see" in errors


def test_part_that_never_gets_well_fails_the_start(start: Start) -> None:
    process = start(timeout="0.3", log="serve()", api="signal.pause()")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "failed: not ready after 0 s, api: not well yet; see" in errors


def test_signal_before_it_is_ready_stops_the_start(start: Start, tmp_path: Path) -> None:
    process = start(log="signal.pause()")
    await_condition(lambda: bool(pids(tmp_path, "log")), "the log has started")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert start_ticks(pids(tmp_path, "log")[0]) is None


def test_killed_part_is_started_again_and_its_children_are_killed_first(
    start: Start, tmp_path: Path
) -> None:
    source = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open("children", "a") as file: file.write(str(child.pid) + "\\n")
serve()
"""
    await_ready(start(log="serve()", streaming=source))
    first = pids(tmp_path, "streaming")[0]
    (child,) = (int(line) for line in (tmp_path / "children").read_text().split())
    os.kill(first, signal.SIGKILL)
    await_condition(lambda: len(pids(tmp_path, "streaming")) == 2, "it starts again")
    assert start_ticks(child) is None
    await_condition(lambda: reported(tmp_path, "streaming").healthy, "it is well again")
    report = reported(tmp_path, "streaming")
    assert report.restarts == 1
    assert report.last_exit == "signal 9 (SIGKILL)"
    assert report.pid == pids(tmp_path, "streaming")[1]


def test_parts_die_with_a_killed_supervisor(start: Start, tmp_path: Path) -> None:
    process = start(log="serve()", api="serve()")
    await_ready(process)
    process.kill()
    process.wait()
    for name in ("log", "api"):
        (pid,) = pids(tmp_path, name)
        await_condition(lambda pid=pid: start_ticks(pid) is None, f"{name} has gone")  # type: ignore[misc]


def test_part_that_ignores_sigterm_is_killed(start: Start, tmp_path: Path) -> None:
    process = start(log="signal.signal(signal.SIGTERM, signal.SIG_IGN)\nserve()", api="serve()")
    await_ready(process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert start_ticks(pids(tmp_path, "log")[0]) is None


def test_second_signal_hurries_the_stop(start: Start, tmp_path: Path) -> None:
    stubborn = (
        "def refuse(*_): pathlib.Path('asked').touch()\n"
        "signal.signal(signal.SIGTERM, refuse)\nserve()"
    )
    process = start(log="serve()", api=stubborn)
    await_ready(process)
    process.send_signal(signal.SIGINT)
    await_condition((tmp_path / "asked").exists, "api was asked to stop")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
