"""Copies of shards of the retained messages at this gateway.

The owner of a shard has one, and so has its standby (`ingest.session.placement`, as for sessions).
To get one the gateway announces the shard's route; messages behind the barriers come from the
router, `copying.py` reads the rest. There is no fence: owners only read, so any gateway with a
complete copy may answer.

A copy that lacks something is not kept: others are asked, and it is tried again until the table has
caught up. Without tables nothing could be waited for: there are only the log's messages.

While a shard changes hands it may happen that no asked gateway has a complete copy. A gateway
that asks asks again; the standby of before is usually one of the two still.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ingest.session.placement import place
from mqlake.errors import LogError
from mqlake.records.messages import retained_route
from mqlake.records.retained import partitions_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.gateway.log.partitions import Partitions
    from ingest.gateway.peers.peers import Peers
    from ingest.gateway.retained.copying import Copying
    from ingest.gateway.retained.retained import Retained
    from ingest.gateway.routing.routes import Routes
    from ingest.session.placement import ShardPlacement
    from mqlake.clock import Clock

logger = logging.getLogger(__name__)

COUNTED_SECONDS: Final = 60.0
"""How long a route and its barriers may take to be in the log; then it is tried again."""

RETRY_SECONDS: Final = 0.5

INCOMPLETE_SECONDS: Final = 10.0
"""Until a copy that lacked something is tried again; the table gets on by seconds."""


class RetainedShards:
    """Sees that this gateway has copies of the shards that are its own by placement.

    Args:
        gateway: Its name.
        retained: Holds the copies.
        peers: Say which gateways can own shards.
        copying: Reads what copies lack.
        routes: Routes of this gateway.
        partitions: Numbers of partitions of the log topics.
        clock: Says when to try again.

    Attributes:
        places: Owner and standby of each shard.
    """

    def __init__(
        self,
        gateway: str,
        retained: Retained,
        peers: Peers,
        copying: Copying,
        routes: Routes,
        partitions: Partitions,
        clock: Clock,
    ) -> None:
        self.places: Sequence[ShardPlacement] = ()
        self._gateway = gateway
        self._retained = retained
        self._peers = peers
        self._copying = copying
        self._routes = routes
        self._partitions = partitions
        self._clock = clock
        self._owners: list[str] = []
        self._held: set[int] = set()
        # Copies that lack messages and are to be got again.
        self._stale: set[int] = set()
        # Of which an earlier run has left something.
        self._left = retained.stored()
        self._again_at = 0.0
        self._change: asyncio.Task[None] | None = None

    @property
    def is_settled(self) -> bool:
        """Tell whether this gateway has copies of all shards that it can have, and of no other."""
        known = self._held | self._retained.incomplete
        return bool(self.places) and self._change is None and self._wanted == known

    @property
    def _wanted(self) -> set[int]:
        return {shard for shard, one in enumerate(self.places) if self._gateway in one}

    def tick(self) -> None:
        """Follow placement: one change at a time, the next when that is done."""
        if not self._peers.is_read:
            return
        owners = self._peers.owners()
        if owners and owners != self._owners:
            self._owners = owners
            self.places = place(self._partitions.retained, owners)
            self._retained.owned = [
                shard for shard, one in enumerate(self.places) if one.owner == self._gateway
            ]
        if self._change is not None:
            return
        wanted = self._wanted - self._stale
        self._retained.incomplete &= wanted
        if self._clock.monotonic() < self._again_at:
            wanted -= self._retained.incomplete - self._held
        self._drop_left(wanted)
        if wanted != self._held:
            self._change = asyncio.create_task(self._follow(wanted))
            self._change.add_done_callback(self._changed)

    def _drop_left(self, wanted: set[int]) -> None:
        """Drop some of what an earlier run has left of shards that this one is not to have."""
        if self._gateway not in self._owners:
            return  # it is not known yet which these are
        for shard in sorted(self._left - wanted)[:1]:
            self._retained.let_go(shard)
            if not self._retained.drop(shard):
                self._left.discard(shard)

    def begin_anew(self) -> None:
        """Use no copy any more: deliveries are gone that may have changed it. Get all again."""
        self._stale = set(self._held)
        for shard in self._stale:
            self._retained.let_go(shard)

    async def close(self) -> None:
        if self._change is not None:
            self._change.cancel()
            await asyncio.wait([self._change])

    def _changed(self, change: asyncio.Task[None]) -> None:
        self._change = None
        if not change.cancelled() and (error := change.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "copies of retained messages cannot be kept", "exception": error}
            )

    async def _follow(self, wanted: set[int]) -> None:
        for shard in self._held - wanted:
            await self._let_go(shard)
        new = sorted(wanted - self._held)
        if not new:
            return
        try:
            await self._copy(new)
        except (LogError, TimeoutError) as error:
            reason = str(error) or f"no barriers in the log for {COUNTED_SECONDS:.0f} s"
            logger.warning("retained messages not loaded", extra={"fields": {"reason": reason}})
            await asyncio.sleep(RETRY_SECONDS)

    def _set_aside(self, shard: int) -> None:
        """Hold a copy no more that can go on from where an earlier run has left it."""
        self._routes.unsubscribe(retained_route(self._gateway, shard))
        self._retained.set_aside(shard)
        self._held.discard(shard)

    async def _let_go(self, shard: int) -> None:
        self._set_aside(shard)
        # A removal that comes now is not seen: nothing of it may be left when it is held again.
        await self._copying.empty(shard)
        self._stale.discard(shard)
        logger.info("shard of retained messages let go", extra={"fields": {"shard": shard}})

    async def _copy(self, shards: Sequence[int]) -> None:
        """Get complete copies of shards; none of those that lack something, if there is a table."""
        await self._copying.begin(shards, self._partitions.inbound)
        self._left.difference_update(shards)
        for shard in shards:
            self._retained.hold(shard)
            self._held.add(shard)
        routes = [retained_route(self._gateway, shard) for shard in shards]
        request = self._routes.announce(routes)
        try:
            async with asyncio.timeout(COUNTED_SECONDS):
                starts = await request.counted
            count = self._partitions.retained
            ends = {
                partition: starts[partition]
                for shard in shards
                for partition in partitions_of(shard, count, len(starts))
            }
            lacking = await self._copying.load(ends)
        except (LogError, TimeoutError):
            for shard in shards:
                if self._retained.places(shard):
                    self._set_aside(shard)
                else:
                    await self._let_go(shard)
            raise
        self._again_at = self._clock.monotonic() + INCOMPLETE_SECONDS
        self._retained.incomplete.difference_update(shards)
        self._retained.incomplete |= lacking
        for shard in shards:
            if shard in lacking and self._copying.has_tables:
                await self._let_go(shard)
            else:
                self._retained.complete(shard)
