"""How much of the pure parts their own unit tests reach: lines and branches, part by part.

    bin/coverage [PART…]

Prints the files that are not reached as a whole, then a line for each part. A part that is marked
as whole must be: then the exit code is 1. Lines that no test can reach say so and why
(`pragma: no cover`).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SEED: Final = "20"
"""Of hypothesis, so that two runs reach the same lines."""
PART_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Part:
    """What is measured, and the tests that count.

    Attributes:
        sources: Packages and modules.
        tests: Files, folders and options of pytest.
        is_whole: Every line and branch is reached.
    """

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    is_whole: bool = True


PARTS: Final = {
    "codec": Part(("ingest.protocol",), ("tests/ingest/protocol",)),
    "matching": Part(
        ("mqlake.topics.names", "mqlake.topics.matching", "mqlake.topics.sharing"),
        (
            *("tests/mqlake/test_topics.py", "tests/mqlake/test_matching.py"),
            *("tests/mqlake/test_sharing.py", "tests/mqlake/rights/test_patterns.py"),
        ),
    ),
    "rules": Part(
        ("rules.language", "rules.sql"),
        ("tests/rules/language", "tests/rules/sql", "-m", "not spark"),
    ),
    "checkers": Part(
        ("resilience.checkers",),
        ("tests/resilience/test_checkers.py", "tests/resilience/test_double.py"),
    ),
    "sessions": Part(("ingest.session",), ("tests/ingest/session",), is_whole=False),
}


def measure(part: Part, folder: Path) -> dict[str, Any]:
    """Run a part's tests; return the report that coverage makes as JSON."""
    environment = {**os.environ, "COVERAGE_FILE": str(folder / "data")}
    coverage = (sys.executable, "-P", "-m", "coverage")
    run = [*coverage, "run", f"--source={','.join(part.sources)}", "-m", "pytest"]
    run += ["-q", "-p", "no:cacheprovider", f"--hypothesis-seed={SEED}", *part.tests]
    done = subprocess.run(
        run,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PART_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"the tests fail:\n{done.stdout[-5000:]}")
    report = folder / "report.json"
    subprocess.run(
        [*coverage, "json", "-q", "-o", str(report)], env=environment, timeout=60, check=True
    )
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return found


def describe(file: dict[str, Any]) -> str:
    """Return the lines and branches of a file that no test reaches."""
    lines = [str(line) for line in file["missing_lines"]]
    missing = set(file["missing_lines"])
    branches = [
        f"{begin}->{'exit' if end < 0 else end}"
        for begin, end in file["missing_branches"]
        if begin not in missing and end not in missing
    ]
    return ", ".join([*lines, *branches])


def main(names: list[str]) -> int:
    """Measure the parts; return the exit code."""
    if unknown := set(names) - set(PARTS):
        sys.exit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    summary = []
    code = 0
    for name in names or PARTS:
        part = PARTS[name]
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mqlake-coverage-") as folder:
            report = measure(part, Path(folder))
        for path, file in report["files"].items():
            if shown := describe(file):
                sys.stdout.write(f"{path}: {shown}\n")
        totals = report["totals"]
        reached = totals["covered_lines"] + totals["covered_branches"]
        every = totals["num_statements"] + totals["num_branches"]
        wanted = ", expected all" if part.is_whole and reached < every else ""
        code |= bool(wanted)
        share = 100 * reached / every
        seconds = time.monotonic() - begin
        summary.append(f"{name:10} {share:6.2f} % of {every:6,}{wanted}  ({seconds:.0f} s)")
    sys.stdout.write("\n".join(["", "reached of lines and branches:", *summary, ""]))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
