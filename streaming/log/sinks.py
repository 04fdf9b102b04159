"""Write to the log."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from mqlake.log.admin import LogAdmin
from mqlake.log.log_topics import KEPT_UNTIL_READ
from mqlake.records.messages import EVENTS, undelivered_topic
from streaming.jvm.bridge import java_class
from streaming.log.sources import client_config
from streaming.settings.spark import StreamingSettings

LOG_SINK: Final = "mqlake.log.LogSink"
_SENDERS_CLASS: Final = "mqlake.log.LogSenders"
# Once a record waits, the one that it was made of may be deleted: it is kept as well as any may be.
_CONFIG: Final = {**KEPT_UNTIL_READ, "flush.messages": "1"}


def append_to_log(
    records: DataFrame,
    settings: StreamingSettings,
    name: str,
    *,
    real_time_seconds: float | None,
    sink: str = LOG_SINK,
    **options: str,
) -> DataStreamWriter:
    """Return the writer of records to log topics, without gaps; each start needs another.

    One sender in each JVM does it (`LogSender.java`). Records that a target does not take wait in a
    log topic of the query, which is made here.

    Args:
        records: As the sink takes them; the usual one (topic, partition, key, value, headers), of
            which no partition is the first.
        settings: Address and login of the log.
        name: Name of the query.
        real_time_seconds: How long a batch in real-time mode is; None: in ordinary micro-batches
            (see `streaming.engine.slots`).
        sink: Java class: `LogSink.java`, or one that makes other records of its rows.
        options: Its own; `awaited` is a log topic whose records do not wait elsewhere: the query
            reads them when it begins.

    Raises:
        LogError: The log does not answer.
    """
    undelivered = ensure_undelivered(settings, name)
    writer = (
        records.writeStream.queryName(name)
        .format(sink)
        .options(**{f"kafka.{key}": value for key, value in client_config(settings).items()})
        .option("query", name)
        .option("run", uuid.uuid4().hex)
        .option("events", EVENTS)
        .option("undelivered", undelivered)
        .options(**options)
        .outputMode("update")
    )
    if real_time_seconds is not None:
        milliseconds = f"{round(real_time_seconds * 1000)} milliseconds"
        # pyspark's overloads for type checkers do not list this trigger yet.
        return writer.trigger(realTime=milliseconds)  # type: ignore[call-overload, no-any-return]
    # Progress of every batch (0), though not awaited: real-time mode, to which the same checkpoint
    # may go over, refuses a log of batches with gaps. A batch is committed when the log has all of
    # it, as with the connector that Spark knows.
    return writer.options(
        asyncProgressTrackingEnabled="true",
        asyncProgressTrackingCheckpointIntervalMs="0",
        _asyncProgressTrackingOverrideSinkSupportCheck="true",
    ).trigger(processingTime="0 seconds")


def ensure_undelivered(settings: StreamingSettings, sender: str) -> str:
    """Make the log topic in which records of a sender wait, unless it exists; return its name.

    Raises:
        LogError: The log does not answer.
    """
    log_topic = undelivered_topic(sender)
    LogAdmin(settings.log.servers).ensure(log_topic, _CONFIG)
    return log_topic


@dataclass(frozen=True, slots=True)
class Waiting:
    """Records of a query for one partition that does not take them."""

    query: str
    log_topic: str
    partition: int
    records: int
    size_bytes: int
    oldest_ms: int
    """UTC epoch: when the oldest began to wait, about."""


def read_undelivered(spark: SparkSession) -> list[Waiting]:
    """Return records that wait in the driver's JVM, where all tasks are with a local master."""
    return parse_undelivered(java_class(spark, _SENDERS_CLASS).waiting())


def parse_undelivered(text: str) -> list[Waiting]:
    """Read the lines of `LogSenders.waiting`."""
    found = []
    for line in text.splitlines():
        query, log_topic, *numbers = line.split(" ")
        found.append(Waiting(query, log_topic, *map(int, numbers)))
    return found


def undelivered_figures(waiting: Iterable[Waiting], now_ms: int) -> dict[str, Any]:
    """Return the waiting records by the name of their partition, for the heartbeat."""
    found: dict[str, Any] = {}
    for one in waiting:
        figures = found.setdefault(
            f"{one.log_topic}-{one.partition}", {"records": 0, "bytes": 0, "oldest_seconds": 0.0}
        )
        figures["records"] += one.records
        figures["bytes"] += one.size_bytes
        age = max(0, now_ms - one.oldest_ms) / 1000
        figures["oldest_seconds"] = max(figures["oldest_seconds"], age)
    return found
