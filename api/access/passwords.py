"""Passwords are checked beside all else: a few at a time, few more wait, the others are refused.

A check takes a processor for a fifth of a second, so its threads are none of those that requests
share.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from mqlake.errors import OperationalError

CHECKS_AT_ONCE: Final = 2
MAX_WAITING: Final = 20
"""Some two seconds of work."""


class ApiPasswordChecks:
    """Threads of their own for checks of passwords."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(CHECKS_AT_ONCE, thread_name_prefix="password")
        self._checks = 0

    async def run(self, check: Callable[[], bool]) -> bool:
        """Return the result of a check.

        Raises:
            OperationalError: Too many wait already.
        """
        if self._checks >= CHECKS_AT_ONCE + MAX_WAITING:
            raise OperationalError("too many passwords to check: try again in a moment")
        self._checks += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, check)
        finally:
            self._checks -= 1

    def close(self) -> None:
        """Drop the checks that wait."""
        self._pool.shutdown(wait=False, cancel_futures=True)
