"""Asks which memberships of share groups are still this gateway's.

One that has not heard itself for so long that it may have been taken for dead gives nothing out
until the owners of its groups have answered for each membership: others may have its messages.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from ingest.gateway.sharing.share_log import ShareLog
    from ingest.gateway.sharing.share_membership import ShareMembership
    from ingest.gateway.sharing.share_saving import MembershipSaver
    from ingest.session.groups.share_records import GroupKey

ASK_AGAIN_SECONDS: Final = 1.0
"""After so long without an answer a membership asks again."""


class ShareQuestions:
    """The questions of one gateway.

    Args:
        log: Takes the records of memberships.
        memberships: Memberships of this gateway.
        saver: Writes them.
        start: Runs a coroutine as a task that has an owner.
        on_kept: Gets each membership when all are kept.

    Attributes:
        is_asking: Nothing is given out.
    """

    def __init__(
        self,
        log: ShareLog,
        memberships: Mapping[GroupKey, ShareMembership],
        saver: MembershipSaver,
        start: Callable[[Coroutine[Any, Any, None]], object],
        on_kept: Callable[[ShareMembership], None],
    ) -> None:
        self._log = log
        self._memberships = memberships
        self._saver = saver
        self._start = start
        self._on_kept = on_kept
        self._number = 0
        self.is_asking = False

    def ask(self, *, is_running: bool) -> None:
        """Give nothing out until it is known which memberships are still this gateway's.

        Args:
            is_running: Whether memberships can be there at all.
        """
        self._log.ask()
        self._number += 1
        if not is_running:
            self.look()
            return
        is_asking = self.is_asking
        self.is_asking = True
        for membership in self._memberships.values():
            membership.is_open = False
            # One that was never written cannot have been settled.
            membership.standing.asks = self._number if membership.is_written else 0
        if not is_asking:
            self._start(self._ask_all())
        self.look()

    async def _ask_all(self) -> None:
        while self.is_asking:
            for membership in list(self._memberships.values()):
                if membership.standing.asks:
                    self._saver.save(membership)
            await asyncio.sleep(ASK_AGAIN_SECONDS)

    def look(self) -> None:
        """Go on when all memberships that were asked for are kept."""
        if not self._log.is_asking or any(
            membership.standing.asks for membership in self._memberships.values()
        ):
            return
        if not self._log.is_answer_good():
            return  # it is asked again
        self.is_asking = self._log.is_asking = False
        self._log.confirmed()
        for membership in list(self._memberships.values()):
            self._on_kept(membership)

    def kept(self, membership: ShareMembership, number: int) -> None:
        """Take the answer for a membership."""
        if membership.standing.asks and membership.standing.asks == number:
            membership.standing.asks = 0
            membership.touch()
            self.look()
