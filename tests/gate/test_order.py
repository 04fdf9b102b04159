from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gate.harness import run
from tests.gate.order import mix_files

pytestmark = pytest.mark.programs

TELLS = """
import pathlib

def test_first(): tell("first")

def test_second(): tell("second")

def tell(name):
    file = pathlib.Path(__file__)
    with (file.parent / "order").open("a") as told:
        told.write(f"{file.name}::test_{name}\\n")
"""
FILES = [f"test_told_{number}.py" for number in range(8)]


def mixed(seed: int, files: list[str] = FILES) -> list[str]:
    items: list[Any] = [
        SimpleNamespace(nodeid=f"{file}::{test}")
        for file in files
        for test in ("test_first", "test_second")
    ]
    mix_files(items, seed)
    return [item.nodeid for item in items]


def test_a_run_has_the_order_of_its_seed_and_says_so(tmp_path: Path) -> None:
    stage = run(tmp_path, "told", *[TELLS] * len(FILES), order=7)
    assert "--order=7" in stage.output
    assert (tmp_path / "order").read_text(encoding="utf-8").split() == mixed(7)


def test_each_seed_is_another_order_of_whole_files() -> None:
    assert len({tuple(mixed(seed)) for seed in range(20)}) == 20
    one = mixed(7)
    assert [test.partition("::")[2] for test in one] == ["test_first", "test_second"] * len(FILES)


def test_a_file_that_goes_moves_no_other() -> None:
    left = [test for test in mixed(7) if not test.startswith(FILES[3])]
    assert mixed(7, [file for file in FILES if file != FILES[3]]) == left
