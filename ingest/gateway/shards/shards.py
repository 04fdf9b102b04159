"""The shards that this gateway owns or stands by for: read, claimed, and acted for.

One reader follows the partitions of `mqlake.sessions` that this gateway owns, or is about to; one
those that it stands by for, which is a little late: no client waits for these. A third one loads
them before, few at a time, those first that this gateway is to own: a claim in a shard that is
loaded does not wait behind the records of one that is not. When it has come to where the shard's
end was, the gateway appends `o/owner`, and is the owner when it has read that. The owner's acts are
performed by `shard_acts.py`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ingest.gateway.shards.followed_shard import FollowedShard
from ingest.gateway.shards.shard_acts import ShardActs
from ingest.gateway.store.shards import SqliteShardStore
from ingest.session.ownership import Shard
from ingest.session.placement import place
from ingest.session.shard.taken_sessions import NOBODY_IS_FREE, FreeSessions
from mqlake.errors import InvalidRecord, LogError, NewerRecord
from mqlake.log.contract import BEGINNING, LogWriter
from mqlake.records.messages import SESSIONS, LogRecord
from mqlake.records.shards import CLAIM, OWNER_KEY, Key, Run, encode_run, shard_of, stamp_headers

if TYPE_CHECKING:
    from ingest.gateway.log.lease import Lease
    from ingest.gateway.peers.peers import Peers
    from ingest.gateway.shards.shard_acts import Actions
    from ingest.gateway.shards.shard_readers import ShardReaders
    from ingest.gateway.store.database import Database
    from ingest.session.placement import ShardPlacement
    from mqlake.log.contract import LogReader

logger = logging.getLogger(__name__)

CLAIM_AGAIN_SECONDS: Final = 2.0
"""How long a gateway that is to own a shard waits before it says so again."""

_CLAIM_PREFIX: Final = f"{CLAIM}/".encode()

LOADED_AT_ONCE: Final = 4
"""Shards: while one is asked for, longer than it takes to read a small one, others are read."""


class Shards:
    """Follows shards and acts for those that are this gateway's.

    Args:
        me: This run of this gateway.
        count: How many shards there are.
        writer: Appends to shards, and control records.
        readers: Read shards.
        database: Holds entries of the shards.
        peers: Say which gateways can own shards, and which are dead.
        lease: Lease of this gateway; its clock counts.
        actions: Functions of the gateway that the owner of a shard calls.

    Attributes:
        count: How many shards there are.
        free: Holds sessions that are begun without a claim; set before `open`.
        ignored_count: Records that cannot be read, passed over since the gateway has begun.
    """

    def __init__(
        self,
        me: Run,
        count: int,
        writer: LogWriter,
        readers: ShardReaders,
        database: Database,
        peers: Peers,
        lease: Lease,
        actions: Actions,
    ) -> None:
        self._me = me
        self._writer = writer
        self._readers = readers
        self._reader, _, self._loader = readers
        self._database = database
        self._peers = peers
        self._lease = lease
        self._clock = lease.clock
        self.count = count
        self.free: FreeSessions = NOBODY_IS_FREE
        self.ignored_count = 0
        self._followed: dict[int, FollowedShard] = {}
        self._loading: set[int] = set()
        self._owners: list[str] = []
        self._places: list[ShardPlacement] = []
        self._acts = ShardActs(me.gateway, writer, lease, actions, self._may_act, self._applied)

    async def open(self) -> None:
        """Begin to read.

        Raises:
            LogError: The log does not answer.
        """
        readers = self._readers
        await readers.owned.start(SESSIONS, {}, self._receive, self._report)
        await readers.standby.start(SESSIONS, {}, self._receive, self._report)
        await readers.loader.start(SESSIONS, {}, self._load, self._report)

    async def close(self) -> None:
        self._acts.is_closed = True
        await asyncio.gather(*(reader.close() for reader in self._readers))
        self._acts.close()

    async def finish(self) -> None:
        """Read the records that this gateway has written, and act on them: wills above all."""
        ends = await self._reader.end_offsets(SESSIONS)
        for number in self.owned:
            await self._applied(self._followed[number].shard, ends[number] - 1)
        await self._acts.finish()

    @property
    def owned(self) -> list[int]:
        """Return the shards for which this gateway acts."""
        return [number for number in self._current if self._followed[number].shard.is_active]

    @property
    def _current(self) -> list[int]:
        """Return the shards whose last owner is this gateway, as far as it knows."""
        return [
            number
            for number, one in self._followed.items()
            if one.shard.owner == self._me and one.acts_under == one.shard.owner_epoch
        ]

    @property
    def places(self) -> list[ShardPlacement]:
        """Return owner and standby of each shard, as they are to be."""
        return self._places

    @property
    def is_settled(self) -> bool:
        """Tell whether this gateway acts for all shards that it is to own."""
        owned = set(self.owned)
        return bool(self._places) and all(
            wanted.owner != self._me.gateway or number in owned
            for number, wanted in enumerate(self._places)
        )

    @property
    def position(self) -> int:
        """Return a number that grows while shards are read."""
        return sum(one.shard.next_offset for one in self._followed.values())

    @property
    def session_count(self) -> int:
        """Return how many sessions are stored in the shards that this gateway owns."""
        return sum(self._followed[number].store.count() for number in self.owned)

    def absent_subscriptions(self, tenant: str) -> int:
        """Return how many subscriptions a tenant's clients have that are away, by these shards."""
        return sum(self._followed[one].store.absent_subscriptions(tenant) for one in self.owned)

    @property
    def is_idle(self) -> bool:
        return self._acts.is_idle

    def owned_shard(self, key: Key) -> Shard | None:
        """Return the shard of a client if this gateway acts for it."""
        followed = self._followed.get(shard_of(*key, self.count))
        if followed is None or not followed.shard.is_active:
            return None
        if followed.acts_under != followed.shard.owner_epoch or not self._lease.holds():
            return None
        return followed.shard

    def hurry(self) -> None:
        """Note that a client waits for records; progress of others is not urgent.

        That one client has come says that others may.
        """
        self._reader.hurry()

    def untake(self, key: Key) -> None:
        """Note that a session is over that was begun without a claim."""
        followed = self._followed.get(shard_of(*key, self.count))
        if followed is not None:
            followed.shard.untake(key)

    @property
    def has_taken(self) -> bool:
        """Tell whether sessions were begun that no record tells of."""
        return any(one.shard.has_taken for one in self._followed.values())

    async def reach(self) -> bool:
        """Read records of others in the shards of sessions that were begun without a claim.

        Returns:
            Whether the sessions that are left are this gateway's; else they are being claimed.

        Raises:
            LogError: The log does not answer.
        """
        taken = [one for one in self._followed.values() if one.shard.has_taken]
        ends = await self._reader.end_offsets(SESSIONS)
        for followed in taken:
            await self._applied(followed.shard, ends[followed.shard.number] - 1)
        return all(one.shard.owner == self._me or not one.shard.has_taken for one in taken)

    def tick(self) -> None:
        """Follow the placement, claim shards that are to be owned, act on deadlines."""
        if not self._peers.is_read or self._acts.is_closed:
            return
        owners = self._peers.owners()
        if owners and owners != self._owners:
            self._owners = owners
            self._places = place(self.count, owners)
        self._follow()
        for number, followed in self._followed.items():
            self._claim(number, followed)
        if self._lease.is_in_time():
            now_ms = self._peers.log_now_ms()
            current = set(self._current)
            for number, followed in self._followed.items():
                if number in current or followed.shard.has_to_leave:
                    followed.shard.tick(
                        now_ms, self._peers.is_dead, self._peers.is_silent, self._peers.is_spent
                    )

    def suspend(self) -> None:
        """Act for no shard: others may own them, and their acts are not known."""
        for followed in self._followed.values():
            followed.acts_under = None

    def reclaim(self) -> None:
        """Claim owned shards again: when that has come back, all records before it are known."""
        for followed in self._followed.values():
            if followed.shard.owner == self._me:
                self._claim_now(followed)

    # Which shards

    def _follow(self) -> None:
        name = self._me.gateway
        wanted = {number for number, place_ in enumerate(self._places) if name in place_}
        missing = wanted - self._followed.keys() - self._loading
        mine = {number for number in wanted if self._places[number].owner == name}
        if mine & (missing | self._loading):
            missing &= mine  # no act for them before they are read
        if begun := sorted(missing)[: max(0, LOADED_AT_ONCE - len(self._loading))]:
            self._loading.update(begun)
            self._acts.keep(asyncio.create_task(self._begin_to_load(begun)))
        for number in self._followed.keys() - wanted:
            followed = self._followed[number]
            if self._can_drop(followed):  # else when its new owner has said so
                self._drop(number, followed)
        for number, followed in self._followed.items():
            if number not in self._loading and followed.reader is not self._reader_of(followed):
                self._move(number, followed)

    async def _begin_to_load(self, numbers: list[int]) -> None:
        try:
            ends = await self._reader.end_offsets(SESSIONS)
            for number in numbers:
                self._followed[number] = self._new(number, ends[number])
            starts = await self._loader.follow(dict.fromkeys(numbers, BEGINNING))
        except LogError as error:  # it is tried again
            logger.warning("shards not followed", extra={"fields": {"reason": str(error)}})
            for number in numbers:
                self._forget(number)
            return
        for number in numbers:
            followed = self._followed[number]
            followed.shard.next_offset = max(followed.shard.next_offset, starts[number])
            self._end_loading_if_read(number, followed)

    def _end_loading_if_read(self, number: int, followed: FollowedShard) -> None:
        if followed.is_loading and followed.shard.next_offset >= followed.end:
            followed.is_loading = False
            self._loader.unfollow([number])
            self._move(number, followed)

    def _reader_of(self, followed: FollowedShard) -> LogReader:
        """Return which reader is to follow a shard that is loaded."""
        owner = self._places[followed.shard.number].owner
        is_own = owner == self._me.gateway or self._is_needed(followed)
        return self._readers.owned if is_own else self._readers.standby

    def _move(self, number: int, followed: FollowedShard) -> None:
        """Have the reader that is to follow a shard go on where it was read last."""
        if followed.reader is not None:
            followed.reader.unfollow([number])
            followed.reader = None
        self._loading.add(number)
        self._acts.keep(asyncio.create_task(self._begin_to_follow(number, followed)))

    async def _begin_to_follow(self, number: int, followed: FollowedShard) -> None:
        reader = self._reader_of(followed)
        try:
            await reader.follow({number: followed.shard.next_offset})
        except LogError as error:  # it is tried again
            logger.warning("shard not followed", extra={"fields": {"reason": str(error)}})
            return
        finally:
            self._loading.discard(number)
        followed.reader = reader
        self._claim(number, followed)

    def _forget(self, number: int) -> None:
        followed = self._followed.pop(number, None)
        if followed is not None:
            followed.store.close()
        self._loading.discard(number)

    def _new(self, number: int, end: int) -> FollowedShard:
        store = SqliteShardStore(self._database, number)
        shard = Shard(number, store, self._me, self._acts.begin)
        shard.taken.free = self.free
        return FollowedShard(shard, store, end)

    def _can_drop(self, followed: FollowedShard) -> bool:
        is_read = not followed.is_loading and followed.shard.number not in self._loading
        return is_read and not self._is_needed(followed)

    def _is_needed(self, followed: FollowedShard) -> bool:
        """Tell whether others wait until this gateway has read a shard, by any placement."""
        shard = followed.shard
        return shard.owner == self._me or followed.is_claimed or shard.has_to_leave

    def _drop(self, number: int, followed: FollowedShard) -> None:
        if followed.reader is not None:
            followed.reader.unfollow([number])
        del self._followed[number]
        followed.close()

    def _claim(self, number: int, followed: FollowedShard) -> None:
        """Say that this gateway owns a shard, if it is to."""
        shard = followed.shard
        if (
            self._places[number].owner == self._me.gateway
            and not (shard.owner == self._me and followed.acts_under == shard.owner_epoch)
            and not followed.is_loading
            and self._lease.is_in_time()
            and self._clock.monotonic() >= followed.claim_at
        ):
            self._claim_now(followed)

    def _claim_now(self, followed: FollowedShard) -> None:
        followed.claim_at = self._clock.monotonic() + CLAIM_AGAIN_SECONDS

        def report(_partition: int, offset: int, error: LogError | None) -> None:
            followed.claims_out -= 1
            if error is None:
                followed.claimed_at = max(followed.claimed_at, offset)

        headers = stamp_headers(self._me.incarnation)
        try:
            self._writer.append(
                SESSIONS,
                OWNER_KEY,
                encode_run(self._me),
                headers,
                report,
                partition=followed.shard.number,
            )
            followed.claims_out += 1
        except LogError as error:
            logger.warning("shard not claimed", extra={"fields": {"reason": str(error)}})

    # Records read

    def _load(self, records: list[LogRecord]) -> None:
        """Take records of the shard that is being loaded."""
        began_at = self._clock.monotonic()
        for record in records:
            followed = self._followed.get(record.partition)
            if followed is None or not followed.is_loading:
                continue
            if record.offset < followed.shard.next_offset:
                # It was loaded before, and the first records had been fetched then.
                followed.store.close()
                self._followed[record.partition] = self._new(record.partition, followed.end)
                followed = self._followed[record.partition]
            self._apply(record, followed)
            self._end_loading_if_read(record.partition, followed)
        if self.is_settled:  # clients are served: half of the time is theirs
            self._loader.pause()
            spent = self._clock.monotonic() - began_at
            asyncio.get_running_loop().call_later(spent, self._loader.resume)

    def _receive(self, records: list[LogRecord]) -> None:
        """Take records of shards that are loaded."""
        self._lease.heard_log(records[-1].timestamp_ms)
        for record in records:
            followed = self._followed.get(record.partition)
            # One that was fetched before its shard was loaded again is known.
            if followed is None or followed.is_loading:
                continue
            if record.offset >= followed.shard.next_offset:
                self._apply(record, followed)
                if followed.waiting:
                    followed.wake()
                if (record.key or b"").startswith(_CLAIM_PREFIX):
                    self.hurry()

    def _apply(self, record: LogRecord, followed: FollowedShard) -> None:
        shard = followed.shard
        epoch = shard.owner_epoch
        try:
            shard.apply(record)
        except NewerRecord:
            raise
        except InvalidRecord as error:
            self.ignored_count += 1
            if self.ignored_count == 1:  # the metric tells of the others
                fields = {"shard": record.partition, "offset": record.offset, "reason": str(error)}
                logger.warning("session record ignored", extra={"fields": fields})
        if shard.owner_epoch != epoch:
            self._owner_changed(record.partition, followed)

    def _owner_changed(self, number: int, followed: FollowedShard) -> None:
        shard = followed.shard
        owner = shard.owner
        assert owner is not None
        followed.acts_under = shard.owner_epoch if owner == self._me else None
        if not followed.is_loading:  # else it is of the past
            fields = {"shard": number, "gateway": owner.gateway}
            logger.info("shard has an owner", extra={"fields": fields})

    def _report(self, error: LogError) -> None:
        logger.warning("sessions cannot be read", extra={"fields": {"reason": str(error)}})

    # Asked by the acts

    def _may_act(self, shard: Shard, epoch: int) -> bool:
        followed = self._followed.get(shard.number)
        if followed is None or followed.shard is not shard or shard.owner_epoch != epoch:
            return False
        if shard.owner != self._me:
            return True  # an act at the end of its ownership
        return followed.acts_under == epoch and self._lease.is_in_time()

    async def _applied(self, shard: Shard, offset: int) -> None:
        """Wait until a record of this gateway has been read."""
        followed = self._followed.get(shard.number)
        if followed is not None and followed.shard is shard and shard.next_offset <= offset:
            self.hurry()
            await followed.wait(offset)
