"""A session that a simulated gateway holds for a connection: messages from its client and to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.session.effects import ShardRecord
from mqlake.session_records import (
    Outgoing,
    ProgressRecord,
    SessionRecord,
    StoredSubscription,
    encode_progress,
    exchange_name,
    progress_key,
)
from mqlake.shard_records import stamp_headers
from tests.ingest.session.simulation.log import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ingest.session.simulation.clients import Connection
    from tests.ingest.session.simulation.gateway import Process


class Serving:
    """A session while a connection has it."""

    def __init__(
        self,
        process: Process,
        connection: Connection,
        session: SessionRecord,
        progress: ProgressRecord,
        *,
        stored: bool,
    ) -> None:
        self.process = process
        self.world = process.world
        self.connection = connection
        self.session = session
        self.progress = progress
        self.is_stored = stored
        self.is_open = True
        self.appending = 0
        """QoS 2 messages on their way into the log."""
        self.after_appending: Callable[[], None] | None = None
        self.is_saving = False
        self.is_dirty = False
        self.after_save: list[Callable[[], None]] = []

    def connack(self, *, is_present: bool) -> None:
        connection = self.connection
        if connection.is_closed:
            return
        self.world.note(self.process, f"CONNACK {self.session.session_id} present={is_present}")
        self.world.judge.connack(connection, is_present=is_present)
        connection.is_acked = connection.is_concluded = True
        self.world.at(1, connection.client.connected, connection, is_present)
        for one in self.progress.outgoing:
            if one.released:
                self.world.at(1, connection.client.released, connection, one.packet_id)
            else:
                self.deliver(one)
        self.pump()

    # Messages of the client

    def take_packet(self, what: str, packet_id: int, name: str) -> None:
        self.world.note(self.process, f"gets {what} {packet_id} {name}")
        take = getattr(self, f"take_{what}")
        self.when_leased(lambda: take(packet_id, name))

    def when_leased(self, call: Callable[[], None]) -> None:
        self.process.when_leased(self, call)

    def take_subscribe(self, _packet_id: int, _name: str) -> None:
        connection, inbound = self.connection, self.process.inbound
        epoch = self.process.holder.epoch(connection.client.key)
        self.session.subscriptions = [StoredSubscription("m", 2, starts=[inbound])]
        self.progress.cursor = [inbound]

        def suback() -> None:
            self.world.at(1, connection.client.subscribed_to, connection)

        if self.is_stored:
            assert epoch is not None, connection
            self.process.write(self, epoch, lambda _: self.when_leased(suback))
        else:
            suback()

    def take_publish(self, packet_id: int, name: str) -> None:
        progress = self.progress
        if packet_id in progress.incoming:
            self.pubrec(packet_id)
            return
        if packet_id in progress.storing:
            return
        if not progress.storing:
            progress.storing_from = [self.process.inbound]
        progress.storing.append(packet_id)
        exchange = exchange_name(progress.session_id, packet_id, self.process.me.incarnation)

        def announced() -> None:
            self.appending += 1
            message = Message("published", name, 2, exchange)
            publish = self.world.publish
            self.process.send("inbound", publish, message, report=stored, waits=True)

        def stored(_: int) -> None:
            self.appending -= 1
            progress.storing.remove(packet_id)
            progress.incoming.append(packet_id)
            if not progress.storing:
                progress.storing_from = []
            if self.is_open:
                self.save(lambda: self.pubrec(packet_id))
            elif self.after_appending is not None and not self.appending:
                self.after_appending()

        self.save(announced)

    def pubrec(self, packet_id: int) -> None:
        self.world.at(1, self.connection.client.pubrec, self.connection, packet_id)

    def take_pubrel(self, packet_id: int, _name: str) -> None:
        if packet_id in self.progress.incoming:
            self.progress.incoming.remove(packet_id)
        pubcomp = self.connection.client.pubcomp
        self.save(lambda: self.world.at(1, pubcomp, self.connection, packet_id))

    # Progress

    def save(self, then: Callable[[], None]) -> None:
        """Write progress; then do what depends on it."""
        if not self.is_stored:
            then()
            return
        self.after_save.append(then)
        self.is_dirty = True
        if not self.is_saving:
            self.flush()

    def flush(self) -> None:
        if not self.is_open:
            return
        key = self.connection.client.key
        epoch = self.process.holder.epoch(key)
        assert epoch is not None
        self.is_saving, self.is_dirty = True, False
        progress = self.progress
        progress.settled = not progress.outgoing and not progress.storing
        after, self.after_save = self.after_save, []

        def saved(_: int) -> None:
            self.is_saving = False
            for call in after:
                self.when_leased(call)
            if self.is_dirty:
                self.flush()

        stamp = stamp_headers(self.process.me.incarnation, epoch)
        record = ShardRecord(progress_key(*key), encode_progress(progress), stamp)
        self.process.append_record(self.process.shard_number(key), record, saved)

    # Messages to the client

    def pump(self) -> None:
        """Give the client what has come for it."""
        process, progress = self.process, self.progress
        if not self.is_open or not self.connection.is_acked or not process.may_deliver():
            return
        while progress.cursor[0] < process.inbound:
            offset = progress.cursor[0]
            progress.cursor[0] += 1
            message = self.world.inbound[offset]
            if message.kind != "message" or not self.session.subscriptions:
                continue
            used = {one.packet_id for one in progress.outgoing}
            packet_id = next(n for n in range(1, 1000) if n not in used)
            one = Outgoing(packet_id, message.qos, 0, offset, released=False)
            progress.outgoing.append(one)
            progress.settled = False
            self.give(one)

    def give(self, one: Outgoing) -> None:
        def leave() -> None:
            self.deliver(one)

        if one.qos == 1:
            leave()
            self.save(_nothing)
        else:
            self.save(leave)

    def deliver(self, one: Outgoing) -> None:
        message, client = self.world.inbound[one.offset], self.connection.client
        self.world.judge.delivered(self.connection)
        self.world.at(1, client.delivered, self.connection, one.packet_id, message)

    def take_puback(self, packet_id: int, _name: str) -> None:
        self.forget(packet_id)

    def take_pubrec(self, packet_id: int, _name: str) -> None:
        outgoing = self.progress.outgoing
        for at, one in enumerate(outgoing):
            if one.packet_id == packet_id:
                outgoing[at] = one._replace(released=True)
        released = self.connection.client.released
        self.save(lambda: self.world.at(1, released, self.connection, packet_id))

    def take_pubcomp(self, packet_id: int, _name: str) -> None:
        self.forget(packet_id)

    def forget(self, packet_id: int) -> None:
        progress = self.progress
        progress.outgoing = [one for one in progress.outgoing if one.packet_id != packet_id]
        self.save(_nothing)


def _nothing() -> None:
    pass
