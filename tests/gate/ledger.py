"""Which tests failed and then passed alone (flaky.md), so that it never becomes a habit."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Final

LEDGER: Final = Path(__file__).with_name("flaky.md")
MOST_AGE: Final = timedelta(days=14)
_ROW: Final = re.compile(r"^\| (\d{4}-\d\d-\d\d) \| `([^`]+)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$")


@dataclass(frozen=True, slots=True)
class Entry:
    """A test that failed and then passed alone.

    Attributes:
        day: When.
        load: Processes that wanted to run when it had failed.
        reason: What it said then.
        cause: What is known of why, in a few words; empty until somebody has looked.
    """

    day: date
    test: str
    load: float
    reason: str
    cause: str = ""

    def __str__(self) -> str:
        test, reason = (
            text.replace("|", "/").replace("`", "'") for text in (self.test, self.reason)
        )
        return f"| {self.day} | `{test}` | {self.load:.1f} | {reason} | {self.cause} |"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("`", "'")


def read_ledger(text: str) -> list[Entry]:
    """Return the rows of the table."""
    found = (_ROW.match(line) for line in text.splitlines())
    return [
        Entry(date.fromisoformat(row[1]), row[2], float(row[3]), row[4].strip(), row[5].strip())
        for row in found
        if row is not None
    ]


def add_to_ledger(entries: Iterable[Entry], ledger: Path = LEDGER) -> None:
    """Add rows at the end of the table, which is the end of the file."""
    with ledger.open("a", encoding="utf-8") as file:
        file.writelines(f"{entry}\n" for entry in entries)


def overdue(entries: Sequence[Entry], today: date) -> list[str]:
    """Return what has to be mended before anything else, in sentences."""
    old = [
        f"{entry.test} is in the ledger since {entry.day}: mend it, then take the row away"
        for entry in entries
        if today - entry.day > MOST_AGE
    ]
    unexplained = Counter(entry.test for entry in entries if not entry.cause)
    return old + [
        f"{test} needed a second run {count} times, and no cause is noted"
        for test, count in unexplained.items()
        if count > 1
    ]
