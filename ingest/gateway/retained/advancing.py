"""Tells a gateway without deliveries how far the router is: the next run reads from there on.

Without subscribers a gateway hears of no message, so it sends barriers now and then; their way back
says which offsets the router has passed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from mqlake.errors import LogError

if TYPE_CHECKING:
    from ingest.gateway.log.delivered import Delivered
    from ingest.gateway.log.ends import Ends
    from ingest.gateway.routing.routes import Routes
    from mqlake.clock import Clock

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 10.0
"""How often the log is asked for its end; 10,000 messages/s fill a second of reading until then."""

FEW_OFFSETS: Final = 20_000
"""A start reads this many records in a fifth of a second."""

OLD_SECONDS: Final = 600.0
"""Age of a last record at which another one is sent: the log keeps it longer than that."""


class Advancing:
    """Sends barriers when the end of the log is far, or the last record is old.

    Args:
        delivered: How far this gateway has come.
        ends: Say how far the log goes.
        routes: Send barriers.
        clock: Tells the age of records.
    """

    def __init__(self, delivered: Delivered, ends: Ends, routes: Routes, clock: Clock) -> None:
        self._delivered = delivered
        self._ends = ends
        self._routes = routes
        self._clock = clock

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except LogError as error:
                fields = {"reason": str(error)}
                logger.warning("the end of the log is not known", extra={"fields": fields})

    async def look(self) -> None:
        """Send barriers, unless some are on their way or the log has little more.

        Raises:
            LogError: The log does not answer, or does not take them.
        """
        ends = await self._ends.inbound()
        offsets = enumerate(self._delivered.next_offsets())
        is_far = any(ends[partition] - offset > FEW_OFFSETS for partition, offset in offsets)
        since_ms = self._clock.now_ms() - round(OLD_SECONDS * 1000)
        is_old = any(one is None or one.timestamp_ms < since_ms for one in self._delivered.last)
        if (is_far or is_old) and not self._routes.oldest_wait_seconds:
            await self._routes.subscribe([]).counted
