"""`docs/rules-actions.md` is what `rules.actions` takes."""

import json
import re
from pathlib import Path

import pytest

from rules.actions import FUNCTIONS, check_actions
from rules.actions.contract import Retry
from rules.model import ActionSpec
from rules.templates import OUTPUT_FIELDS

TEXT = (Path(__file__).parents[2] / "docs" / "rules-actions.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```json\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def rows(section: str) -> dict[str, str]:
    """Return first and second column of the tables of a section."""
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) ?\|", section, re.MULTILINE))


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_is_an_action(example: str) -> None:
    check_actions([ActionSpec.model_validate(json.loads(example))])


def test_every_function_has_an_example() -> None:
    shown = {json.loads(example)["function"] for example in EXAMPLES}
    assert shown == FUNCTIONS.keys()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_is_described_with_its_default(name: str) -> None:
    section = TEXT.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    described = rows(section)
    fields = FUNCTIONS[name].arguments.model_fields
    assert described.keys() == fields.keys()
    for key, text in described.items():
        default = fields[key].default
        if text:
            value = text.strip("`")
            assert (value if isinstance(default, str) else json.loads(value)) == default, key


def test_retry_is_described_with_its_defaults() -> None:
    section = TEXT.partition("take `retry`:")[2].partition("\n**")[0]
    described = rows(section)
    assert {key: float(text) for key, text in described.items()} == Retry().model_dump()


def test_every_name_of_the_output_is_described() -> None:
    for name in OUTPUT_FIELDS:
        assert f"`${{{name}}}`" in TEXT
