"""The query that routes: `mqlake.inbound` to `mqlake.delivery.<gateway>`."""

import shutil
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.records import INBOUND
from streaming.checkpoints import Offsets
from streaming.routing import deliveries, register_route_function
from streaming.settings import StreamingSettings
from streaming.sources import client_config, read_log, starting_offsets
from streaming.spark import ROUTER_POOL, use_pool

NAME: Final = "router"

_CONSUMER: Final = {
    # At a batch boundary the connector asks for the partition's offsets; the broker answers only
    # after the fetch request that waits on the same connection.
    "kafka.fetch.max.wait.ms": "100",
}
_PRODUCER: Final = {
    # Order within an inbound partition holds because the producer is idempotent (the default).
    "kafka.acks": "all",
    "kafka.linger.ms": "0",
    # What the log took inbound must go out again, a header longer.
    "kafka.max.request.size": str(300 * 1024 * 1024),
    "kafka.max.block.ms": "30000",
}


def checkpoint(settings: StreamingSettings) -> Path:
    """Return the folder of the query's checkpoint."""
    return settings.data_dir.absolute() / "checkpoints" / NAME


def start(
    spark: SparkSession, settings: StreamingSettings, first: Offsets | None, *, real_time: bool
) -> StreamingQuery:
    """Start the query from its checkpoint; deliveries since the last batch boundary come again.

    Args:
        spark: The session.
        settings: How to reach the log, where the checkpoint is, how long a batch is.
        first: Where to begin instead: the log has nothing any more of where the checkpoint is, and
            a real-time query would fail there at each start. The checkpoint is given up; it holds
            nothing but offsets.
        real_time: In real-time mode, else in ordinary micro-batches (see `streaming.slots`).
    """
    register_route_function(spark, client_config(settings))
    use_pool(spark, ROUTER_POOL)
    options = dict(_CONSUMER)
    if first is not None:
        shutil.rmtree(checkpoint(settings), ignore_errors=True)
        options["startingOffsets"] = starting_offsets(first)
    writer = (
        deliveries(read_log(spark, settings, INBOUND, **options))
        .writeStream.queryName(NAME)
        .format("kafka")
        .options(**{f"kafka.{key}": value for key, value in client_config(settings).items()})
        .options(**_PRODUCER)
        .option("checkpointLocation", str(checkpoint(settings)))
        .outputMode("update")
    )
    if real_time:
        milliseconds = f"{round(settings.router_batch_seconds * 1000)} milliseconds"
        # pyspark's overloads for type checkers do not list this trigger yet.
        writer = writer.trigger(realTime=milliseconds)  # type: ignore[call-overload]
    else:
        # Progress of every batch (0), though not awaited: real-time mode, to which the same
        # checkpoint may go over, refuses a log of batches with gaps.
        writer = writer.options(
            asyncProgressTrackingEnabled="true", asyncProgressTrackingCheckpointIntervalMs="0"
        ).trigger(processingTime="0 seconds")
    return writer.start()
