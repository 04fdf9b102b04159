"""Attempts to log in, by address: guessing is slowed down before a guess costs anything.

An attempt counts as failed from its beginning until it is known that it is not, so guesses that
come at once are no more than those that come one by one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ingest.gateway.authentication.outcomes import (
    TOO_MANY_AT_ONCE,
    TOO_MANY_FAILURES,
    WRONG_PASSWORD,
)
from mqlake.security.networks import network_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ingest.gateway.authentication.outcomes import Verdict
    from mqlake.clock import Clock

MAX_ADDRESSES: Final = 10_000
"""Remembered at most; the one remembered longest goes first."""

MAX_UNDER_WAY: Final = 32
"""Attempts of an address that are judged at once, so that one address does not have all threads and
connections of the authenticators; further ones wait for their turn."""

MAX_WAITING: Final = 1_000
"""Attempts of an address, those under way among them; further ones are refused as busy."""


class LoginAttempts:
    """A bucket per address that fills with failures and leaks `per_minute` of them a minute.

    Args:
        per_minute: Failures an address may have at once, and a minute later again; 0: any number.
            An address is empty where there is none (a Unix socket): that may have any number, too.
        clock: For the leaking.
    """

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # (failures, when)
        self._turns: dict[str, _Turns] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    async def judge(self, address: str, ask: Callable[[], Awaitable[Verdict]]) -> Verdict:
        """Return the verdict on an attempt when it is its turn, or that there are too many.

        One that was given up stays counted: the work was done.

        Args:
            address: The peer's, without its port.
            ask: Judges the attempt.
        """
        network = network_of(address)
        turns = self._turns.get(network)
        if turns is None:
            most = min(MAX_UNDER_WAY, self._per_minute or MAX_UNDER_WAY)
            turns = self._turns[network] = _Turns(most)
        if turns.wanted >= MAX_WAITING:
            return TOO_MANY_AT_ONCE
        turns.wanted += 1
        try:
            async with turns.free:
                if not self.take(address):
                    return TOO_MANY_FAILURES
                verdict = await ask()
                if verdict != WRONG_PASSWORD:
                    self.give_back(address)
                return verdict
        finally:
            turns.wanted -= 1
            if not turns.wanted:
                del self._turns[network]

    def take(self, address: str) -> bool:
        """Count an attempt before it is judged; False: its address has to wait."""
        if not self._per_minute or not address:
            return True
        network = network_of(address)
        level = self._level(network) + 1.0
        if level > self._per_minute + 1e-6:  # fractions do not add up exactly
            return False
        self._keep(network, level)
        return True

    def give_back(self, address: str) -> None:
        """Count an attempt no more: it has not failed."""
        if self._per_minute and address:
            network = network_of(address)
            self._keep(network, self._level(network) - 1.0)

    def _keep(self, network: str, level: float) -> None:
        self._buckets.pop(network, None)
        if level <= 0.0:
            return  # who logs in takes no place from those who guess
        if len(self._buckets) >= MAX_ADDRESSES:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[network] = (level, self._clock.monotonic())

    def _level(self, network: str) -> float:
        level, since = self._buckets.get(network, (0.0, 0.0))
        leaked = (self._clock.monotonic() - since) * self._per_minute / 60.0
        return max(0.0, level - leaked)


class _Turns:
    """Those of one address.

    Attributes:
        free: Is acquired by those under way.
        wanted: How many there are, with those that wait.
    """

    __slots__ = ("free", "wanted")

    def __init__(self, most: int) -> None:
        self.free = asyncio.Semaphore(most)
        self.wanted = 0
