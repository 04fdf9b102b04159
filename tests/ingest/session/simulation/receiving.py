"""QoS 2 messages of one simulated client: announced, stored once, looked for if need be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.session.client.checkpoint import SaveQueue
from ingest.session.client.incoming import Arrival
from ingest.session.shard.effects import Find, Search
from mqlake.records.sessions import exchange_name
from tests.ingest.session.simulation.log import Message
from tests.ingest.session.simulation.node import GIVEN_UP

if TYPE_CHECKING:
    from tests.ingest.session.simulation.clients import Connection
    from tests.ingest.session.simulation.serving import Serving


class Receiving:
    """Takes what a connection publishes."""

    def __init__(self, serving: Serving, connection: Connection) -> None:
        self.serving = serving
        self.world = serving.world
        self.process = serving.process
        self.connection = connection
        self.incoming = serving.incoming
        self.save_queue = SaveQueue[tuple[int, str]](self.store)

    def take_publish(self, packet_id: int, name: str) -> None:
        arrival = self.incoming.receive_publish(packet_id)
        if arrival is Arrival.STORED:
            self.pubrec(packet_id)
        elif arrival is Arrival.NEW:
            self.save_queue.add((packet_id, name), self.serving.progress)

    def take_pubrel(self, packet_id: int, _name: str) -> None:
        progress = self.serving.progress
        if self.incoming.receive_pubrel(packet_id) and progress is not None:
            progress.after_saved(lambda: self.pubcomp(packet_id))
        else:
            self.pubcomp(packet_id)

    def close(self) -> None:
        """Deal with what is not announced yet: the client sends it again."""
        for packet_id, _ in self.save_queue.take_all():
            self.incoming.refused(packet_id)

    def store(self, publish: tuple[int, str]) -> None:
        packet_id, name = publish
        process, session_id = self.process, self.serving.session_id
        exchange = exchange_name(session_id, packet_id, process.me.incarnation)
        starts = process.last_acked + 1

        def appended(offset: int) -> None:
            if process.is_unsure or offset == GIVEN_UP:
                # The log has not answered; nobody knows that it has the message.
                self.incoming.look_for(packet_id, [starts])
                self.world.at(process.random.choice((3, 40, 2_500)), look, process=process)
                return
            self.stored(packet_id, offset)

        def look() -> None:
            found = self.world.find(Find([Search(exchange, [starts])]))
            self.stored(packet_id, found.get(exchange))

        message = Message("published", name, 2, exchange)
        process.send("inbound", self.world.publish, message, report=appended, waits=True)

    def stored(self, packet_id: int, offset: int | None) -> None:
        serving = self.serving
        if offset is not None:
            self.process.last_acked = max(self.process.last_acked, offset)
            self.incoming.stored(packet_id)
            if serving.connection is not None and not serving.connection.is_closed:
                self.world.at(1, serving.connection.client.pubrec, serving.connection, packet_id)
        else:
            self.incoming.refused(packet_id)
            if not self.connection.is_closed:
                self.world.at(1, self.connection.client.refused, self.connection, packet_id)
        if serving.connection is None:
            self.process.release_if_stored(serving)

    def pubrec(self, packet_id: int) -> None:
        self.world.at(1, self.connection.client.pubrec, self.connection, packet_id)

    def pubcomp(self, packet_id: int) -> None:
        if not self.connection.is_closed:
            self.world.at(1, self.connection.client.pubcomp, self.connection, packet_id)
