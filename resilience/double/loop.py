"""An event loop whose time is a number: it jumps to the next timer when nothing else is due."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from resilience.errors import ResilienceError

Result = TypeVar("Result")


class _NoSelector(selectors.DefaultSelector):
    """Never waits; tells the loop how long it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise ResilienceError("the double stands still: nothing is due and nothing will be")
        self.skipped += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Deterministic as long as no thread, process or socket takes part."""

    def __init__(self) -> None:
        self._virtual = _NoSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.skipped


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in virtual time."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(None)
        return loop.run_until_complete(main)
    finally:
        loop.close()
