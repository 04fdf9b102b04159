"""The query that routes: `mqlake.inbound` to `mqlake.delivery.<gateway>`.

Nothing of it is in SQL: the sink asks the route function whose a record is, and sends it there, in
order, barriers too. A delivery is the record with a header `source` more
(`mqlake.records.messages.Source`).
"""

from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.records.messages import DELIVERY_PREFIX, INBOUND, ROUTES, ROUTES_IN_FORCE
from streaming import queries
from streaming.log.checkpoints import Offsets, emptied
from streaming.log.sinks import append_to_log
from streaming.log.sources import PROMPT, read_log, starting_offsets
from streaming.settings.router import RouterSettings

_SINK: Final = "mqlake.routing.RouteSink"
_COLUMNS: Final = ("key", "value", "headers", "partition", "offset", "timestamp")


def start(
    spark: SparkSession,
    settings: RouterSettings,
    folder: Path,
    first: Offsets | None,
    *,
    partitions: int,
    shards: int,
    real_time: bool,
) -> StreamingQuery:
    """Start the query; deliveries since the position where it begins come again.

    Args:
        spark: The session.
        settings: How to reach the log, how long a batch is.
        folder: For Spark's checkpoint, which says nothing to a later start.
        first: Offsets to begin at; None: at the beginning of the log.
        partitions: Number of partitions that are read.
        shards: Number of shards of the retained messages.
        real_time: In real-time mode, else in ordinary micro-batches (see `streaming.engine.slots`).
    """
    options, read = dict(PROMPT), {INBOUND: partitions}
    if first is not None:
        options["startingOffsets"] = starting_offsets(first, read)
    writer = append_to_log(
        read_log(spark, settings, read, **options).select(*_COLUMNS),
        settings,
        queries.ROUTER,
        real_time_seconds=settings.real_time_batch_seconds if real_time else None,
        sink=_SINK,
        inbound=INBOUND,
        routes=ROUTES,
        deliveries=DELIVERY_PREFIX,
        awaited=ROUTES_IN_FORCE,
        shards=str(shards),
    )
    return writer.option("checkpointLocation", str(emptied(folder))).start()
