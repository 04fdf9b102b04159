from collections.abc import Iterator

import pytest

from mqlake.local.kafka import KafkaServer, running_kafka


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with running_kafka(tmp_path_factory.mktemp("log")) as server:
        yield server


@pytest.fixture(scope="session")
def bootstrap_servers(kafka: KafkaServer) -> str:
    return kafka.bootstrap_servers
