"""The query that appends: `mqlake.inbound` to the Delta table `messages`, each message once."""

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.records.messages import INBOUND
from mqlake.tables.catalogue import MESSAGES
from streaming import queries
from streaming.jvm.bridge import for_each_batch
from streaming.log.checkpoints import checkpoint
from streaming.log.sources import read_log
from streaming.settings.lake import LakeSettings
from streaming.tables.appends import batch_append
from streaming.tables.history import messages
from streaming.tables.tables import table_path


def start(spark: SparkSession, settings: LakeSettings, skipped: int = 0) -> StreamingQuery:
    """Start the query from its checkpoint; `skipped` offsets before it are of no record.

    Exactly once: the checkpoint fixes which offsets a batch holds before it runs, and the table
    takes a batch of this query only once.
    """
    options = {
        "maxOffsetsPerTrigger": str(settings.history_max_records + skipped),
        # A batch reads the records that are there. After each fetch the connector asks for the
        # partition's offsets; the broker answers only after the next fetch that waits on the same
        # connection.
        "kafka.fetch.max.wait.ms": "10",
    }
    rows = messages(read_log(spark, settings, [INBOUND], **options))
    # One file for each append: small files make a table slow.
    writer = rows.coalesce(1).writeStream.queryName(queries.HISTORY)
    append = batch_append(spark, table_path(settings, MESSAGES))
    return (
        for_each_batch(writer, append)
        .option("checkpointLocation", str(checkpoint(settings.data_dir, queries.HISTORY)))
        .trigger(processingTime=f"{round(settings.history_interval_seconds * 1000)} milliseconds")
        .start()
    )
