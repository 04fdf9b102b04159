"""Messages on their way to one simulated client: the real exchanges, window, queue and order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingest.session.client.checkpoint import SaveQueue
from ingest.session.client.outgoing import Offer, OutgoingMessages

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.sending.progress import SessionProgress
    from ingest.session.client.maybe_sent import MaybeSent
    from tests.ingest.session.simulation.clients import Connection
    from tests.ingest.session.simulation.serving import Serving

WINDOW: Final = 2
"""Receive Maximum of clients."""

REPEATED: Final = 3
"""How many messages of QoS 1 a session may run ahead of its records."""


OFFLINE: Final = 10_000
"""Messages that may wait while a session comes back."""


class Sending:
    """Gives a client its messages; one is known by its offset."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.world = serving.world
        self.messages: OutgoingMessages[int] = OutgoingMessages(window=WINDOW, max_queued=OFFLINE)
        self.progress: SessionProgress | None = None
        self.maybe_sent: MaybeSent | None = None
        self.connection: Connection | None = None
        self.save_queue = SaveQueue[tuple["Callable[..., None]", "tuple[Any, ...]"]](self.leave)

    def attach(self, connection: Connection) -> None:
        self.connection = connection
        self.messages.max_queued = self.world.schedule.max_queued
        for packet_id in self.messages.resume():
            self.write(connection.client.released, packet_id, after_saved=False)
        self.send_waiting()

    def detach(self) -> None:
        self.connection = None
        self.messages.max_queued = OFFLINE
        self.save_queue.take_all()

    def first_waiting(self) -> int | None:
        return next(self.messages.waiting(), None)

    def deliver(self, offset: int, qos: int) -> None:
        if self.connection is None:
            self.messages.put(offset, qos)
        else:
            offered = self.messages.offer(offset, qos, writable=self.takes_more)
            if offered is Offer.DROPPED and self.progress is not None:
                self.serving.fall_behind(offset)
            elif not isinstance(offered, Offer):
                self.send(offered, offset, dup=False)
        if self.progress is not None:
            self.progress.touch()

    def send_waiting(self) -> None:
        while self.connection is not None and self.takes_more:
            ready = self.messages.take_ready()
            if ready is None:
                break
            self.send(ready.packet_id, ready.message, dup=ready.dup)

    @property
    def has_room(self) -> bool:
        return self.connection is not None and self.messages.has_room and self.takes_more

    @property
    def takes_more(self) -> bool:
        return self.progress is None or self.progress.has_room

    def send(self, packet_id: int, offset: int, *, dup: bool) -> None:
        assert self.connection is not None
        message = self.world.inbound[offset]
        if self.maybe_sent is not None and message.qos == 1 and not dup:
            dup = self.maybe_sent.take(0, offset)
        if message.qos == 1 and self.progress is not None:
            self.progress.sent()
        delivered = self.connection.client.delivered
        self.write(delivered, packet_id, message, dup, after_saved=message.qos == 2)

    def write(self, packet: Callable[..., None], *members: Any, after_saved: bool) -> None:
        """Send a packet behind those that wait for the log; a step of QoS 2 waits itself."""
        saved = self.progress if after_saved else None
        self.save_queue.add((packet, members), saved)

    def leave(self, packet: tuple[Callable[..., None], tuple[Any, ...]]) -> None:
        call, members = packet
        connection = self.connection
        if connection is not None:
            if call == connection.client.delivered:
                self.world.judge.delivered(connection)
            self.world.at(1, call, connection, *members)

    # What the client answers

    def take_puback(self, packet_id: int, _name: str) -> None:
        if self.messages.receive_puback(packet_id):
            if self.progress is not None:
                self.progress.acknowledged()
            self.send_waiting()

    def take_pubrec(self, packet_id: int, _name: str) -> None:
        assert self.connection is not None
        is_known = self.messages.receive_pubrec(packet_id, refused=False)
        self.write(self.connection.client.released, packet_id, after_saved=is_known)

    def take_pubcomp(self, packet_id: int, _name: str) -> None:
        if self.messages.receive_pubcomp(packet_id):
            if self.progress is not None:
                self.progress.touch()
            self.send_waiting()
