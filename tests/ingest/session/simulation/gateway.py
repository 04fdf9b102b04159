"""A gateway of a simulated world: it holds sessions for clients that come and go."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from ingest.gateway.sending.progress import ProgressSaver, SessionProgress
from ingest.session.client.checkpoint import Before, CheckpointKind, write
from ingest.session.holder import Holder
from ingest.session.holder_host import Refusal
from ingest.session.shard.effects import ShardRecord
from ingest.session.states import IN_FORCE, SessionState
from mqlake.records.progress import MarksRecord, ProgressRecord, encode_marks, encode_progress
from mqlake.records.sessions import marks_key, progress_key
from mqlake.records.shards import stamp_headers
from tests.ingest.session.simulation.lease import SILENCE_MS
from tests.ingest.session.simulation.log import Message
from tests.ingest.session.simulation.node import LOOK_AGAIN_MS
from tests.ingest.session.simulation.opening import Opening
from tests.ingest.session.simulation.owner import OwnerNode
from tests.ingest.session.simulation.sending import REPEATED

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from ingest.gateway.sending.session_log import SessionLog
    from ingest.session.holder_host import Grant
    from mqlake.errors import LogError
    from mqlake.records.shards import Key, Run
    from tests.ingest.session.simulation.clients import Connection
    from tests.ingest.session.simulation.serving import Serving
    from tests.ingest.session.simulation.world import World

OPEN_SECONDS: Final = 30.0


class Process(OwnerNode):
    """One run of a gateway: the host of a holder and of shards, and of what saves progress."""

    def __init__(self, world: World, slot: int, me: Run, since: int) -> None:
        super().__init__(world, slot, me, since)
        self.holder: Holder[Opening] = Holder(me, len(self.shards), self)
        self.saver = ProgressSaver(
            cast("SessionLog", self),
            cast("AbstractEventLoop", self),
            max_repeated_messages=REPEATED,
        )
        self.serving: dict[Key, Serving] = {}
        self.leaving: dict[Key, Serving] = {}
        self.last_acked = -1
        """The last message of a client that the log has confirmed."""
        self.marked = 0
        self.parked: list[Callable[[], None]] = []
        self.barriers: dict[str, Callable[[int], None]] = {}
        for shard in self.shards:
            shard.taken.free = self
        for number in range(len(self.shards)):
            self.wake(number)
        self.wake("inbound")

    # The loop under what saves progress

    def time(self) -> float:
        return self.clock.monotonic()

    def call_later(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        self.world.at(round(seconds * 1000), call, *args, process=self)

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        self.world.at(0, call, *args, process=self)

    def later(self, call: Callable[..., object], *args: Any) -> None:
        self.world.at(self.random.choice((1, 2, 5)), call, *args, process=self)

    # What others say

    def tick_sessions(self) -> None:
        self.holder.tick(self.clock.monotonic(), OPEN_SECONDS)
        self.write_marks()

    def confirm(self) -> None:
        self.holder.confirm(self.clock.monotonic())

    def confirmed(self) -> None:
        self.is_isolated = self.is_confirming = False
        self.go_ahead()

    def go_ahead(self) -> None:
        self.world.note(self, "goes on")
        parked, self.parked = self.parked, []
        for call in parked:
            call()
        self.take_inbound()

    def serves(self, serving: Serving) -> bool:
        """Tell whether the client of a session may be given something now."""
        if self.holder.epoch(serving.key) is not None:
            return self.is_leased
        is_silent = self.world.now - self.landed_at >= SILENCE_MS  # also when it cannot know
        return self.is_leased and self.is_sure and self.is_heard() and not is_silent

    def once_counted(self, call: Callable[[], None]) -> None:
        """Do what a report of the log sets off, unless others may have the session already."""
        if self.may_act():
            call()
        else:
            self.parked.append(call)

    def take_control(self, action: str, value: bytes) -> None:
        until = max(self.cut_off_until, self.unheard_until)
        if until > self.world.now:
            delay = min(until - self.world.now, LOOK_AGAIN_MS)
            self.world.at(delay, self.take_control, action, value, process=self)
            return
        self.world.note(self, f"is told {action} {value.decode()}")
        self.be_told(action, json.loads(value))

    def be_told(self, action: str, members: dict[str, Any]) -> None:
        take = {
            "subscriptions": self.holder.subscriptions_told,
            "grant": self.holder.granted,
            "refuse": self.holder.refused,
            "confirm": self.holder.answered,
            "release": self.holder.asked_to_let_go,
            "rewrite": self.holder.asked_to_rewrite,
            "lost": self.holder.lost,
        }[action]
        take(members)

    # What comes for clients

    def take_inbound(self) -> None:
        """Take messages and barriers in their order, while it is certain whose they are."""
        inbound = self.world.inbound
        while self.inbound < len(inbound) and self.may_deliver():
            offset, message = self.inbound, inbound[self.inbound]
            self.inbound += 1
            if message.kind == "barrier":
                counted = self.barriers.pop(message.name, None)
                if counted is not None:
                    counted(offset)
            for serving in (*self.serving.values(), *self.leaving.values()):
                if serving.state in IN_FORCE and serving.gets(message, offset):
                    serving.sender.deliver(offset, message.qos)
        for serving in self.serving.values():
            serving.come_past(self.inbound)

    def send_barrier(self, counted: Callable[[int], None]) -> None:
        """Have the router bring what matches; tell from which offset on it does."""
        name = self.world.new_name("b")
        self.barriers[name] = counted
        self.send("inbound", self.world.publish, Message("barrier", name), report=lambda _: None)

    # What is written

    def append_session(
        self,
        record_key: bytes,
        value: bytes | None,
        key: Key,
        epoch: int,
        report: Callable[[int], None],
    ) -> None:
        record = ShardRecord(record_key, value, stamp_headers(self.me.incarnation, epoch))
        self.append_record(self.shard_number(key), record, report)

    def save_progress(
        self,
        key: Key,
        progress: ProgressRecord,
        epoch: int,
        on_saved: Callable[[LogError | None], None] | None = None,
    ) -> None:
        def report(_: int) -> None:
            if on_saved is not None:
                self.once_counted(partial(on_saved, None))

        self.append_session(progress_key(*key), encode_progress(progress), key, epoch, report)

    def write_marks(self) -> None:
        """Say how far all settled sessions are, behind what was written of the others."""
        if self.marked != self.inbound:
            self.marked = self.inbound
            writers = {
                CheckpointKind.PROGRESS: self.saver.save_all,
                CheckpointKind.MARKS: self.append_marks,
            }
            write(Before.MARKS, writers)

    def append_marks(self) -> None:
        marks = encode_marks(MarksRecord(self.me.incarnation, [self.inbound - 1]))
        stored = {self.shard_number(key) for key, one in self.serving.items() if one.progress}
        for number in sorted(stored):
            record = ShardRecord(
                marks_key(self.me.gateway), marks, stamp_headers(self.me.incarnation)
            )
            self.append_record(number, record, lambda _: None)

    # A client comes

    def accept(self, connection: Connection) -> None:
        if self.may_act():
            Opening(self, connection).proceed()
        else:
            self.close(connection)

    def claim(self, opening: Opening) -> None:
        key, holder = opening.key, self.holder
        user = opening.connection.client.user
        serving, earlier = self.serving.get(key), holder.waits(key, user)
        if serving is not None and serving.client.user != user:
            self.refuse(key, opening, Refusal.ANOTHERS, "here")
            return
        is_free = not opening.is_kept and earlier is None
        hands_on = serving is not None and not serving.is_written and is_free
        if serving is not None and serving.connection is not None:
            serving.hands_on = hands_on
            self.drop(serving)
        if hands_on and holder.is_held(key):
            self.begin(key, opening, None)
            return
        if is_free and not holder.is_held(key):
            shard = self.shards[self.shard_number(key)]
            if (
                self.is_certain()
                and self.may_deliver()
                and shard.take(key, holder.next_number, user)
            ):
                holder.open_free(key, opening)
                return
        clean_start = opening.connection.options.clean
        now = self.clock.monotonic()
        said = opening.claimed_session()
        holder.open(key, opening, now, clean_start=clean_start, principal=user, session=said)

    def begin(self, key: Key, opening: Opening, grant: Grant | None) -> None:
        if opening.connection.is_closed:
            self.holder.release(key, lambda epoch: self.holder.end_claim_of(key, epoch))
        else:
            opening.proceed(grant)

    def refuse(self, key: Key, opening: Opening, refusal: Refusal, reason: str) -> None:
        opening.connection.is_refused = refusal is Refusal.ANOTHERS
        if refusal is Refusal.UNCERTAIN:
            self.close(opening.connection)
        else:
            self.tell_no(opening.connection)

    def tell_no(self, connection: Connection) -> None:
        """Refuse a connection by CONNACK."""
        if not connection.is_closed:
            connection.is_told_no = True
            self.world.judge.told_no(connection)
        self.close(connection)

    def add(self, serving: Serving) -> None:
        """Take a session that is held, before anything is written of it."""
        key = serving.key
        serving.epoch = self.holder.epoch(key)
        if serving.is_stored:
            assert serving.epoch is not None, key
            serving.progress = SessionProgress(
                self.saver, key, serving.epoch, serving.snapshot, serving.sender.send_waiting
            )
        self.serving[key] = serving

    # A client goes

    def close(self, connection: Connection) -> None:
        """Close a connection; its client hears of it."""
        if not connection.is_closed:
            connection.is_closed = connection.is_concluded = True
            connection.closed_at = self.world.now
            connection.is_abandoned |= not self.is_leased
            self.world.at(1, connection.client.lost, connection)

    def drop(self, serving: Serving) -> None:
        """Close a connection that has its session."""
        if serving.connection is not None:
            self.close(serving.connection)
            self.connection_lost(serving, is_asked=False)

    def let_go(self, key: Key) -> None:
        serving = self.serving.get(key)
        if serving is not None:
            self.world.judge.let_go(serving)
            self.drop(serving)

    def untake(self, key: Key) -> None:
        self.shards[self.shard_number(key)].untake(key)

    def claimed(self, key: Key, number: int, epoch: int) -> None:
        self.holder.claimed(key, number, epoch)

    def rewrite(self, key: Key) -> None:
        serving = self.serving.get(key)
        if serving is not None:
            serving.save()
            if serving.progress is not None and not serving.is_coming_back:
                serving.progress.touch()

    def abandon(self, key: Key) -> None:
        serving = self.serving.get(key) or self.leaving.pop(key, None)
        if serving is None:
            return
        self._end(serving, SessionState.ENDED)
        serving.last_connection.is_abandoned = True
        self.drop(serving)

    def rewrite_subscription(self, key: Key, topic_filter: str) -> None:
        raise AssertionError(f"{key} has no subscription {topic_filter} with a record of its own")

    def hang_up(self, connection: Connection, *, is_asked: bool) -> None:
        """Take DISCONNECT, or that the client's socket is gone."""
        key = connection.client.key
        user = connection.client.user
        opening = self.holder.waits(key, user)
        if opening is not None and opening.connection is connection:
            self.holder.give_up(key, user)
            connection.is_closed = True
            return
        serving = self.serving.get(key)
        if serving is not None and serving.connection is connection:
            if serving.held is not None:
                is_asked = False  # its client is not heard yet
            self.close(connection)
            self.connection_lost(serving, is_asked=is_asked)

    def connection_lost(self, serving: Serving, *, is_asked: bool) -> None:
        """Let go of a session's connection: its will and its expiry begin to count."""
        key = serving.key
        del self.serving[key]
        serving.connection = None
        serving.sender.detach()
        serving.receiver.close()
        serving.was_asked = is_asked
        if is_asked:
            serving.will = None
        if serving.is_ended:
            return
        if not serving.is_stored:
            self._end_with_connection(serving)
        elif serving.state is SessionState.LIVE:
            serving.become(SessionState.LEAVING)
            self.leaving[key] = serving
            self.release_if_stored(serving)
        else:
            self._store(serving)

    def _end_with_connection(self, serving: Serving) -> None:
        self._end(serving, SessionState.ENDED)
        key, record = serving.key, serving.record(disconnected_at_ms=self.clock.now_ms())

        def write_last(epoch: int) -> None:
            if not serving.is_written:
                self.holder.end_claim_of(key, epoch)
            elif record.will is None:
                end: dict[CheckpointKind, Callable[[], object]] = {
                    CheckpointKind.SESSION: partial(
                        serving.save_session, None, epoch, is_last=True
                    ),
                }
                if serving.has_progress:
                    end[CheckpointKind.PROGRESS] = partial(
                        self.append_session, progress_key(*key), None, key, epoch, lambda _: None
                    )
                write(Before.END, end)
            else:
                serving.save_session(record, epoch, is_last=True)

        if not serving.hands_on:
            self.holder.release(key, write_last)

    def release_if_stored(self, serving: Serving) -> None:
        """Let others have a session once the log has answered for its QoS 2 messages."""
        if not serving.incoming.is_storing and self.leaving.get(serving.key) is serving:
            del self.leaving[serving.key]
            self._store(serving)

    def _store(self, serving: Serving) -> None:
        progress = None
        if not serving.is_coming_back and (serving.has_progress or serving.subscriptions):
            progress = serving.snapshot()
        record = serving.record(disconnected_at_ms=self.clock.now_ms())
        self._end(serving, SessionState.STORED)

        def write_last(epoch: int) -> None:
            writers: dict[CheckpointKind, Callable[[], object]] = {
                CheckpointKind.SESSION: partial(serving.save_session, record, epoch, is_last=True)
            }
            if progress is not None:
                writers[CheckpointKind.PROGRESS] = partial(serving.save_progress, progress, epoch)
            write(Before.RELEASE, writers)

        self.holder.release(serving.key, write_last)

    def _end(self, serving: Serving, state: SessionState) -> None:
        if serving.progress is not None:
            serving.progress.close()
        serving.become(state)

    def take_packet(self, connection: Connection, what: str, packet_id: int, name: str) -> None:
        serving = self.serving.get(connection.client.key)
        if serving is not None and serving.connection is connection:
            serving.take_packet(what, packet_id, name)

    def part_for(self, serving: Serving, what: str) -> object:
        """Return what takes packets of this kind from the client of a session."""
        whose = {"publish": serving.receiver, "pubrel": serving.receiver, "subscribe": serving}
        return whose.get(what, serving.sender)
