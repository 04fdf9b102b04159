"""The real things, for tests that need them: an embedded log, and a whole system.

`kafka` is one broker for the session, `engine` the router on it and, for who asks for `lake`, the
lake, which tests kill, and `system` one system with two gateways. Each is started when the first
test asks for it; `engine` and `system` end before tests that do not. A test that would harm them
for others starts its own from `launcher.testing.systems` or `launcher.log.kafka`; these come last.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from launcher.log.kafka import KafkaServer, running_kafka
from launcher.testing.systems import LocalSystem, running_system
from tests.integration.engine import Engine, running_engine
from tests.integration.thrift import FEW_TABLE_BATCHES

_shared: Final = {"system": ExitStack(), "engine": ExitStack()}
"""The system and the engine that tests share."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, running in _shared.items():
        if name not in getattr(item, "fixturenames", ()):
            running.close()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with running_kafka(tmp_path_factory.mktemp("log")) as server:
        yield server


@pytest.fixture(scope="session")
def engine(kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with _shared["engine"] as stack:
        yield stack.enter_context(running_engine(kafka, tmp_path_factory.mktemp("engine")))


@pytest.fixture
def lake(engine: Engine) -> None:
    """Have the engine keep tables and stateful rules."""
    engine.start_lake()


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSystem]:
    # One filter is refused: paho-mqtt's tests want a server that refuses some.
    environment = {
        "MQLAKE_GATEWAY_REFUSED_TOPIC_FILTERS": '["test/nosubscribe"]',
        **FEW_TABLE_BATCHES,
        "MQLAKE_LOCAL_LOG_PARTITIONS": "2",  # topics have an order, the log as a whole has none
        # Nobody asks for long, and each start costs the others the processors.
        "MQLAKE_QUERY_IDLE_SECONDS": "3600",
    }
    data_dir = tmp_path_factory.mktemp("system") / "data"
    with _shared["system"] as stack:
        made = stack.enter_context(running_system(data_dir, gateways=2, environment=environment))
        made.await_healthy()  # the lake, too, for which `up` does not wait
        yield made


@pytest.fixture(scope="session")
def mosquitto_clients() -> None:
    """Fail with what to do when Debian's mosquitto-clients are missing."""
    if shutil.which("mosquitto_pub") is None or shutil.which("mosquitto_sub") is None:
        pytest.fail(
            "mosquitto_pub and mosquitto_sub are missing: apt install mosquitto-clients",
            pytrace=False,
        )
