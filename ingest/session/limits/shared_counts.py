"""How much of a limited stock that all gateways share one gateway may still take: pure.

A stock counts things that stay until they are given back: connections, subscriptions, retained
messages and their bytes. Gateways tell each other twice a second how much they count; of the rest
by these heartbeats each may take an even part until it hears more. Amounts that others have taken
meanwhile are in no heartbeat yet, so the least of the last ceilings counts.

A small limit cannot be divided: of five connections two gateways would each let in three at once.
Such a stock is *whole*: each may take all that is left by the last heartbeats.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

WORDS_REMEMBERED: Final = 3
"""Ceilings that count: a heartbeat is heard by all before its gateway has sent two more."""
ON_THE_WAY_SECONDS: Final = 5.0
"""How long an admitted amount counts by itself, until its keeper counts it for sure."""


class SharedCount:
    """One gateway's view of a stock.

    Args:
        limit: Limit of all gateways together.
        here: Amount of this gateway.
        others: Amount of each other gateway, by its heartbeat.
        is_whole: The rest is not divided. Clients at several gateways within the same second may
            take as much at each, and nothing more until that is given back.

    Attributes:
        limit: May be changed; counts from the next `share` on.
    """

    __slots__ = ("_ceilings", "_is_whole", "_on_the_way", "_others", "_told", "limit")

    def __init__(
        self,
        limit: int,
        here: float = 0.0,
        others: Sequence[float] = (),
        *,
        is_whole: bool = False,
    ) -> None:
        self.limit = limit
        self._is_whole = is_whole
        self._others = 0.0
        self._ceilings: deque[float] = deque(maxlen=WORDS_REMEMBERED)
        self._on_the_way: deque[tuple[float, float]] = deque()
        """Second by which it counts elsewhere, amount."""
        self._told = here
        self.share(here, others, 0.0)

    def share(self, here: float, others: Sequence[float], now: float) -> None:
        """Go by this gateway's count, and the others' last ones."""
        told, self._told = self._told, here + self.on_the_way(now)
        self._others = sum(others)
        left = max(self.limit - self._others - told, 0.0)
        self._ceilings.append(told + left / (len(others) + 1))

    def has_room(self, here: float, amount: float, now: float) -> bool:
        """Tell whether so much more is within the limit; of a part of one there is one."""
        mine = here + self.on_the_way(now) + amount
        if mine + self._others > self.limit:
            return False
        return self._is_whole or mine < min(self._ceilings) + 1

    def let_in(self, amount: float, now: float) -> None:
        """Note an admitted amount that is counted here, or by another gateway, only later."""
        until = now // 1 + ON_THE_WAY_SECONDS
        if self._on_the_way and self._on_the_way[-1][0] == until:
            amount += self._on_the_way.pop()[1]
        self._on_the_way.append((until, amount))

    def on_the_way(self, now: float) -> float:
        """Return the amount admitted of late."""
        while self._on_the_way and self._on_the_way[0][0] <= now:
            self._on_the_way.popleft()
        return sum(amount for _, amount in self._on_the_way)
