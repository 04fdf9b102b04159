"""Limits on connections that read live streams: of all together, and of one caller."""

from collections import Counter
from collections.abc import Callable
from typing import Final

from mqlake.errors import MqlakeError

MAX_READERS: Final = 200
MAX_READERS_OF_ONE: Final = 50
"""Most readers of one key, account or the token, so that room is left for others."""


class TooManyReaders(MqlakeError):  # noqa: N818 - it names the obstacle
    """There is no room for another connection."""


class TooManyOfOne(TooManyReaders):
    """Its caller has as many as one may have."""


class LiveReaders:
    """Counts connections; use it in one event loop.

    Attributes:
        max_seconds: After it a reader has to come again.
        is_stopping: Whether the process ends: all are let go then.
    """

    def __init__(self, max_seconds: float, is_stopping: Callable[[], bool] = lambda: False) -> None:
        self.max_seconds = max_seconds
        self.is_stopping = is_stopping
        self._by_caller: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._by_caller.total()

    def enter(self, caller: str) -> None:
        """Take note of a connection.

        Raises:
            TooManyReaders: There are too many.
        """
        if len(self) >= MAX_READERS:
            raise TooManyReaders(f"{MAX_READERS} connections read live streams, which is the limit")
        if self._by_caller[caller] >= MAX_READERS_OF_ONE:
            raise TooManyOfOne(
                f"{MAX_READERS_OF_ONE} connections of {caller} read live streams, which is the "
                "limit: one of /live/ws carries many"
            )
        self._by_caller[caller] += 1

    def leave(self, caller: str) -> None:
        """Forget one."""
        self._by_caller[caller] -= 1
        if not self._by_caller[caller]:
            del self._by_caller[caller]
