"""Performs the effects of a shard owner's acts (`ingest.session.shard.acts`)."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ingest.session.groups.share_acts import GroupEnded, Withdraw
from ingest.session.shard.effects import (
    AppendRecords,
    Effect,
    EndOffsets,
    Fenced,
    Find,
    NextOffsets,
    PassOn,
    PublishWills,
    SessionEnded,
    SettledRun,
    Tell,
    discard,
)
from mqlake.errors import LogError
from mqlake.records.messages import CONTROL_KEY_PREFIX, SESSIONS, delivery_topic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence

    from ingest.gateway.log.lease import Lease
    from ingest.session.groups.share_acts import Deliveries
    from ingest.session.groups.share_records import GroupKey
    from ingest.session.ownership import Shard
    from ingest.session.shard.effects import Search, Work
    from mqlake.log.contract import LogWriter
    from mqlake.records.progress import ProgressRecord
    from mqlake.records.sessions import SessionRecord
    from mqlake.records.shards import Key

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.05
"""How often it is looked whether this gateway is heard again."""


@dataclass(slots=True)
class Actions:
    """Functions of the gateway that the owner of a shard calls, beside the log.

    Attributes:
        find: Returns which exchanges `mqlake.inbound` has.
        next_offsets: Offsets of `mqlake.inbound`, by partition: nothing is below from now on.
        end_offsets: Ends of `mqlake.inbound`, by partition: no reader can be further.
        publish_wills: Appends wills under their exchanges, until all are durable.
        pass_on: Gives share groups the messages that an absent session leaves.
        ended: Gets a session that has ended.
        withdraw: Takes routes of a dead gateway, and its deliveries for share groups.
        group_ended: Gets a share group that has ended, and how many messages no member gets.
        told: Takes a control record of a gateway for itself.
    """

    find: Callable[[Sequence[Search]], Coroutine[Any, Any, Collection[bytes]]]
    next_offsets: Callable[[], list[int]]
    end_offsets: Callable[[], Coroutine[Any, Any, dict[int, int]]]
    publish_wills: Callable[[Sequence[tuple[SessionRecord, bytes]]], Coroutine[Any, Any, None]]
    pass_on: Callable[[Key, ProgressRecord], Coroutine[Any, Any, None]]
    ended: Callable[[SessionEnded], None]
    withdraw: Callable[[Withdraw], Coroutine[Any, Any, Deliveries]]
    group_ended: Callable[[GroupKey, int], None]
    told: Callable[[str, dict[str, Any]], None]


class ShardActs:
    """The acts of one gateway, for all shards that it owns.

    Args:
        gateway: Its name.
        writer: Appends to shards, and control records.
        lease: Lease of this gateway's name.
        actions: Actions of the gateway.
        may_act: Tells whether this gateway may act for a shard as its owner since an epoch.
        applied: Waits until a record of a shard has been read.

    Attributes:
        is_closed: Nothing is begun any more.
    """

    def __init__(
        self,
        gateway: str,
        writer: LogWriter,
        lease: Lease,
        actions: Actions,
        may_act: Callable[[Shard, int], bool],
        applied: Callable[[Shard, int], Awaitable[None]],
    ) -> None:
        self._gateway = gateway
        self._writer = writer
        self._lease = lease
        self._actions = actions
        self._may_act = may_act
        self._applied = applied
        self._works: set[asyncio.Task[None]] = set()
        self.is_closed = False

    @property
    def is_idle(self) -> bool:
        return not self._works

    async def finish(self) -> None:
        """Wait until all is done that was begun."""
        while self._works:
            await asyncio.wait(self._works)

    def close(self) -> None:
        self.is_closed = True
        for task in list(self._works):
            task.cancel()

    def begin(self, shard: Shard, work: Work) -> None:
        """Perform an act."""
        if self.is_closed:
            discard(work)
            return
        task = asyncio.create_task(self._run(shard, work, shard.owner_epoch))
        task.add_done_callback(lambda _: discard(work))  # it may be cancelled before it has begun
        self.keep(task)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Own a task until it is over; a failure in it ends this gateway."""
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
        if not self._may_act(shard, epoch):
            raise Fenced(f"shard {shard.number} is not this gateway's any more")

    async def _perform(self, shard: Shard, effect: Effect[Any], epoch: int) -> Any:
        actions = self._actions
        match effect:
            case AppendRecords(records):
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
                if gateway == self._gateway:
                    actions.told(action, json.loads(value))
                elif gateway:
                    key = CONTROL_KEY_PREFIX + action.encode()
                    await self._writer.append_durably(
                        delivery_topic(gateway), key, value, [], partition=0
                    )
            case NextOffsets():
                return actions.next_offsets()
            case EndOffsets():
                ends = await actions.end_offsets()
                return [ends[partition] for partition in range(len(ends))]
            case Find(searches):
                return await actions.find(searches)
            case PublishWills(wills):
                while not self._lease.is_certain():
                    await asyncio.sleep(LOOK_SECONDS)
                    self._check(shard, epoch)
                await actions.publish_wills(wills)
            case PassOn(key, progress):
                await actions.pass_on(key, progress)
            case SessionEnded():
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
