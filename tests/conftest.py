"""Order of the tests: whatever only computes first, whole systems last."""

import hypothesis
import pytest

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("mqlake", deadline=None)
hypothesis.settings.load_profile("mqlake")

_LATE = ("kafka", "spark", "system")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write tests/transcripts anew with what comes now"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        if "tests/integration" not in item.path.as_posix():
            return 0
        needs = {marker.name for marker in item.iter_markers()}
        return 1 + max((_LATE.index(need) for need in needs.intersection(_LATE)), default=0)

    items.sort(key=rank)
