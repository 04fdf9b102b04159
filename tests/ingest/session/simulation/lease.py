"""How gateways know of each other: heartbeats, leases, and who is to own which shard."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from ingest.session.placement import ShardPlacement, place
from ingest.session.shard.effects import ShardRecord
from mqlake.clock import LogClock, Standstill
from mqlake.records.shards import OWNER_KEY, encode_run, stamp_headers
from tests.ingest.session.simulation.log import START_MS, SimHeartbeat
from tests.ingest.session.simulation.node import DELIVERY_MS, LEASE_MS, Node

if TYPE_CHECKING:
    from mqlake.records.shards import Run
    from tests.ingest.session.simulation.world import World

TICK_MS: Final = 1_000
MARGIN_MS: Final = 1_000
SILENCE_MS: Final = 3_000
SURE_MS: Final = 2_500
DOUBT_MS: Final = 1_500
"""Less than the silence: what an owner has begun without a record is its own for so long."""


class LeasedNode(Node):
    """A node that sends heartbeats, hears others, and knows whether they may take it for dead.

    Args:
        world: Where.
        slot: Which of its gateways.
        me: This run.
        since: When it ticks first, in ms from now.
    """

    def __init__(self, world: World, slot: int, me: Run, since: int) -> None:
        super().__init__(world, slot, me)
        self.heartbeats = len(world.heartbeats)
        self.leased_from = -LEASE_MS
        self.is_isolated = True
        """The lease was over, and what is held is not confirmed yet."""
        self.is_confirming = False
        self.is_sure = True
        """Others cannot have taken shards over without its knowledge."""
        self.heard: dict[Run, int] = {}
        self.latest: dict[str, Run] = {}
        self.started = self.local_ms
        self.log_clock = LogClock(self.clock)
        self.standstill = Standstill(self.clock)
        self.doubted_at: int | None = None
        """The log's time has gone on further than our clock, and no heartbeat since has come."""
        self.landed_at = -LEASE_MS
        """When the log has taken our last heartbeat, by the time of the world."""
        self.owning: set[int] = set()
        world.at(since, self.tick, process=self)

    def confirm(self) -> None:
        """Ask which sessions are still its own."""
        raise NotImplementedError

    def go_ahead(self) -> None:
        """Do what has waited: what is held was held all the time."""
        raise NotImplementedError

    def tick_sessions(self) -> None:
        """Do what time brings for sessions."""
        raise NotImplementedError

    # Time and heartbeats

    @property
    def is_leased(self) -> bool:
        """Whether others cannot take this process for dead yet."""
        return (
            self.is_alive
            and not self.is_isolated
            and self.local_ms - self.leased_from < LEASE_MS
            and self.world.now - self.landed_at < LEASE_MS + MARGIN_MS
        )

    def may_act(self) -> bool:
        """Tell whether the lease goes on; note when it is over."""
        is_over = self.local_ms - self.leased_from >= LEASE_MS
        if is_over and (self.is_confirming or not self.is_isolated):
            self.world.note(self, "is isolated")
            self.is_isolated = True
            self.is_confirming = False
        return not self.is_isolated and self.doubted_at is None

    def is_heard(self) -> bool:
        """Tell whether nobody can take us for silent."""
        return self.local_ms - self.leased_from < SURE_MS

    def heard_log(self, at_ms: int) -> None:
        """Take the log's time: others may have taken us for dead while our machine was frozen."""
        if self.doubted_at is None and self.standstill.beyond(at_ms) * 1000 > DOUBT_MS:
            self.world.note(self, "is in doubt")
            self.doubted_at = self.local_ms
            self.speak()
            self.world.at(6, self.hear_again, process=self)

    def freeze_until(self, until: int) -> None:
        super().freeze_until(until)
        self.world.at(until - self.world.now - 1, self.thaw)

    def thaw(self) -> None:
        """Hear what others have said meanwhile, before all else."""
        if self.is_alive:
            self.hear_again()

    def may_deliver(self) -> bool:
        """Tell whether no client can be another gateway's by now; note when one may be."""
        if not self.is_heard():
            self.is_sure = False
        return self.may_act() and self.is_sure

    def become_sure(self) -> None:
        """Read what others have done, if they hear us and may have taken shards over."""
        if self.may_deliver() or not self.may_act():
            return
        taken = [shard for shard in self.shards if shard.has_taken]
        ends = {shard.number: self.world.logs[shard.number].next_offset for shard in taken}

        def look() -> None:
            is_read = all(
                shard.next_offset >= ends[shard.number]
                and (shard.owner == self.me or not shard.has_taken)
                for shard in taken
            )
            if is_read and self.is_heard() and self.may_act():
                self.world.note(self, "is sure again")
                self.is_sure = True
                self.take_inbound()

        self.world.at(5, look, process=self)

    def has_lease(self) -> bool:
        """Tell whether our own word has come back: what an owner needs, while a holder asks.

        Nor does an owner wait in doubt: its records do not count behind those of the next one.
        """
        return self.local_ms - self.leased_from < LEASE_MS and (
            self.may_act() or not self.is_isolated or self.is_confirming
        )

    def tick(self) -> None:
        world, now, local = self.world, self.world.now, self.local_ms
        world.at(TICK_MS, self.tick, process=self)
        if now < self.stopped_until:
            return
        self.speak()
        self.hear_again()
        unheard = local - self.leased_from
        if unheard < SURE_MS and self.is_sure and not self.is_isolated:
            self.place()  # as most of the time, and fast
        else:
            self.look_at_lease(unheard)
        for shard in self.shards if unheard < LEASE_MS else ():
            shard.tick(self.log_clock.now_ms(), self.is_dead, self.is_silent, self.is_spent)
        self.tick_sessions()

    def speak(self) -> None:
        if self.world.now >= self.mute_until:
            self.world.heartbeats.append(SimHeartbeat(self.world.now + 5, self.me, self.local_ms))

    def hear_again(self) -> None:
        if self.world.now >= max(self.cut_off_until, self.unheard_until):
            self.hear()

    def look_at_lease(self, unheard: int) -> None:
        """Do what follows when the lease is over, or is there again."""
        self.may_act()
        if self.is_isolated and not self.is_confirming and unheard < LEASE_MS:
            self.renew()
        if self.is_heard():
            self.become_sure()
        if self.has_lease():
            self.place()

    def hear(self) -> None:
        heartbeats, now, local = self.world.heartbeats, self.world.now, self.local_ms
        at, end, heard = self.heartbeats, len(self.world.heartbeats), self.heard
        while at < end and heartbeats[at].lands <= now:
            lands, run, sent = heartbeats[at]
            at += 1
            if run is self.me:
                self.may_deliver()  # that it was not heard is not to be missed
                self.leased_from -= round(
                    1000 * self.standstill.heard(START_MS + lands, sent / 1000)
                )
                self.may_deliver()
                self.leased_from, self.landed_at = max(self.leased_from, sent), lands
                self.log_clock.heard(START_MS + lands)
                if self.doubted_at is not None and sent >= self.doubted_at:
                    self.doubted_at = None
                    if not self.is_isolated:
                        self.go_ahead()
            else:
                self.heard_log(START_MS + lands)
            latest = self.latest.get(run.gateway)
            if latest is None or run is latest or run not in heard:
                self.latest[run.gateway] = run
                heard[run] = local
        self.heartbeats = at

    def is_silent_for(self, run: Run, ms: int) -> bool:
        now = self.local_ms
        if now - self.leased_from > SILENCE_MS:
            return False
        return now - self.heard.get(run, self.started) >= ms

    def is_silent(self, run: Run) -> bool:
        return run != self.me and (self.is_dead(run) or self.is_silent_for(run, SILENCE_MS))

    def is_certain(self) -> bool:
        """Tell whether nobody takes us for silent before what we append now has landed."""
        is_early = self.local_ms - self.leased_from < SILENCE_MS - MARGIN_MS
        return is_early and self.doubted_at is None

    def is_dead(self, run: Run) -> bool:
        if run == self.me:
            return False
        latest = self.latest.get(run.gateway)
        if run.gateway == self.me.gateway or (
            latest is not None and latest != run and run in self.heard
        ):
            return True
        if latest is not None and latest != run and self.heard[latest] > self.started:
            return True  # an earlier one, over before the one that speaks now has begun
        ms = SILENCE_MS if run in self.world.ended else LEASE_MS + MARGIN_MS
        return self.is_silent_for(run, ms)

    def is_spent(self, run: Run) -> bool:
        if not self.is_dead(run):
            return False
        if self.latest.get(run.gateway) != run:
            return True
        ms = 0 if run in self.world.ended else DELIVERY_MS
        return self.is_silent_for(run, LEASE_MS + MARGIN_MS + ms)

    def place(self) -> None:
        heard, now, since = {self.me.gateway}, self.local_ms, self.started
        is_cut_off = now - self.leased_from > SILENCE_MS
        for run in self.latest.values():
            if is_cut_off or now - self.heard.get(run, since) < SILENCE_MS:
                heard.add(run.gateway)
        for number, where in enumerate(_placed(len(self.shards), frozenset(heard))):
            shard = self.shards[number]
            is_read = shard.next_offset >= self.ends[number]
            if where.owner == self.me.gateway and shard.owner != self.me and is_read:
                self.own(number)

    def own(self, number: int) -> None:
        if number not in self.owning:
            self.claim_shard(number)

    def claim_shard(self, number: int) -> None:
        self.owning.add(number)
        self.world.note(self, f"wants to own shard {number}")
        record = ShardRecord(OWNER_KEY, encode_run(self.me), stamp_headers(self.me.incarnation))
        self.append_record(number, record, lambda _: self.owning.discard(number))

    def renew(self) -> None:
        self.is_confirming = True
        self.world.note(self, "has a lease again")
        for shard in self.shards:
            if shard.owner == self.me:
                shard.is_active = False
                self.claim_shard(shard.number)  # one on its way may be from before the silence
        self.confirm()


@cache
def _placed(shards: int, gateways: frozenset[str]) -> list[ShardPlacement]:
    return place(shards, sorted(gateways))
