"""The supervisor over real, tiny processes."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from launcher.supervision.requests import Requests
from launcher.testing.systems import await_condition
from mqlake.processes.status import ProcessReport, load_state, start_ticks

pytestmark = pytest.mark.programs

TOY_SYSTEM = Path(__file__).parent / "toy_system.py"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(timeout: str = "20", hang: str = "0", **sources: str) -> "subprocess.Popen[str]":
        parts = {name.replace("_", "-"): source for name, source in sources.items()}
        process = subprocess.Popen(
            [sys.executable, "-P", str(TOY_SYSTEM), str(tmp_path), json.dumps(parts)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "READY_TIMEOUT": timeout, "HANG_SECONDS": hang},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    children = tmp_path / "children"  # those of a part outlive it
    for line in children.read_text().split() if children.exists() else ():
        with suppress(ProcessLookupError):
            os.kill(int(line), signal.SIGKILL)


def await_ready(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready now\n"


def await_lake(folder: Path) -> None:
    """Wait for the lake, which a system that is ready may not have yet."""
    await_condition((folder / "lake.well").exists, "the lake serves")


def pids(folder: Path, name: str) -> list[int]:
    path = folder / f"{name}.pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def reported(folder: Path, name: str) -> ProcessReport:
    state = load_state(folder)
    assert state is not None
    return next(process for process in state.processes if process.name == name)


def test_parts_stop_in_order_and_none_is_left(start: Start, tmp_path: Path) -> None:
    names = ("log", "router", "lake", "rules", "api", "gateway-1", "gateway-2", "haproxy")
    process = start(**{name.replace("-", "_"): "serve()" for name in names})
    await_ready(process)
    await_lake(tmp_path)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    stops = (tmp_path / "stops").read_text().split()
    stops.remove("lake")  # it is told before all others
    assert stops[0] == "api"
    assert set(stops[1:4]) == {"gateway-1", "gateway-2", "rules"}, "side by side"
    assert stops[4:] == ["haproxy", "router", "log"]
    assert all(start_ticks(pid) is None for name in names for pid in pids(tmp_path, name))


def test_the_lake_is_told_first_and_awaited_in_its_turn(start: Start, tmp_path: Path) -> None:
    lake = (
        "def leave(*_):\n"
        "    pathlib.Path('told').touch()\n"
        "    wait_for('gone')\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, leave)\nserve()"
    )
    api = (
        "def leave(*_):\n"
        "    wait_for('told')\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, leave)\nserve()"
    )
    gateway = (
        "def leave(*_):\n    pathlib.Path('gone').touch()\n    sys.exit()\n"
        "signal.signal(signal.SIGTERM, leave)\nserve()"
    )
    process = start(log="serve()", lake=lake, api=api, gateway_1=gateway)
    await_ready(process)
    await_lake(tmp_path)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "killed" not in errors
    assert (tmp_path / "stops").read_text().split() == ["log"]


def test_gateways_start_after_the_log_topics_are_made(start: Start, tmp_path: Path) -> None:
    wait = "wait_for('log.well')\npathlib.Path('made').touch()"
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
    assert re.search("failed: not ready after 0 s, (log: [^,]*, )?api: not well yet; see", errors)


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
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
with open("children", "a") as file: file.write(str(child.pid) + "\\n")
serve()
"""
    await_ready(start(log="serve()", router=source))
    first = pids(tmp_path, "router")[0]
    (child,) = (int(line) for line in (tmp_path / "children").read_text().split())
    os.kill(first, signal.SIGKILL)
    await_condition(lambda: len(pids(tmp_path, "router")) == 2, "it starts again")
    assert start_ticks(child) is None
    await_condition(lambda: reported(tmp_path, "router").healthy, "it is well again")
    report = reported(tmp_path, "router")
    assert report.restarts == 1
    assert report.last_exit == "signal 9 (SIGKILL)"
    assert report.pid == pids(tmp_path, "router")[1]


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


def test_a_part_that_gives_way_starts_after_the_other_and_is_not_waited_for(
    start: Start, tmp_path: Path
) -> None:
    lake = "assert os.path.exists('router.well')\nsignal.pause()"
    await_ready(start(log="serve()", lake=lake, router="time.sleep(0.2)\nserve()"))
    await_condition(lambda: bool(pids(tmp_path, "lake")), "it starts all the same")
    assert reported(tmp_path, "lake").restarts == 0


def names(folder: Path) -> list[str]:
    state = load_state(folder)
    assert state is not None
    return [process.name for process in state.processes]


FLOWS_LATER = "wait_for('flows')\nserve()"


def test_another_one_starts_beside_a_part_and_takes_its_place_when_all_flows(
    start: Start, tmp_path: Path
) -> None:
    process = start(log="serve()", router="serve()", router_next=FLOWS_LATER)
    await_ready(process)
    (first,) = pids(tmp_path, "router")
    requests = Requests(tmp_path / "restart")
    requests.ask("router")
    await_condition(lambda: "router-next" in names(tmp_path), "it is told")
    await_condition(lambda: bool(pids(tmp_path, "router-next")), "it has started")
    (second,) = pids(tmp_path, "router-next")
    assert reported(tmp_path, "router").pid == first
    assert reported(tmp_path, "router-next").pid == second
    assert start_ticks(first) is not None
    (tmp_path / "flows").touch()
    await_condition(lambda: reported(tmp_path, "router").pid == second, "it has the place")
    await_condition(lambda: start_ticks(first) is None, "the first has ended")
    assert names(tmp_path) == ["supervisor", "log", "router"]
    report = reported(tmp_path, "router")
    assert (report.healthy, report.restarts, report.last_exit) == (True, 0, None)
    assert (tmp_path / "stops").read_text().split() == ["router"], "it was told to"
    assert not requests.failure("router")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert start_ticks(second) is None


