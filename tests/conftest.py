"""Order of the tests: whatever only computes first, whole systems last.

With several workers (`-n`) one of them takes all that runs a system, one after the other, from the
beginning. Another one has Spark's sessions and brokers, then what only computes. Tests with a
system of their own come last: the system that others share has ended, the machine is quiet.
"""

import os
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("mqlake", deadline=None)
hypothesis.settings.load_profile("mqlake")

_LATE: Final = ("kafka", "spark", "system")
_MARK: Final = re.compile(rf"pytest\.mark\.({'|'.join(_LATE)})\b")
_SYSTEMS: Final = "systems"
_PARTS: Final = "parts of systems"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write tests/transcripts anew with what comes now"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_lateness)
    if "PYTEST_XDIST_WORKER" in os.environ:
        order = {_SYSTEMS: 0, _PARTS: 1}
        items.sort(key=lambda item: order.get(_group(item.path) or "", len(order)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Scheduler(config, log)


class _Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        path, _, _ = nodeid.partition("::")
        return _group(self.config.rootpath / path) or path


@cache
def _group(file: Path) -> str | None:
    """Return what one worker has to run; by the marks in a file, as tests may not be collected."""
    marks = set(_MARK.findall(file.read_text(encoding="utf-8")))
    if "system" in marks:
        return _SYSTEMS
    return _PARTS if marks else None


def _lateness(item: pytest.Item) -> tuple[int, bool]:
    if "tests/integration" not in item.path.as_posix():
        return 0, False
    needs = {marker.name for marker in item.iter_markers()}
    late = 1 + max((_LATE.index(need) for need in needs.intersection(_LATE)), default=0)
    return late, "system" not in getattr(item, "fixturenames", ())
