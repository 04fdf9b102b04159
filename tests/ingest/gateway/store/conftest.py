from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.gateway.store.database import Database


@pytest.fixture(params=["memory", "file"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path if request.param == "file" else None)
    yield opened
    opened.close()
