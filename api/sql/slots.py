"""Slots that tenants share fairly: one alone has all, else each has its part."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Final, NamedTuple

MOST_WAITING: Final = 40
"""That wait for a slot: each has a thread meanwhile."""
MOST_WAITING_OF_ONE: Final = 10
"""The same for one tenant."""
RECENT_SECONDS: Final = 60.0
"""A tenant that has asked within this time has a part of the slots, which no other is given."""


class _Waiting(NamedTuple):
    ticket: int
    name: str


class FairSlots:
    """Gives each tenant as many slots as the others; safe to use from any thread.

    Of the waiting ones the tenant that was served longest ago goes first.

    Args:
        slots: How many there are.
        now: Returns seconds.
    """

    def __init__(self, slots: int, now: Callable[[], float] = time.monotonic) -> None:
        self._slots = slots
        self._now = now
        self._changed = threading.Condition()
        self._tickets = count(1)
        self._waiting: list[_Waiting] = []
        self._held = Counter[str]()
        self._asked: dict[str, float] = {}
        self._served: dict[str, int] = {}
        """The ticket that was served last, by name."""

    def acquire(self, name: str, seconds: float) -> bool:
        """Take a slot for a tenant; False when there was none in time, or too many wait for one."""
        with self._changed:
            self._forget_old()
            self._asked[name] = self._now()
            me = _Waiting(next(self._tickets), name)
            self._waiting.append(me)
            try:
                may_wait = 0.0 if self._are_too_many(name) else seconds
                if not self._changed.wait_for(lambda: self._is_next(me), may_wait):
                    return False
                self._held[name] += 1
                self._served[name] = next(self._tickets)
                return True
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()

    def release(self, name: str) -> None:
        """Give a slot back."""
        with self._changed:
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]
            self._changed.notify_all()

    def _are_too_many(self, name: str) -> bool:
        of_one = sum(one.name == name for one in self._waiting)
        return len(self._waiting) > MOST_WAITING or of_one > MOST_WAITING_OF_ONE

    def _is_next(self, me: _Waiting) -> bool:
        may = [one for one in self._waiting if self._may_take(one.name)]
        return me == min(may, key=self._order, default=None)

    def _may_take(self, name: str) -> bool:
        """Tell whether there is a slot that is not the part of another tenant."""
        free = self._slots - self._held.total()
        if not free:
            return False
        part = max(self._slots // len(self._asked), 1)
        others = (max(part - self._held[one], 0) for one in self._asked if one != name)
        return self._held[name] < part or free > sum(others)

    def _order(self, one: _Waiting) -> tuple[int, int]:
        return self._served.get(one.name, 0), one.ticket

    def _forget_old(self) -> None:
        now = self._now()
        here = {one.name for one in self._waiting} | self._held.keys()
        for name, at in list(self._asked.items()):
            if now - at > RECENT_SECONDS and name not in here:
                del self._asked[name]
                self._served.pop(name, None)
