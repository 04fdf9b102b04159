"""Which class a file of tests is of, and which worker has it.

The text of a file tells, as stages are cut before any test is collected: a test that starts a
program has a mark that says which. A file without one is pure, and tests/gate/guard.py holds it to
that; so is one that only has a tool read files, marked `tools`.
"""

import re
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
LAB: Final = ROOT / "tests" / "lab"
"""Tests of experiments: they run when a change concerns them, and in no gate."""
_SERVERS: Final = frozenset(
    ROOT / "tests" / "ingest" / folder for folder in ("federation", "gateway", "hostile")
)
"""Their tests run servers in their own process and wait for them: they fill what others of the
second stage leave of the processors."""
_LANGUAGE: Final = ROOT / "tests" / "rules" / "language"
"""Its tests share a Spark of their own, and a process can have one: the worker with systems has
none, and least to run."""
_MARK: Final = re.compile(r"pytest\.mark\.(programs|kafka|spark|system)\b")
_TOOLS: Final = re.compile(r"pytest\.mark\.tools\b")
_ASKS: Final = r"(?:def test_\w+|@pytest\.fixture.*\ndef \w+)\([^)]*"
_SHARED_SYSTEM: Final = re.compile(rf"{_ASKS}\bsystem: LocalSystem\b")
_SHARED_ENGINE: Final = re.compile(rf"{_ASKS}\bengine: Engine\b")
_FIRST: Final = "test_lossless.py"
"""Its programs live long enough, or are the first to end in order: they write the archives of their
classes, by which each later start takes half the work (design: routing, 15)."""


class Class(StrEnum):
    """What tests of a file start: nothing, single programs, or a whole system or engine."""

    PURE = "pure"
    PARTS = "parts"
    SYSTEM = "system"


class Lane(StrEnum):
    """What one worker runs from the beginning to the end, as its tests share programs."""

    SYSTEMS = "systems"
    SPARK = "Spark"
    BROKERS = "brokers"
    ENGINES = "engines"


def files_of_tests() -> list[Path]:
    """Return all files of tests but those of the laboratory."""
    return sorted(file for file in (ROOT / "tests").rglob("test_*.py") if LAB not in file.parents)


def class_of(file: Path) -> Class:
    """Return the class of all tests of a file."""
    marks = _marks(file)
    if "system" in marks:
        return Class.SYSTEM
    return Class.PARTS if marks else Class.PURE


def is_in_first_stage(file: Path) -> bool:
    """Tell whether tests of a file run before any program is started."""
    return class_of(file) is Class.PURE and _SERVERS.isdisjoint(file.parents)


def starts_nothing(file: Path) -> bool:
    """Tell whether tests of a file have to do without any program."""
    return class_of(file) is Class.PURE and _TOOLS.search(_text(file)) is None


def simulates(file: Path) -> bool:
    """Tell whether a file has simulations or properties of which more cases can be run."""
    return "simulations_wanted(" in _text(file)


@cache
def lane_of(file: Path) -> Lane | None:
    """Return the lane of a file; without one it is for whichever worker is free."""
    marks = _marks(file)
    if "system" in marks:
        if file.name == _FIRST or shares_the_system(file):
            return Lane.SYSTEMS
        return Lane.ENGINES if _SHARED_ENGINE.search(_text(file)) else None
    if "spark" in marks:
        return Lane.SYSTEMS if _LANGUAGE in file.parents else Lane.SPARK
    return Lane.BROKERS if "kafka" in marks else None


def shares_the_system(file: Path) -> bool:
    """Tell whether the system that tests share is asked for here, or by a fixture beside."""
    beside = file.with_name("conftest.py")
    return bool(
        _SHARED_SYSTEM.search(_text(file))
        or (beside.is_file() and _SHARED_SYSTEM.search(_text(beside)))
    )


def is_first(file: Path) -> bool:
    """Tell whether a file comes first in its lane."""
    return file.name == _FIRST


@cache
def _marks(file: Path) -> frozenset[str]:
    return frozenset(_MARK.findall(_text(file)))


@cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")
