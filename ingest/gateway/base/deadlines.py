"""When connections are to be looked at: one timer of the event loop for all of them.

A timer each would be a tenth of an idle connection's memory, and three of them are set and
cancelled on the way of a client that only comes and goes.
"""

from __future__ import annotations

import heapq
from math import ceil
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio

SLOT_SECONDS: Final = 0.25
"""Deadlines are met at most so much late, never early; after the loop has stood still for longer,
at most so much after it goes on."""

UNWATCHED: Final = 0

FEW_SLOTS: Final = 1024
"""Slots that are kept even if they are empty; the longest keep alive spans 393,000."""


class WithDeadline(Protocol):
    """An object that has a deadline; compared by identity.

    Attributes:
        slot: Slot of `Deadlines`, `UNWATCHED` to begin with.
    """

    slot: int

    def deadline_passed(self) -> None:
        """Act, or watch again: the deadline is forgotten."""


class Deadlines:
    """At most one deadline for each watched object.

    Args:
        loop: Its clock counts.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Invariant: the keys are the numbers in the heap. A slot stays when all have left it, until
        # there are twice as many slots as when it was last looked for such.
        self._slots: dict[int, set[WithDeadline]] = {}
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = UNWATCHED
        self._has_waited = False
        self._passed = UNWATCHED
        self._prune_at = FEW_SLOTS

    def set(self, watched: WithDeadline, seconds: float) -> None:
        """Call `deadline_passed` after `seconds`, and no more at an earlier deadline."""
        slot = max(ceil((self._loop.time() + seconds) / SLOT_SECONDS), self._passed + 1)
        if slot == watched.slot:
            return
        self.forget(watched)
        members = self._slots.get(slot)
        if members is None:
            members = self._slots[slot] = set()
            heapq.heappush(self._order, slot)
            if len(self._slots) > self._prune_at:
                self._prune(slot)
            self._arm()
        members.add(watched)
        watched.slot = slot

    def forget(self, watched: WithDeadline) -> None:
        """Drop the deadline, if there is one."""
        if watched.slot != UNWATCHED:
            self._slots[watched.slot].discard(watched)
            watched.slot = UNWATCHED

    def _prune(self, new: int) -> None:
        """Remove empty slots, but for a new one and those that `_pass` may be at."""
        self._slots = {
            slot: members
            for slot, members in self._slots.items()
            if members or slot == new or slot <= self._passed
        }
        self._order = sorted(self._slots)
        self._prune_at = max(FEW_SLOTS, 2 * len(self._slots))

    def _arm(self) -> None:
        slot = self._order[0] if self._order else UNWATCHED
        if slot == self._timer_slot:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if slot:
            self._timer = self._loop.call_at(slot * SLOT_SECONDS, self._pass)
        self._timer_slot = slot

    def _pass(self) -> None:
        """Tell all whose slot has come.

        A loop that stood still, with its process perhaps, runs timers first and then reads packets
        that came meanwhile: it gets the time for that, once, before a client is taken for silent.
        """
        late = self._loop.time() - self._timer_slot * SLOT_SECONDS
        if late > SLOT_SECONDS and not self._has_waited:
            self._has_waited = True
            self._timer = self._loop.call_at(self._loop.time() + SLOT_SECONDS, self._pass)
            return
        self._has_waited = False
        self._timer = None
        # The event loop may call a little early: within its clock's resolution.
        self._passed = max(int(self._loop.time() / SLOT_SECONDS), self._timer_slot)
        self._timer_slot = UNWATCHED
        try:
            while self._order and self._order[0] <= self._passed:
                members = self._slots[self._order[0]]
                while members:
                    watched = members.pop()
                    watched.slot = UNWATCHED
                    watched.deadline_passed()
                del self._slots[heapq.heappop(self._order)]
        finally:
            self._arm()
