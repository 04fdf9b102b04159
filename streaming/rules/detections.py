"""Detections in a query: live by a stateful processor with timers, over a table in SQL.

The processor is `DetectionProcessor.java`; its state needs the RocksDB provider.
"""

from pyspark.sql import DataFrame, SparkSession

from rules.detections import KEEP_MS, STATES, batch_query
from rules.language.plan import EVENT_TIME, Detection
from streaming.jvm.bridge import java_class, java_map, java_rows, python_rows


def detected(
    spark: SparkSession,
    dataframe: DataFrame,
    detection: Detection,
    *,
    until: str = "NULL",
    keep_ms: int = KEEP_MS,
) -> DataFrame:
    """Return the rows of a detection: `…, event_time -> …, event_time, at, state, since`.

    A stream's messages are reported when its watermark has passed them, so it has to move without
    messages too.

    Args:
        spark: Session of the DataFrame.
        dataframe: The relation of the detection's stream; if it streams, with a watermark.
        detection: To be looked for.
        until: For a table, see `batch_query`.
        keep_ms: When a key is forgotten.
    """
    if not dataframe.isStreaming:
        query = batch_query(detection, dataframe.columns, "{messages}", until, keep_ms)
        return spark.sql(query, messages=dataframe)
    told = java_class(spark, "mqlake.stateful.Detections").detected(
        java_rows(dataframe), java_map(spark, _options(detection, keep_ms))
    )
    return python_rows(spark, told)


def _options(detection: Detection, keep_ms: int) -> dict[str, str]:
    """Return a detection as `Detections.java` takes it."""
    return {
        "kind": detection.kind,
        "words": ",".join(STATES[detection.kind]),
        "event_time": EVENT_TIME,
        "keys": ",".join(detection.keys),
        "order": ",".join(detection.order),
        "condition": detection.condition or "",
        "value": detection.value or "",
        "duration_ms": str(detection.duration_ms),
        "keep_ms": str(keep_ms),
        "high": repr(detection.high),
        "low": repr(detection.low),
        "least": str(detection.least),
        "last": str(detection.last),
    }
