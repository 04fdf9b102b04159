"""Routes of share groups as they were, from the log: for deliveries that are gone from it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ingest.session.groups.share_routes import RoutesThen
from mqlake.errors import InvalidRecord
from mqlake.records.messages import (
    HEADER_SOURCE,
    ROUTES,
    ROUTES_IN_FORCE,
    decode_route_key,
    decode_source,
)
from mqlake.records.offsets import at
from mqlake.topics.sharing import decode_weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.gateway.base.context import Context
    from ingest.gateway.log.ends import Ends
    from ingest.session.groups.share_records import GroupKey
    from mqlake.log.contract import LogRangeReader
    from mqlake.records.messages import LogRecord

NOTES_AT_ONCE: Final = 10_000
"""Notes that are read at first, from the end of their log topic; then four times as many."""

LOOK_SECONDS: Final = 0.02
"""How often it is looked whether the last notes have come."""


class ShareRoutes:
    """Reads which routes share groups had, and where they were in force.

    Args:
        context: Shared by all parts of the gateway.
        ranges: Reads the log.
        ends: Say how far it goes.
    """

    def __init__(self, context: Context, ranges: LogRangeReader, ends: Ends) -> None:
        self._context = context
        self._ranges = ranges
        self._ends = ends

    async def read(
        self, groups: Sequence[GroupKey], first: Sequence[int], before: Sequence[int], last: int
    ) -> RoutesThen:
        """Return the routes of groups that were in force in ranges of `mqlake.inbound`.

        Args:
            groups: Which.
            first: Per partition the first offset that matters.
            before: Per partition the first one that does not.
            last: Offset of a route that barriers have put in force, further on.

        Raises:
            LogError: The log does not answer.
        """
        then = RoutesThen(self._context.clock.now_ms())
        await self._read_notes(then, first, before, last)
        await self._read_routes(then, groups)
        return then

    async def _read_notes(
        self, then: RoutesThen, first: Sequence[int], before: Sequence[int], last: int
    ) -> None:
        """Read notes back to the first offsets, and on until the router has written the last ones.

        It writes those of a partition in their order. Without the last one, what is in force is not
        known, and no harm is done by that.
        """
        partitions = [one for one, end in enumerate(before) if at(first, one) < end]
        end = begin = await self._ends.routes_in_force()
        count = NOTES_AT_ONCE
        while begin and not all(then.knows(one, at(first, one)) for one in partitions):
            start = max(0, begin - count)
            await self._take_notes(then, start, begin)
            begin, count = start, count * 4
        clock = self._context.clock
        began_at = clock.monotonic()
        patience = self._context.settings.barrier_timeout_seconds
        while not all(then.has_seen(one, last) for one in partitions):
            if clock.monotonic() - began_at > patience:
                then.forget_notes_but_of(
                    [one for one in range(len(before)) if then.has_seen(one, last)]
                )
                return
            await asyncio.sleep(LOOK_SECONDS)
            start, end = end, await self._ends.routes_in_force()
            await self._take_notes(then, start, end)

    async def _take_notes(self, then: RoutesThen, start: int, end: int) -> None:
        async def take(records: Sequence[LogRecord]) -> None:
            for record in records:
                try:
                    source = decode_source(dict(record.headers).get(HEADER_SOURCE, b""))
                    (routes,) = source.shared_filters
                    then.add_note(source.partition, source.offset, int(routes), record.timestamp_ms)
                except (InvalidRecord, ValueError):
                    continue  # of another program: the router passes over it too

        await self._ranges.read_range(ROUTES_IN_FORCE, {0: (start, end)}, take)

    async def _read_routes(self, then: RoutesThen, groups: Sequence[GroupKey]) -> None:
        wanted = {f"{group.tenant}/{group.topic_filter}".encode(): group for group in groups}

        async def take(records: Sequence[LogRecord]) -> None:
            for record in records:
                group = wanted.get((record.key or b"").partition(b"/")[2])
                if group is None:
                    continue
                try:
                    gateway = decode_route_key(record.key or b"").gateway
                    weight = None if record.value is None else decode_weight(record.value)
                except InvalidRecord:
                    continue
                then.add_route(group, gateway, weight, record.offset, record.timestamp_ms)

        await self._ranges.read_range(ROUTES, {0: (0, await self._ends.routes())}, take)
