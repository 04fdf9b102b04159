"""A stage of the gate over files of its own: what it tells the next one."""

import sys
from pathlib import Path

import pytest

from tests.gate.classes import ROOT
from tests.gate.harness import Stage, run
from tests.gate.outcome import Failure, worth_another_run
from tests.gate.plan import BUDGET
from tests.gate.static import Checks, beside

pytestmark = pytest.mark.programs

PURE = """
import subprocess, sys
import pytest

def test_passes(): pass

@pytest.mark.skip("no such thing here")
def test_is_skipped(): pass

def test_fails(): assert 1 == 2

def test_starts_a_program(): subprocess.run([sys.executable, "-c", ""], check=True)
"""
PROGRAMS = """
import subprocess, sys, time
import pytest
from hypothesis import given, strategies

pytestmark = pytest.mark.programs

def test_uses_a_second():
    code = "import time; end = time.process_time() + 1\\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_waits_too_long(): raise TimeoutError("after 10 s")

@pytest.mark.promise
def test_loses_a_message(): assert {1, 2, 3} == {1, 3}

@pytest.mark.promise
def test_says_that_it_lost_one(): pytest.fail("2 is lost")

@pytest.mark.promise
def test_waits_too_long_for_what_is_promised(): raise TimeoutError("after 10 s")

@given(strategies.integers())
def test_holds_for_all(number): assert number < 10

@pytest.mark.campaign("it has its turn")
@pytest.mark.parametrize("number", [1, 2])
def test_in_turn(number): pass

@pytest.mark.campaign("it has its turn")
@pytest.mark.parametrize("number", [1, 2])
def test_of_another_turn(number): pass
"""


AGAIN = Failure("tests/a.py::test_it", "TimeoutError", may_be_noise=True, load=2.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def pure(folder: Path) -> Stage:
    return run(folder, "pure", PURE)


@pytest.fixture(scope="module")
def programs(folder: Path, pure: Stage) -> Stage:
    return run(
        folder,
        "programs",
        PROGRAMS,
        earlier=[str(folder / "pure.json")],
        left_out=["test_programs_0.py::test_of_another_turn"],
        run_again=[str(AGAIN)],
    )


def test_a_pure_test_that_starts_a_program_fails_by_that(pure: Stage) -> None:
    (reason,) = [
        one.reason for one in pure.outcome.failures if one.test.endswith("test_starts_a_program")
    ]
    assert sys.executable in reason
    assert "pytest.mark.programs" in reason
    assert pure.outcome.counts == {"passed": 2, "skipped": 1, "failed": 1, "error": 1}


def test_what_may_be_noise_and_what_is_a_fault(pure: Stage, programs: Stage) -> None:
    failures = pure.outcome.failures + programs.outcome.failures
    assert {one.test.partition("::")[2]: one.may_be_noise for one in failures} == {
        "test_fails": False,
        "test_starts_a_program": False,
        "test_waits_too_long": True,
        "test_loses_a_message": False,
        "test_says_that_it_lost_one": False,
        "test_waits_too_long_for_what_is_promised": True,
        "test_holds_for_all": False,
    }


def test_what_is_not_its_turn_is_left_out_and_listed(programs: Stage) -> None:
    assert programs.outcome.counts["passed"] == 3
    assert "left out, in turn with other changes: 1 tests" in programs.output


def test_costs_are_of_all_that_a_test_starts(programs: Stage) -> None:
    assert programs.outcome.costs["test_programs_0.py"] > 1.0
    assert "test_programs_0.py::test_in_turn" in programs.outcome.costs
    assert programs.outcome.pace >= 1.0


def test_the_last_summary_is_that_of_all_stages(programs: Stage) -> None:
    assert f"FLAKY 1: {AGAIN}" in programs.output
    assert "no such thing here" in programs.output
    assert "5 passed, 1 skipped" in programs.output.splitlines()[-1]


def test_a_file_is_run_by_one_worker(tmp_path: Path) -> None:
    told = tmp_path / "told"
    told.mkdir()
    text = f"""
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(20))
def test_tells(number):
    name = pathlib.Path(__file__).stem + "-" + os.environ["PYTEST_XDIST_WORKER"] + f"-{{number}}"
    pathlib.Path({str(told)!r}, name).touch()
"""
    stage = run(tmp_path, "told", text, text, workers=2)
    assert stage.outcome.counts == {"passed": 40}
    workers = {tuple(file.name.split("-")[:2]) for file in told.iterdir()}
    assert {name for name, _ in workers} == {"test_told_0", "test_told_1"}
    assert len(workers) == 2


def test_workers_note_what_tests_read_of_the_checkout(tmp_path: Path) -> None:
    document, name = ROOT / "docs" / "README.md", "reads"
    text = f"import mqlake.clock\n\ndef test_reads(): open({str(document)!r}).close()\n"
    run(tmp_path, name, text, notes_reads=True)
    (noted,) = tmp_path.glob(f"{name}.*.reads")
    files = noted.read_text(encoding="utf-8").splitlines()
    assert {str(document), str(ROOT / "mqlake" / "clock.py")} <= set(files)
    # That the gate looks at all files of tests to order them is not of a test.
    assert str(ROOT / "tests" / "api" / "test_api.py") not in files


@pytest.mark.parametrize(
    ("failures", "again"),
    [
        ({"a": True}, ["a"]),
        ({"a": True, "b": True, "c": True}, ["a", "b", "c"]),
        ({"a": True, "b": True, "c": True, "d": True}, []),
        ({"a": True, "b": False}, []),
        ({}, []),
    ],
)
def test_three_tests_get_a_second_run_and_no_fault_does(
    failures: dict[str, bool], again: list[str]
) -> None:
    # A test may fail in its end, too.
    found = [Failure(name, "no", noise, 1.0) for name, noise in failures.items() for _ in range(2)]
    assert [one.test for one in worth_another_run(found)] == again


@pytest.mark.parametrize("is_full", [False, True])
def test_a_gate_that_is_far_above_its_budget_fails(folder: Path, is_full: bool) -> None:
    name, text = f"dear_{is_full}", "def test_passes(): pass"
    static = folder / "static.json"
    with static.open("w") as file:
        Checks({}, 9 * BUDGET).write(file)
    ran = run(folder, name, text, static=str(static), is_full=is_full)
    assert ran.code == (pytest.ExitCode.OK if is_full else pytest.ExitCode.TESTS_FAILED)
    assert ("FAILED: that is above the budget" in ran.output) != is_full
    assert "1 passed" in ran.output


def test_a_static_check_that_fails_is_told_at_the_end_and_fails_the_stage(tmp_path: Path) -> None:
    static = tmp_path / "static.json"
    with static.open("w") as file:
        Checks({"mypy -n 2": "a.py:1: error: no such name"}, 1.0).write(file)
    ran = run(tmp_path, "typed", "def test_passes(): pass", static=str(static))
    assert ran.code == pytest.ExitCode.TESTS_FAILED
    assert "a.py:1: error: no such name" in ran.output
    assert "FAILED mypy -n 2" in ran.output
    assert "1 passed" in ran.output.splitlines()[-1]


def test_static_checks_that_were_ended_say_so(tmp_path: Path) -> None:
    static = tmp_path / "static.json"
    with beside(static):
        pass
    (why,) = Checks.awaited(static).failures.values()
    assert why == "ended without a word"
