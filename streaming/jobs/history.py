"""The query that appends: `mqlake.inbound` to the Delta table `messages`, each message once."""

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.records import INBOUND
from mqlake.tables import MESSAGES
from streaming import queries
from streaming.checkpoints import checkpoint
from streaming.history import messages
from streaming.settings.lake import LakeSettings
from streaming.sources import read_log
from streaming.tables import table_path


def start(spark: SparkSession, settings: LakeSettings, skipped: int = 0) -> StreamingQuery:
    """Start the query from its checkpoint; `skipped` offsets before it are of no record.

    Exactly once: the checkpoint fixes which offsets a batch holds before it runs, and Delta commits
    a batch of this query only once.
    """
    options = {
        "maxOffsetsPerTrigger": str(settings.history_max_records + skipped),
        # A batch reads the records that are there. After each fetch the connector asks for the
        # partition's offsets; the broker answers only after the next fetch that waits on the same
        # connection.
        "kafka.fetch.max.wait.ms": "10",
    }
    return (
        messages(read_log(spark, settings, [INBOUND], **options))
        # One file for each append: small files make a table slow.
        .coalesce(1)
        .writeStream.queryName(queries.HISTORY)
        .format("delta")
        .option("checkpointLocation", str(checkpoint(settings.data_dir, queries.HISTORY)))
        .outputMode("append")
        .trigger(processingTime=f"{round(settings.history_interval_seconds * 1000)} milliseconds")
        .start(str(table_path(settings, MESSAGES)))
    )
