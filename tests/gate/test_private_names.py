"""Tests see the product as its users and its other parts do: by names that are not private."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.gate.changed import PACKAGES
from tests.gate.classes import ROOT

MOST: Final = 55
"""Reads of private names of the product; fewer is a smaller number here, more is a fault."""
OTHERS: Final = frozenset(
    {
        # Of named tuples, and of confluent_kafka's errors
        *("_replace", "_TIMED_OUT", "_FATAL"),
        # Of PySpark and py4j: their way to Java
        *("_jvm", "_jdf", "_jsc", "_gateway", "_gateway_client", "_target_id", "_session_id"),
    }
)
"""Names of libraries that the product has as well."""


def private_names(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a module defines, attributes included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr if _is_own(node) else ""
        else:
            continue
        if name.startswith("_") and not name.startswith("__"):
            yield name


def reads(tree: ast.AST, of_product: set[str]) -> Iterator[str]:
    """Yield what is read of the product: neither a test's own names, nor those of its own class."""
    names = of_product - set(private_names(tree)) - OTHERS
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in names and not _is_own(node):
            yield f"{node.lineno}: {ast.unparse(node)}"


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def _trees(folder: Path) -> Iterator[tuple[str, ast.AST]]:
    for file in sorted(folder.rglob("*.py")):
        yield file.relative_to(ROOT).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


def test_what_is_a_read_of_a_private_name() -> None:
    product = set(private_names(ast.parse("class A:\n def __init__(self):\n  self._a = _B = 1")))
    assert product == {"_a", "_B"}
    test = "class T:\n def f(self):\n  self._a\na._a, a._B.c, a._other, A._replace(), [_B]"
    assert list(reads(ast.parse(test), product)) == ["4: a._a", "4: a._B"]
    assert not list(reads(ast.parse("class T:\n def _a(self): pass\nT()._a()"), product))


def test_no_more_private_names_are_read_than_were() -> None:
    product = {
        name
        for package in PACKAGES
        if package != "tests"
        for _, tree in _trees(ROOT / package)
        for name in private_names(tree)
    }
    found = {name: list(reads(tree, product)) for name, tree in _trees(ROOT / "tests")}
    count = Counter({name: len(lines) for name, lines in found.items()})
    most = ", ".join(f"{number} in {name}" for name, number in count.most_common(10))
    assert count.total() == MOST, f"{count.total()} reads: {most}"
