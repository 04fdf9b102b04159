"""The log topics: which there are, and how each is configured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from mqlake.records.messages import (
    ACCESS,
    ALARMS,
    DEAD_LETTERS,
    EVENTS,
    GATEWAYS,
    INBOUND,
    JOBS,
    METRICS,
    OUTPUTS,
    ROUTES,
    ROUTES_IN_FORCE,
    RULES,
    SESSIONS,
)

MIB: Final = 1024 * 1024
_DELIVERY_RETENTION_MS: Final = 10 * 60 * 1000
DELIVERY: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": str(_DELIVERY_RETENTION_MS),
    "retention.bytes": str(256 * MIB),
    "segment.bytes": str(32 * MIB),
    "segment.ms": str(_DELIVERY_RETENTION_MS // 2),
}
"""A gateway reads its deliveries as they come; those it missed are in `mqlake.inbound`."""

INBOUND_SEGMENT_BYTES: Final = 256 * MIB
"""Largest segment; retention removes whole segments only, so small retentions get smaller ones."""

COMPACTED: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    # Few keys that change often: compact early, so that a starting reader has little to read.
    "segment.bytes": str(8 * MIB),
    "segment.ms": str(10 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.3",
    "max.compaction.lag.ms": str(60 * 60 * 1000),
    # A reader that was down for less than this sees every removal when it reads on.
    "delete.retention.ms": str(24 * 60 * 60 * 1000),
}
KEPT_UNTIL_READ: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""Nothing goes by itself: the lake deletes records that are old and read by everybody
(`streaming/reading/log_retention.py`)."""
KEPT_A_WEEK_MS: Final = 7 * 24 * 60 * 60 * 1000
KEPT_A_WEEK_BYTES: Final = 1024 * MIB
KEPT_A_WEEK: Final[Mapping[str, str]] = {**KEPT_UNTIL_READ, "segment.bytes": str(64 * MIB)}
"""At least, and until it is read."""

LOG_TIME: Final[Mapping[str, str]] = {"message.timestamp.type": "LogAppendTime"}
"""Records bear the log's time: clocks of gateways differ, and decide nothing."""

COMPACTED_LATER: Final[Mapping[str, str]] = {
    **COMPACTED,
    # In sessions a record that does not count may stand behind the one that does: a reader within
    # this time sees both, and the owner of the shard writes again the one that counts. Of routes a
    # router that begins again needs share groups as they were where it begins.
    "min.compaction.lag.ms": str(60 * 60 * 1000),
    "max.compaction.lag.ms": str(2 * 60 * 60 * 1000),
}
"""Routes; of sessions with the log's time, too."""

NOTES: Final[Mapping[str, str]] = {
    **COMPACTED,
    "segment.ms": str(6 * 60 * 60 * 1000),
    "min.compaction.lag.ms": str(24 * 60 * 60 * 1000),
    "max.compaction.lag.ms": str(30 * 60 * 60 * 1000),
}
"""Kept notes of routes in force: the last one of each partition, however old it is, and those of a
day for a router that begins where it was not long ago."""


@dataclass(frozen=True, slots=True)
class LogTopic:
    """A log topic that is not of one gateway.

    Attributes:
        name: Name of the log topic.
        keeping: Its configuration, by Kafka's names.
        is_acknowledged: It has records that were acknowledged, that are made of these, or that
            fence. The others are written again, like metrics, or made again of these: a gateway
            that comes back reads from `mqlake.inbound` messages that its delivery topic lacks.
        partitions: One; as many as `mqlake.inbound`, in segments that go by its retention; or as
            many as there are shards of sessions.
    """

    name: str
    keeping: Mapping[str, str]
    is_acknowledged: bool = True
    partitions: Literal["one", "inbound", "shards"] = "one"


LOG_TOPICS: Final = (
    LogTopic(INBOUND, KEPT_UNTIL_READ, partitions="inbound"),
    LogTopic(OUTPUTS, KEPT_UNTIL_READ, partitions="inbound"),
    LogTopic(SESSIONS, {**COMPACTED_LATER, **LOG_TIME}, partitions="shards"),
    LogTopic(GATEWAYS, {**COMPACTED, **LOG_TIME}),
    LogTopic(ROUTES, COMPACTED_LATER),
    LogTopic(ROUTES_IN_FORCE, NOTES),
    LogTopic(RULES, COMPACTED),
    LogTopic(METRICS, COMPACTED, is_acknowledged=False),
    LogTopic(JOBS, COMPACTED),
    LogTopic(ACCESS, COMPACTED),
    LogTopic(ALARMS, COMPACTED),
    LogTopic(EVENTS, KEPT_A_WEEK, is_acknowledged=False),
    LogTopic(DEAD_LETTERS, KEPT_A_WEEK),
)
SHARED_LOG_TOPICS: Final = tuple(one.name for one in LOG_TOPICS)
ACKNOWLEDGED_LOG_TOPICS: Final = tuple(one.name for one in LOG_TOPICS if one.is_acknowledged)
COMPACTED_LOG_TOPICS: Final = tuple(
    one.name for one in LOG_TOPICS if one.keeping["cleanup.policy"] == "compact"
)
