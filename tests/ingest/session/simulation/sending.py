"""Messages on their way to one simulated client: the real exchanges, window, queue and order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingest.session.checkpoint import SaveQueue
from ingest.session.outgoing import Offer, OutgoingMessages

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.progress import Progress
    from tests.ingest.session.simulation.clients import Connection
    from tests.ingest.session.simulation.serving import Serving

WINDOW: Final = 2
"""Receive Maximum of clients."""


class Sending:
    """Gives a client its messages; one is known by its offset."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.world = serving.world
        self.messages: OutgoingMessages[int] = OutgoingMessages(window=WINDOW, max_queued=10_000)
        self.progress: Progress | None = None
        self.connection: Connection | None = None
        self.save_queue = SaveQueue[tuple["Callable[..., None]", int, "object"]](self.leave)

    def attach(self, connection: Connection) -> None:
        self.connection = connection
        for packet_id in self.messages.resume():
            self.write(connection.client.released, packet_id, after_saved=False)
        self.send_waiting()

    def detach(self) -> None:
        self.connection = None
        self.save_queue.take_all()

    def first_waiting(self) -> int | None:
        return next(self.messages.waiting(), None)

    def deliver(self, offset: int, qos: int) -> None:
        if self.connection is None:
            self.messages.put(offset, qos)
        else:
            offered = self.messages.offer(offset, qos, writable=self.takes_more)
            if not isinstance(offered, Offer):
                self.send(offered, offset)
        if self.progress is not None:
            self.progress.touch()

    def send_waiting(self) -> None:
        while self.connection is not None and self.takes_more:
            ready = self.messages.take_ready()
            if ready is None:
                break
            self.send(ready.packet_id, ready.message)

    @property
    def takes_more(self) -> bool:
        return self.progress is None or self.progress.has_room

    def send(self, packet_id: int, offset: int) -> None:
        assert self.connection is not None
        qos = self.world.inbound[offset].qos
        if qos == 1 and self.progress is not None:
            self.progress.sent()
        delivered = self.connection.client.delivered
        self.write(delivered, packet_id, self.world.inbound[offset], after_saved=qos == 2)

    def write(
        self,
        packet: Callable[..., None],
        packet_id: int,
        message: object = None,
        *,
        after_saved: bool,
    ) -> None:
        """Send a packet behind those that wait for the log; a step of QoS 2 waits itself."""
        saved = self.progress if after_saved else None
        self.save_queue.add((packet, packet_id, message), saved)

    def leave(self, packet: tuple[Callable[..., None], int, object]) -> None:
        call, packet_id, message = packet
        if self.connection is not None:
            args = (packet_id,) if message is None else (packet_id, message)
            if message is not None:
                self.world.judge.delivered(self.connection)
            self.world.at(1, call, self.connection, *args)

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
