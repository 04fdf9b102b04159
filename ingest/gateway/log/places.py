"""A line of clients: one that gives up and comes again is not the last."""

import asyncio
from typing import Final, Generic, Protocol, TypeVar

from mqlake.clock import Clock

PLACE_SECONDS: Final = 60.0
"""For so long a client that has gone keeps its place: its next attempt comes within seconds."""


class Comer(Protocol):
    """An attempt of a client."""

    @property
    def tenant(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    @property
    def is_over(self) -> bool:
        """Tell whether the client has given it up."""
        ...


SomeComer = TypeVar("SomeComer", bound=Comer)


class Places(Generic[SomeComer]):
    """Those that wait, in the order in which their clients first came. Make it in the event loop.

    Args:
        clock: Says how long a client has been gone.
        most: Are taken at a time.
    """

    def __init__(self, clock: Clock, most: int) -> None:
        self._clock = clock
        self._most = most
        self._comers: dict[tuple[str, str], SomeComer] = {}
        self._gone_at: dict[tuple[str, str], float] = {}
        """When clients left that had gone when it was their turn."""
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._comers)

    def add(self, comer: SomeComer) -> None:
        """Take one in; it has the place of an earlier one of its client."""
        key = comer.tenant, comer.client_id
        self._comers[key] = comer
        self._gone_at.pop(key, None)
        self._wake.set()

    async def take(self) -> list[SomeComer]:
        """Wait for some, and return the first ones."""
        while True:
            await self._wake.wait()
            if taken := self._take():
                return taken
            self._wake.clear()

    def _take(self) -> list[SomeComer]:
        now = self._clock.monotonic()
        taken: list[SomeComer] = []
        for key, one in list(self._comers.items()):
            if len(taken) == self._most:
                return taken
            if not one.is_over:
                taken.append(one)
            elif now < self._gone_at.setdefault(key, now) + PLACE_SECONDS:
                continue
            self._forget(key)
        if not taken:  # a place before no other is none
            for key in list(self._comers):
                self._forget(key)
        return taken

    def _forget(self, key: tuple[str, str]) -> None:
        del self._comers[key]
        self._gone_at.pop(key, None)
