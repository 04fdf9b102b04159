"""What `docs/resilience.md` says is what the tool has."""

import re
from pathlib import Path

import pytest

from resilience import command, plan
from resilience import definition as definitions
from resilience.checkers import CHECKERS
from resilience.double.defects import DEFECTS
from resilience.faults import FAULTS
from resilience.history import FUNCTIONS, VERSION

TEXT = (Path(__file__).parents[2] / "docs" / "resilience.md").read_text(encoding="utf-8")


def first_cells(head: str) -> list[str]:
    """Return the names in the first column of the table with this head."""
    table = TEXT.partition(f"| {head} |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines()[2:]]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_every_checker_is_described_and_no_other() -> None:
    kinds = {
        checker.name: ", ".join(
            dict.fromkeys(
                defect.found_by[1]
                for defect in DEFECTS.values()
                if defect.found_by[0] == checker.name
            )
        )
        for checker in CHECKERS
    }
    assert first_cells("checker") == [checker.name for checker in CHECKERS]
    for checker in CHECKERS:
        row = (
            f"| `{checker.name}` | {checker.clause} | {kinds[checker.name]} | `{checker.promise}` |"
        )
        assert row in TEXT


def test_the_format_is_described() -> None:
    assert f"version {VERSION}:" in TEXT
    for f, words in FUNCTIONS.items():
        assert f"| `{f}` | {words} |" in TEXT


@pytest.mark.parametrize(
    ("head", "names"),
    [
        ("fault", sorted(FAULTS)),
        ("target", definitions.names()),
        ("scenario", plan.names()),
    ],
)
def test_tables_name_all_that_there_is(head: str, names: list[str]) -> None:
    assert sorted(first_cells(head)) == names


def test_the_number_of_defects_is_right() -> None:
    assert f"{len(DEFECTS)} defects" in TEXT


def test_commands_and_options_exist() -> None:
    parser = command.make_parser()
    for words in first_cells("command"):
        name, *arguments = words.removeprefix("resilience ").split()
        given = ["x" if word.isupper() else word for word in arguments]
        assert parser.parse_args([name, *given]).do
    for option in set(re.findall(r"`(--[a-z-]+)", TEXT)):
        assert option in Path(command.__file__).read_text(encoding="utf-8")
