"""Performs what a part of a share group does (`ingest.session.share_membership`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.share_part import NOT_KNOWN
from ingest.gateway.share_questions import ASK_AGAIN_SECONDS
from ingest.session.share_membership import (
    Announce,
    AskToBegin,
    AskToGo,
    SavePart,
    Serve,
    WithdrawOwn,
    belong,
)
from mqlake.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.context import Context
    from ingest.gateway.ends import Ends
    from ingest.gateway.routes import Routes
    from ingest.gateway.share_log import ShareLog
    from ingest.gateway.share_part import SharePart
    from ingest.gateway.share_saving import PartSaver
    from ingest.session.effects import Effect
    from mqlake.records import Route

RETRY_SECONDS: Final = 0.2


class ShareMembership:
    """Performs it for the parts of one gateway.

    Args:
        context: Of the gateway.
        log: Where parts are written.
        routes: Of this gateway.
        ends: Say where deliveries begin that are for a new part.
        saver: Writes parts.
        let_in: Lets members in who have waited until their part has joined.
        on_served: Told of a part that is to give its members what comes.
    """

    def __init__(
        self,
        context: Context,
        log: ShareLog,
        routes: Routes,
        ends: Ends,
        saver: PartSaver,
        let_in: Callable[[list[Route], Callable[[], None]], None],
        on_served: Callable[[SharePart], None],
    ) -> None:
        self._context = context
        self._log = log
        self._routes = routes
        self._ends = ends
        self._saver = saver
        self._let_in = let_in
        self._on_served = on_served

    async def run(self, part: SharePart) -> None:
        """Be a part, from its first member to its last."""
        work = belong(part, self._context.clock.now_ms)
        result: Any = None
        while True:
            try:
                effect = work.send(result)
            except StopIteration:
                break
            result = await self._perform(part, effect)

    async def _perform(self, part: SharePart, effect: Effect[Any]) -> Any:
        match effect:
            case AskToBegin():
                begin = await self._ask(part)
                await self._find_beginning(part)
                return begin
            case AskToGo():
                part.is_open = part.is_joined = False
                await self._ask(part)
            case SavePart():
                await self._saver.say(part)
            case Announce():
                return await self._announce(part)
            case WithdrawOwn():
                await self._withdraw(part)
            case Serve():
                self._on_served(part)
                while part.members:
                    part.unwanted.clear()
                    await part.unwanted.wait()
                part.move_given()
        return None

    async def _find_beginning(self, part: SharePart) -> None:
        """Find out which deliveries are for a part, if others of this gateway were before it.

        They are settled when this one begins, and its own route is announced behind that.
        """
        while part.from_delivery == NOT_KNOWN:
            try:
                part.from_delivery = await self._ends.delivery(part.route.gateway)
            except LogError:
                await asyncio.sleep(RETRY_SECONDS)

    async def _ask(self, part: SharePart) -> Any:
        """Write a part until the owner of its shard answers."""
        answer = part.new_answer()
        while True:
            self._saver.save(part)
            try:
                async with asyncio.timeout(ASK_AGAIN_SECONDS):
                    return await asyncio.shield(answer)
            except TimeoutError:
                continue

    async def _announce(self, part: SharePart) -> list[int]:
        await self._log.until_it_counts()
        routes = self._routes
        routes.renew(part.route)
        own = [] if routes.knows(part.route) else [part.route]
        part.holds_route = part.holds_route or bool(own)
        starts = await routes.announce(own).counted
        # Members count from later barriers: what is between is given to the part and waits there.
        part.is_joined = True
        pending, part.pending = part.pending, []
        for shared, enter in pending:
            self._let_in(shared, enter)
        return starts

    async def _withdraw(self, part: SharePart) -> None:
        if part.holds_route:
            part.holds_route = False
            self._routes.unsubscribe(part.route)
        await self._routes.announce([]).routed
