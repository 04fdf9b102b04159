"""Order of the tests: whatever only computes first, whole systems last.

With several workers (`-n`) one of them takes all that uses the system that tests share, from the
beginning. Another one has Spark's sessions and brokers, then the engine that tests share. Files in
which all tests run a system of their own follow, those that may take longest first, each in the
worker that is free: two systems bear each other, three do not. What only computes, or waits, is for
a third worker, and for the others when they have nothing else to do.
"""

import gc
import os
import re
from functools import cache
from pathlib import Path, PurePath
from typing import Any, Final

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("mqlake", deadline=None)
hypothesis.settings.load_profile("mqlake")

_LATE: Final = ("kafka", "spark", "system")
_MARK: Final = re.compile(rf"pytest\.mark\.({'|'.join(_LATE)})\b")
_ASKS: Final = r"(?:def test_\w+|@pytest\.fixture.*\ndef \w+)\([^)]*"
_SHARED: Final = re.compile(rf"{_ASKS}\bsystem: LocalSystem\b")
_ENGINE: Final = re.compile(rf"{_ASKS}\bengine: Engine\b")
_TIMEOUT: Final = re.compile(r"pytestmark = .*pytest\.mark\.timeout\((\d[\d_]*)\)")
_SYSTEMS: Final = "systems"
_PARTS: Final = "parts of systems"
_ENGINES: Final = "engines"
_GROUPS: Final = (_SYSTEMS, _PARTS, _ENGINES)
_LAST: Final = (len(_GROUPS) + 1, 0)
"""The turn of what only computes."""
_PROGRAM_WORKERS: Final = 2
_FIRST: Final = "test_lossless.py"
"""Of the worker that has the shared system. Its programs live long enough, or are the first to end
in order: they write the archives of their classes, by which each later start takes half the work
(decision 15)."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write tests/transcripts anew, or the imports in ARCHITECTURE.md",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_lateness)
    for item in items:
        # The one worker that has the shared system ends it when others come.
        if _uses_the_shared_system(item) and _group(item.path) != _SYSTEMS:
            message = (
                f"{item.nodeid} uses the shared system, which the text of its file does not show"
            )
            raise pytest.UsageError(message)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: _turn(item.path))


def pytest_collection_finish() -> None:
    # What 18,000 tests and all modules are of stays, and takes 0.3 s to go through each time.
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_SharedInFolders())
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(_FailuresAtOnce(config))


class _FailuresAtOnce:
    """Says in a line what failed when it fails: a run that is cut short has no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            words = (report.longreprtext if crash is None else crash.message).split()
            reason = " ".join(words)[:500]
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}): {reason}")


class _SharedInFolders:
    """Ends what the tests of a folder share when the next one is of another.

    Else its brokers and its Spark would take processors beside all that comes. A test that comes
    back to the folder has them start anew.
    """

    def __init__(self) -> None:
        self._running: list[tuple[pytest.FixtureDef[Any], Any]] = []

    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: Any) -> None:
        if fixturedef.scope == "session":
            self._running.append((fixturedef, request))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        if nextitem is None:
            return  # the session ends, and they with it
        left = set(_folders(item)) - set(_folders(nextitem))
        for one in [one for one in self._running if one[0].baseid in left]:
            self._running.remove(one)
            one[0].finish(one[1])


def _folders(item: pytest.Item) -> list[str]:
    folder = PurePath(item.nodeid.partition("::")[0]).parent
    return [one.as_posix() for one in (folder, *folder.parents)]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Scheduler(config, log)


class _Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """Gives what starts programs to two workers, and to further ones what only computes."""

    def _split_scope(self, nodeid: str) -> str:
        path, _, _ = nodeid.partition("::")
        return _group(self.config.rootpath / path) or path

    def _reschedule(self, node: Any) -> None:
        if node.shutting_down:
            return
        if self.workqueue and self._next_scope(node) is None:
            node.shutdown()
        else:
            super()._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        scope = self._next_scope(node)
        if scope is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _next_scope(self, node: Any) -> str | None:
        is_further = self.nodes.index(node) >= _PROGRAM_WORKERS
        scopes = (one for one in self.workqueue if not (is_further and self._starts_programs(one)))
        return next(scopes, None)

    def _starts_programs(self, scope: str) -> bool:
        return scope in _GROUPS or _turn(self.config.rootpath / scope) < _LAST


@cache
def _group(file: Path) -> str | None:
    """Return what one worker has to run; by the text of a file, as tests may not be collected."""
    text = file.read_text(encoding="utf-8")
    marks = set(_MARK.findall(text))
    if "system" in marks:
        if file.name == _FIRST or _shares_a_system(file, text):
            return _SYSTEMS
        return _ENGINES if _ENGINE.search(text) else None
    return _PARTS if marks else None


def _shares_a_system(file: Path, text: str) -> bool:
    """Tell whether the system that tests share is asked for here, or by a fixture beside."""
    beside = file.with_name("conftest.py")
    return bool(
        _SHARED.search(text)
        or (beside.is_file() and _SHARED.search(beside.read_text(encoding="utf-8")))
    )


@cache
def _turn(file: Path) -> tuple[int, int]:
    """Return when a file is given to a worker: first those with the lowest."""
    group = _group(file)
    if group is not None:
        return _GROUPS.index(group), -(file.name == _FIRST)
    text = file.read_text(encoding="utf-8")
    found = _TIMEOUT.search(text)
    own = len(_GROUPS)
    return (own, -int(found[1])) if "system" in _MARK.findall(text) and found else _LAST


def _lateness(item: pytest.Item) -> tuple[int, bool, bool]:
    if not _is_integration(item):
        return 0, False, False
    needs = {marker.name for marker in item.iter_markers()}
    late = 1 + max((_LATE.index(need) for need in needs.intersection(_LATE)), default=0)
    # Once the engine has a lake, it is there to its end, and starts anew with each that is killed.
    return late, not _uses_the_shared_system(item), "lake" in getattr(item, "fixturenames", ())


def _uses_the_shared_system(item: pytest.Item) -> bool:
    return _is_integration(item) and "system" in getattr(item, "fixturenames", ())


def _is_integration(item: pytest.Item) -> bool:
    return "tests/integration" in item.path.as_posix()
