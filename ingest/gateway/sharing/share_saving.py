"""Memberships of share groups into the log: now and then, at once, or until it has them."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from mqlake.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.sending.group_step import GroupMember
    from ingest.gateway.sharing.share_log import ShareLog
    from ingest.gateway.sharing.share_membership import ShareMembership

RETRY_SECONDS: Final = 0.2

MANY_POSITIONS: Final = 1_000
POSITIONS_PER_SECOND: Final = 20_000
"""A membership with many messages is written less often: writing must not hold it up."""


@dataclass(slots=True)
class _Urgent:
    """Memberships whose records are waited for, and the waiting callbacks."""

    memberships: dict[ShareMembership, None] = field(default_factory=dict)
    members: dict[GroupMember, None] = field(default_factory=dict)
    """Sessions whose records the log has before those."""
    waiting: list[Callable[[], None]] = field(default_factory=list)
    left: int | None = None
    """How many records are on their way; None before they are written."""


class MembershipSaver:
    """Writes the memberships of this gateway.

    Args:
        log: Takes the records.
        loop: Event loop of the gateway.
        changed: Memberships whose present state is not in the log.
    """

    def __init__(
        self,
        log: ShareLog,
        loop: asyncio.AbstractEventLoop,
        changed: dict[ShareMembership, None],
    ) -> None:
        self._changed = changed
        self._log = log
        self._loop = loop
        self._urgent: deque[_Urgent] = deque()

    def save(self, membership: ShareMembership) -> bool:
        """Write a membership as it is; return whether the log takes it."""
        record = membership.snapshot()
        self._changed.pop(membership, None)
        count = len(record.open)
        rest = count / POSITIONS_PER_SECOND if count > MANY_POSITIONS else 0.0
        membership.due_at = self._loop.time() + rest

        def saved(error: LogError | None) -> None:
            if error is not None:
                membership.touch()

        try:
            self._log.save_membership(record, saved)
        except LogError as error:
            saved(error)
            return False
        return True

    async def say(self, membership: ShareMembership) -> None:
        """Write a membership until its record stands in the log and counts."""
        while True:
            is_saved: asyncio.Future[bool] = self._loop.create_future()

            def saved(error: LogError | None, is_saved: asyncio.Future[bool] = is_saved) -> None:
                if not is_saved.done():
                    is_saved.set_result(error is None)

            try:
                self._log.save_membership(membership.snapshot(), saved)
            except LogError as error:
                saved(error)
            if await is_saved:
                return
            await asyncio.sleep(RETRY_SECONDS)

    def after_saved(
        self,
        membership: ShareMembership | None,
        proceed: Callable[[], None],
        member: GroupMember | None,
    ) -> None:
        """Call back, in the order of the calls, when the log has a membership's present state.

        A membership's record no longer has what a member was given. So the log has the member's
        record before: of two on their way the first may time out and the second may not.
        """
        if not self._urgent or self._urgent[-1].left is not None:
            self._urgent.append(_Urgent())
            self._loop.call_soon(self._save_urgent)
        urgent = self._urgent[-1]
        urgent.waiting.append(proceed)
        if membership is not None:
            urgent.memberships[membership] = None
        if member is not None:
            urgent.members[member] = None

    def _save_urgent(self) -> None:
        urgent = self._urgent[-1]
        urgent.left = len(urgent.members) + 1
        for member in urgent.members:
            member.save_member(partial(self._member_saved, urgent))
        self._member_saved(urgent)

    def _member_saved(self, urgent: _Urgent) -> None:
        assert urgent.left is not None
        urgent.left -= 1
        if urgent.left:
            return
        urgent.left = len(urgent.memberships)
        for membership in urgent.memberships:
            self._save_until_taken(membership, urgent)
        self._proceed()

    def _save_until_taken(self, membership: ShareMembership, urgent: _Urgent) -> None:
        def saved(error: LogError | None) -> None:
            if error is not None and not membership.standing.is_lost:
                self._loop.call_later(RETRY_SECONDS, self._save_until_taken, membership, urgent)
                return
            assert urgent.left is not None
            urgent.left -= 1
            self._proceed()

        try:
            self._log.save_membership(membership.snapshot(), saved)
        except LogError as error:
            saved(error)

    def _proceed(self) -> None:
        """Call back those that have waited; one that waits longer holds up those behind it."""
        while self._urgent and self._urgent[0].left == 0:
            for proceed in self._urgent.popleft().waiting:
                proceed()
