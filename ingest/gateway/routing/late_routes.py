"""Routes that an earlier run of this gateway has written after it had ended, or stood still.

A record can reach the log when a later run serves already. The router passes over it, but it stands
under the same key as that run's: compaction leaves it alone, and a router that begins later knows
nothing of the route. So the later run looks once, when no such record can come any more.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from mqlake.errors import InvalidRecord, LogError
from mqlake.log.contract import DELIVERY_SECONDS
from mqlake.records.messages import HEADER_BY, ROUTES, decode_route_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.gateway.log.ends import Ends
    from ingest.gateway.routing.routes import Routes
    from mqlake.log.contract import LogRangeReader
    from mqlake.records.messages import LogRecord, Route
    from mqlake.records.shards import Run

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = DELIVERY_SECONDS + 10.0
"""When it is looked: a record is given up before, and a broker has read what was sent."""

RETRY_SECONDS: Final = 10.0


class LateRoutes:
    """Looks for late routes of earlier runs.

    Args:
        me: This run of this gateway.
        ranges: Reads the log.
        ends: Say how far it goes.
        routes: Routes of this gateway.
    """

    def __init__(self, me: Run, ranges: LogRangeReader, ends: Ends, routes: Routes) -> None:
        self._me = me
        self._ranges = ranges
        self._ends = ends
        self._routes = routes
        self._begin = 0

    async def begin(self) -> None:
        """Note that what is in the log by now is known.

        Raises:
            LogError: The log does not answer.
        """
        self._begin = await self._ends.routes()

    async def run(self) -> None:
        """Look once, as soon as it is time and the log answers."""
        await asyncio.sleep(LOOK_SECONDS)
        while True:
            try:
                await self.look()
            except LogError as error:
                fields = {"reason": str(error)}
                logger.warning("late routes are looked for again", extra={"fields": fields})
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def look(self) -> None:
        """Write routes again that an earlier run has written since this one began.

        Raises:
            LogError: The log does not answer.
        """
        found: dict[Route, None] = {}
        prefix = f"{self._me.gateway}/".encode()
        own = self._me.incarnation.encode()

        async def take(records: Sequence[LogRecord]) -> None:
            for record in records:
                if not (record.key or b"").startswith(prefix):
                    continue
                by = dict(record.headers).get(HEADER_BY)
                try:
                    route = decode_route_key(record.key or b"")
                except InvalidRecord:
                    continue  # of no gateway
                if by == own:
                    found.pop(route, None)
                elif by is not None:  # a withdrawal by another gateway says not who has written it
                    found[route] = None

        await self._ranges.read_range(ROUTES, {0: (self._begin, await self._ends.routes())}, take)
        if found:
            logger.warning(
                "an earlier run of this gateway has written routes late, they are written again",
                extra={"fields": {"count": len(found)}},
            )
            self._routes.write_again(found)
