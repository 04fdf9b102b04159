"""Retained messages that came live while a page of them was on its way from another gateway.

A page is as old as the answer that holds it. Deliveries of this gateway meanwhile may be newer, and
a client that has the newer message must not get the older one after it. So from the moment a
question is asked until its page is sent, the rank of each retained message that comes is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MAX_NEWER: Final = 10_000
"""Topics kept for a shard. Beyond it all pages of the shard are void and are asked for again."""


@dataclass(slots=True)
class _Watched:
    watchers: int = 0
    ranks: dict[tuple[str, str], int] = field(default_factory=dict)
    """Tenant and topic name -> the last rank (`mqlake.records.retained`)."""


class NewerMessages:
    """Ranks of retained messages by shard, of shards that are watched.

    Attributes:
        rounds: Shard -> how often its ranks were forgotten while they were watched.
    """

    def __init__(self, max_newer: int = MAX_NEWER) -> None:
        self._max_newer = max_newer
        self._shards: dict[int, _Watched] = {}
        self.rounds: dict[int, int] = {}

    def watch(self, shard: int) -> int:
        """Keep ranks from now on; return the round, in which they are complete."""
        watched = self._shards.setdefault(shard, _Watched())
        watched.watchers += 1
        return self.rounds.get(shard, 0)

    def leave(self, shard: int) -> None:
        """Undo one `watch`."""
        watched = self._shards[shard]
        watched.watchers -= 1
        if not watched.watchers:
            del self._shards[shard]

    def note(self, shard: int, tenant: str, topic_name: str, rank: int) -> None:
        """Take note of a retain-flagged message, a removal too, that goes to clients now."""
        watched = self._shards.get(shard)
        if watched is None:
            return
        if len(watched.ranks) >= self._max_newer:
            watched.ranks.clear()
            self.rounds[shard] = self.rounds.get(shard, 0) + 1
        watched.ranks[tenant, topic_name] = rank

    def is_overtaken(self, shard: int, tenant: str, topic_name: str, rank: int) -> bool:
        """Tell whether a message of the topic has come that is newer than the one of the rank."""
        watched = self._shards[shard]
        return watched.ranks.get((tenant, topic_name), -1) > rank
