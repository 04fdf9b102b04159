"""Performs the effects of a membership in a share group (`session.groups.share_membership`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.sharing.share_membership import NOT_KNOWN
from ingest.gateway.sharing.share_questions import ASK_AGAIN_SECONDS
from ingest.session.groups.share_membership import (
    Announce,
    AskToBegin,
    AskToGo,
    SaveMembership,
    Serve,
    WithdrawOwn,
    belong,
)
from mqlake.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.base.context import Context
    from ingest.gateway.log.ends import Ends
    from ingest.gateway.routing.routes import Routes
    from ingest.gateway.sharing.share_log import ShareLog
    from ingest.gateway.sharing.share_membership import ShareMembership
    from ingest.gateway.sharing.share_saving import MembershipSaver
    from ingest.session.shard.effects import Effect
    from mqlake.records.messages import Route

RETRY_SECONDS: Final = 0.2


class MembershipRunner:
    """Performs the effects of the memberships of one gateway.

    Args:
        context: Shared by all parts of the gateway.
        log: Takes the records of memberships.
        routes: Routes of this gateway.
        ends: Say at which offset deliveries for a new membership begin.
        saver: Writes memberships.
        let_in: Lets members in that have waited until their membership has joined.
        on_served: Gets a membership that is to give its members new messages.
    """

    def __init__(
        self,
        context: Context,
        log: ShareLog,
        routes: Routes,
        ends: Ends,
        saver: MembershipSaver,
        let_in: Callable[[list[Route], Callable[[], None]], None],
        on_served: Callable[[ShareMembership], None],
    ) -> None:
        self._context = context
        self._log = log
        self._routes = routes
        self._ends = ends
        self._saver = saver
        self._let_in = let_in
        self._on_served = on_served

    async def run(self, membership: ShareMembership) -> None:
        """Be a membership, from its first member to its last."""
        work = belong(membership.standing, self._context.clock.now_ms)
        result: Any = None
        while True:
            try:
                effect = work.send(result)
            except StopIteration:
                break
            result = await self._perform(membership, effect)

    async def _perform(self, membership: ShareMembership, effect: Effect[Any]) -> Any:
        match effect:
            case AskToBegin():
                begin = await self._ask(membership)
                await self._find_beginning(membership)
                return begin
            case AskToGo():
                membership.is_open = membership.is_joined = False
                await self._ask(membership)
            case SaveMembership():
                await self._saver.say(membership)
            case Announce():
                return await self._announce(membership)
            case WithdrawOwn():
                await self._withdraw(membership)
            case Serve():
                self._on_served(membership)
                while membership.members:
                    membership.unwanted.clear()
                    await membership.unwanted.wait()
                membership.move_given()
        return None

    async def _find_beginning(self, membership: ShareMembership) -> None:
        """Find out which deliveries are for a membership, if others of this gateway were before it.

        They are settled when this one begins, and its own route is announced behind that.
        """
        while membership.from_delivery == NOT_KNOWN:
            try:
                membership.from_delivery = await self._ends.delivery(membership.route.gateway)
            except LogError:
                await asyncio.sleep(RETRY_SECONDS)

    async def _ask(self, membership: ShareMembership) -> Any:
        """Write a membership until the owner of its shard answers."""
        answer = membership.new_answer()
        while True:
            self._saver.save(membership)
            try:
                async with asyncio.timeout(ASK_AGAIN_SECONDS):
                    return await asyncio.shield(answer)
            except TimeoutError:
                continue

    async def _announce(self, membership: ShareMembership) -> list[int]:
        await self._log.until_it_counts()
        routes = self._routes
        routes.renew(membership.route)
        own = [] if routes.knows(membership.route) else [membership.route]
        membership.holds_route = membership.holds_route or bool(own)
        starts = await routes.announce(own).counted
        # Members count from later barriers: messages between are given to the membership and wait
        # there.
        membership.is_joined = True
        pending, membership.pending = membership.pending, []
        for shared, enter in pending:
            self._let_in(shared, enter)
        return starts

    async def _withdraw(self, membership: ShareMembership) -> None:
        if membership.holds_route:
            membership.holds_route = False
            self._routes.unsubscribe(membership.route)
        await self._routes.announce([]).routed
