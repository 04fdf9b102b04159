"""Read the log."""

import json
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark reader knows

from mqlake.log.security import java_client_config
from streaming.checkpoints import Offsets, by_text
from streaming.settings import StreamingSettings

PROMPT: Final = {
    # At a batch boundary the connector asks for the partition's offsets; the broker answers only
    # after the fetch request that waits on the same connection.
    "kafka.fetch.max.wait.ms": "100",
    # A broker that stands still is waited for so long there, not a minute, then another is asked.
    # The first alone would do nothing: Kafka's admin client looks at it only when something comes.
    "kafka.request.timeout.ms": "10000",
    "kafka.default.api.timeout.ms": "10000",
    "fetchOffset.numRetries": "10",
}
"""Options of `read_log` for queries that everybody waits for."""


def client_config(settings: StreamingSettings) -> dict[str, str]:
    """Return how a Kafka client reaches the log."""
    return java_client_config(settings.log.servers)


def read_log(
    spark: SparkSession, settings: StreamingSettings, *log_topics: str, **options: str
) -> DataFrame:
    """Read log topics, from their earliest record when there is no checkpoint.

    Returns:
        (key, value, headers, topic, partition, offset, timestamp)
    """
    defaults = {
        "subscribe": ",".join(log_topics),
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        # Nothing goes before it is read (`streaming.log_retention`). What somebody else deletes is
        # gone: a query goes on with the oldest record left, and `streaming.unread` tells.
        "failOnDataLoss": "false",
        "kafka.allow.auto.create.topics": "false",
    }
    connection = {f"kafka.{key}": value for key, value in client_config(settings).items()}
    reader = spark.readStream.format("kafka").options(**(connection | defaults | options))
    return reader.load()


def starting_offsets(offsets: Offsets) -> str:
    """Return the option of the connector that names where to begin."""
    return json.dumps(by_text(offsets))


def header(name: str) -> Column:
    """The value of a record's header, null without it (`HeaderFunction.java`)."""
    return F.call_function("mqlake_header", F.col("headers"), F.lit(name))
