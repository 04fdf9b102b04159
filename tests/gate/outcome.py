"""What a run of pytest came to, for the run that follows and for who reads its end."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

MOST_RUN_AGAIN: Final = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed.

    Attributes:
        reason: The first lines of what pytest says of it.
        may_be_noise: Whether it is worth to run it once more, alone.
        load: Processes that wanted to run when it had failed.
    """

    test: str
    reason: str
    may_be_noise: bool
    load: float

    def __str__(self) -> str:
        return f"{self.test}, at a load of {self.load:.1f}: {self.reason}"


def worth_another_run(failures: Iterable[Failure]) -> list[Failure]:
    """Return the tests that run once more, alone: none if one of them is a fault, or many are."""
    found = {one.test: one for one in failures}
    if len(found) > MOST_RUN_AGAIN or not all(one.may_be_noise for one in found.values()):
        return []
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a later stage has to know.

    Attributes:
        counts: Tests by the words of pytest's summary: `passed`, `failed`, `error`, `skipped`, …
        skipped: Path, line and reason of each test that was skipped.
        costs: Processor seconds by file, and by test of the campaign.
        longest: The ten tests that took longest, in seconds.
        starts: Programs by kind.
        pace: Of the processor in this run: above 1 it was slower than what costs are given for.
    """

    counts: dict[str, int]
    skipped: list[tuple[str, int, str]]
    failures: list[Failure]
    costs: dict[str, float]
    longest: list[tuple[str, float]]
    starts: dict[str, int]
    pace: float

    def quiet_costs(self) -> dict[str, float]:
        """Return what the costs would be on a quiet machine."""
        return {name: cost / self.pace for name, cost in self.costs.items()}

    def write(self, file: Path) -> None:
        """Hand over to the run that follows."""
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> "Outcome":
        """Take over from the run before."""
        fields = json.loads(file.read_text(encoding="utf-8"))
        fields["failures"] = [Failure(**one) for one in fields["failures"]]
        return cls(**fields)
