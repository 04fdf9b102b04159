"""The last run of everything that passed: when, of which commit, and what each test cost.

A cost is in processor seconds of a quiet machine. A file's is what its worker and all that this has
started used from the file's first test to its last one; what tests share counts where it starts.
Tests of the campaign have a cost of their own, so that one of them can be left out.
"""

import tomllib
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Final

RECORD: Final = Path(__file__).with_name("full_run.toml")
MOST_AGE: Final = timedelta(days=30)
_HEAD: Final = """\
# Day and commit of the last run of `bin/test --full` that passed, which wrote this file. Processor
# seconds of a quiet machine, as last measured, by file, and by test of the campaign; what is not
# listed costs less than three tenths of one.
"""
_LISTED: Final = 0.3
"""Hundreds of files cost less than a second: together they are a minute."""


@dataclass(frozen=True, slots=True)
class FullRun:
    """What the last full run has left.

    Attributes:
        costs: Processor seconds by file, and by test of the campaign (`file::class::test`).
    """

    day: date
    commit: str
    costs: dict[str, float]

    @classmethod
    def read(cls, file: Path = RECORD) -> "FullRun":
        """Read the record."""
        found = tomllib.loads(file.read_text(encoding="utf-8"))
        return cls(found["day"], found["commit"], found["processor_seconds"])

    def write(self, file: Path = RECORD) -> None:
        """Replace the record."""
        costs = "".join(
            f'"{name}" = {cost:.1f}\n'
            for name, cost in sorted(self.costs.items())
            if cost >= _LISTED
        )
        head = f'{_HEAD}day = {self.day}\ncommit = "{self.commit}"\n\n[processor_seconds]\n'
        file.write_text(head + costs, encoding="utf-8")


def cost_name(nodeid: str, is_campaign: bool) -> str:
    """Return under which name a test's cost is kept: its own without parameters, or its file's."""
    return nodeid.partition("[")[0] if is_campaign else file_of(nodeid)


def is_of_the_campaign(name: str) -> bool:
    """Tell whether a cost is that of a test of the campaign."""
    return "::" in name


def file_of(name: str) -> str:
    """Return in which file a test is."""
    return name.partition("::")[0]
