"""The readers of shards: awaited records are read at once, all others at less cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from mqlake.log.contract import LogAccess, LogReader


class ShardReaders(NamedTuple):
    """Three of `mqlake.sessions`; not started yet."""

    owned: LogReader
    """Follows shards that are loaded and this gateway's."""
    standby: LogReader
    """Follows those that are loaded and others'."""
    loader: LogReader
    """Reads them until they are loaded."""

    @classmethod
    def open(cls, log: LogAccess) -> Self:
        opened = log.open_paced_reader, log.open_late_reader, log.open_loader
        return cls(*((one or log.open_reader)() for one in opened))
