"""A shard that a gateway reads, and tasks that wait until it has read a record."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from mqlake.errors import LogError

if TYPE_CHECKING:
    from ingest.gateway.store.shards import SqliteShardStore
    from ingest.session.ownership import Shard
    from mqlake.log.contract import LogReader

APPLY_SECONDS: Final = 20.0
"""How long a record of our own may take to come back; then the act is given up, and done again."""


@dataclass(slots=True)
class FollowedShard:
    """A shard that is read.

    Invariant: the gateway acts for it only under `acts_under`, the epoch since when it knows all.
    """

    shard: Shard
    store: SqliteShardStore
    end: int
    """End of the shard when reading began."""
    is_loading: bool = True
    """Reading has not reached its end."""
    reader: LogReader | None = None
    """Follows it when it is loaded; None: it is about to."""
    acts_under: int | None = None
    claim_at: float = 0.0
    claims_out: int = 0
    """How many claims of this gateway the log has not answered for."""
    claimed_at: int = -1
    """Offset of its last claim."""
    waiting: list[tuple[int, int, asyncio.Future[None]]] = field(default_factory=list)
    """A heap of waits: the offset that is to be read, the number of the wait, its future."""
    _waited: int = 0

    async def wait(self, offset: int) -> None:
        """Wait until a record of this gateway has been read.

        Raises:
            LogError: It does not come back.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waited += 1
        heappush(self.waiting, (offset, self._waited, future))
        try:
            async with asyncio.timeout(APPLY_SECONDS):
                await future
        except TimeoutError:
            raise LogError(
                f"shard {self.shard.number} was not read up to offset {offset} within "
                f"{APPLY_SECONDS:.0f} s",
                definite=False,
            ) from None

    @property
    def is_claimed(self) -> bool:
        """Tell whether the log has, or may get, a claim of this gateway that was not read yet.

        The next owner of the shard waits for a record of this gateway, which only a reader writes.
        """
        return self.claims_out > 0 or self.claimed_at >= self.shard.next_offset

    def wake(self) -> None:
        """Wake the tasks that wait for records read by now."""
        waiting, position = self.waiting, self.shard.next_offset
        while waiting and waiting[0][0] < position:
            future = heappop(waiting)[2]
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Drop all that is kept of the shard; no part waits any more."""
        self.store.close()
        for *_, future in self.waiting:
            future.cancel()
