"""Runs a stage of the gate over files of a test's own."""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gate.outcome import Outcome
from tests.gate.plan import Plan


@dataclass(frozen=True)
class Stage:
    """What a stage printed, its outcome, and its exit code."""

    output: str
    errors: str
    outcome: Outcome
    code: int


def run(
    folder: Path,
    name: str,
    *texts: str,
    workers: int = 1,
    timeout: float = 0,
    order: int | None = None,
    **more: Any,
) -> Stage:
    """Run a stage over files of these texts.

    Args:
        timeout: Of each test, in seconds; 0 is none.
        order: Seed of the order of files; without one they come as they are given.
        more: Of its plan.
    """
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    outcome, plan = folder / f"{name}.json", folder / f"{name}-plan.json"
    tests = [folder / f"test_{name}_{number}.py" for number in range(len(texts))]
    for test, text in zip(tests, texts, strict=True):
        test.write_text(text, encoding="utf-8")
    Plan(time.time(), outcome=str(outcome), **more).write(plan)
    command = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        f"--plan={plan}",
        f"-n{workers}",
        "--no-loadscope-reorder",
        f"--timeout={timeout}",
        "-p",
        "no:cacheprovider",
        f"--rootdir={folder}",
        "-c",
        str(folder / "pytest.ini"),
        "-rs",
        *([] if order is None else [f"--order={order}"]),
        *map(str, tests),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert outcome.is_file(), ran.stdout + ran.stderr
    return Stage(ran.stdout, ran.stderr, Outcome.read(outcome), ran.returncode)
