"""Order of the tests: whatever only computes first, whole systems last.

With several workers (`-n`) one of them takes all that runs a broker, Spark or a system, one after
the other, from the beginning; what only computes runs beside it.
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write tests/transcripts anew with what comes now"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_lateness)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: not _runs_systems(item.path))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Scheduler(config, log)


class _Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        path, _, _ = nodeid.partition("::")
        return "systems" if _runs_systems(self.config.rootpath / path) else path


@cache
def _runs_systems(file: Path) -> bool:
    """Tell by the marks in a file: who shares out the tests has not collected them."""
    return _MARK.search(file.read_text(encoding="utf-8")) is not None


def _lateness(item: pytest.Item) -> int:
    if "tests/integration" not in item.path.as_posix():
        return 0
    needs = {marker.name for marker in item.iter_markers()}
    return 1 + max((_LATE.index(need) for need in needs.intersection(_LATE)), default=0)
