"""Which tests are of the campaign, as their files say: stages are cut before any is collected."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.gate.classes import ROOT, files_of_tests
from tests.gate.full_run import is_of_the_campaign

NEW_COST: Final = 10.0
"""Processor seconds of a test that has not been in a full run yet; most cost less."""

_Marked = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def costs_now(on_record: Mapping[str, float]) -> dict[str, float]:
    """Return the costs of the last full run for the tests that there are now.

    Of the campaign are those that have its mark now. What a file's new ones cost is in the file's
    cost as well, until the next full run.
    """
    files = (file for file in files_of_tests() if "mark.campaign(" in file.read_text("utf-8"))
    names = {f"{file.relative_to(ROOT)}::{test}" for file in files for test in marked_tests(file)}
    others = {name: cost for name, cost in on_record.items() if not is_of_the_campaign(name)}
    return others | {name: on_record.get(name, NEW_COST) for name in names}


def marked_tests(file: Path) -> list[str]:
    """Return the names of a file's tests that have the mark, or a parameter that has it."""
    module = ast.parse(file.read_text(encoding="utf-8"))
    return sorted(_marked(module.body, "", _has_mark(_marks_of_all(module.body))))


def _marked(body: Iterable[ast.stmt], prefix: str, is_marked: bool) -> Iterator[str]:
    for node in body:
        if not isinstance(node, _Marked):
            continue
        has_mark = is_marked or _has_mark(node.decorator_list)
        if isinstance(node, ast.ClassDef):
            of_all = _has_mark(_marks_of_all(node.body))
            yield from _marked(node.body, f"{prefix}{node.name}::", has_mark or of_all)
        elif has_mark and node.name.startswith("test_"):
            yield prefix + node.name


def _marks_of_all(body: Iterable[ast.stmt]) -> list[ast.expr]:
    return [
        node.value
        for node in body
        if isinstance(node, ast.Assign)
        and any(isinstance(one, ast.Name) and one.id == "pytestmark" for one in node.targets)
    ]


def _has_mark(expressions: Iterable[ast.expr]) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == "campaign"
        for one in expressions
        for node in ast.walk(one)
    )
