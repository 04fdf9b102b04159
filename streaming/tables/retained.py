"""Retained messages: inbound records to rows of the table `retained`, and up to where it goes.

inbound(key, value, headers, partition, offset, timestamp) -> columns of
`mqlake.tables.catalogue.RETAINED`

Each commit of the table says in its user metadata which offsets of the log come next, so that a
reader can go on from there in the log (`docs/tables.md`).
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from mqlake.records.messages import FLAG_RETAIN
from mqlake.records.versions import HEADER_MQTT
from mqlake.tables.catalogue import NEXT_OFFSETS, RETAINED
from streaming.log.sources import header_byte
from streaming.tables.history import messages
from streaming.tables.merges import Matched, Merge, of_change

Offsets = Mapping[int, int]
"""Partition of `mqlake.inbound` to an offset."""

_USER_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"
_SKIP_EMPTY: Final = "spark.databricks.delta.skipRecordingEmptyCommits"


def is_retained() -> Column:
    """Tell of an inbound record whether it is flagged RETAIN; cheap, as it is asked of each."""
    return header_byte(HEADER_MQTT, 3).bitwiseAND(FLAG_RETAIN) != 0


def last_retained(inbound: DataFrame) -> DataFrame:
    """Return the last retained message of each topic; with `gone` when it has no payload.

    A topic is in one partition, so the offset says which is the last.
    [MQTT5-3.3.1-5] [MQTT5-3.3.1-6] [MQTT5-3.3.1-7]
    """
    expiry_seconds = F.get_json_object("properties", "$.message_expiry_interval")
    retained = (
        messages(inbound)
        .where("retain")
        .withColumn(
            "expires_at",
            F.timestamp_millis(F.unix_millis("ts") + expiry_seconds.try_cast("bigint") * 1000),
        )
    )
    key = ("tenant", "topic")
    others = [column.name for column in RETAINED.columns if column.name not in key]
    return (
        retained.groupBy(*key)
        .agg(F.max_by(F.struct(*others), "log_offset").alias("last"))
        .select(*key, "last.*")
        .withColumn("gone", F.octet_length("payload") == 0)
    )


def merge_retained(changes: DataFrame, next_offsets: Offsets) -> None:
    """Bring the rows of `last_retained` into the table; a second time changes nothing.

    A row only changes to one that stands behind it in the log. Another partition number is that of
    a log that was set up again.
    """
    is_newer = "change.log_offset > row.log_offset OR change.log_partition <> row.log_partition"
    all_columns = of_change(column.name for column in RETAINED.columns)
    merge = Merge(
        on="row.tenant = change.tenant AND row.topic = change.topic",
        matched=(Matched(f"change.gone AND ({is_newer})"), Matched(is_newer, all_columns)),
        insert_if="NOT change.gone",
        inserted=all_columns,
    )
    with commits_saying(changes.sparkSession, next_offsets):
        merge.into(RETAINED.name, changes)


def note_offsets(spark: SparkSession, path: Path, next_offsets: Offsets) -> None:
    """Commit that no retained message came up to these offsets."""
    with commits_saying(spark, next_offsets):
        nothing = spark.table(RETAINED.name).limit(0)
        nothing.coalesce(1).write.format("delta").mode("append").save(str(path))


def first_expiry(spark: SparkSession) -> datetime | None:
    """Return when the first row expires, UTC; None when none will."""
    found = spark.table(RETAINED.name).agg(F.unix_millis(F.min("expires_at"))).first()
    milliseconds = None if found is None else found[0]
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def delete_expired(spark: SparkSession, now: datetime, next_offsets: Offsets) -> None:
    """Delete the rows whose message expiry interval has ended.

    [MQTT5-3.3.2-5]
    """
    with commits_saying(spark, next_offsets):
        DeltaTable.forName(spark, RETAINED.name).delete(F.col("expires_at") <= F.lit(now))


@contextmanager
def commits_saying(spark: SparkSession, next_offsets: Offsets) -> Iterator[None]:
    """Let each commit of this session say these offsets, also one that changes nothing else."""
    offsets = {str(partition): offset for partition, offset in sorted(next_offsets.items())}
    spark.conf.set(_USER_METADATA, json.dumps({NEXT_OFFSETS: offsets}))
    spark.conf.set(_SKIP_EMPTY, "false")
    try:
        yield
    finally:
        spark.conf.unset(_USER_METADATA)
        spark.conf.unset(_SKIP_EMPTY)


def committed_offsets(path: Path) -> dict[int, int]:
    """Return the next offsets that the newest commit says which says any; empty without one.

    Read from the table's log itself: this is asked before each start, and a query would cost a
    second.
    """
    for commit in sorted((path / "_delta_log").glob("*.json"), reverse=True):
        for line in commit.read_text(encoding="utf-8").splitlines():
            metadata = json.loads(line).get("commitInfo", {}).get("userMetadata")
            if metadata is not None:
                offsets = json.loads(metadata)[NEXT_OFFSETS]
                return {int(partition): offset for partition, offset in offsets.items()}
    return {}
