"""Follows `mqlake.access`: what another process of the API grants or revokes counts here too."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from api.access.materialised import MaterialisedAccess
from api.following import LogFollower, Taker
from mqlake.records import ACCESS


class AccessFollower(LogFollower):
    """Keeps keys, accounts and sessions as the log has them.

    Args:
        data_dir: Of the system.
        view: Takes them.
    """

    def __init__(self, data_dir: Path, view: MaterialisedAccess) -> None:
        super().__init__(data_dir, "access", (ACCESS,))
        self._view = view

    @contextmanager
    def taking(self) -> Iterator[Taker]:
        self._view.forget()
        yield self._view
