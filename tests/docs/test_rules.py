"""Tables of `docs/rules.md`; its examples are among the tests of the language."""

import re
from pathlib import Path

import pytest

from rules.columns import EVENTS, MESSAGE
from rules.language.functions import FUNCTIONS
from rules.language.limits import DEFAULT_LIMITS

TEXT = (Path(__file__).parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")
NAME = re.compile(r"`([a-z][a-z0-9_]*)(?:\(|`)")


def section(title: str) -> str:
    return TEXT.partition(f"\n{title}\n")[2].partition("\n#")[0]


def functions_in(text: str) -> set[str]:
    """Return the functions named in the first column of tables."""
    cells = re.findall(r"^\| (.+?) \| .+ \|$", text, re.MULTILINE)
    return {name for cell in cells[1:] for name in NAME.findall(cell)} - {"function"}


def test_every_function_is_in_a_table() -> None:
    described = TEXT.partition("\n## Functions\n")[2].partition("\n### What EMQX has")[0]
    assert functions_in(described) == set(FUNCTIONS)


def test_what_is_said_not_to_exist_does_not() -> None:
    named = functions_in(section("### What EMQX has and this language has not"))
    assert len(named) > 20
    assert not named & set(FUNCTIONS)


def test_every_function_of_emqx_is_there_or_said_to_be_missing() -> None:
    lines = (Path(__file__).parent / "emqx_functions.txt").read_text().splitlines()
    known = {name for line in lines if not line.startswith("#") for name in line.split()}
    named = functions_in(section("### What EMQX has and this language has not"))
    assert named <= known
    assert known - named <= set(FUNCTIONS)


def test_columns_are_those_of_the_language() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (.+?) \| (yes)? ?\|$", section("## The message"), re.MULTILINE
    )
    expected = [(c.name, c.meaning, "yes" if c.is_selected else "") for c in MESSAGE]
    assert rows == expected


def test_events_are_those_of_the_language() -> None:
    rows = re.findall(r"^\| `\$events/(\w+)` \| (.+) \|$", section("## Events"), re.MULTILINE)
    common = {"event", "clientid", "tenant", "gateway", "timestamp"}
    assert {name: re.findall(r"`(\w+)`", columns) for name, columns in rows} == {
        name: [c.name for c in columns if c.name not in common] for name, columns in EVENTS.items()
    }


@pytest.mark.parametrize(
    "limit",
    [
        DEFAULT_LIMITS.sql_characters,
        DEFAULT_LIMITS.depth,
        DEFAULT_LIMITS.select_items,
        DEFAULT_LIMITS.filters,
        DEFAULT_LIMITS.list_items,
        DEFAULT_LIMITS.foreach_elements,
        DEFAULT_LIMITS.foreach_bytes // 2**20,
        DEFAULT_LIMITS.text_characters,
    ],
)
def test_limits_are_those_of_the_language(limit: int) -> None:
    assert f"{limit:,}" in section("## Limits")
