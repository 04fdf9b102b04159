"""How the documents are written, where a test can tell."""

import re
from collections.abc import Iterator
from pathlib import Path

from launcher.paths import CHECKOUT

MOST_CHARACTERS = 120
DOCUMENTS = sorted({*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")})
DELIMITERS = re.compile(r"\|(?: ?:?-+:? ?\|)+")
PIPE = re.compile(r"(?<!\\)\|")


def lines_of(path: Path) -> Iterator[tuple[str, str]]:
    """Return the lines outside blocks of code, with their places."""
    is_code = False
    name = path.relative_to(CHECKOUT).as_posix()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield f"{name}:{number}", line.strip()


def test_lines_are_short() -> None:
    """Tables and blocks of code are as wide as they are."""
    long = [
        place
        for path in DOCUMENTS
        for place, line in lines_of(path)
        if len(line) > MOST_CHARACTERS and not line.startswith("|")
    ]
    assert not long, "\n".join(long)


def test_tables_are_whole() -> None:
    """A row is one line with as many cells as its table has columns."""
    broken = [place for path in DOCUMENTS for place in broken_rows(path)]
    assert not broken, "\n".join(broken)


def broken_rows(path: Path) -> Iterator[str]:
    columns, header = 0, ""
    for place, line in lines_of(path):
        if DELIMITERS.fullmatch(line):
            columns = len(PIPE.findall(header))
        if line.startswith("|"):
            is_row = not columns or (line.endswith("|") and len(PIPE.findall(line)) == columns)
        else:
            # Behind a table, or anywhere else with a table's delimiters, it is the rest of a row.
            is_rest = columns and line and not line.startswith("<!--")
            is_row = not is_rest and "| --- |" not in line
            columns = 0
        if not is_row:
            yield place
        header = line
