"""`docs/protocol.md` against the marks in code and tests.

A mark is `MQTT5-3.1.2-4` or `MQTT311-3.1.2-6`: a numbered statement of the specification, in a
docstring, a comment or data. A module that names a rule of `ingest/protocol/violations.py` carries
the marks of that rule; a test function carries what stands in it and in its decorators.
"""

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

from ingest.protocol import violations
from ingest.protocol.violations import Violation

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
MARK = re.compile(r"MQTT(?:5|311)-\d+\.\d+\.\d+-\d+")

STATEMENTS = {"MQTT5": 251, "MQTT311": 141}
"""How many the specifications number, in Appendix B of each."""


class Row(NamedTuple):
    line: int
    statement: str
    what: str
    module: str
    test: str


ROW = re.compile(r"\| `(MQTT\S+)` \| (.+?) \| `(\S+)` \| `(\S+)` \|")
ROWS = [
    Row(number, *row.groups())
    for number, line in enumerate(TEXT.splitlines(), 1)
    if (row := ROW.fullmatch(line))
]
OF_CLIENTS = [
    f"{version}-{number}"
    for version, numbers in re.findall(r"^(MQTT\d+) binds the client only: ([^|]+?)\.$", TEXT, re.M)
    for number in numbers.replace("\n", " ").split(", ")
]
RULES = {name: rule for name, rule in vars(violations).items() if isinstance(rule, Violation)}


def clauses(rule: Violation) -> set[str]:
    named = {f"MQTT311-{rule.mqtt311}", f"MQTT5-{rule.mqtt5}"}
    return {clause for clause in named if MARK.fullmatch(clause)}


def text_of(path: Path) -> str:
    """Return what a file has; nothing of one that is not there, which carries no mark."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


@functools.cache
def marks(path: Path) -> frozenset[str]:
    """Return the statements that a file carries."""
    text = text_of(path)
    found = set(MARK.findall(text))
    if path.suffix == ".py":
        words = set(re.findall(r"\w+", text))
        found = found.union(*(clauses(rule) for name, rule in RULES.items() if name in words))
    return frozenset(found)


@functools.cache
def functions(path: Path) -> dict[str, str]:
    """Return the source of each function of a test module, its decorators included."""
    text = text_of(path)
    lines = text.splitlines()
    return {
        node.name: "\n".join(
            lines[
                min([node.lineno, *(one.lineno for one in node.decorator_list)])
                - 1 : node.end_lineno
            ]
        )
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_each_module_exists_and_carries_the_mark() -> None:
    wrong = [
        f"docs/protocol.md:{row.line}: no {row.statement} in {row.module}"
        for row in ROWS
        if row.statement not in marks(ROOT / row.module)
    ]
    assert not wrong, "\n".join(wrong)


def test_each_test_exists_and_carries_the_mark() -> None:
    wrong = [
        f"docs/protocol.md:{row.line}: no {row.statement} in {row.test}"
        for row in ROWS
        if not is_tested(row)
    ]
    assert not wrong, "\n".join(wrong)


def is_tested(row: Row) -> bool:
    name, _, function = row.test.partition("::")
    path = ROOT / name
    if not path.is_relative_to(ROOT / "tests"):
        return False
    if function:
        return row.statement in functions(path).get(function, "")
    return path.parent.name in ("wire", "transcripts") and row.statement in marks(path)


def test_every_mark_in_code_and_tests_is_in_the_document() -> None:
    known = {row.statement for row in ROWS} | set(OF_CLIENTS)
    unknown = {
        mark: path.relative_to(ROOT).as_posix()
        for folder in ("mqlake", "ingest", "streaming", "api", "bench", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".json", ".txt", ".java")
        for mark in marks(path) - known
    }
    assert unknown == {}


def test_every_statement_of_the_specifications_is_there_once() -> None:
    named = [row.statement for row in ROWS] + OF_CLIENTS
    assert sorted(set(named)) == sorted(named)
    for version, count in STATEMENTS.items():
        assert sum(name.startswith(f"{version}-") for name in named) == count


def test_every_row_of_a_table_is_read() -> None:
    assert len(ROWS) == len(re.findall(r"^\| `MQTT", TEXT, re.MULTILINE))
