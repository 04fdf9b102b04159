"""Reads waiting messages of share groups from the log: other memberships' leftovers, and gaps."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.base.drops import DropReason
from mqlake.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ingest.gateway.base.context import Context
    from ingest.gateway.history.lookup import Lookup
    from ingest.gateway.sharing.share_gaps import ShareGaps
    from ingest.gateway.sharing.share_membership import ShareMembership
    from ingest.gateway.sharing.share_saving import MembershipSaver

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.2


class ShareReader:
    """Reads for the memberships of one gateway.

    Args:
        context: Shared by all parts of the gateway.
        lookup: Finds given messages that are not in memory.
        gaps: Reads messages that a group has missed.
        saver: Writes memberships.
        start: Runs a coroutine as a task that has an owner.
        on_read: Gets a membership that has read all that waited for it.
    """

    def __init__(
        self,
        context: Context,
        lookup: Lookup,
        gaps: ShareGaps,
        saver: MembershipSaver,
        start: Callable[[Coroutine[Any, Any, None]], object],
        on_read: Callable[[ShareMembership], None],
    ) -> None:
        self._context = context
        self._lookup = lookup
        self._gaps = gaps
        self._saver = saver
        self._start = start
        self._on_read = on_read

    def read(self, membership: ShareMembership) -> None:
        """Read waiting messages from the log; the members get them before new ones."""
        if membership.wants_to_read and not membership.is_reading and not membership.is_ended:
            membership.is_reading = True
            membership.is_open = False
            self._start(self._read_some(membership))

    async def _read_some(self, membership: ShareMembership) -> None:
        has_read_gap = False
        while membership.wants_to_read and not membership.is_ended:
            try:
                if membership.standing.unread and not membership.reads_gap_first:
                    await self._read_unread(membership)
                else:
                    gap = membership.standing.gaps[0]
                    has_read_gap = True
                    await self._gaps.read(membership, gap.start, gap.end, gap.since_ms)
                    if not membership.is_ended:
                        del membership.standing.gaps[0]
                        membership.end_missed()
                        _tell_uncertain(membership)
            except LogError as error:
                membership.was_not_read()
                logger.warning("a share group waits", extra={"fields": {"reason": str(error)}})
                await asyncio.sleep(RETRY_SECONDS)
        # First the log knows that nothing of a gap is left, then members get it: messages in flight
        # may be in the membership's record, but never in a gap that would be read again.
        while has_read_gap and not (membership.is_ended or self._saver.save(membership)):  # noqa: ASYNC110
            await asyncio.sleep(RETRY_SECONDS)  # there is no event for it
        membership.is_reading = False
        self._on_read(membership)

    async def _read_unread(self, membership: ShareMembership) -> None:
        found = await self._lookup.messages(membership.begin_to_read())
        if membership.is_ended:
            membership.was_not_read()
            return
        missing = membership.was_read(found.values())
        if missing:
            self._context.drops.add(
                DropReason.UNREADABLE, membership.group.tenant, "", "", 1, missing
            )


def _tell_uncertain(membership: ShareMembership) -> None:
    """Report what was dropped because it is unknown which gateway had been given it."""
    if not membership.uncertain:
        return
    offsets: dict[int, tuple[int, int]] = {}
    for partition, offset in membership.uncertain:
        offsets[partition] = (offsets.get(partition, (offset, offset))[0], offset)
    logger.warning(
        "messages of QoS 2 are dropped that another member of their share group may have",
        extra={
            "fields": {
                "filter": membership.group.topic_filter,
                "count": len(membership.uncertain),
                "first_and_last_by_partition": offsets,
            }
        },
    )
    membership.uncertain.clear()
