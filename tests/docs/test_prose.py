"""How the documents are written, where a test can tell."""

from pathlib import Path

import pytest

from launcher.paths import CHECKOUT

MOST_CHARACTERS = 120
DOCUMENTS = sorted({*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")})


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(CHECKOUT).as_posix())
def test_lines_are_short(path: Path) -> None:
    """Tables and blocks of code are as wide as they are."""
    is_code, long = False, []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        is_table = line.lstrip().startswith("|")
        if len(line) > MOST_CHARACTERS and not (is_code or is_table):
            long.append(number)
    assert not long
