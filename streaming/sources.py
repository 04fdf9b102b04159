"""Read the log."""

from pyspark.sql import DataFrame, SparkSession

from mqlake.records import INBOUND
from streaming.settings import StreamingSettings


def client_config(settings: StreamingSettings) -> dict[str, str]:
    """Return how a Kafka client reaches the log."""
    return {"bootstrap.servers": settings.log.bootstrap_servers}


def inbound(spark: SparkSession, settings: StreamingSettings, **options: str) -> DataFrame:
    """Read `mqlake.inbound`, from its earliest record when there is no checkpoint.

    Returns:
        (key, value, headers, topic, partition, offset, timestamp)
    """
    reader = spark.readStream.format("kafka").options(
        **{f"kafka.{key}": value for key, value in client_config(settings).items()},
        **{
            "subscribe": INBOUND,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            # Retention may overtake a query that was down for long. What is gone is gone: it goes
            # on with the oldest record left, and the connector logs a warning of what is missing.
            "failOnDataLoss": "false",
            "kafka.allow.auto.create.topics": "false",
        },
        **options,
    )
    return reader.load()
