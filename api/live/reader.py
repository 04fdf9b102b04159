"""One reader of live streams: a connection with one stream or several."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NamedTuple

from api.live.stream import LiveStream, Room
from api.web.problems import problem_body

BATCH_EVENTS: Final = 200
CHECK_SECONDS: Final = 1.0
"""How soon a reader learns that it may read no longer, and how much was left out."""
MAX_SAID: Final = 100
"""Answers that wait for a reader; before it has taken some its frames are not read."""
SILENT_SECONDS: Final = 15.0
"""After so long without an event something is sent all the same: proxies cut silent connections."""


class Told(NamedTuple):
    """An event of one of a reader's streams."""

    stream_id: str
    name: str
    data: dict[str, Any]


class _Opened(NamedTuple):
    stream: LiveStream
    close: Callable[[], None]


class Reader:
    """Collects the events of a connection's streams; use it in one event loop.

    Attributes:
        room: Bounds the events that wait in its streams.

    Args:
        is_allowed: Whether the caller may still read.
        is_stopping: Whether the process ends.
        max_seconds: After it the reader has to come again.
    """

    def __init__(
        self, is_allowed: Callable[[], bool], is_stopping: Callable[[], bool], max_seconds: float
    ) -> None:
        self._is_allowed = is_allowed
        self._is_stopping = is_stopping
        self._ends_at = time.monotonic() + max_seconds
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._streams: dict[str, _Opened] = {}
        self._said: list[Told] = []
        self._has_taken = asyncio.Event()
        self.room = Room()

    def wake(self) -> None:
        """Tell that a stream has something; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no reader
            self._loop.call_soon_threadsafe(self._woken.set)

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, stream_id: object) -> bool:
        return stream_id in self._streams

    def add(self, stream_id: str, stream: LiveStream, close: Callable[[], None]) -> None:
        """Take a stream; `close` ends it."""
        self._streams[stream_id] = _Opened(stream, close)
        self._woken.set()

    def remove(self, stream_id: str) -> bool:
        """End a stream; tell whether there was one."""
        opened = self._streams.pop(stream_id, None)
        if opened is None:
            return False
        opened.close()
        opened.stream.close()
        return True

    def say(self, told: Told) -> None:
        """Send something that no stream has."""
        self._said.append(told)
        self._woken.set()

    async def wait_until_taken(self) -> None:
        """Wait as long as too many answers wait to be sent."""
        while len(self._said) >= MAX_SAID:
            self._has_taken.clear()
            await self._has_taken.wait()

    def close(self) -> None:
        """End all streams."""
        for stream_id in list(self._streams):
            self.remove(stream_id)

    async def batches(self) -> AsyncIterator[list[Told]]:
        """Yield events to send, in order; an empty list keeps a silent connection open.

        Ends after an event `end`, which says why.
        """
        sent_at = time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                patience = min(CHECK_SECONDS, max(0.0, self._ends_at - time.monotonic()))
                async with asyncio.timeout(patience):
                    await self._woken.wait()
            self._woken.clear()
            batch = self._collect()
            now = time.monotonic()
            if batch or now - sent_at >= SILENT_SECONDS:
                sent_at = now
                yield batch
            reason = self._end(now)
            if reason is not None:
                yield [reason]
                return

    def _collect(self) -> list[Told]:
        batch, self._said = self._said, []
        self._has_taken.set()
        for stream_id, opened in self._streams.items():
            events = opened.stream.take(BATCH_EVENTS)
            batch += [Told(stream_id, name, data) for name, data in events if data]
            if len(events) >= BATCH_EVENTS:
                self._woken.set()  # there may be more
        return batch

    def _end(self, now: float) -> Told | None:
        if not self._is_allowed():
            return _end(401, "the key was revoked, or the session is over")
        if self._is_stopping():
            return _end(503, "the API stops: connect again")
        if now >= self._ends_at:
            return _end(503, "a stream ends after a while: connect again")
        return None


def _end(status: int, detail: str) -> Told:
    return Told("", "end", problem_body(status, detail))
