"""The waiting between attempts to connect."""

import asyncio
from random import SystemRandom
from typing import Final

FIRST_SECONDS: Final = 0.1
_random: Final = SystemRandom()


class Pauses:
    """Pauses that double from one attempt to the next.

    Args:
        most_seconds: The longest one.
    """

    def __init__(self, most_seconds: float) -> None:
        self._most_seconds = most_seconds
        self._seconds = FIRST_SECONDS

    def reset(self) -> None:
        """Begin again, after an attempt that did not fail."""
        self._seconds = FIRST_SECONDS

    async def wait(self) -> None:
        """Wait; half of it by chance, so that all federators do not come back at one moment."""
        await asyncio.sleep(self._seconds * _random.uniform(0.5, 1))
        self._seconds = min(2 * self._seconds, self._most_seconds)
