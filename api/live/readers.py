"""Limits on connections that read live streams: of all together, of a tenant, and of one caller."""

from collections import Counter
from collections.abc import Callable
from typing import Final

from api.access.callers import Caller
from mqlake.errors import MqlakeError

MAX_READERS: Final = 200
MAX_READERS_OF_TENANT: Final = 100
"""Most readers whose callers are for a tenant, alone or with others: it can have many keys made."""
MAX_READERS_OF_ONE: Final = 50
"""Most readers of one key, account or the token, so that room is left for others."""


class TooManyReaders(MqlakeError):  # noqa: N818 - it names the obstacle
    """There is no room for another connection."""


class TooManyOfOne(TooManyReaders):
    """Its caller, or a tenant of his, has as many as one may have."""


class LiveReaders:
    """Counts connections; use it in one event loop.

    Attributes:
        max_seconds: After it a reader has to come again.
        is_stopping: Whether the process ends: all are let go then.
    """

    def __init__(self, max_seconds: float, is_stopping: Callable[[], bool] = lambda: False) -> None:
        self.max_seconds = max_seconds
        self.is_stopping = is_stopping
        self._by_caller = Counter[str]()
        self._by_tenant = Counter[str]()

    def __len__(self) -> int:
        return self._by_caller.total()

    def enter(self, caller: Caller) -> None:
        """Take note of a connection.

        Raises:
            TooManyReaders: There are too many.
        """
        if len(self) >= MAX_READERS:
            raise TooManyReaders(f"{MAX_READERS} connections read live streams, which is the limit")
        for tenant in caller.tenants or ():
            if self._by_tenant[tenant] >= MAX_READERS_OF_TENANT:
                raise TooManyOfOne(
                    f"{MAX_READERS_OF_TENANT} connections of callers for tenant {tenant!r} read "
                    "live streams, which is the limit"
                )
        if self._by_caller[caller.name] >= MAX_READERS_OF_ONE:
            raise TooManyOfOne(
                f"{MAX_READERS_OF_ONE} connections of {caller.name} read live streams, which is "
                "the limit: one of /live/ws carries many"
            )
        self._by_caller[caller.name] += 1
        self._by_tenant.update(caller.tenants or ())

    def leave(self, caller: Caller) -> None:
        """Forget one.

        Args:
            caller: As he was when it came.
        """
        self._by_caller -= Counter((caller.name,))
        self._by_tenant -= Counter(caller.tenants or ())
