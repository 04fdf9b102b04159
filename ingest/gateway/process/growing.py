"""Follows the growth of the log (`mqlake.log.growth`): where messages go, and counts by partition.

It is done in one turn of the loop: before it nothing is written to a new partition, after it
nothing to an old one of a topic that has moved. One barrier in each partition follows. When the log
has those it has all that was written before, and this gateway says so in its next heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from mqlake.errors import InvalidRecord, LogError
from mqlake.log.growth import GrowthStep, decode_growth
from mqlake.records.messages import GROWTH_KEY, INBOUND

if TYPE_CHECKING:
    from ingest.gateway.base.tasks import Tasks
    from ingest.gateway.log.delivered import Delivered
    from ingest.gateway.log.partitions import Partitions
    from ingest.gateway.routing.publishing import Publisher
    from ingest.gateway.routing.routes import Routes
    from mqlake.log.contract import LogWriter
    from mqlake.log.growth import Growth
    from mqlake.records.gateway_heartbeat import GatewayHeartbeat
    from mqlake.records.messages import LogRecord

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5


class Growing:
    """One step after the other.

    Args:
        partitions: Numbers of partitions of the log topics; changed when the log grows.
        writer: Writer of this gateway's messages and barriers.
        publisher: Counts its messages in the log by partition.
        delivered: Counts deliveries by partition.
        routes: Send barriers through all of them.
        tasks: Run coroutines that wait for the log.
        lease_seconds: Lease of this gateway.
    """

    def __init__(
        self,
        partitions: Partitions,
        writer: LogWriter,
        publisher: Publisher,
        delivered: Delivered,
        routes: Routes,
        tasks: Tasks,
        lease_seconds: float,
    ) -> None:
        self._partitions = partitions
        self._writer = writer
        self._publisher = publisher
        self._delivered = delivered
        self._routes = routes
        self._tasks = tasks
        self._lease_seconds = lease_seconds
        self._written = partitions.inbound  # nothing is on its way to fewer
        self._is_fixed = False
        self._steps: list[Growth] = []
        self._is_open = False
        self._following: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Have the first message go where it belongs.

        Raises:
            LogError: The log does not answer.
        """
        growth = self._partitions.growth
        is_fixed = growth is not None and growth.is_moving
        await self._use(self._partitions.inbound, is_fixed=is_fixed)

    async def open(self) -> None:
        """Follow records from before this gateway's first heartbeat, and later ones."""
        self._is_open = True
        self._following = self._tasks.start(self._follow_all())
        await self._following

    def add_to(self, heartbeat: GatewayHeartbeat) -> None:
        """Set this gateway's state of growth."""
        heartbeat.partitions = self._written
        heartbeat.fixed = self._is_fixed
        heartbeat.lease = self._lease_seconds

    def receive(self, record: LogRecord) -> None:
        """Take a record of `mqlake.gateways`."""
        if record.key != GROWTH_KEY or record.value is None:
            return
        try:
            self._steps.append(decode_growth(record.value))
        except InvalidRecord as exc:
            logger.warning("growth ignored", extra={"fields": {"reason": str(exc)}})
            return
        if self._is_open and (self._following is None or self._following.done()):
            self._following = self._tasks.start(self._follow_all())

    async def _follow_all(self) -> None:
        while self._steps:
            try:
                await self._follow(self._steps[0])
            except LogError as exc:
                logger.warning("growth waits", extra={"fields": {"reason": str(exc)}})
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._steps.pop(0)

    async def _follow(self, growth: Growth) -> None:
        self._partitions.hear(growth)
        if growth.step is not GrowthStep.ANNOUNCED and growth.after > self._written:
            await self._move(growth.after)
        await self._use(self._partitions.inbound, is_fixed=growth.is_moving)

    async def _move(self, partitions: int) -> None:
        added = partitions - self._partitions.inbound
        await self._use(partitions, is_fixed=True)
        self._partitions.inbound = partitions
        self._publisher.acked.extend([-1] * added)
        self._delivered.grow(partitions)
        self._routes.grow(partitions)
        logger.info("messages go into more partitions", extra={"fields": {"count": partitions}})
        while self._written < partitions:
            try:
                await self._routes.subscribe([]).counted
                self._written = partitions
            except LogError as exc:
                logger.warning("growth waits", extra={"fields": {"reason": str(exc)}})
                await asyncio.sleep(RETRY_SECONDS)

    async def _use(self, partitions: int, *, is_fixed: bool) -> None:
        await self._writer.use_partitions(INBOUND, partitions, is_fixed=is_fixed)
        self._is_fixed = is_fixed
