"""Why a gateway ends unasked, and which records it may still write then."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from mqlake.errors import OperationalError
    from mqlake.log.contract import LogReader


class Ending:
    """The end of one run of a gateway; the first reason counts.

    Args:
        stop: Set when the gateway is to end.
        reader: Reader of its deliveries: no more of them count.

    Attributes:
        failure: The reason; None: it was asked to end, or has not yet.
        is_trusted: Whether the state of this process may be written. It tells clients and router of
            its end only then.
    """

    def __init__(self, stop: asyncio.Event, reader: LogReader) -> None:
        self.failure: OperationalError | None = None
        self.is_trusted = True
        self._stop = stop
        self._reader = reader

    def fail(self, failure: OperationalError) -> None:
        """End without another record of sessions: the state of this process may be wrong."""
        if self.failure is None:
            self.is_trusted = False
            self.end(failure)

    def end(self, failure: OperationalError) -> None:
        """End in order, before any later delivery counts."""
        self._reader.pause()
        self.failure = failure
        self._stop.set()
