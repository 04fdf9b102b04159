"""How many partitions the log topics have that a gateway counts by: asked before anything else."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mqlake.log.growth import GrowthStep, decode_growth
from mqlake.log.places import made_with, used_partitions
from mqlake.records.messages import GATEWAYS, GROWTH_KEY, INBOUND, OUTPUTS, SESSIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mqlake.log.contract import LogReader
    from mqlake.log.growth import Growth


@dataclass(slots=True)
class Partitions:
    """All parts of a gateway have the same one.

    Attributes:
        inbound: Partitions of `mqlake.inbound` in use.
        sessions: Partitions of `mqlake.sessions`: its shards.
        retained: Shards of the retained messages; as many as `mqlake.inbound` was made with.
        growth: Growth of `mqlake.inbound`, as far as this gateway has heard.
    """

    inbound: int
    sessions: int
    retained: int
    growth: Growth | None = None
    _has_cut: asyncio.Event = field(default_factory=asyncio.Event, init=False, compare=False)

    def __post_init__(self) -> None:
        self.hear(self.growth)

    def hear(self, growth: Growth | None) -> None:
        """Note how far the growth is."""
        self.growth = growth
        if growth is not None and growth.step is GrowthStep.MOVED:
            self._has_cut.clear()
        else:
            self._has_cut.set()

    async def cut(self) -> Sequence[int]:
        """Return the last cut, by partition; while gateways move wait for it.

        A reader that is beyond it in the old partitions has all messages of a moved topic that come
        before those in its new one.
        """
        await self._has_cut.wait()
        return () if self.growth is None else self.growth.cut


async def count_partitions(reader: LogReader) -> Partitions:
    """Ask the log.

    Raises:
        LogError: It does not answer, or has no such topics.
        InvalidRecord: The record of its growth cannot be read.
    """
    inbound = await reader.partition_count(INBOUND)
    outputs = await reader.partition_count(OUTPUTS)
    record = (await reader.read_compacted(GATEWAYS)).get(GROWTH_KEY)
    growth = None if record is None else decode_growth(record.value)
    return Partitions(
        used_partitions(inbound, outputs, growth),
        await reader.partition_count(SESSIONS),
        made_with(inbound, outputs),
        growth,
    )
