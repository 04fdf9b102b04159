from collections.abc import Iterator

import pytest

from launcher.log.kafka import running_kafka


@pytest.fixture(scope="session")
def bootstrap_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_kafka(tmp_path_factory.mktemp("log")) as server:
        yield server.bootstrap_servers
