"""How the documents are written, where a test can tell."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.paths import CHECKOUT

MOST_CHARACTERS = 120
DOCUMENTS = sorted({*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")})


every_document = pytest.mark.parametrize(
    "path", DOCUMENTS, ids=lambda path: path.relative_to(CHECKOUT).as_posix()
)
DELIMITERS = re.compile(r"\|(?: ?:?-+:? ?\|)+")
PIPE = re.compile(r"(?<!\\)\|")


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Return the lines outside blocks of code, with their numbers."""
    is_code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, line.strip()


@every_document
def test_lines_are_short(path: Path) -> None:
    """Tables and blocks of code are as wide as they are."""
    assert not [
        number
        for number, line in lines_of(path)
        if len(line) > MOST_CHARACTERS and not line.startswith("|")
    ]


@every_document
def test_tables_are_whole(path: Path) -> None:
    """A row is one line with as many cells as its table has columns."""
    broken, columns, header = [], 0, ""
    for number, line in lines_of(path):
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
            broken.append(number)
        header = line
    assert not broken
