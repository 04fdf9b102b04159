"""How many partitions the log topics have that a gateway counts by: asked before anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mqlake.log.places import places_of
from mqlake.records import INBOUND, OUTPUTS, SESSIONS

if TYPE_CHECKING:
    from mqlake.log.contract import LogReader


class Partitions(NamedTuple):
    """Fixed when the log topics were made.

    Attributes:
        inbound: Of `mqlake.inbound`, those in use; so many shards the retained messages have.
        sessions: Of `mqlake.sessions`: its shards.
    """

    inbound: int
    sessions: int


async def count_partitions(reader: LogReader) -> Partitions:
    """Ask the log.

    Raises:
        LogError: It does not answer, or has no such topics.
    """
    inbound = await reader.partition_count(INBOUND)
    return Partitions(
        inbound=places_of(inbound, await reader.partition_count(OUTPUTS)).used,
        sessions=await reader.partition_count(SESSIONS),
    )
