"""Work of single clients that waits: a bug in it is reported, and is nothing to the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine


class Tasks:
    """Owns tasks until they are over, or the gateway stops.

    Args:
        loop: They run on.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin at the end of this turn of the loop."""
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def close(self) -> None:
        """Cancel tasks that are not over."""
        for task in self._running:
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": "work for a client failed", "exception": error}
            )
