"""The query that evaluates rules: `mqlake.inbound` and `mqlake.events` to `mqlake.outputs`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.records.messages import EVENTS, INBOUND
from streaming import queries
from streaming.log.checkpoints import Offsets, emptied
from streaming.log.sinks import append_to_log
from streaming.log.sources import PROMPT, read_log, starting_offsets
from streaming.rules.evaluation import register_rule_functions, rule_outputs
from streaming.rules.signatures import rules_client_config
from streaming.settings.router import RouterSettings

SOURCES: Final = (INBOUND, EVENTS)


def start(
    spark: SparkSession,
    settings: RouterSettings,
    folder: Path,
    first: Offsets,
    begun: int,
    *,
    partitions: Mapping[str, int],
    outputs: int,
    real_time: bool,
) -> StreamingQuery:
    """Start the query; outputs of records since the position where it begins come again.

    Args:
        spark: The session.
        settings: How to reach the log, how long a batch is.
        folder: For Spark's checkpoint, which says nothing to a later start.
        first: Offsets to begin at.
        begun: Number of a change of the rules; nothing is evaluated before it is in force.
        partitions: Number of partitions of each source that are read.
        outputs: Partitions of `mqlake.outputs`.
        real_time: In real-time mode, else in ordinary micro-batches (see `streaming.engine.slots`).
    """
    register_rule_functions(spark, rules_client_config(settings), begun, outputs)
    options = {**PROMPT, "startingOffsets": starting_offsets(first, partitions)}
    records = rule_outputs(read_log(spark, settings, partitions, **options))
    seconds = settings.real_time_batch_seconds if real_time else None
    writer = append_to_log(records, settings, queries.RULES, real_time_seconds=seconds)
    return writer.option("checkpointLocation", str(emptied(folder))).start()
