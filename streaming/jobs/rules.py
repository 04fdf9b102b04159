"""The query that evaluates rules: `mqlake.inbound` and `mqlake.events` to `mqlake.outputs`."""

from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.records import EVENTS, INBOUND
from streaming.checkpoints import Offsets
from streaming.rules.evaluation import register_rule_functions, rule_outputs
from streaming.rules.signatures import rules_client_config
from streaming.settings import StreamingSettings
from streaming.sinks import append_to_log
from streaming.sources import PROMPT, read_log, starting_offsets
from streaming.spark import RULES_POOL, use_pool

NAME: Final = "rules"
SOURCES: Final = (INBOUND, EVENTS)


def checkpoint(settings: StreamingSettings) -> Path:
    """Return the folder of the query's checkpoint."""
    return settings.data_dir.absolute() / "checkpoints" / NAME


def start(
    spark: SparkSession,
    settings: StreamingSettings,
    first: Offsets,
    begun: int,
    *,
    real_time: bool,
) -> StreamingQuery:
    """Start the query; what came of records since the place where it begins comes again.

    Args:
        spark: The session.
        settings: How to reach the log, where the checkpoint is, how long a batch is.
        first: Where to begin when no batch is done.
        begun: Number of a change of the rules; nothing is evaluated before it is in force.
        real_time: In real-time mode, else in ordinary micro-batches (see `streaming.slots`).
    """
    register_rule_functions(spark, rules_client_config(settings), begun)
    use_pool(spark, RULES_POOL)
    options = {**PROMPT, "startingOffsets": starting_offsets(first)}
    records = rule_outputs(read_log(spark, settings, *SOURCES, **options))
    writer = append_to_log(records, settings, NAME, real_time=real_time)
    return writer.option("checkpointLocation", str(checkpoint(settings))).start()
