from pathlib import Path

import pytest
import trustme

from tests.ingest.gateway.listeners.tls import Authority


@pytest.fixture(scope="session")
def ca() -> trustme.CA:
    """The authority that the clients of the tests trust."""
    return trustme.CA()


@pytest.fixture
def authority(ca: trustme.CA, tmp_path: Path) -> Authority:
    """That authority with the files of a server certificate in a folder of this test's."""
    return Authority(ca, tmp_path)


@pytest.fixture(autouse=True)
def _short_goodbyes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients of most tests do not answer when the gateway takes leave at the end."""
    monkeypatch.setattr("ingest.gateway.listeners.websocket.CLOSE_TIMEOUT_SECONDS", 0.02)
