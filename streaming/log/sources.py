"""Read the log."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark reader knows

from mqlake.log.security import java_client_config
from streaming.log.checkpoints import Offsets, by_text
from streaming.settings.spark import StreamingSettings

PROMPT: Final = {
    # At a batch boundary the connector asks for the partition's offsets; the broker answers only
    # after the fetch request that waits on the same connection. Shorter, a log at rest costs more:
    # each partition is asked so often, by each query.
    "kafka.fetch.max.wait.ms": "250",
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


EARLIEST: Final = -2
"""In place of an offset: that of the oldest record."""


def read_log(
    spark: SparkSession,
    settings: StreamingSettings,
    log_topics: Sequence[str] | Mapping[str, int],
    **options: str,
) -> DataFrame:
    """Read log topics, from their earliest record when there is no checkpoint.

    Args:
        spark: The session.
        settings: Address and login of the log.
        log_topics: Log topics; all partitions that they have or get, or a number of each.
        options: Further ones of the connector.

    Returns:
        (key, value, headers, topic, partition, offset, timestamp)
    """
    if isinstance(log_topics, Mapping):
        read = {log_topic: [*range(count)] for log_topic, count in log_topics.items()}
        which = {"assign": json.dumps(read)}
    else:
        which = {"subscribe": ",".join(log_topics)}
    defaults = {
        **which,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        # Nothing goes before it is read (`streaming.reading.log_retention`). Records that another
        # tool deletes are gone: a query goes on with the oldest record left, and
        # `streaming.reading.unread` tells.
        "failOnDataLoss": "false",
        "kafka.allow.auto.create.topics": "false",
    }
    connection = {f"kafka.{key}": value for key, value in client_config(settings).items()}
    reader = spark.readStream.format("kafka").options(**(connection | defaults | options))
    return reader.load()


def starting_offsets(offsets: Offsets, log_topics: Mapping[str, int]) -> str:
    """Return the option of the connector that names where to begin.

    Args:
        offsets: First offset of partitions; others begin with their oldest record.
        log_topics: Number of partitions that are read, by log topic.
    """
    every = {
        log_topic: {
            partition: offsets.get(log_topic, {}).get(partition, EARLIEST)
            for partition in range(count)
        }
        for log_topic, count in log_topics.items()
    }
    return json.dumps(by_text(every))


def header(name: str) -> Column:
    """The value of a record's header, null without it (`HeaderFunction.java`)."""
    return F.call_function("mqlake_header", F.col("headers"), F.lit(name))


def header_byte(name: str, position: int) -> Column:
    """A byte of that value, counted from 1, as an integer from 0 to 255; null without one."""
    return F.call_function("mqlake_header_byte", F.col("headers"), F.lit(name), F.lit(position))
