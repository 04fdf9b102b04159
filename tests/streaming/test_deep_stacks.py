"""A stack that is too deep ends the task that it is in, and nothing else."""

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# Java's matcher calls itself for each turn of a loop whose turns differ in length.
DEEP = "SELECT count(*) AS n FROM range(1) WHERE repeat('ab', 1000000 + id) RLIKE '^(?:ab?)*$'"


def test_the_application_goes_on(spark: SparkSession) -> None:
    for _ in range(2):
        with pytest.raises(Exception, match="StackOverflowError"):
            spark.sql(DEEP).collect()
    assert spark.sql("SELECT count(*) AS n FROM range(10)").first() == (10,)
