"""The query that routes: `mqlake.inbound` to `mqlake.delivery.<gateway>`.

Nothing of it is in SQL: the sink asks the route function whose a record is, and sends it there, in
order, barriers too. A delivery is the record with a header `source` more (`mqlake.records.Source`).
"""

from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.records import DELIVERY_PREFIX, INBOUND, ROUTES, ROUTES_IN_FORCE
from streaming.checkpoints import Offsets
from streaming.settings import StreamingSettings
from streaming.sinks import append_to_log
from streaming.sources import PROMPT, read_log, starting_offsets
from streaming.spark import ROUTER_POOL, use_pool

NAME: Final = "router"
_SINK: Final = "mqlake.routing.RouteSink"
_COLUMNS: Final = ("key", "value", "headers", "partition", "offset", "timestamp")


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
    use_pool(spark, ROUTER_POOL)
    options = dict(PROMPT)
    if first is not None:
        options["startingOffsets"] = starting_offsets(first)
    writer = append_to_log(
        read_log(spark, settings, INBOUND, **options).select(*_COLUMNS),
        settings,
        NAME,
        real_time=real_time,
        sink=_SINK,
        inbound=INBOUND,
        routes=ROUTES,
        deliveries=DELIVERY_PREFIX,
        awaited=ROUTES_IN_FORCE,
    )
    return writer.option("checkpointLocation", str(checkpoint(settings))).start()
