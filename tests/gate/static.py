"""The checks of the first stage that are no tests: style, types, layers. They run beside these."""

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from launcher.testing.systems import await_condition
from tests.gate.classes import ROOT

COMMANDS: Final = (
    ("ruff", "check"),
    ("ruff", "format", "--check"),
    ("mypy", "-n", "2"),
    ("lint-imports",),
)
_LIMIT_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True)
class Checks:
    """What they came to.

    Attributes:
        failures: Of each command that failed, what it said.
        seconds: Processor seconds of all.
    """

    failures: dict[str, str]
    seconds: float

    def write(self, file: Path) -> None:
        """Hand over to those who wait."""
        unfinished = file.with_suffix(".tmp")
        unfinished.write_text(json.dumps(asdict(self)), encoding="utf-8")
        unfinished.replace(file)

    @classmethod
    def awaited(cls, file: Path) -> "Checks":
        """Return what has been handed over in a file, as soon as it is there.

        Raises:
            OperationalError: The checks have not ended in time.
        """
        await_condition(file.exists, "the end of the static checks", timeout_seconds=_LIMIT_SECONDS)
        return cls(**json.loads(file.read_text(encoding="utf-8")))


def ran(command: Sequence[str], stdout: int | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a tool of this environment over the checkout.

    Args:
        command: Its name and arguments.
        stdout: As of `subprocess.run`, for errors, too; None: this process's own.
    """
    program = Path(sys.executable).with_name(command[0])
    return subprocess.run(
        [program, *command[1:]],
        cwd=ROOT,
        check=False,
        text=True,
        stdout=stdout,
        stderr=None if stdout is None else subprocess.STDOUT,
    )


def main(file: Path) -> None:
    """Run all, and write what they came to."""
    failures = {}
    for command in COMMANDS:
        done = ran(command, subprocess.PIPE)
        if done.returncode:
            failures[" ".join(command)] = done.stdout
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    Checks(failures, used.ru_utime + used.ru_stime).write(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
