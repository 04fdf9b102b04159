"""What becomes of a run in which a worker ends in the middle of a test."""

from pathlib import Path

import psutil
import pytest

from tests.gate.harness import Stage, run

pytestmark = pytest.mark.programs

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


def failed(stage: Stage) -> set[str]:
    return {one.test.partition("::")[2] for one in stage.outcome.failures}


def test_all_but_the_test_in_which_a_worker_ends_runs(tmp_path: Path) -> None:
    stage = run(tmp_path, "crash", *[PASSES] * 3, CRASHES, *[PASSES] * 3)
    assert failed(stage) == {"test_kills_its_worker"}
    assert stage.outcome.counts == {"passed": 16, "failed": 1}
    assert stage.code == pytest.ExitCode.TESTS_FAILED


def test_workers_that_end_at_once_are_replaced_each(tmp_path: Path) -> None:
    stage = run(tmp_path, "crash", *[CRASHES] * 3, PASSES, PASSES, workers=3)
    assert stage.outcome.counts == {"passed": 32, "failed": 3}


def test_what_a_worker_leaves_behind_ends(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    text = f"""
import os, pathlib, signal, subprocess, sys, pytest

pytestmark = pytest.mark.programs

def test_leaves_a_program_behind():
    waits = [sys.executable, "-c", "import signal; signal.pause()"]
    left = subprocess.Popen(waits, start_new_session=True)
    pathlib.Path({str(pid)!r}).write_text(str(left.pid))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    run(tmp_path, "leaves", text, PASSES)
    with pytest.raises(psutil.NoSuchProcess):
        psutil.Process(int(pid.read_text())).kill()


def test_one_that_waits_past_its_time_out_ends_and_shows_where(tmp_path: Path) -> None:
    stage = run(tmp_path, "waits", WAITS_IN_C, timeout=2)
    assert failed(stage) == {"test_waits", "test_fails_and_waits_at_its_end"}
    assert stage.outcome.counts == {"passed": 3, "failed": 3}
    assert "in test_waits" in stage.errors
