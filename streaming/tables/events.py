"""Events: records of `mqlake.events` to rows of `events`, `drops` and `audit_log`, and our own.

events(key, value, partition, offset) -> columns of `mqlake.tables.catalogue.EVENTS`, `DROPS` or
`AUDIT_LOG`
"""

import json
import logging
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from mqlake.records import messages as log_records
from mqlake.records.audit import AUDIT_EVENT
from mqlake.records.messages import MESSAGE_DROPPED
from mqlake.records.rules import RULE_UNREAD, LeftUnread
from mqlake.records.tenants import DEFAULT_TENANT
from mqlake.records.versions import READ_VERSIONS, RECORD_VERSION
from mqlake.tables.catalogue import AUDIT_LOG, DROPS, EVENTS, Table
from rules.actions.contract import NewRecord

_logger = logging.getLogger(__name__)

OTHER_EVENT: Final = "event"
"""Kind of an event whose row `event_rows` makes."""
_WITH_A_TABLE: Final = (MESSAGE_DROPPED, AUDIT_EVENT)

_EVENT: Final = """
    v int, event string, ts bigint, tenant string, client_id string, gateway string,
    reason string, filter string, topic string, qos tinyint, count bigint,
    detail string
"""
_AUDIT: Final = """
    v int, event string, ts bigint, tenant string, tenants string, caller string, role string,
    credential string, address string, agent string, request_id string, operation string,
    target string, status smallint, gateway string, detail string,
    asked string, before string, after string
"""


def lost_offsets(
    log_topic: str, first: int, end: int, *, reason: str, detail: str, now_ms: int
) -> NewRecord:
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
        "v": RECORD_VERSION,
        "event": MESSAGE_DROPPED,
        "ts": now_ms,
        "tenant": DEFAULT_TENANT,
        "reason": reason,
        "topic": log_topic,
        "detail": detail,
        "count": end - first,
    }
    data = json.dumps(value, separators=(",", ":")).encode()
    return NewRecord(log_records.EVENTS, f"{DEFAULT_TENANT}/".encode(), data, [], now_ms)


def rule_unread(tenant: str, rule: str, unread: LeftUnread) -> NewRecord:
    """Log what a stateful version has not taken; return the record that tells it in `events`."""
    value = {
        "v": RECORD_VERSION,
        "event": RULE_UNREAD,
        "ts": unread.at_ms,
        "tenant": tenant,
        "client_id": None,
        "gateway": None,
        "reason": unread.reason,
        "rule": rule,
        "rule_version": unread.version,
        "offsets": unread.offsets,
        "count": unread.count,
    }
    _logger.error("a rule has not read all that it was to read", extra={"fields": value})
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return NewRecord(log_records.EVENTS, f"{tenant}/".encode(), data, [], unread.at_ms)


def event_kind() -> Column:
    """Return which rows a record gives: `MESSAGE_DROPPED`, `AUDIT_EVENT` or `OTHER_EVENT`."""
    name = F.from_json(_text(), "event string")["event"]
    return F.when(name.isin(*_WITH_A_TABLE), name).otherwise(OTHER_EVENT)


def event_rows(records: DataFrame) -> DataFrame:
    """Return a row for each event, except those that `drop_rows` and `audit_rows` give."""
    return _rows(records, EVENTS, ~F.col("event.event").isin(*_WITH_A_TABLE))


def drop_rows(records: DataFrame) -> DataFrame:
    """Return a row for each record of dropped messages."""
    return _rows(records, DROPS, F.col("event.event") == MESSAGE_DROPPED)


def audit_rows(records: DataFrame) -> DataFrame:
    """Return a row for each change that was requested."""
    return _rows(records, AUDIT_LOG, F.col("event.event") == AUDIT_EVENT, _AUDIT)


def _rows(records: DataFrame, table: Table, wanted: Column, schema: str = _EVENT) -> DataFrame:
    parsed = records.select(
        "partition", "offset", _text().alias("text"), F.from_json(_text(), schema).alias("event")
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


def _text() -> Column:
    return F.make_valid_utf8(F.col("value").cast("string"))
