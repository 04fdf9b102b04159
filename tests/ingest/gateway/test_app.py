import logging

import pytest

from ingest.gateway.app import within_open_files
from ingest.gateway.settings import GatewaySettings


def test_connections_leave_open_files_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    settings = GatewaySettings(max_connections=10_000)
    with caplog.at_level(logging.WARNING):
        assert within_open_files(settings, 20_000) is settings
        assert not caplog.records
        assert within_open_files(settings, 4096).max_connections == 4096 - 256
    assert "hard limit of open files" in caplog.text
