"""The log topics: which there are, and how each is configured."""

from collections.abc import Mapping
from typing import Final

from mqlake.records import (
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
(`streaming/log_retention.py`)."""
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
"""Of what is in force: the last one of each partition, however old it is, and those of a day for a
router that begins where it was not long ago."""

COMPACTED_LOG_TOPICS: Final = (RULES, METRICS, JOBS, ACCESS, ALARMS)
LOG_TOPICS_KEPT_A_WEEK: Final = (EVENTS, DEAD_LETTERS)
PARTITIONED_LOG_TOPICS: Final = (INBOUND, OUTPUTS)
SHARED_LOG_TOPICS: Final = (
    *PARTITIONED_LOG_TOPICS,
    SESSIONS,
    GATEWAYS,
    ROUTES,
    ROUTES_IN_FORCE,
    *COMPACTED_LOG_TOPICS,
    *LOG_TOPICS_KEPT_A_WEEK,
)
"""All that are not of one gateway."""
ACKNOWLEDGED_LOG_TOPICS: Final = (
    *PARTITIONED_LOG_TOPICS,
    *(SESSIONS, GATEWAYS, ROUTES, ROUTES_IN_FORCE, RULES, JOBS, ACCESS, ALARMS, DEAD_LETTERS),
)
"""Of those, the ones with records that were acknowledged, that are made of these, or that fence.

The others are written again, like metrics, or made again of these: a gateway that comes back reads
from `mqlake.inbound` messages that its delivery topic does not have.
"""
