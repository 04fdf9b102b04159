"""A gateway of a simulated world: it holds sessions for clients that come and go."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ingest.session.effects import ShardRecord
from ingest.session.holder import Grant, Holder
from mqlake.session_records import (
    MarksRecord,
    ProgressRecord,
    SessionRecord,
    StoredWill,
    decode_progress,
    decode_session,
    encode_marks,
    encode_progress,
    encode_session,
    marks_key,
    progress_key,
    session_key,
    will_exchange,
)
from mqlake.shard_records import stamp_headers
from tests.ingest.session.simulation.log import START_MS
from tests.ingest.session.simulation.node import LOOK_AGAIN_MS
from tests.ingest.session.simulation.owner import OwnerNode
from tests.ingest.session.simulation.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqlake.shard_records import Key, Run
    from tests.ingest.session.simulation.clients import Connection
    from tests.ingest.session.simulation.world import World

OPEN_SECONDS: Final = 30.0


class Process(OwnerNode):
    """One run of a gateway: the host of a holder and of shards."""

    def __init__(self, world: World, slot: int, me: Run, since: int) -> None:
        super().__init__(world, slot, me, since)
        self.holder: Holder[Connection] = Holder(me, len(self.shards), self)
        self.serving: dict[Key, Serving] = {}
        self.marked = 0
        self.deferred: list[tuple[Serving, Callable[[], None]]] = []
        for shard in self.shards:
            shard.free = self
        for number in range(len(self.shards)):
            self.wake(number)
        self.wake("inbound")

    # What others say

    def tick_sessions(self) -> None:
        self.holder.tick(self.world.now / 1000, OPEN_SECONDS)
        self.write_marks()

    def confirm(self) -> None:
        self.holder.confirm(self.world.now / 1000)

    def confirmed(self) -> None:
        self.world.note(self, "goes on")
        self.is_isolated = self.is_confirming = False
        self.go_on_for_clients()

    def go_on_for_clients(self) -> None:
        deferred, self.deferred = self.deferred, []
        for serving, call in deferred:
            self.when_leased(serving, call)
        self.take_inbound()

    def serves(self, serving: Serving) -> bool:
        """Tell whether the client of a session may be given something now."""
        is_free = self.holder.epoch(serving.connection.client.key) is None
        return self.is_leased and (not is_free or (self.is_sure and self.is_heard()))

    def when_leased(self, serving: Serving, call: Callable[[], None]) -> None:
        """Do something for a client, unless others may have its session already."""
        if not self.may_act():
            self.deferred.append((serving, call))
        elif serving.is_open:
            call()

    def take_control(self, action: str, value: bytes) -> None:
        until = max(self.deaf_until, self.unheard_until)
        if until > self.world.now:
            delay = min(until - self.world.now, LOOK_AGAIN_MS)
            self.world.at(delay, self.take_control, action, value, process=self)
            return
        self.world.note(self, f"is told {action} {value.decode()}")
        self.be_told(action, json.loads(value))

    def be_told(self, action: str, members: dict[str, Any]) -> None:
        take = {
            "grant": self.holder.granted,
            "refuse": self.holder.refused,
            "confirm": self.holder.answered,
            "release": self.holder.asked_to_let_go,
            "rewrite": self.holder.asked_to_rewrite,
        }[action]
        take(members)

    def take_inbound(self) -> None:
        for serving in list(self.serving.values()):
            serving.pump()

    # What is written

    def write(self, serving: Serving, epoch: int, report: Callable[[int], None]) -> None:
        key, stamp = serving.connection.client.key, stamp_headers(self.me.incarnation, epoch)
        shard = self.shard_number(key)
        progress = ShardRecord(progress_key(*key), encode_progress(serving.progress), stamp)
        session = ShardRecord(session_key(*key), encode_session(serving.session), stamp)
        self.append_record(shard, progress, lambda _: None)
        self.append_record(shard, session, report)

    def write_marks(self) -> None:
        """Say how far all settled sessions are, behind what was written of the others."""
        if self.is_isolated or any(
            one.is_saving or one.is_dirty or one.progress.cursor[0] < self.inbound
            for one in self.serving.values()
        ):
            return
        if self.marked == self.inbound:
            return
        self.marked = self.inbound
        marks = encode_marks(MarksRecord(self.me.incarnation, [self.inbound - 1]))
        for number in {
            self.shard_number(key) for key, one in self.serving.items() if one.is_stored
        }:
            record = ShardRecord(
                marks_key(self.me.gateway), marks, stamp_headers(self.me.incarnation)
            )
            self.append_record(number, record, lambda _: None)

    # Clients come and go

    def accept(self, connection: Connection) -> None:
        if not self.may_act():
            self.close(connection)
            return
        key, options = connection.client.key, connection.options
        shard = self.shards[self.shard_number(key)]
        is_plain = options.clean and options.will_delay is None and not options.expiry
        is_certain = self.is_certain() and self.may_deliver()
        if is_plain and is_certain and shard.take(key, self.holder.next_number):
            self.holder.open_free(key, connection)
        else:
            self.holder.open(key, connection, self.world.now / 1000, clean_start=options.clean)

    def begin(self, key: Key, opening: Connection, grant: Grant | None) -> None:
        options, now = opening.options, START_MS + self.world.now
        stored = None
        if grant is not None and grant.session is not None:
            stored = decode_session(json.dumps(grant.session).encode())
        is_present = stored is not None
        self.world.sessions += 1
        session = stored or SessionRecord(
            session_id=f"s{self.world.sessions}",
            tenant=key[0],
            client_id=key[1],
            protocol_level=5,
            username=None,
            keep_alive=0,
            clean_start=options.clean,
            session_expiry_interval=0,
            gateway="",
            incarnation="",
            connected=True,
            connected_at_ms=now,
        )
        session = replace(
            session,
            session_expiry_interval=options.expiry,
            gateway=self.me.gateway,
            incarnation=self.me.incarnation,
            connected=True,
            connected_at_ms=now,
            disconnected_at_ms=None,
            will=None,
            will_at_ms=None,
            will_from=None,
        )
        if options.will_delay is not None:
            session.will = StoredWill("w", b"", 0, False, {}, options.will_delay)
        progress = ProgressRecord(session.session_id, [self.inbound], False)
        if is_present and grant is not None and grant.progress is not None:
            found = decode_progress(json.dumps(grant.progress).encode())
            if found.session_id == session.session_id:
                progress = found
        progress.settled = False
        is_stored = options.expiry > 0 or session.will is not None
        serving = Serving(self, opening, session, progress, stored=is_stored)
        self.serving[key] = serving
        opening.session_id = session.session_id
        opening.exchange = will_exchange(session)
        if not is_present:
            self.world.judge.created[session.session_id] = opening
        self.world.judge.by_exchange[opening.exchange] = opening
        epoch = self.holder.epoch(key)
        if not is_stored and not is_present:
            self.when_leased(serving, lambda: serving.connack(is_present=False))
            return
        serving.is_stored = True
        assert epoch is not None

        def durable(_: int) -> None:
            if serving.is_open:
                self.holder.saved(key)
            self.when_leased(serving, lambda: serving.connack(is_present=is_present))

        self.write(serving, epoch, durable)

    def refuse(self, key: Key, opening: Connection, reason: str, *, is_superseded: bool) -> None:
        self.close(opening)

    def close(self, connection: Connection) -> None:
        """Close a connection; its client hears of it."""
        if not connection.is_closed:
            connection.is_closed = connection.is_concluded = True
            connection.closed_at = self.world.now
            self.world.at(1, connection.client.lost, connection)

    def let_go(self, key: Key) -> None:
        serving = self.serving.get(key)
        if serving is not None and serving.is_open:
            self.end_connection(serving, is_asked=False)

    def untake(self, key: Key) -> None:
        self.shards[self.shard_number(key)].untake(key)

    def claimed(self, key: Key, number: int, epoch: int) -> None:
        self.holder.claimed(key, number, epoch)

    def abandon(self, key: Key) -> None:
        serving = self.serving.pop(key, None)
        if serving is not None:
            serving.is_open = False
            self.close(serving.connection)

    def rewrite(self, key: Key) -> None:
        serving, epoch = self.serving.get(key), self.holder.epoch(key)
        if serving is not None and serving.is_open and serving.is_stored and epoch is not None:
            self.write(serving, epoch, lambda _: None)

    def hang_up(self, connection: Connection, *, is_asked: bool) -> None:
        """Take DISCONNECT, or that the client's socket is gone."""
        key = connection.client.key
        if self.holder.waits(key) is connection:
            self.holder.give_up(key)
            connection.is_closed = True
            return
        serving = self.serving.get(key)
        if serving is not None and serving.connection is connection and serving.is_open:
            self.end_connection(serving, is_asked=is_asked)

    def end_connection(self, serving: Serving, *, is_asked: bool) -> None:
        """Close a connection, and write where its session stands once nothing is on its way."""
        serving.is_open = False
        self.close(serving.connection)
        if serving.appending:
            serving.after_appending = lambda: self.let_session_go(serving, is_asked=is_asked)
        else:
            self.let_session_go(serving, is_asked=is_asked)

    def let_session_go(self, serving: Serving, *, is_asked: bool) -> None:
        key, session, now = (
            serving.connection.client.key,
            serving.session,
            START_MS + self.world.now,
        )
        if self.serving.get(key) is not serving:
            return  # abandoned meanwhile
        del self.serving[key]
        session.connected = False
        session.disconnected_at_ms = now
        if is_asked:
            session.will = None
        elif session.will is not None:
            session.will_at_ms = now + session.will.will_delay_interval * 1000

        def durable(_: int) -> None:
            serving.connection.has_disconnected = is_asked and self.is_leased

        def write(epoch: int) -> None:
            stamp = stamp_headers(self.me.incarnation, epoch)
            if not serving.is_stored:
                self.holder.end_claim_of(key, epoch)
            elif session.session_expiry_interval or session.will is not None:
                self.write(serving, epoch, durable)
            else:
                number = self.shard_number(key)
                self.append_record(
                    number, ShardRecord(progress_key(*key), None, stamp), lambda _: None
                )
                self.append_record(number, ShardRecord(session_key(*key), None, stamp), durable)

        self.holder.release(key, write)

    def take_packet(self, connection: Connection, what: str, packet_id: int, name: str) -> None:
        serving = self.serving.get(connection.client.key)
        if serving is not None and serving.connection is connection:
            serving.take_packet(what, packet_id, name)
