"""Events: records of `mqlake.events` to rows of the tables `events` and `drops`, and our own.

events(key, value, partition, offset) -> columns of `mqlake.tables.EVENTS` or `DROPS`
"""

import json
import logging
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from mqlake import records as log_records
from mqlake.record_versions import READ_VERSIONS
from mqlake.reference_records import DEFAULT_TENANT
from mqlake.tables import DROPS, EVENTS, Table
from rules.actions.contract import Append

_logger = logging.getLogger(__name__)

DROPPED: Final = "message.dropped"

_EVENT: Final = """
    v int, event string, ts bigint, tenant string, client_id string, gateway string,
    reason string, filter string, topic string, qos tinyint, count bigint,
    detail string
"""


def lost_offsets(
    log_topic: str, first: int, end: int, *, reason: str, detail: str, now_ms: int
) -> Append:
    """Log that records of a partition are lost; return the record that tells it in `drops`.

    Args:
        log_topic: Theirs.
        first: Their first offset.
        end: The offset behind their last.
        reason: Column of the table.
        detail: Which, and why, for people.
        now_ms: When that was found out.
    """
    _logger.error("records are lost", extra={"fields": {"reason": detail}})
    value = {
        "v": log_records.RECORD_VERSION,
        "event": DROPPED,
        "ts": now_ms,
        "tenant": DEFAULT_TENANT,
        "reason": reason,
        "topic": log_topic,
        "detail": detail,
        "count": end - first,
    }
    data = json.dumps(value, separators=(",", ":")).encode()
    return Append(log_records.EVENTS, f"{DEFAULT_TENANT}/".encode(), data, [], now_ms)


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
