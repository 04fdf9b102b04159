"""Feeds the rows of `tests/wire/*.json` to every test that takes a `wire_row`."""

import pytest

from tests.ingest.wire import WireRow, read_rows


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "wire_row" in metafunc.fixturenames:
        rows = read_rows()
        metafunc.parametrize("wire_row", rows, ids=[f"{row.file}: {row.name}" for row in rows])


@pytest.fixture(scope="session")
def wire_rows() -> list[WireRow]:
    return read_rows()
