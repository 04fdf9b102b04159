"""The query that keeps the state tables: retained messages, sessions, events, rules and so on."""

from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming.settings import StreamingSettings
from streaming.sources import read_log
from streaming.spark import STATE_POOL, small_session, use_pool
from streaming.state import LOG_TOPICS, State

NAME: Final = "state"


def checkpoint(settings: StreamingSettings) -> Path:
    """Return the folder of the query's checkpoint."""
    return settings.data_dir.absolute() / "checkpoints" / NAME


def start(
    spark: SparkSession, settings: StreamingSettings, state: State, skipped: int = 0
) -> StreamingQuery:
    """Start the query from its checkpoint; a batch that was not noted there comes again.

    `skipped` offsets before it are of no record.

    One query for all of them: it costs one look at the log when nothing happens.
    """
    use_pool(spark, STATE_POOL)
    options = {
        "maxOffsetsPerTrigger": str(settings.state_max_records + skipped),
        "kafka.fetch.max.wait.ms": "10",  # as in the history
    }
    return (
        read_log(small_session(spark), settings, *LOG_TOPICS, **options)
        .writeStream.queryName(NAME)
        .foreachBatch(state)
        .option("checkpointLocation", str(checkpoint(settings)))
        .trigger(processingTime=f"{round(settings.state_interval_seconds * 1000)} milliseconds")
        .start()
    )
