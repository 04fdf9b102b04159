from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.ingest.gateway.listeners.tls import Authority


@pytest.fixture(scope="session")
def ca() -> trustme.CA:
    """The authority that the clients of the tests trust."""
    return trustme.CA()


@pytest.fixture
def authority(ca: trustme.CA, tmp_path: Path) -> Iterator[Authority]:
    """That authority with the files of a server certificate in a folder of this test's."""
    yield Authority(ca, tmp_path)
