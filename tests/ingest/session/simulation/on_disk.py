"""Worlds in which gateways keep their shards as real ones do: in rows, written and read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.gateway.store.database import Database
from ingest.gateway.store.shards import SqliteShardStore
from tests.ingest.session.simulation.world import World

if TYPE_CHECKING:
    from ingest.session.shard.entries import ShardStore
    from tests.ingest.session.simulation.schedule import Schedule


class _ReadBack(SqliteShardStore):
    """Remembers no row that it has written."""

    def _flush_rows(self) -> None:
        super()._flush_rows()
        self._written = {}


class WorldOnDisk(World):
    """A world with one database for all its processes."""

    def __init__(self, schedule: Schedule, transcript: list[str] | None = None) -> None:
        self._database = Database(None)
        self._stores = 0
        super().__init__(schedule, transcript)

    def open_store(self) -> ShardStore:
        self._stores += 1
        return _ReadBack(self._database, self._stores)

    def end(self) -> None:
        super().end()
        self._database.close()
