"""One broker for the tests of the process that carries out actions."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.log.kafka import running_kafka
from mqlake.log.admin import ensure_log_topics
from tests.rules.runner.harness import Stage


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Run coroutine tests on the event loop that the process uses."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with running_kafka(tmp_path_factory.mktemp("log")) as server:
        ensure_log_topics(
            server.bootstrap_servers,
            inbound_partitions=2,
            session_shards=2,
            retention_bytes=1 << 30,
            timeout_seconds=180,
        )
        stage = Stage(server.bootstrap_servers, tmp_path_factory.mktemp("runner"))
        yield stage
        stage.close()


@pytest.fixture(scope="session")
def unprivileged() -> Path:
    """Return a folder for programs that refuse to run as root."""
    assert os.name == "posix"
    return Path("/tmp")
