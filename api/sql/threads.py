"""Threads for queries, which take minutes: nothing else of the API waits for one of them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from api.sql.slots import MOST_WAITING

Result = TypeVar("Result")


class QueryThreads:
    """As many as there are queries that run and that wait, and some that are checked or refused.

    Args:
        at_once: Queries that run.
    """

    def __init__(self, at_once: int) -> None:
        self._pool = ThreadPoolExecutor(at_once + MOST_WAITING + 8, thread_name_prefix="query")

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return what work returns, done by one of the threads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, copy_context().run, work)

    def close(self) -> None:
        """Let them end, without waiting for the work under way."""
        self._pool.shutdown(wait=False, cancel_futures=True)
