"""What becomes of a run in which a worker ends in the middle of a test."""

import time
from pathlib import Path

import psutil
import pytest

from tests.gate.harness import Stage, run

pytestmark = [
    pytest.mark.programs,
    pytest.mark.campaign("it is about what a gate meets once in a hundred runs"),
]

PASSES = "def test_passes(): pass"
CRASHES = """
import os, signal, pytest

@pytest.mark.parametrize("number", range(5))
def test_before(number): pass

def test_kills_its_worker(): os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.parametrize("number", range(5))
def test_after(number): pass
"""
WAITS_IN_C = """
import asyncio, pytest, uvloop

def test_before(): pass

def test_waits(): uvloop.run(forever())

def test_between(): pass

@pytest.fixture
def never_ends():
    yield
    uvloop.run(forever())

def test_fails_and_waits_at_its_end(never_ends): assert 1 == 2

def test_after(): pass

async def forever(): await asyncio.Event().wait()
"""

COLLECTS_ANOTHER_ORDER = """
import os, pathlib, signal, pytest

CRASHED = pathlib.Path(__file__).with_suffix(".crashed")
NUMBERS = [3, 1, 0, 2] if CRASHED.exists() else [0, 1, 2, 3]

@pytest.mark.parametrize("number", NUMBERS)
def test_each(number):
    if number == 1:
        CRASHED.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""
CRASHES_BEFORE_ONE = """
import os, signal

def test_ends(): os.kill(os.getpid(), signal.SIGKILL)
"""
LEAVES_A_PROGRAM = """
import os, pathlib, signal, subprocess, sys, pytest

pytestmark = pytest.mark.programs

def test_leaves_a_program():
    waits = [sys.executable, "-c", "import signal; signal.pause()"]
    left = subprocess.Popen(waits, start_new_session=True)
    pathlib.Path(__file__).with_name("pid").write_text(str(left.pid))
    os.kill(os.getpid(), signal.SIGKILL)
"""
COLLECTS_LESS = COLLECTS_ANOTHER_ORDER.replace("[3, 1, 0, 2]", "[0, 1, 2]")


def failed(stage: Stage) -> set[str]:
    return {one.test.partition("::")[2] for one in stage.outcome.failures}


def runs(pid: int) -> bool:
    """Tell whether a process runs: one that has ended may still be listed."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_all_but_the_tests_in_which_a_worker_ends_run(tmp_path: Path) -> None:
    """Also what is collected in another order, and files of one test, after a crash."""
    stage = run(
        tmp_path,
        "crash",
        PASSES,
        LEAVES_A_PROGRAM,
        COLLECTS_ANOTHER_ORDER,
        CRASHES,
        CRASHES_BEFORE_ONE + PASSES,
        *[PASSES] * 3,
        ends=time.time() + 240,
    )
    crashed = {"test_leaves_a_program", "test_each[1]", "test_kills_its_worker", "test_ends"}
    assert failed(stage) == crashed
    counts = stage.outcome.counts
    assert (counts["passed"], counts["failed"]) == (18, 4)
    assert stage.code == pytest.ExitCode.TESTS_FAILED
    assert not runs(int((tmp_path / "pid").read_text()))


def test_workers_that_end_at_once_are_replaced_each(tmp_path: Path) -> None:
    stage = run(tmp_path, "crash", *[CRASHES] * 3, PASSES, PASSES, workers=3)
    assert stage.outcome.counts == {"passed": 32, "failed": 3}


def test_one_that_waits_past_its_time_out_ends_and_shows_where(tmp_path: Path) -> None:
    stage = run(tmp_path, "waits", WAITS_IN_C, timeout=2)
    assert failed(stage) == {"test_waits", "test_fails_and_waits_at_its_end"}
    assert stage.outcome.counts == {"passed": 3, "failed": 3}
    assert "in test_waits" in stage.errors


def test_one_in_the_place_of_another_that_collects_less_ends_the_run(tmp_path: Path) -> None:
    stage = run(tmp_path, "less", COLLECTS_LESS, PASSES)
    assert stage.code == pytest.ExitCode.INTERRUPTED
    assert "has not collected 1 tests, such as" in stage.output


def test_a_run_ends_at_its_time_and_shows_where_workers_are(tmp_path: Path) -> None:
    stage = run(tmp_path, "limit", WAITS_IN_C, ends=time.time() + 20)
    assert stage.code == pytest.ExitCode.INTERRUPTED
    assert "the time of the gate is over" in stage.output
    assert 'File "' in stage.errors
