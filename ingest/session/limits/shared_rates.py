"""One gateway's part of a limit that all gateways share: pure.

Gateways tell each other twice a second how much they want of a limit, and each works out its own
part from the same numbers: the parts of all make the limit. A gateway that wants less than an even
part leaves the rest to the others; an unwanted rest is divided evenly. A small part of the limit
is for all alike, so that a client that comes to a gateway which wanted nothing is not stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingest.session.limits.rates import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Iterable

RESERVED: Final = 0.05
"""Part of a limit that is divided evenly."""
HEADROOM: Final = 1.05
"""Demand of a gateway, in times of its use."""
FADING: Final = 0.7
"""A heartbeat later so much of its demand is left, so that a pause of a second is none."""


def allotment(limit: float, mine: float, others: Iterable[float]) -> float:
    """Return how much of a limit a gateway may use.

    Args:
        limit: Limit of all gateways together.
        mine: Its demand; the limit or more: all that there is.
        others: Demand of each other gateway.
    """
    wants = sorted([mine, *others])
    count = len(wants)
    left = limit * (1 - RESERVED)
    part = 0.0
    for number, want in enumerate(wants):
        got = min(want, left / (count - number))
        left -= got
        if want == mine:
            part = got
    return limit * RESERVED / count + part + max(left, 0.0) / count


class SharedRate(TokenBucket):
    """One gateway's part of a rate that all gateways share.

    Args:
        limit: A second, of all gateways; as much at once.

    Attributes:
        limit: May be changed; counts from the next `share` on.
        wanted: A second, by the last heartbeat to others.
    """

    __slots__ = ("_taken", "_was_short", "limit", "wanted")

    def __init__(self, limit: float) -> None:
        super().__init__(limit, limit)
        self.limit = limit
        self._taken = 0.0
        self._was_short = False
        self.wanted = 0.0

    def take(self, amount: float, now: float) -> float:
        """Take an amount, there or not; return in how many seconds nothing is owed."""
        self._taken += amount
        wait = super().take(amount, now)
        if wait:
            self._was_short = True
        return wait

    def admit(self, now: float) -> bool:
        """Take one if it is there; a refused one is wanted all the same."""
        super().take(0.0, now)
        if self._level < 1:
            self._was_short = True
            return False
        self.take(1.0, now)
        return True

    def measure(self, seconds: float) -> None:
        """Work out the demand, by the amount taken in the last seconds."""
        used = self._taken / seconds * HEADROOM
        now = self.limit if self._was_short else min(used, self.limit)
        self.wanted = max(now, self.wanted * FADING)
        self._taken, self._was_short = 0.0, False

    def share(self, others: Iterable[float], now: float) -> None:
        """Go by the demand of the other gateways."""
        self.set_rate(allotment(self.limit, self.wanted, others), now)
