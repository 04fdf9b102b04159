"""Notes which files of the checkout a process of pytest reads, as Python reports it."""

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.gate.classes import ROOT

_NOT_OURS: Final = (".git", ".runtime", ".hypothesis", ".pytest_cache")


class Reads:
    """Looks at what is opened from its making on, and at all modules that there are at the end.

    Args:
        note: The file that gets the paths, one a line.
    """

    def __init__(self, note: Path) -> None:
        self._note_file = note
        self._opened: set[str] = set()
        self._is_paused = False
        sys.addaudithook(self._note)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self) -> Generator[None, None, None]:
        # The gate looks at all files of tests to order what it runs: that is no matter of a test.
        self._is_paused = True
        try:
            return (yield)
        finally:
            self._is_paused = False

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        paths = [*self._opened, *(path for path in modules if isinstance(path, str))]
        ours = {file for path in paths if (file := source_of(path)) is not None}
        self._note_file.write_text("".join(f"{file}\n" for file in sorted(ours)), encoding="utf-8")

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        # Called for each event of the interpreter, thousands in a second.
        if event == "open" and not self._is_paused and isinstance(arguments[0], str):
            self._opened.add(arguments[0])


def source_of(path: str) -> Path | None:
    """Return the file of the checkout that was read, the source of what was compiled; else None."""
    file = Path(ROOT, path)
    if file.parent.name == "__pycache__":
        file = file.parent.parent / f"{file.name.partition('.')[0]}.py"
    if not file.is_file() or not file.is_relative_to(ROOT):
        return None
    return None if file.relative_to(ROOT).parts[0] in _NOT_OURS else file
