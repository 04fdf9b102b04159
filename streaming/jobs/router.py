"""The query that routes: `mqlake.inbound` to `mqlake.delivery.<gateway>`."""

from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.records import INBOUND, ROUTES_IN_FORCE
from streaming.checkpoints import Offsets
from streaming.routing import deliveries, register_route_function
from streaming.settings import StreamingSettings
from streaming.sinks import append_to_log
from streaming.sources import PROMPT, client_config, read_log, starting_offsets
from streaming.spark import ROUTER_POOL, use_pool

NAME: Final = "router"


def checkpoint(settings: StreamingSettings) -> Path:
    """Return the folder of the query's checkpoint."""
    return settings.data_dir.absolute() / "checkpoints" / NAME


def start(
    spark: SparkSession, settings: StreamingSettings, first: Offsets | None, *, real_time: bool
) -> StreamingQuery:
    """Start the query; deliveries since the place where it begins come again.

    Args:
        spark: The session.
        settings: How to reach the log, where the checkpoint is, how long a batch is.
        first: Where to begin when the checkpoint, which is empty then, does not say it.
        real_time: In real-time mode, else in ordinary micro-batches (see `streaming.slots`).
    """
    register_route_function(spark, client_config(settings))
    use_pool(spark, ROUTER_POOL)
    options = dict(PROMPT)
    if first is not None:
        options["startingOffsets"] = starting_offsets(first)
    records = deliveries(read_log(spark, settings, INBOUND, **options))
    writer = append_to_log(records, settings, NAME, real_time=real_time, awaited=ROUTES_IN_FORCE)
    return writer.option("checkpointLocation", str(checkpoint(settings))).start()
