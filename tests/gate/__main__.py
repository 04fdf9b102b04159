"""The checks of the project in two stages; a failure in the first one ends the run.

First what starts no program: style, types, layers, documents, and tests that only compute. Then
servers within the tests' own process, and tests that start programs, whole systems among them. At
most three of those that start some and failed run once more, alone; tests/gate/flaky.md is their
ledger.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

import click
import pytest

from tests.gate.campaign import costs_now
from tests.gate.changed import as_many_as, changed_files, concerned
from tests.gate.classes import ROOT, files_of_tests, is_in_first_stage, simulates
from tests.gate.distributions import (
    DISTRIBUTIONS,
    NotProvenError,
    content_of,
    proof_of,
    proven_files,
    read_proofs,
    record,
)
from tests.gate.full_run import FullRun, file_of
from tests.gate.ledger import Entry, add_to_ledger
from tests.gate.outcome import Outcome, worth_another_run
from tests.gate.plan import BUDGET, BUSY_PACE, PLANNED, STATIC, Plan, left_out_of
from tests.gate.static import COMMANDS, beside, ran
from tests.pace import bound, first_pace, load

_WORKERS: Final = 3
"""For two processors: the third has what waits more than it computes."""
_CHANGED_BUDGET: Final = 200.0
"""Processor seconds: two minutes of two cores, after half a minute of what only reads."""
_BETWEEN_CHANGES_SECONDS: Final = 3000
"""What was committed after a longer time is the next change: the one before had its gate first."""
_FULL_SIMULATIONS: Final = "20000"


@click.command(help=__doc__)
@click.option("--fast", is_flag=True, help="Only the first stage.")
@click.option("--full", is_flag=True, help="All of the campaign, and more cases of simulations.")
@click.option(
    "--changed",
    is_flag=False,
    flag_value="HEAD",
    metavar="[REVISION]",
    help="Three minutes of what a change since HEAD, or another revision, concerns.",
)
@click.option(
    "--distribution",
    type=click.Choice(sorted(DISTRIBUTIONS)),
    help="All tests of a distribution, put on record when they pass.",
)
@click.option("--limit-minutes", type=float, help="End after so many minutes, with a summary.")
def main(
    fast: bool,
    full: bool,
    changed: str | None,
    distribution: str | None,
    limit_minutes: float | None,
) -> None:
    is_all = full or changed is not None or distribution is not None
    with tempfile.TemporaryDirectory(prefix="mqlake-gate-") as folder:
        gate = Gate(Path(folder), is_all, limit_minutes)
        if changed is not None:
            passed = gate.changed(changed)
        elif distribution is not None:
            passed = gate.distribution(distribution)
        else:
            passed = gate.first() and (fast or gate.second())
            if passed and full:
                passed = (
                    all(gate.distribution(name) for name in DISTRIBUTIONS)
                    and gate.simulations()
                    and gate.put_on_record()
                )
    sys.exit(0 if passed else 1)


class Gate:
    """One run of the stages.

    Args:
        folder: For what a stage hands over to the next one.
        is_full: Nothing of the campaign is left out.
        limit_minutes: After which it ends; None: when all has run.
    """

    def __init__(self, folder: Path, is_full: bool, limit_minutes: float | None) -> None:
        self._folder = folder
        left_out: list[str] = []
        proven: list[str] = []
        self._apart: set[Path] = set()
        """Files of tests that the two stages do without: proven, or run for their distribution."""
        if is_full:
            self._apart.update(*(one.files_of_tests() for one in DISTRIBUTIONS.values()))
        else:
            proofs = read_proofs()
            for name, files in proven_files(proofs, content_of).items():
                self._apart.update(files)
                proven.append(f"{name}, {len(files)} files of tests ({proofs[name].commit})")
            costs = costs_now(FullRun.read().costs)
            costs = {one: cost for one, cost in costs.items() if not self._is_apart(one)}
            left_out = left_out_of(costs, PLANNED * BUDGET / _slowness() - STATIC, _turn())
        began = time.time()
        ends = None if limit_minutes is None else began + 60 * limit_minutes
        self._plan = Plan(began, ends, is_full=is_full, left_out=left_out, proven=proven)

    def first(self) -> bool:
        """Run the first stage, whatever of it fails; tell whether nothing did."""
        static = self._folder / "static.json"
        self._plan = replace(self._plan, static=str(static))
        files = [file for file in self._files() if is_in_first_stage(file)]
        click.echo("== static checks beside the first stage")
        with beside(static):
            code = self._pytest("first", _WORKERS, files, f"--order={_commit()}")
        return code == pytest.ExitCode.OK

    def second(self) -> bool:
        """Run the rest, as far as the budget goes; tell whether it passes."""
        files = [file for file in self._files() if not is_in_first_stage(file)]
        code = self._pytest("second", _WORKERS, files)
        if code == pytest.ExitCode.TESTS_FAILED:
            return self._passes_alone()
        return code == pytest.ExitCode.OK

    def distribution(self, name: str) -> bool:
        """Run all tests of a distribution, and put on record that they pass; tell whether they do.

        Those that pass only when they run alone are not on record.
        """
        distribution = DISTRIBUTIONS[name]
        before = content_of(distribution)
        self._plan = replace(self._plan, notes_reads=True)
        code = self._pytest(name, _WORKERS, distribution.files_of_tests())
        self._plan = replace(self._plan, notes_reads=False)
        opened = {
            Path(line)
            for file in self._folder.glob(f"{name}.*.reads")
            for line in file.read_text(encoding="utf-8").splitlines()
        }
        try:
            proof = proof_of(
                distribution,
                code,
                self._outcomes()[-1],
                (before, content_of(distribution)),
                opened,
                _today(),
                _git("rev-parse", "--short", "HEAD"),
            )
        except NotProvenError as exc:
            click.echo(f"== {name} is not put on record: {exc}")
        else:
            record(name, proof)
        if code == pytest.ExitCode.TESTS_FAILED:
            return self._passes_alone()
        return code == pytest.ExitCode.OK

    def simulations(self) -> bool:
        """Run many more cases of what can have them; tell whether they pass."""
        files = [file for file in files_of_tests() if simulates(file)]
        os.environ.setdefault("MQLAKE_SIMULATIONS", _FULL_SIMULATIONS)
        code = self._pytest("simulations", _WORKERS, files, "--timeout=0")
        return code == pytest.ExitCode.OK

    def put_on_record(self) -> bool:
        """Note that all has passed, and what it cost but for the simulations beyond the gate's."""
        costs = Counter[str]()
        for outcome in self._outcomes()[:-1]:
            costs.update(outcome.quiet_costs())
        FullRun(_today(), _git("rev-parse", "--short", "HEAD"), dict(costs)).write()
        return True

    def changed(self, revision: str) -> bool:
        """Run what a change concerns, as far as its budget goes; tell whether it passes."""
        taken, others = as_many_as(
            concerned(changed_files(revision)), FullRun.read().costs, _CHANGED_BUDGET
        )
        if others:
            click.echo(f"== concerned, too, and left out: {len(others)} files")
            folders = Counter(file.parent.relative_to(ROOT) for file in others)
            for folder, count in sorted(folders.items()):
                click.echo(f"{count:5} of {folder}")
        passed = [_passes(command) for command in COMMANDS]
        if taken:
            passed.append(self._pytest("changed", _WORKERS, taken) == pytest.ExitCode.OK)
        return all(passed)

    def _files(self) -> list[Path]:
        return [file for file in files_of_tests() if file not in self._apart]

    def _is_apart(self, cost_name: str) -> bool:
        return ROOT / file_of(cost_name) in self._apart

    def _passes_alone(self) -> bool:
        """Run once more what the machine may have turned over, and nothing that is a fault."""
        failures = worth_another_run(self._outcomes()[-1].failures)
        if not failures:
            return False
        self._plan = replace(self._plan, run_again=[str(one) for one in failures])
        if self._pytest("again", 1, [one.test for one in failures]) != pytest.ExitCode.OK:
            return False
        add_to_ledger(Entry(_today(), one.test, one.load, one.reason) for one in failures)
        return True

    def _pytest(self, stage: str, workers: int, tests: Sequence[Path | str], *options: str) -> int:
        """Run one stage; its plan names the outcomes of those before."""
        outcome, plan = self._folder / f"{stage}.json", self._folder / f"{stage}-plan.json"
        replace(self._plan, outcome=str(outcome)).write(plan)
        click.echo(f"== {stage}: pytest in {workers} processes")
        command = [
            sys.executable,
            "-P",
            "-m",
            "pytest",
            f"--plan={plan}",
            f"--numprocesses={workers}",
            "--no-loadscope-reorder",
            *options,
            *(str(test) for test in tests),
        ]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        self._plan = replace(self._plan, earlier=[*self._plan.earlier, str(outcome)])
        return code

    def _outcomes(self) -> list[Outcome]:
        return [Outcome.read(Path(file)) for file in self._plan.earlier]


def _passes(command: Sequence[str]) -> bool:
    click.echo(f"== {' '.join(command)}")
    return ran(command).returncode == 0


def _slowness() -> float:
    """Return how much less than its budget a gate can have of this machine's processors."""
    cores = os.cpu_count() or 1
    # The set-up that came before has had all cores busy.
    others = max(load() - cores, 0)
    return bound(1, first_pace() / BUSY_PACE, others, cores)


def _turn() -> int:
    """Return how many changes there were until this one; none outside a repository.

    The commits of a change come closer to each other than two changes do.
    """
    try:
        times = [int(line) for line in _git("log", "--format=%ct").splitlines()]
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(later - earlier > _BETWEEN_CHANGES_SECONDS for later, earlier in pairwise(times))


def _commit() -> int:
    """Return a number of the commit that is checked; 0 outside a repository."""
    try:
        return int(_git("rev-parse", "--short=7", "HEAD"), 16)
    except (OSError, subprocess.CalledProcessError):
        return 0


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def _today() -> date:
    return datetime.now(tz=UTC).date()


if __name__ == "__main__":
    main()
