"""Order of the tests: whatever only computes first, whole systems last.

With several workers (`-n`) one of them takes all that runs a broker, Spark or a system, one after
the other, from the beginning; what only computes runs beside it.
"""

import os
from typing import Final

import hypothesis
import pytest

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("mqlake", deadline=None)
hypothesis.settings.load_profile("mqlake")

_LATE: Final = ("kafka", "spark", "system")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write tests/transcripts anew with what comes now"
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    if _needs(item):
        item.add_marker(pytest.mark.xdist_group("systems"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_lateness)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: not _needs(item))


def _needs(item: pytest.Item) -> set[str]:
    return {marker.name for marker in item.iter_markers()}.intersection(_LATE)


def _lateness(item: pytest.Item) -> int:
    if "tests/integration" not in item.path.as_posix():
        return 0
    return 1 + max((_LATE.index(need) for need in _needs(item)), default=0)
