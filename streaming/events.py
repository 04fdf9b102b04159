"""Events: records of `mqlake.events` to rows of the tables `events` and `drops`.

events(key, value, partition, offset) -> columns of `mqlake.tables.EVENTS` or `DROPS`
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from mqlake.record_versions import READ_VERSIONS
from mqlake.tables import DROPS, EVENTS, Table

DROPPED: Final = "message.dropped"

_EVENT: Final = """
    v int, event string, ts bigint, tenant string, client_id string, gateway string,
    reason string, filter string, topic string, qos tinyint, count bigint,
    detail string
"""


def event_rows(records: DataFrame) -> DataFrame:
    """Return a row for each event, except those that `drop_rows` gives."""
    return _rows(records, EVENTS, F.col("event.event") != DROPPED)


def drop_rows(records: DataFrame) -> DataFrame:
    """Return a row for each record of dropped messages."""
    return _rows(records, DROPS, F.col("event.event") == DROPPED)


def _rows(records: DataFrame, table: Table, wanted: Column) -> DataFrame:
    text = F.make_valid_utf8(F.col("value").cast("string"))
    parsed = records.select(
        "partition", "offset", text.alias("text"), F.from_json(text, _EVENT).alias("event")
    )
    columns: dict[str, Column] = {
        "ts": F.timestamp_millis("event.ts"),
        "fields": F.col("text"),
        "log_partition": F.col("partition"),
        "log_offset": F.col("offset"),
    }
    return parsed.where(F.col("event.v").isin(*READ_VERSIONS) & wanted).select(
        *(
            columns.get(column.name, F.col(f"event.{column.name}"))
            .cast(column.type)
            .alias(column.name)
            for column in table.columns
        )
    )
