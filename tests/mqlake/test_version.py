import tomllib
from pathlib import Path

from mqlake import VERSION


def test_version_is_that_of_the_project() -> None:
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    assert tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["version"] == VERSION
