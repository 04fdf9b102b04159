"""The tests that a change concerns: by who imports what has changed, the nearest first."""

import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import grimp

from tests.gate.classes import LAB, ROOT, Class, class_of, files_of_tests

PACKAGES: Final = (
    *("mqlake", "rules", "ingest", "streaming", "api", "launcher", "bench", "resilience", "cli"),
    *("lab", "tests"),
)
_CHEAP_SECONDS: Final = 1.0
"""Of a test file whose cost is not on record, collecting included."""


def changed_files(revision: str) -> list[str]:
    """Return what differs from a revision, with what is not in the repository yet.

    Raises:
        subprocess.CalledProcessError: There is no repository, or no such revision.
    """
    differs = _git("diff", "--name-only", "--no-renames", revision)
    return sorted({*differs, *_git("ls-files", "--others", "--exclude-standard")})


def concerned(changed: Iterable[str]) -> list[Path]:
    """Return the files of tests that a change concerns, the nearest first, its own before others.

    A module concerns who imports it, and a `conftest.py` all tests below its folder. What is no
    module concerns the tests in the folder of the same name, and those that name it.
    """
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    files = {
        module_of(file.relative_to(ROOT)): file
        for file in (*files_of_tests(), *sorted(LAB.rglob("test_*.py")))
    }
    begins = [name for path in changed for name in _concerns(PurePosixPath(path), files)]
    found = dict.fromkeys(name for name in begins if name in graph.modules)
    own = {f"tests.{name.rpartition('.')[0]}" for name in found}
    edge = list(found)
    while edge:
        near = {
            other
            for name in edge
            for other in (*graph.find_modules_that_directly_import(name), *_below(name, files))
        }
        edge = sorted(
            near - found.keys(), key=lambda name: (name.rpartition(".")[0] not in own, name)
        )
        found.update(dict.fromkeys(edge))
    return [files[name] for name in found if name in files]


def as_many_as(
    files: Iterable[Path], costs: Mapping[str, float], budget: float
) -> tuple[list[Path], list[Path]]:
    """Return the first of them that keep within processor seconds, and all others.

    Whole systems are among the others: their start alone takes a minute.
    """
    taken: list[Path] = []
    others: list[Path] = []
    for file in files:
        name = file.relative_to(ROOT).as_posix()
        cost = max(_CHEAP_SECONDS, costs.get(name, 0.0))
        is_system = class_of(file) is Class.SYSTEM
        if is_system or cost > budget:
            others.append(file)
        else:
            taken.append(file)
            budget -= cost
    return taken, others


def _concerns(path: PurePosixPath, files: Mapping[str, Path]) -> Iterator[str]:
    if path.suffix == ".py":
        yield module_of(path)
        return
    folder = PurePosixPath("tests", path.parent)
    for name, file in files.items():
        tests = PurePosixPath(file.relative_to(ROOT).as_posix()).parent
        if tests == folder or path.name in file.read_text(encoding="utf-8"):
            yield name


def module_of(path: Path | PurePosixPath) -> str:
    """Return the name by which a file of the checkout is imported."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _below(name: str, files: Mapping[str, Path]) -> Iterator[str]:
    folder, _, last = name.rpartition(".")
    if last == "conftest":
        yield from (one for one in files if one.startswith(f"{folder}."))


def _git(*arguments: str) -> list[str]:
    command = ["git", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()
