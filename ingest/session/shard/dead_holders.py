"""Sessions in a shard of runs of gateways that died: taken from them by its owner.

A run whose lease is over, and that has not asked lately which sessions it still holds, is settled:
its sessions have no holder from then on (`acts.settle`). Last come those for which it may still be
storing messages: they wait until nothing of the run can come into the log any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ingest.session.shard import acts
from ingest.session.shard.acts import OwnedShard
from ingest.session.shard.entries import UNKNOWN_RUN
from mqlake.records.progress import is_storing

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.session.shard.effects import Work
    from ingest.session.shard.entries import ShardStore
    from mqlake.records.shards import Key, Run

CONFIRMED_MS: Final = 10_000
"""How long a gateway is not settled after it asked for its sessions: its heartbeats may be late."""


class ShardOfHolders(OwnedShard, Protocol):
    """Implemented by `ingest.session.ownership.Shard`, which describes it."""

    @property
    def store(self) -> ShardStore: ...
    def act(self, work: Work) -> None: ...


class DeadHolders:
    """Those of one shard.

    Args:
        shard: Whose owner acts.
    """

    def __init__(self, shard: ShardOfHolders) -> None:
        self._shard = shard
        self._settling: set[Run] = set()
        # Of dead runs, clients whose messages may still be on their way into the log.
        self._late: dict[Run, set[Key]] = {}
        self._confirmed_at_ms: dict[Run, int] = {}

    def clear(self) -> None:
        """Forget settled runs: the shard has another owner."""
        self._settling.clear()
        self._late.clear()

    def asked(self, run: Run, at_ms: int) -> list[Key]:
        """Return keys that a run that asks still holds; it is not settled for a while."""
        self._confirmed_at_ms[run] = at_ms
        if run in self._settling:
            return sorted(self._late.get(run, ()))
        return self._shard.store.held_by(run)

    def count_earlier(self, run: Run) -> int:
        """Return how many sessions earlier runs of a gateway hold; of each no more than a page."""
        return sum(
            len(self._shard.store.held_by(one, acts.KEYS_AT_ONCE))
            for one in self._shard.store.holders()
            if one.gateway == run.gateway and one != run
        )

    def tick(
        self, now_ms: int, is_dead: Callable[[Run], bool], is_spent: Callable[[Run], bool]
    ) -> None:
        """Settle dead runs; see `Shard.tick`."""
        for run, asked_at_ms in list(self._confirmed_at_ms.items()):
            if now_ms - asked_at_ms >= CONFIRMED_MS:
                del self._confirmed_at_ms[run]
        for run in list(self._shard.store.holders()):
            if run in self._settling:
                continue
            if run == UNKNOWN_RUN or (is_dead(run) and run not in self._confirmed_at_ms):
                self._settle(run, now_ms, is_spent)
            else:
                self._late.pop(run, None)

    def _settle(self, run: Run, now_ms: int, is_spent: Callable[[Run], bool]) -> None:
        """Take sessions from a dead run; last, those that it may still be storing messages for."""
        shard = self._shard
        late: set[Key] = set()
        if run != UNKNOWN_RUN and not is_spent(run):
            if run in self._late:
                return
            late = {key for key in shard.store.held_by(run) if self._is_storing(key)}
        self._late[run] = late
        self._settling.add(run)
        shard.act(self._alone(run, acts.settle(shard, run, now_ms, late)))

    async def _alone(self, run: Run, work: Work) -> None:
        """Settle a run; one that the log has interrupted begins again with the next tick."""
        is_over = False
        try:
            await work
            is_over = True
        finally:
            self._settling.discard(run)
            if not is_over or not self._late.get(run):
                self._late.pop(run, None)

    def _is_storing(self, key: Key) -> bool:
        progress = self._shard.store.progress(key)
        return progress is not None and is_storing(progress)
