"""A shard's entries in memory: for simulations and tests, the contract of the embedded store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.session.shard.entries import absent_subscriptions

if TYPE_CHECKING:
    from ingest.session.shard.entries import ShardEntry
    from ingest.session.shard.stored_subscriptions import SubscriptionRow
    from mqlake.records.shards import Key, Run


class MemoryShardStore:
    """Keeps the contract `ingest.session.shard.entries.ShardStore` in dictionaries."""

    def __init__(self) -> None:
        self._entries: dict[Key, ShardEntry] = {}
        self._progress: dict[Key, bytes] = {}
        self._subscriptions: dict[Key, dict[str, SubscriptionRow]] = {}

    def get(self, key: Key) -> ShardEntry | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.copy()

    def put(self, key: Key, entry: ShardEntry) -> None:
        self._entries[key] = entry.copy()

    def delete(self, key: Key) -> None:
        self._entries.pop(key, None)
        self._progress.pop(key, None)

    def progress(self, key: Key) -> bytes | None:
        return self._progress.get(key)

    def put_progress(self, key: Key, value: bytes | None) -> None:
        if value is None:
            self._progress.pop(key, None)
        else:
            self._progress[key] = value

    def advance(self, key: Key, epoch: int, value: bytes) -> bool:
        entry = self._entries.get(key)
        if entry is None or entry.epoch != epoch or entry.holder is None:
            return False
        self._progress[key] = value
        return True

    def subscription(self, key: Key, topic_filter: str) -> SubscriptionRow | None:
        return self._subscriptions.get(key, {}).get(topic_filter)

    def put_subscription(self, key: Key, topic_filter: str, row: SubscriptionRow | None) -> None:
        if row is not None:
            self._subscriptions.setdefault(key, {})[topic_filter] = row
        elif rows := self._subscriptions.get(key):
            rows.pop(topic_filter, None)

    def has_subscriptions(self, key: Key) -> bool:
        return bool(self._subscriptions.get(key))

    def subscriptions(
        self,
        key: Key,
        after: str,
        limit: int,
        *,
        of: str | None = None,
        but_of: str | None = None,
    ) -> list[tuple[str, SubscriptionRow]]:
        found = [
            (topic_filter, row)
            for topic_filter, row in sorted(self._subscriptions.get(key, {}).items())
            if topic_filter > after
            and (of is None or row.session_id == of)
            and row.session_id != but_of
        ]
        return found[:limit]

    def holders(self) -> list[Run]:
        return list(dict.fromkeys(one.holder for one in self._entries.values() if one.holder))

    def held_by(self, run: Run, limit: int | None = None) -> list[Key]:
        return sorted(key for key, one in self._entries.items() if one.holder == run)[:limit]

    def waiting(self) -> list[Key]:
        return sorted(key for key, one in self._entries.items() if one.claim is not None)

    def due(self, now_ms: int, limit: int) -> list[Key]:
        due = [
            (one.due_at_ms, key)
            for key, one in self._entries.items()
            if one.due_at_ms is not None and one.holder is None and one.due_at_ms <= now_ms
        ]
        return [key for _, key in sorted(due)[:limit]]

    def count(self) -> int:
        return sum(one.session is not None for one in self._entries.values())

    def absent_subscriptions(self, tenant: str) -> int:
        entries = (one for (of, _), one in self._entries.items() if of == tenant)
        return sum(map(absent_subscriptions, entries))
