"""How many connections may read live streams: of all together, and of one caller."""

from collections import Counter
from http import HTTPStatus
from typing import Final

from api.problems import Problem

MAX_READERS: Final = 200
MAX_READERS_OF_ONE: Final = 50
"""Of one key, account or the token: others are to find a place."""


class Readers:
    """Counts connections; use it in one event loop."""

    def __init__(self) -> None:
        self._by_caller: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._by_caller.total()

    def enter(self, caller: str) -> None:
        """Take note of a connection.

        Raises:
            Problem: There are too many.
        """
        if len(self) >= MAX_READERS:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{MAX_READERS} connections read live streams, which is the limit",
            )
        if self._by_caller[caller] >= MAX_READERS_OF_ONE:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{MAX_READERS_OF_ONE} connections of {caller} read live streams, which is the "
                "limit: one of /live/ws carries many",
            )
        self._by_caller[caller] += 1

    def leave(self, caller: str) -> None:
        """Forget one."""
        self._by_caller[caller] -= 1
        if not self._by_caller[caller]:
            del self._by_caller[caller]
