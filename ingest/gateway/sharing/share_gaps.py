"""Gaps of share groups, read for all that wait at once.

Other sites hand messages to groups here that are no messages for anybody else, and bring others
that groups elsewhere have been given. The table has none of the first, and of the second only their
origin tells: where there are sites, it is read only for what the log does not have any more.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingest.gateway.base.drops import DropReason
from ingest.gateway.history.gaps import Gap
from ingest.session.client.catch_up import UNBOUNDED, Missed
from mqlake.errors import LogError
from mqlake.records.messages import FLAG_UNSHARED, HEADER_ORIGIN
from mqlake.records.offsets import at, latest
from mqlake.records.versions import HEADER_MQTT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.gateway.base.context import Context
    from ingest.gateway.history.catching_up import CatchingUp, Take
    from ingest.gateway.history.gaps import Absent, Gaps
    from ingest.gateway.log.ends import Ends
    from mqlake.records.messages import LogRecord

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Queue:
    """Gaps that are read together."""

    waiting: dict[Gap, asyncio.Future[LogError | None]] = field(default_factory=dict)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class ShareGaps:
    """Reads gaps of share groups.

    Args:
        context: Shared by all parts of the gateway.
        catching_up: Reads the log and the table.
        gaps: Hand messages over.
        ends: Say where the log begins.
    """

    def __init__(self, context: Context, catching_up: CatchingUp, gaps: Gaps, ends: Ends) -> None:
        self._drops = context.drops
        self._site = context.origin.encode().partition(b"/")[0] + b"/"
        self._catching_up = catching_up
        self._gaps = gaps
        self._ends = ends
        # A short gap does not wait for a long one to be read.
        self._short, self._long = _Queue(), _Queue()

    async def read(
        self, group: Absent, start: Sequence[int], end: Sequence[int], since_ms: int
    ) -> None:
        """Deliver missed messages, from these offsets by partition up to these, or further.

        Raises:
            LogError: The log cannot be read; some may have been delivered.
        """
        gap = Gap(group, self._gaps.missed(start, end, since_ms))
        queue = self._long if gap.missed.needs_table else self._short
        done = queue.waiting[gap] = asyncio.get_running_loop().create_future()
        async with queue.reading:
            if not done.done():
                await self._read_for_all(queue)
        if (error := done.result()) is not None:
            raise error

    async def _read_for_all(self, queue: _Queue) -> None:
        """Read for all that wait; when cancelled, they are read for with the next one."""
        gaps = list(queue.waiting)
        try:
            await self._read(gaps)
        except LogError as exc:
            error: LogError | None = exc
        else:
            error = None
        for gap in gaps:
            queue.waiting.pop(gap).set_result(error)

    async def _read(self, gaps: list[Gap]) -> None:
        if await self._ends.has_sites():
            begins = await self._ends.inbound_begins()
            begin = [begins[partition] for partition in range(len(begins))]
            older = [gap for gap in gaps if _begins_before(gap.missed, begin)]
            if older:
                await self._read_older(older, begin)
            for gap in gaps:
                gap.missed = Missed(gap.missed.cursor, gap.missed.ends, UNBOUNDED)
        await self._catching_up.read(gaps, self._gaps.taker)

    async def _read_older(self, gaps: list[Gap], begin: list[int]) -> None:
        """Read from the table what the log does not have any more."""
        ends = {gap: gap.missed.ends for gap in gaps}
        for gap in gaps:
            until = [min(end, at(begin, one)) for one, end in enumerate(gap.missed.ends)]
            gap.missed = Missed(gap.missed.cursor, latest(until, gap.missed.cursor), 0)
        await self._catching_up.read(gaps, self._taker)
        for gap, end in ends.items():
            gap.missed.ends = end
            self._drops.add(DropReason.UNREADABLE, gap.tenant, gap.client_id, "", 1)
        logger.warning(
            "what other sites have handed to share groups is not in the table",
            extra={"fields": {"log_begins": begin, "groups": len(gaps)}},
        )

    def _taker(self, gaps: Sequence[Gap]) -> Take:
        """Return a function that delivers rows of the table, those of other sites to no group."""
        take = self._gaps.taker(gaps)

        async def take_marked(records: list[LogRecord]) -> None:
            await take([self._marked(record) for record in records])

        return take_marked

    def _marked(self, record: LogRecord) -> LogRecord:
        """Return a record with the flag that it had in the log if another site has brought it."""
        headers = dict(record.headers)
        mqtt = headers.get(HEADER_MQTT, b"")
        if headers.get(HEADER_ORIGIN, self._site).startswith(self._site) or len(mqtt) != 3:
            return record
        headers[HEADER_MQTT] = bytes((*mqtt[:2], mqtt[2] | FLAG_UNSHARED))
        return record._replace(headers=list(headers.items()))


def _begins_before(missed: Missed, begin: list[int]) -> bool:
    return any(
        at(missed.cursor, one) < min(at(begin, one), end) for one, end in enumerate(missed.ends)
    )
