"""One Spark for all that is evaluated here; each file has a session of its own."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.rules.language.evaluation import running_session


@pytest.fixture(scope="session")
def shared_spark() -> Iterator[SparkSession]:
    with running_session() as session:
        yield session


@pytest.fixture(scope="module")
def spark(shared_spark: SparkSession) -> SparkSession:
    own: SparkSession = shared_spark.newSession()
    return own