def test_who_asks_while_one_takes_a_place_gets_another_one_after_it(
    start: Start, tmp_path: Path
) -> None:
    await_ready(start(log="serve()", router="serve()", router_next=FLOWS_LATER))
    requests = Requests(tmp_path / "restart")
    requests.ask("router")
    await_condition(lambda: len(pids(tmp_path, "router-next")) == 1, "it has started")
    requests.ask("router")
    await_condition(lambda: not requests.is_waiting("router"), "it is taken")
    assert len(pids(tmp_path, "router-next")) == 1, "one at a time"
    (tmp_path / "flows").touch()
    await_condition(lambda: len(pids(tmp_path, "router-next")) == 2, "another one has started")
    last = pids(tmp_path, "router-next")[1]
    await_condition(lambda: reported(tmp_path, "router").pid == last, "it has the place")


def test_one_that_never_flows_changes_nothing(start: Start, tmp_path: Path) -> None:
    failing = "sys.exit('no room')"
    await_ready(start(log="serve()", router="serve()", router_next=failing))
    (first,) = pids(tmp_path, "router")
    requests = Requests(tmp_path / "restart")
    requests.ask("router")
    await_condition(lambda: bool(requests.failure("router")), "it is told")
    assert requests.failure("router") == "exit code 1: no room"
    assert reported(tmp_path, "router").pid == first
    assert reported(tmp_path, "router").healthy
    requests.ask("nobody")
    await_condition(lambda: bool(requests.failure("nobody")), "it is told")
    assert requests.failure("nobody") == "there is no process nobody"


def test_when_the_first_dies_the_one_beside_it_has_its_place(start: Start, tmp_path: Path) -> None:
    await_ready(start(log="serve()", router="serve()", router_next=FLOWS_LATER))
    (first,) = pids(tmp_path, "router")
    Requests(tmp_path / "restart").ask("router")
    await_condition(lambda: bool(pids(tmp_path, "router-next")), "it has started")
    os.kill(first, signal.SIGKILL)
    (second,) = pids(tmp_path, "router-next")
    await_condition(lambda: reported(tmp_path, "router").pid == second, "it has the place")
    report = reported(tmp_path, "router")
    assert (report.restarts, report.last_exit) == (1, "signal 9 (SIGKILL)")
    assert pids(tmp_path, "router") == [first]


def test_any_other_part_is_stopped_and_started_and_that_is_no_failure(
    start: Start, tmp_path: Path
) -> None:
    await_ready(start(log="serve()", api="serve()"))
    Requests(tmp_path / "restart").ask("api")
    await_condition(lambda: len(pids(tmp_path, "api")) == 2, "it starts again")
    await_condition(lambda: reported(tmp_path, "api").healthy, "it is well")
    assert reported(tmp_path, "api").restarts == 0
    assert (tmp_path / "stops").read_text().split() == ["api"]


HANGS_ONCE = """
beat()
pathlib.Path(name + ".well").touch()
if len(open(name + ".pids").readlines()) == 1:
    {hang}
while True:
    beat()
    time.sleep(0.02)
"""


def await_second(folder: Path, name: str) -> ProcessReport:
    """Wait until a part has been started again."""
    await_condition(
        lambda: reported(folder, name).restarts == 1 and len(pids(folder, name)) == 2,
        f"{name} is started again",
    )
    return reported(folder, name)


def test_what_hangs_tells_its_stacks_and_is_started_again(start: Start, tmp_path: Path) -> None:
    hang = "import threading; lock = threading.Lock()\n"
    hang += "    lock.acquire(); lock.acquire()"
    process = start(hang="0.5", log="serve()", api=HANGS_ONCE.format(hang=hang))
    await_ready(process)
    output = tmp_path / "api.out"
    assert await_second(tmp_path, "api").last_exit == (
        f"killed, it gave no sign of life: its stacks are in {output}"
    )
    written = output.read_text()
    assert "Fatal Python error: Aborted" in written
    assert "most recent call first" in written


def test_java_of_what_hangs_is_asked_first_and_a_stopped_process_is_killed(
    start: Start, tmp_path: Path
) -> None:
    java = (
        "import ctypes, os, pathlib, signal\n"
        "ctypes.CDLL(None).prctl(15, b'java')\n"
        "signal.signal(signal.SIGQUIT, lambda *_: pathlib.Path('java.stacks').touch())\n"
        "pathlib.Path('java.there').touch()\n"
        "while True: signal.pause()"
    )
    hang = (
        f"subprocess.Popen([sys.executable, '-c', {java!r}])\n"
        "    wait_for('java.there')\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)"
    )
    process = start(hang="0.5", log="serve()", router=HANGS_ONCE.format(hang=hang))
    await_ready(process)
    last_exit = await_second(tmp_path, "router").last_exit
    assert last_exit is not None
    assert last_exit.startswith("killed, it gave no sign of life")
    assert (tmp_path / "java.stacks").exists()
    assert start_ticks(pids(tmp_path, "router")[0]) is None
