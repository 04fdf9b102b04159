"""The query that keeps the state tables: retained messages, sessions, events, rules and so on."""

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming import queries
from streaming.engine.spark import small_session
from streaming.log.checkpoints import checkpoint
from streaming.log.sources import read_log
from streaming.settings.lake import LakeSettings
from streaming.tables.state import LOG_TOPICS, StateWriter


def start(
    spark: SparkSession,
    settings: LakeSettings,
    state: StateWriter,
    partitions: Mapping[str, int],
    skipped: int = 0,
) -> StreamingQuery:
    """Start the query from its checkpoint; a batch that was not noted there comes again.

    One query for all of them: it costs one look at the log when nothing happens.

    Args:
        spark: The session.
        settings: How to reach the log, where the checkpoint is.
        state: Takes the batches.
        partitions: Number of partitions of each log topic that are read.
        skipped: Number of offsets before the checkpoint that are of no record.
    """
    options = {
        "maxOffsetsPerTrigger": str(settings.state_max_records + skipped),
        "kafka.fetch.max.wait.ms": "10",  # as in the history
    }
    return (
        read_log(
            small_session(spark),
            settings,
            {log_topic: partitions[log_topic] for log_topic in LOG_TOPICS},
            **options,
        )
        .writeStream.queryName(queries.STATE)
        .foreachBatch(state)
        .option("checkpointLocation", str(checkpoint(settings.data_dir, queries.STATE)))
        .trigger(processingTime=f"{round(settings.state_interval_seconds * 1000)} milliseconds")
        .start()
    )
