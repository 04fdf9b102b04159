"""Knows whether other sites know the filters of this one: the federator says it in the log."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from mqlake.errors import InvalidRecord
from mqlake.records.federation import decode_reach
from mqlake.records.messages import REACH_KEY

if TYPE_CHECKING:
    from mqlake.records.messages import LogRecord

logger = logging.getLogger(__name__)


class Reach:
    """Up to where in `mqlake.routes` all sites that can be reached know the filters.

    Args:
        seconds: How long it is waited for at most; 0: not at all.
        loop: Event loop of the gateway.
    """

    def __init__(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        self._seconds = seconds
        self._loop = loop
        self._end = -1
        self._is_silent = False
        """The silence has been logged: once until an answer comes."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def receive(self, record: LogRecord) -> None:
        """Take a record of `mqlake.gateways`."""
        if record.key != REACH_KEY or record.value is None:
            return
        try:
            self._end = decode_reach(record.value)
        except InvalidRecord as exc:
            logger.warning("reach ignored", extra={"fields": {"reason": str(exc)}})
            return
        self._is_silent = False
        for routes_offset, reached in self._waiting:
            if routes_offset <= self._end and not reached.done():
                reached.set_result(None)

    async def wait(self, routes_offset: int) -> bool:
        """Wait until other sites know of a route; return whether they do, or none is asked.

        Args:
            routes_offset: Offset of the route in `mqlake.routes`.
        """
        if not self._seconds or routes_offset <= self._end:
            return True
        waiting = routes_offset, self._loop.create_future()
        self._waiting.append(waiting)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await waiting[1]
                    return True
        finally:
            self._waiting.remove(waiting)
        if not self._is_silent:
            self._is_silent = True
            fields = {"waited_seconds": self._seconds}
            logger.warning("other sites do not confirm a subscription", extra={"fields": fields})
        return False
