"""Reads for share groups what waits in the log: what other parts have left, and gaps."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.drops import DropReason
from mqlake.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ingest.gateway.context import Context
    from ingest.gateway.gaps import Gaps
    from ingest.gateway.lookup import Lookup
    from ingest.gateway.share_part import SharePart
    from ingest.gateway.share_saving import PartSaver

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.2


class ShareReader:
    """Reads for the parts of one gateway.

    Args:
        context: Of the gateway.
        lookup: Finds what was given and is not in memory.
        gaps: Reads what a group has missed.
        saver: Writes parts.
        start: Runs a coroutine as a task that has an owner.
        on_read: Told of a part that has read all that waited for it.
    """

    def __init__(
        self,
        context: Context,
        lookup: Lookup,
        gaps: Gaps,
        saver: PartSaver,
        start: Callable[[Coroutine[Any, Any, None]], object],
        on_read: Callable[[SharePart], None],
    ) -> None:
        self._context = context
        self._lookup = lookup
        self._gaps = gaps
        self._saver = saver
        self._start = start
        self._on_read = on_read

    def read(self, part: SharePart) -> None:
        """Read what waits in the log; the members get it before what comes meanwhile."""
        if part.wants_to_read and not part.is_reading and not part.is_ended:
            part.is_reading = True
            part.is_open = False
            self._start(self._read_some(part))

    async def _read_some(self, part: SharePart) -> None:
        has_read_gap = False
        while part.wants_to_read and not part.is_ended:
            try:
                if part.unread:
                    await self._read_unread(part)
                else:
                    gap = part.gaps[0]
                    has_read_gap = True
                    await self._gaps.read(part, gap.start, gap.end, gap.since_ms)
                    if not part.is_ended:
                        del part.gaps[0]
                        part.end_missed()
            except LogError as error:
                part.was_not_read()
                logger.warning("a share group waits", extra={"fields": {"reason": str(error)}})
                await asyncio.sleep(RETRY_SECONDS)
        # First the log knows that nothing of a gap is left, then members get it: what a session has
        # in flight may be in the part's record, but never in a gap that would be read again.
        while has_read_gap and not (part.is_ended or self._saver.save(part)):  # noqa: ASYNC110
            await asyncio.sleep(RETRY_SECONDS)  # nobody tells
        part.is_reading = False
        self._on_read(part)

    async def _read_unread(self, part: SharePart) -> None:
        found = await self._lookup.messages(part.begin_to_read())
        if part.is_ended:
            part.was_not_read()
            return
        missing = part.was_read(found.values())
        if missing:
            self._context.drops.add(DropReason.UNREADABLE, part.group.tenant, "", "", 1, missing)
