"""Waits for what somebody else brings about and tells nobody: a program, a socket, another task.

The only sleeps for that in the tests are here (tests/gate/test_sleeps.py).
"""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Final

DEADLINE_SECONDS = 120.0
"""Never reached where things go well; a busy machine can be slow."""
_SOON: Final = 100
"""Looks without a rest: most of what tests wait for takes a few turns of the event loop."""
_TURNS_PER_SECOND: Final = 100_000
_MOST_REST_SECONDS: Final = 0.02


async def until(condition: Callable[..., object], seconds: float | None = None) -> None:
    """Wait until a condition holds.

    Args:
        condition: A function, or a coroutine function that asks. A look that takes long is followed
            by a rest of three times its time: others need the processors.
        seconds: None: `DEADLINE_SECONDS`.

    Raises:
        TimeoutError: It does not within the time.
    """
    turn = 0
    async with asyncio.timeout(DEADLINE_SECONDS if seconds is None else seconds):
        while True:
            begun = time.monotonic()
            found = condition()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return
            turn += 1
            rest = 0 if turn < _SOON else min(turn / _TURNS_PER_SECOND, _MOST_REST_SECONDS)
            took = time.monotonic() - begun
            await asyncio.sleep(3 * took if took > rest + 0.001 else rest)


async def turns(count: int = 5) -> None:
    """Let everything that is ready run, so that a test can say what has not happened."""
    for _ in range(count):
        await asyncio.sleep(0)
