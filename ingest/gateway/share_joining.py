"""How a part of a share group joins and leaves (`ingest.session.share_parts` says why so)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ingest.session.share_parts import Gap, PartRecord, PartState, ShareTable
from mqlake.offsets import latest

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.server import Gateway
    from ingest.gateway.share_part import SharePart
    from ingest.gateway.share_saving import PartSaver
    from mqlake.records import Route

logger = logging.getLogger(__name__)


def take_over(part: SharePart, left: PartRecord) -> None:
    """Make what another part has left this part's own."""
    logger.info(
        "share part taken over",
        extra={"fields": {"filter": part.group.topic_filter, "from": left.gateway}},
    )
    part.took.append(left.part_id)
    part.unread.update(left.open)
    part.gaps.extend(Gap(list(one.start), list(one.end), one.since_ms) for one in left.gaps)
    if left.given is not None:
        part.given = latest(left.given, part.given)


class Joining:
    """Lets the parts of a gateway join and leave.

    Args:
        gateway: Whose parts.
        table: All parts of all gateways.
        saver: Writes parts.
        enter: Lets members in that share these routes, when their parts have joined.
    """

    def __init__(
        self,
        gateway: Gateway,
        table: ShareTable,
        saver: PartSaver,
        enter: Callable[[list[Route], Callable[[], None]], None],
    ) -> None:
        self._gateway = gateway
        self._table = table
        self._saver = saver
        self._enter = enter

    async def join(self, part: SharePart) -> None:
        """Begin beside others or as the first."""
        await self._saver.say(part)
        outlook = await part.outlook
        if outlook.starts is not None:
            part.begin(outlook.starts)
            await self._saver.say(part)
            await self._announce(part)
            part.state = PartState.LIVE
            self._saver.save(part)
        else:
            since_ms = self._gateway.clock.now_ms()
            for left in self._table.left(part.group):
                take_over(part, left)
                since_ms = min(since_ms, left.at_ms)
            missed_from = None if part.given is None else list(part.given)
            starts = await self._announce(part)
            if missed_from is not None:
                gap = Gap(missed_from, starts, since_ms)
                if not gap.is_empty:
                    part.gaps.append(gap)
            part.begin(starts)
            part.state = PartState.LIVE
            # Before members get anything: whoever finds this gateway dead must know of the gap.
            await self._saver.say(part)

    async def _announce(self, part: SharePart) -> list[int]:
        """Have the router give to this part; return offsets of barriers that follow its route.

        Even if all members have gone meanwhile: others may rely on its being there.
        """
        own = [] if self._gateway.routes.knows(part.route) else [part.route]
        part.holds_route = part.holds_route or bool(own)
        starts = await self._gateway.routes.announce(own).counted
        # Members count from later barriers: what is between is given to the part and waits there.
        part.is_joined = True
        pending, part.pending = part.pending, []
        for routes, enter in pending:
            self._enter(routes, enter)
        return starts

    async def leave(self, part: SharePart) -> None:
        """Have the router give nothing more; leave what is here to whoever takes it."""
        if part.state is PartState.LIVE:
            part.move_given()
        part.is_open = part.is_joined = False
        part.state = PartState.LEAVING
        await self._saver.say(part)
        while not self._can_do_without(part):
            part.changed.clear()
            await part.changed.wait()
        if part.holds_route:
            part.holds_route = False
            self._gateway.routes.unsubscribe(part.route)
        await self._gateway.routes.announce([]).routed
        part.state = PartState.LEFT
        await self._saver.say(part)

    def _can_do_without(self, part: SharePart) -> bool:
        """Tell whether the router has another gateway for the group, or no other one is to come."""
        awaited = [
            other
            for part_id in part.awaited or ()
            if (other := self._table.get(part.group, part_id)) is not None
            and other.state in {PartState.JOINING, PartState.LIVE}
        ]
        return not awaited or any(one.state is PartState.LIVE for one in awaited)
