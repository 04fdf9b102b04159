"""The shards that this gateway owns or stands by for: read, claimed, and acted for.

One reader follows the partitions of `mqlake.sessions` that are this gateway's by placement; a
second one loads them before, one shard after the other, those first that this gateway is to own: a
claim in a shard that is loaded does not wait behind the records of one that is not. When it has
come to where the shard's end was, the gateway appends `o/owner`, and is the owner when it has read
that.
What the owner does is in `ingest.session.acts`; its effects are performed here.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.store.shards import SqliteShardStore
from ingest.session.effects import (
    Append,
    Effect,
    Ended,
    Fenced,
    Find,
    NextOffsets,
    PassOn,
    PublishWills,
    SettledRun,
    Tell,
    discard,
)
from ingest.session.ownership import Shard
from ingest.session.placement import place
from ingest.session.share_acts import GroupEnded, Withdraw
from ingest.session.taken_sessions import NOBODY_IS_FREE, FreeSessions
from mqlake.errors import InvalidRecord, LogError, NewerRecord
from mqlake.log.contract import BEGINNING, LogRecord, LogWriter
from mqlake.records import CONTROL_KEY_PREFIX, SESSIONS, delivery_topic
from mqlake.shard_records import OWNER_KEY, Key, Run, encode_run, shard_of, stamp_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from ingest.gateway.lease import Lease
    from ingest.gateway.peers import Peers
    from ingest.gateway.store.database import Database
    from ingest.session.effects import Search, Work
    from ingest.session.placement import Place
    from ingest.session.share_acts import Deliveries
    from ingest.session.share_parts import GroupKey
    from mqlake.clock import Clock
    from mqlake.log.contract import LogReader
    from mqlake.session_records import ProgressRecord, SessionRecord

logger = logging.getLogger(__name__)

CLAIM_AGAIN_SECONDS: Final = 2.0
"""How long a gateway that is to own a shard waits before it says so again."""

APPLY_SECONDS: Final = 20.0
"""How long a record of our own may take to come back; then the act is given up, and done again."""


LOOK_SECONDS: Final = 0.05
"""How often it is looked whether this gateway is heard again."""


@dataclass(slots=True)
class Actions:
    """What the owner of a shard needs of the gateway, beside the log.

    Attributes:
        find: Returns which exchanges `mqlake.inbound` has.
        next_offsets: Of `mqlake.inbound`, by partition: nothing is below from now on.
        publish_wills: Appends wills under their exchanges, until all are durable.
        pass_on: Gives share groups what an absent session leaves.
        ended: Told of a session that has ended.
        withdraw: Takes routes of a dead gateway, and what it was given for share groups.
        group_ended: Told of a share group that has ended, and how many messages nobody gets.
        told: Takes a control record of a gateway for itself.
    """

    find: Callable[[Sequence[Search]], Coroutine[Any, Any, Collection[bytes]]]
    next_offsets: Callable[[], list[int]]
    publish_wills: Callable[[Sequence[tuple[SessionRecord, bytes]]], Coroutine[Any, Any, None]]
    pass_on: Callable[[Key, ProgressRecord], Coroutine[Any, Any, None]]
    ended: Callable[[Ended], None]
    withdraw: Callable[[Withdraw], Coroutine[Any, Any, Deliveries]]
    group_ended: Callable[[GroupKey, int], None]
    told: Callable[[str, dict[str, Any]], None]


@dataclass(slots=True)
class _Followed:
    """A shard that is read.

    Invariant: this gateway acts for it only under `acts_under`, the epoch since when it knows all.
    """

    shard: Shard
    store: SqliteShardStore
    end: int
    """Where its end was when reading began."""
    is_loading: bool = True
    """It has not come to its end; the other reader does not follow it yet."""
    acts_under: int | None = None
    claim_at: float = 0.0
    waiting: list[tuple[int, int, asyncio.Future[None]]] = field(default_factory=list)
    """A heap: the offset that is to be read, the how-manieth who waits, who waits."""


class Shards:
    """Follows shards and acts for those that are this gateway's.

    Args:
        me: This run of this gateway.
        count: How many shards there are.
        writer: Appends to shards, and control records.
        reader: Follows shards that are loaded. Not started yet.
        loader: Reads them until then. Not started yet.
        database: Holds what is read.
        peers: Who can own shards, and who is dead.
        lease: Of this gateway.
        clock: Its monotonic time counts.
        actions: Of the gateway.

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
        reader: LogReader,
        loader: LogReader,
        database: Database,
        peers: Peers,
        lease: Lease,
        clock: Clock,
        actions: Actions,
    ) -> None:
        self._me = me
        self._writer = writer
        self._reader = reader
        self._loader = loader
        self._database = database
        self._peers = peers
        self._lease = lease
        self._clock = clock
        self._actions = actions
        self.count = count
        self.free: FreeSessions = NOBODY_IS_FREE
        self.ignored_count = 0
        self._followed: dict[int, _Followed] = {}
        self._loading: int | None = None
        self._waited = 0
        self._owners: list[str] = []
        self._places: list[Place] = []
        self._works: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def open(self) -> None:
        """Begin to read.

        Raises:
            LogError: The log does not answer.
        """
        await self._reader.start(SESSIONS, {}, self._receive, self._report)
        await self._loader.start(SESSIONS, {}, self._load, self._report)

    async def close(self) -> None:
        self._is_closed = True
        await self._reader.close()
        await self._loader.close()
        for task in list(self._works):
            task.cancel()

    async def finish(self) -> None:
        """Read what this gateway has written, and do what is due because of it: wills above all."""
        ends = await self._reader.end_offsets(SESSIONS)
        for number in self.owned:
            await self._applied(self._followed[number].shard, ends[number] - 1)
        while self._works:
            await asyncio.wait(self._works)

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
    def places(self) -> list[Place]:
        """Return which gateway is to own which shard, and who stands by."""
        return self._places

    @property
    def is_settled(self) -> bool:
        """Whether this gateway acts for all shards that it is to own."""
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

    @property
    def is_idle(self) -> bool:
        return not self._works

    def owned_shard(self, key: Key) -> Shard | None:
        """Return the shard of a client if this gateway acts for it."""
        followed = self._followed.get(shard_of(*key, self.count))
        if followed is None or not followed.shard.is_active:
            return None
        if followed.acts_under != followed.shard.owner_epoch or not self._lease.holds():
            return None
        return followed.shard

    def untake(self, key: Key) -> None:
        """Note that a session is over that was begun without a claim."""
        followed = self._followed.get(shard_of(*key, self.count))
        if followed is not None:
            followed.shard.untake(key)

    @property
    def has_taken(self) -> bool:
        """Whether sessions were begun that no record tells of."""
        return any(one.shard.has_taken for one in self._followed.values())

    async def reach(self) -> bool:
        """Read what others have done to the shards of sessions that were begun without a claim.

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
        """Follow what placement says, claim what is to be owned, do what time brings."""
        if not self._peers.is_read or self._is_closed:
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
        """Act for no shard: others may own them, and what they have done is not known."""
        for followed in self._followed.values():
            followed.acts_under = None

    def reclaim(self) -> None:
        """Own anew what was owned: when that has come back, all that was before is known."""
        for followed in self._followed.values():
            if followed.shard.owner == self._me:
                self._claim_now(followed)

    # Which shards

    def _follow(self) -> None:
        name = self._me.gateway
        wanted = {number for number, place_ in enumerate(self._places) if name in place_}
        new = wanted - self._followed.keys()
        if new and self._loading is None:
            # Those first that nobody acts for before they are read.
            self._loading = min(new, key=lambda one: (self._places[one].owner != name, one))
            self._keep(asyncio.create_task(self._begin_to_load(self._loading)))
        for number in self._followed.keys() - wanted:
            followed = self._followed[number]
            if self._can_drop(followed):  # else when its new owner has said so
                self._drop(number, followed)

    async def _begin_to_load(self, number: int) -> None:
        try:
            end = (await self._reader.end_offsets(SESSIONS))[number]
            self._followed[number] = followed = self._new(number, end)
            starts = await self._loader.follow({number: BEGINNING})
            followed.shard.next_offset = max(followed.shard.next_offset, starts[number])
            self._end_loading_if_read(number, followed)
        except LogError as error:  # it is tried again
            self._not_followed(number, error)

    def _end_loading_if_read(self, number: int, followed: _Followed) -> None:
        if followed.is_loading and followed.shard.next_offset >= followed.end:
            followed.is_loading = False
            self._loader.unfollow([number])
            self._keep(asyncio.create_task(self._begin_to_follow(number, followed)))

    async def _begin_to_follow(self, number: int, followed: _Followed) -> None:
        try:
            await self._reader.follow({number: followed.shard.next_offset})
        except LogError as error:
            self._not_followed(number, error)
            return
        self._loading = None
        self._claim(number, followed)

    def _not_followed(self, number: int, error: LogError) -> None:
        logger.warning("shard not followed", extra={"fields": {"reason": str(error)}})
        followed = self._followed.pop(number, None)
        if followed is not None:
            followed.store.close()
        self._loading = None

    def _new(self, number: int, end: int) -> _Followed:
        store = SqliteShardStore(self._database, number)
        shard = Shard(number, store, self._me, self._begin)
        shard.taken.free = self.free
        return _Followed(shard, store, end)

    def _can_drop(self, followed: _Followed) -> bool:
        owner = followed.shard.owner
        is_read = not followed.is_loading and self._loading != followed.shard.number
        return is_read and owner != self._me and not followed.shard.has_to_leave

    def _drop(self, number: int, followed: _Followed) -> None:
        self._reader.unfollow([number])
        del self._followed[number]
        followed.store.close()
        for *_, future in followed.waiting:
            future.cancel()

    def _claim(self, number: int, followed: _Followed) -> None:
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

    def _claim_now(self, followed: _Followed) -> None:
        followed.claim_at = self._clock.monotonic() + CLAIM_AGAIN_SECONDS
        headers = stamp_headers(self._me.incarnation)
        try:
            self._writer.append(
                SESSIONS,
                OWNER_KEY,
                encode_run(self._me),
                headers,
                _ignore,
                partition=followed.shard.number,
            )
        except LogError as error:
            logger.warning("shard not claimed", extra={"fields": {"reason": str(error)}})

    # What is read

    def _load(self, records: list[LogRecord]) -> None:
        """Take records of the shard that is being loaded."""
        began_at = self._clock.monotonic()
        for record in records:
            followed = self._followed.get(record.partition)
            if followed is None or not followed.is_loading:
                continue
            if record.offset < followed.shard.next_offset:
                # It was loaded before, and what came first had been fetched then.
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
        for record in records:
            followed = self._followed.get(record.partition)
            # One that was fetched before its shard was loaded anew is known.
            if followed is None or followed.is_loading:
                continue
            if record.offset >= followed.shard.next_offset:
                self._apply(record, followed)
                if followed.waiting:
                    self._wake(followed)

    def _apply(self, record: LogRecord, followed: _Followed) -> None:
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

    def _owner_changed(self, number: int, followed: _Followed) -> None:
        shard = followed.shard
        owner = shard.owner
        assert owner is not None
        followed.acts_under = shard.owner_epoch if owner == self._me else None
        logger.info(
            "shard has an owner",
            extra={"fields": {"shard": number, "gateway": owner.gateway}},
        )

    def _wake(self, followed: _Followed) -> None:
        waiting, position = followed.waiting, followed.shard.next_offset
        while waiting and waiting[0][0] < position:
            future = heappop(waiting)[2]
            if not future.done():
                future.set_result(None)

    def _report(self, error: LogError) -> None:
        logger.warning("sessions cannot be read", extra={"fields": {"reason": str(error)}})

    # What the owner does

    def _begin(self, shard: Shard, work: Work) -> None:
        if self._is_closed:
            discard(work)
            return
        task = asyncio.create_task(self._run(shard, work, shard.owner_epoch))
        task.add_done_callback(lambda _: discard(work))  # it may be cancelled before it has begun
        self._keep(task)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._works.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._works.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            loop = asyncio.get_running_loop()
            loop.call_exception_handler(
                {"message": "the owner of a shard failed", "exception": error}
            )

    async def _run(self, shard: Shard, work: Work, epoch: int) -> None:
        """Perform the effects of an act, until its end or until the shard is another's."""
        result: Any = None
        failure: Exception | None = None
        while True:
            try:
                effect = work.send(result) if failure is None else work.throw(failure)
            except StopIteration:
                return
            except Fenced:
                return
            except LogError as error:
                logger.warning("the owner of a shard waits", extra={"fields": {"reason": error}})
                return
            failure = None
            try:
                self._check(shard, epoch)
                result = await self._perform(shard, effect, epoch)
                self._check(shard, epoch)
            except (Fenced, LogError) as error:
                failure = error

    def _check(self, shard: Shard, epoch: int) -> None:
        followed = self._followed.get(shard.number)
        if (
            followed is None
            or followed.shard is not shard
            or shard.owner_epoch != epoch
            or (shard.owner == self._me and not self._acts(followed))
        ):
            raise Fenced(f"shard {shard.number} is not this gateway's any more")

    def _acts(self, followed: _Followed) -> bool:
        return followed.acts_under == followed.shard.owner_epoch and self._lease.is_in_time()

    async def _perform(self, shard: Shard, effect: Effect[Any], epoch: int) -> Any:
        actions = self._actions
        match effect:
            case Append(records):
                offsets = await asyncio.gather(
                    *(
                        self._writer.append_durably(
                            SESSIONS, one.key, one.value, one.headers, partition=shard.number
                        )
                        for one in records
                    )
                )
                if offsets:
                    await self._applied(shard, max(offset for _, offset in offsets))
            case Tell(gateway, action, value):
                if gateway == self._me.gateway:
                    actions.told(action, json.loads(value))
                elif gateway:
                    key = CONTROL_KEY_PREFIX + action.encode()
                    await self._writer.append_durably(
                        delivery_topic(gateway), key, value, [], partition=0
                    )
            case NextOffsets():
                return actions.next_offsets()
            case Find(searches):
                return await actions.find(searches)
            case PublishWills(wills):
                while not self._lease.is_certain():
                    await asyncio.sleep(LOOK_SECONDS)
                    self._check(shard, epoch)
                await actions.publish_wills(wills)
            case PassOn(key, progress):
                await actions.pass_on(key, progress)
            case Ended():
                actions.ended(effect)
            case Withdraw():
                return await actions.withdraw(effect)
            case GroupEnded(group, dropped):
                actions.group_ended(group, dropped)
            case SettledRun(run, count):
                logger.info(
                    "sessions of a dead gateway are settled",
                    extra={"fields": {"gateway": run.gateway, "sessions": count}},
                )
        return None

    async def _applied(self, shard: Shard, offset: int) -> None:
        """Wait until a record of this gateway has been read."""
        followed = self._followed.get(shard.number)
        if followed is None or followed.shard is not shard or shard.next_offset > offset:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waited += 1
        heappush(followed.waiting, (offset, self._waited, future))
        try:
            async with asyncio.timeout(APPLY_SECONDS):
                await future
        except TimeoutError:
            raise LogError(
                f"shard {shard.number} was not read up to offset {offset} within "
                f"{APPLY_SECONDS:.0f} s",
                definite=False,
            ) from None


def _ignore(_partition: int, _offset: int, _error: LogError | None) -> None:
    pass
