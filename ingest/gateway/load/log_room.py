"""Clients whose messages found the log full, until it has room again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

CHECK_SECONDS: Final = 0.01
"""How often it is looked whether there is room again."""


class LogRoom:
    """Lets waiting clients go on, oldest first, until the log is full again.

    Args:
        loop: Event loop of the gateway.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Callable[[], None]] = []
        self._check: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call back when the log may take records again."""
        self._waiting.append(go_on)
        if self._check is None:
            self._check = self._loop.call_later(CHECK_SECONDS, self._go_on)

    def _go_on(self) -> None:
        self._check = None
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()
