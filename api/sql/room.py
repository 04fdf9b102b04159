"""Room for results on disk: a part for each caller and tenant, so that none fills the log's disk.

A result keeps its part until its answer was read, or was given up.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mqlake.errors import OperationalError

TENANT_RESULTS: Final = 2
"""Bytes of the results of a tenant, in results of the largest size."""
ALL_RESULTS: Final = 4
"""The same for all tenants; a caller has room for one."""
LEAST_BYTES: Final = 64 * 1024
"""That a result counts for: it is a folder with a few files."""


class NoRoomError(OperationalError):
    """Results that are there have all the bytes that they may."""


class Share:
    """The room of one result; see `ResultRoom.share`."""

    def __init__(self, room: "ResultRoom", owners: tuple[tuple[str, str], ...]) -> None:
        self._room = room
        self._owners = owners
        self._lock = threading.Lock()
        self._bytes = 0
        self._is_over = False

    def grow(self, size: int) -> None:
        """Say how large the result is by now.

        Raises:
            NoRoomError: There is no room for so much.
        """
        size = max(size, LEAST_BYTES)
        with self._lock:  # two threads look how large it is, one of them perhaps too late
            if size > self._bytes and not self._is_over:
                self._room.take(self._owners, size - self._bytes)
                self._bytes = size

    def give_back(self) -> None:
        with self._lock:
            self._is_over = True
            self._room.give_back(self._owners, self._bytes)
            self._bytes = 0


class ResultRoom:
    """Counts the bytes of all results; safe to use from any thread.

    Args:
        most_bytes: Bound of one result.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = {
            "your": most_bytes,
            "the tenant's": TENANT_RESULTS * most_bytes,
            "all": ALL_RESULTS * most_bytes,
        }
        self._lock = threading.Lock()
        self._used = Counter[tuple[str, str]]()

    @contextmanager
    def share(self, tenant: str, caller: str) -> Iterator[Share]:
        """Give a result room for the length of a `with` block.

        Args:
            tenant: Whose rows it has.
            caller: Who asks; empty: the system itself.

        Raises:
            NoRoomError: There is none.
        """
        owners = (("your", caller), ("the tenant's", tenant), ("all", ""))
        share = Share(self, owners if caller else owners[1:])
        share.grow(0)
        try:
            yield share
        finally:
            share.give_back()

    def take(self, owners: tuple[tuple[str, str], ...], size: int) -> None:
        with self._lock:
            for owner in owners:
                whose, most = owner[0], max(self._most[owner[0]], LEAST_BYTES)
                if self._used[owner] + size > most:
                    raise NoRoomError(
                        f"{whose} results that are not read to their end yet have more than {most} "
                        "bytes with this one: read or cancel the others first, or select less"
                    )
            for owner in owners:
                self._used[owner] += size

    def give_back(self, owners: tuple[tuple[str, str], ...], size: int) -> None:
        with self._lock:
            for owner in owners:
                self._used[owner] -= size
                if not self._used[owner]:
                    del self._used[owner]
