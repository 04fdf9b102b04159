"""A log of three brokers, which ends behind these tests: it takes its share when it rests, too."""

from collections.abc import Iterator

import pytest

from launcher.log.kafka import Brokers, running_brokers


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Three, as no single one shows what the absence of one does."""
    with running_brokers(tmp_path_factory.mktemp("brokers"), 3) as running:
        yield running
        running.kill()  # taking leave they would wait for each other
