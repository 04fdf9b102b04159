"""What one run of pytest is of a gate: given to it in a file, as each worker reads it too."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.gate.full_run import cost_name, file_of, is_of_the_campaign

BUDGET: Final = 3150.0
"""Processor seconds of a quiet machine with two cores, of which a gate uses nine tenths."""
STATIC: Final = 65.0
"""Of them, what the tools use that only read: styles, types and imports."""
PLANNED: Final = 0.93
"""Part of the budget that is planned: what all files cost differs by some hundredths each time."""
BUSY_PACE: Final = 1.4
"""Of such a machine while both cores compute: they share what is in them (tests/pace.py)."""
SLICES: Final = 8
"""Of the campaign: one for each change, so that all has run after as many."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run of pytest has to do beside running the files that it is given.

    Attributes:
        began: When the gate began, in seconds since the epoch.
        ends: When it has to, in the same seconds; None: when all has run.
        outcome: Where it writes its `Outcome`.
        earlier: Outcomes of the stages before, which its summary includes.
        is_full: The campaign runs as a whole, and there is no budget.
        left_out: Tests of the campaign that do not run, by name.
        run_again: What failed in the stage before and runs once more, in this one.
        static: File with the `Checks` that run beside the first stage; "": none do.
        proven: Of each distribution whose tests do not run, what the summary says.
        notes_reads: Whether each worker notes which files it reads.
    """

    began: float
    ends: float | None = None
    outcome: str = ""
    earlier: list[str] = field(default_factory=list)
    is_full: bool = False
    left_out: list[str] = field(default_factory=list)
    run_again: list[str] = field(default_factory=list)
    static: str = ""
    proven: list[str] = field(default_factory=list)
    notes_reads: bool = False

    def leaves_out(self, item: pytest.Item) -> bool:
        """Tell whether a test is of the campaign and not of this run."""
        return (
            item.get_closest_marker("campaign") is not None
            and cost_name(item.nodeid, is_campaign=True) in self.left_out
        )

    def pid_file(self, worker: str) -> Path:
        """Return where a worker notes which process it is, before it is ready."""
        return Path(self.outcome).with_suffix(f".{worker}.pid")

    def pid_files(self) -> Iterable[Path]:
        """Return those of all workers that run."""
        outcome = Path(self.outcome)
        return outcome.parent.glob(f"{outcome.stem}.*.pid")

    def reads_file(self, worker: str) -> Path:
        """Return where a worker notes which files it has read."""
        return Path(self.outcome).with_suffix(f".{worker}.reads")

    def write(self, file: Path) -> None:
        """Write it for `--plan`."""
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> "Plan":
        """Read what `--plan` names."""
        return cls(**json.loads(file.read_text(encoding="utf-8")))


def left_out_of(costs: Mapping[str, float], budget: float, turn: int) -> list[str]:
    """Return which tests of the campaign do not run.

    Args:
        costs: Processor seconds by file, and by test of the campaign.
        budget: Processor seconds for all that runs.
        turn: Number of the change. The slice of its turn runs first, then those that follow it,
            as far as the budget goes.
    """
    campaign = {name: cost for name, cost in costs.items() if is_of_the_campaign(name)}
    left = budget - (sum(costs.values()) - sum(campaign.values()))
    chosen: set[str] = set()
    made = slices(campaign)
    for step in range(SLICES):
        for tests in made[(turn + step) % SLICES]:
            cost = sum(campaign[name] for name in tests)
            if cost <= left:
                chosen.update(tests)
                left -= cost
    return sorted(set(campaign) - chosen)


def slices(campaign: Mapping[str, float]) -> Sequence[Sequence[Sequence[str]]]:
    """Return the campaign in slices of about the same cost, the same at each call.

    Returns:
        For each slice, the tests of each file in it. They stay together: what tests of a file
        share, such as a system, is started once.
    """
    files = defaultdict(list)
    for name in sorted(campaign):
        files[file_of(name)].append(name)
    sums = [0.0] * SLICES
    made: list[list[list[str]]] = [[] for _ in range(SLICES)]
    costs = {file: sum(campaign[name] for name in tests) for file, tests in files.items()}
    for file in sorted(files, key=lambda file: (-costs[file], file)):
        smallest = sums.index(min(sums))
        made[smallest].append(files[file])
        sums[smallest] += costs[file]
    return made
