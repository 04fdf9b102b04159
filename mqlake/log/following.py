"""Has a writer of messages follow the log's growth, in processes that are no gateway."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Final

from mqlake.errors import LogError
from mqlake.log.admin import REQUEST_SECONDS
from mqlake.log.contract import LogWriter
from mqlake.log.growth_watch import GrowthWatch
from mqlake.records.messages import INBOUND

_logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
"""How late a step is followed; many times less than `mqlake.log.growth.OTHERS_SECONDS`."""


class GrowthFollower:
    """Has a writer put messages where they belong.

    Args:
        writer: Writer of messages, in this event loop.
        watch: Says where they belong.
    """

    def __init__(self, writer: LogWriter, watch: GrowthWatch) -> None:
        self._writer = writer
        self.watch = watch
        self._used = 0

    @classmethod
    async def open(
        cls, writer: LogWriter, servers: str, timeout_seconds: float = REQUEST_SECONDS
    ) -> "GrowthFollower":
        """Read how far the log has grown.

        Raises:
            LogError: It does not answer.
        """
        return cls(writer, await asyncio.to_thread(GrowthWatch, servers, timeout_seconds))

    async def look(self) -> None:
        """Follow all steps until now.

        Raises:
            LogError: The log does not answer.
        """
        used = await asyncio.to_thread(self.watch.used)
        if used != self._used:
            await self._writer.use_partitions(INBOUND, used, is_fixed=True)
            self._used = used

    async def close(self) -> None:
        await asyncio.to_thread(self.watch.close)


@contextlib.asynccontextmanager
async def following_growth(writer: LogWriter, servers: str) -> AsyncIterator[GrowthWatch]:
    """Put messages where they belong, as long as the block runs.

    Raises:
        LogError: The log does not answer at the beginning.
    """
    growth = await GrowthFollower.open(writer, servers)
    await growth.look()
    task = asyncio.create_task(_follow(growth))
    try:
        yield growth.watch
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await growth.close()


async def _follow(growth: GrowthFollower) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            await growth.look()
        except LogError as exc:
            _logger.warning("growth waits", extra={"fields": {"reason": str(exc)}})
