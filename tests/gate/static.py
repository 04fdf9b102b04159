"""The checks of the first stage that are no tests: style, types, layers. They run beside these."""

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

from tests.gate.classes import ROOT

COMMANDS: Final = (
    ("ruff", "check"),
    ("ruff", "format", "--check"),
    ("mypy", "-n", "2"),
    ("lint-imports",),
)


@dataclass(frozen=True, slots=True)
class Checks:
    """What they came to.

    Attributes:
        failures: Of each command that failed, what it said.
        seconds: Processor seconds of all.
    """

    failures: dict[str, str]
    seconds: float

    def write(self, file: IO[str]) -> None:
        """Hand over to those who wait."""
        json.dump(asdict(self), file)

    @classmethod
    def awaited(cls, file: Path) -> "Checks":
        """Return what is in a file once nobody holds its lock, as who runs the checks does."""
        with file.open(encoding="utf-8") as found:
            fcntl.flock(found, fcntl.LOCK_SH)
            text = found.read()
        if not text:
            return cls({"static checks": "ended without a word"}, 0.0)
        return cls(**json.loads(text))


@contextmanager
def beside(file: Path) -> Iterator[None]:
    """Run all checks beside what is done in a `with` block; they end with it at the latest."""
    command = [sys.executable, "-P", "-m", "tests.gate.static"]
    with file.open("w", encoding="utf-8") as found:
        fcntl.flock(found, fcntl.LOCK_EX)
        checking = subprocess.Popen(command, cwd=ROOT, stdout=found, start_new_session=True)
    with checking:
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(checking.pid, signal.SIGTERM)


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


def main() -> None:
    """Run all, and write what they came to."""
    failures = {}
    for command in COMMANDS:
        done = ran(command, subprocess.PIPE)
        if done.returncode:
            failures[" ".join(command)] = done.stdout
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    Checks(failures, used.ru_utime + used.ru_stime).write(sys.stdout)


if __name__ == "__main__":
    main()
