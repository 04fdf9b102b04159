"""What Python and JavaScript both know is said in Python alone; JavaScript has it as constants."""

import re
from pathlib import Path

import pytest

from api.dashboard.vocabulary import CONSTANTS, FILE, javascript_source

SCRIPTS = {
    path: path.read_text(encoding="utf-8")
    for folder in ("core", "pages")
    for path in sorted((Path(FILE).parents[1] / folder).glob("*.js"))
    if path != FILE
}


def test_the_module_is_what_python_writes() -> None:
    assert FILE.read_text(encoding="utf-8") == javascript_source(), (
        "write it anew: python -m api.dashboard.vocabulary"
    )


@pytest.mark.parametrize("constant", CONSTANTS)
def test_a_page_uses_each_constant(constant: str) -> None:
    assert any(re.search(rf"\b{constant}\b", text) for text in SCRIPTS.values())


def test_no_field_of_a_form_has_a_limit_of_its_own() -> None:
    for path, text in SCRIPTS.items():
        assert not re.findall(r"\b(?:min|max)length: [0-9\"]", text), path
