"""The owner of shards in a simulated world: performs what its acts ask for, one by one."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ingest.session.shard.effects import (
    AppendRecords,
    Effect,
    EndOffsets,
    Fenced,
    Find,
    NextOffsets,
    PublishWills,
    Tell,
    Work,
    discard,
)
from tests.ingest.session.simulation.lease import LeasedNode
from tests.ingest.session.simulation.log import Message
from tests.ingest.session.simulation.node import LOOK_AGAIN_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.session.ownership import Shard
    from mqlake.records.shards import Run
    from tests.ingest.session.simulation.world import World


class OwnerNode(LeasedNode):
    """A node that acts for the shards that it owns."""

    def __init__(self, world: World, slot: int, me: Run, since: int) -> None:
        super().__init__(world, slot, me, since)
        self.is_over = False
        self.works: set[Work] = set()

    def discard_works(self) -> None:
        """End: nothing is begun any more."""
        self.is_over = True
        for work in list(self.works):
            discard(work)
        self.works.clear()

    def start(self, shard: Shard, work: Work) -> None:
        if self.is_over:
            discard(work)
            return
        self.works.add(work)
        self.world.at(0, self.go_on, shard, work, shard.owner_epoch, None, process=self)

    def go_on(self, shard: Shard, work: Work, epoch: int, result: Any) -> None:
        """Give a coroutine the result of its effect, or `Fenced`, and perform the next one."""
        is_new = inspect.getcoroutinestate(work) == inspect.CORO_CREATED
        try:
            if is_new or self.may_own(shard, epoch):
                effect = work.send(result)
            else:
                effect = work.throw(Fenced("not the owner"))
        except (StopIteration, Fenced):
            self.works.discard(work)
            return
        self.begin_effect(shard, work, epoch, effect)

    def begin_effect(self, shard: Shard, work: Work, epoch: int, effect: Effect[Any]) -> None:
        if not self.may_own(shard, epoch):
            self.go_on(shard, work, epoch, None)
        elif isinstance(effect, PublishWills) and not self.is_certain():
            again = (shard, work, epoch, effect)
            self.world.at(LOOK_AGAIN_MS, self.begin_effect, *again, process=self)
        else:
            self.perform(shard, effect, lambda result=None: self.go_on(shard, work, epoch, result))

    def may_own(self, shard: Shard, epoch: int) -> bool:
        return self.has_lease() and shard.owner_epoch == epoch

    def perform(self, shard: Shard, effect: Effect[Any], done: Callable[..., None]) -> None:
        world = self.world
        if isinstance(effect, AppendRecords) and effect.records:
            number = shard.number

            def appended(offset: int) -> None:
                self.waits[number].append((offset, done))
                self.check_waits(number)

            for record in effect.records[:-1]:
                self.append_record(number, record, lambda _: None)
            self.append_record(number, effect.records[-1], appended)
        elif isinstance(effect, Tell):
            told = (effect.gateway, effect.action, effect.value)
            self.send("control", world.told, *told, report=lambda _: done())
        elif isinstance(effect, (NextOffsets, EndOffsets)):
            world.at(2, lambda: done([len(world.inbound)]), process=self)
        elif isinstance(effect, Find):
            world.at(3, lambda: done(world.find(effect)), process=self)
        elif isinstance(effect, PublishWills):
            self.publish_wills(effect, done)
        else:
            world.at(0, done, process=self)

    def publish_wills(self, effect: PublishWills, done: Callable[..., None]) -> None:
        left = len(effect.wills)
        if not left:
            self.world.at(0, done, process=self)

        def published(_: int) -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for session, exchange in effect.wills:
            will = Message("will", session.session_id, 0, exchange)
            self.send("inbound", self.world.publish, will, report=published)
