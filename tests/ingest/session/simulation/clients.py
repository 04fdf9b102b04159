"""Clients of a simulated world: what they know, and what they do when a packet comes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from mqlake.records.sessions import NEVER_EXPIRES

if TYPE_CHECKING:
    from mqlake.records.shards import Key
    from tests.ingest.session.simulation.gateway import Process
    from tests.ingest.session.simulation.log import Message
    from tests.ingest.session.simulation.schedule import Step
    from tests.ingest.session.simulation.world import World

TENANT: Final = "t"


@dataclass(slots=True, eq=False)
class Connection:
    """A network connection, seen from both ends."""

    number: int
    client: Client
    process: Process
    options: Step
    is_concluded: bool = False
    """The server has answered CONNECT, one way or the other."""
    is_acked: bool = False
    """CONNACK was sent."""
    is_closed: bool = False
    """By the server, or with it."""
    closed_at: int = 0
    is_refused: bool = False
    """The session is another user's."""
    is_told_no: bool = False
    """CONNACK has refused it."""
    is_abandoned: bool = False
    """Others had settled its session before, or may have: its gateway was not heard of."""
    session_id: str = ""
    exchange: bytes = b""
    """Of its will."""
    has_disconnected: bool = False
    """DISCONNECT came, and is durable under an epoch that counted."""
    asked_to_disconnect: bool = False
    is_hung_up: bool = False
    """Its client has closed it: what is sent on it reaches nobody."""
    busy_until: int = 0
    """When its client has dealt with what it was sent."""

    def __str__(self) -> str:
        return f"connection {self.number} of {self.client.client_id} at {self.process}"


@dataclass(slots=True, eq=False)
class Client:
    """What a client and the person at it know."""

    world: World
    number: int
    client_id: str
    user: str
    connection: Connection | None = None
    is_connected: bool = False
    subscribed: str | None = None
    """Of the session that has its subscription, by SUBACK."""
    session_id: str | None = None
    """Of the session that must be there when it comes back; None: it may be gone."""
    expected: list[Message] = field(default_factory=list)
    received: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By session and message."""
    packet_ids: set[tuple[str, int]] = field(default_factory=set)
    """QoS 2 messages it has received in a session that are not released."""
    publishing: dict[tuple[str, int], tuple[str, bool]] = field(default_factory=dict)
    """Session and packet identifier -> message, whether PUBREC came."""
    published: list[str] = field(default_factory=list)
    """What was acknowledged by PUBREC."""
    connections: list[Connection] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return (TENANT, self.client_id)

    # What it does

    def hang_up(self, *, is_asked: bool) -> None:
        connection = self.connection
        self.connection = None
        self.is_connected = False
        if connection is not None:
            connection.is_hung_up = True
            process = connection.process

            def hang_up() -> None:
                process.hang_up(connection, is_asked=is_asked)

            self.world.at(1, hang_up, process=process)

    def connect(self, step: Step) -> None:
        running = [p for p in self.world.processes if p.slot == step.gateway and p.is_alive]
        if not running:
            return
        if not step.is_half_open:
            self.hang_up(is_asked=False)
        self.is_connected = False
        number = len(self.connections)
        connection = Connection(number, self, running[-1], step)
        self.connections.append(connection)
        self.connection = connection
        if _may_end(step):
            self.session_id = None
            self.expected.clear()
        self.world.at(1, connection.process.accept, connection, process=connection.process)

    def publish(self) -> None:
        connection = self.connection
        assert connection is not None
        used = {n for sid, n in self.publishing if sid == connection.session_id}
        packet_id = next(n for n in range(1, 100) if n not in used)
        name = self.world.new_name("p")
        self.publishing[connection.session_id, packet_id] = (name, False)
        self.packet(connection, "publish", packet_id, name)

    def packet(self, connection: Connection, what: str, packet_id: int, name: str = "") -> None:
        take = connection.process.take_packet
        self.world.at(1, take, connection, what, packet_id, name, process=connection.process)

    def answer(self, connection: Connection, what: str, packet_id: int) -> None:
        """Answer for a message, when those before it are dealt with."""
        world = self.world
        if not world.answer_ms:
            self.packet(connection, what, packet_id)
            return
        busy = max(world.now, connection.busy_until)
        connection.busy_until = busy + world.random.randint(0, world.answer_ms)

        def answer() -> None:
            if self.connection is connection:
                self.packet(connection, what, packet_id)

        world.at(connection.busy_until - world.now, answer)

    # What comes from the server

    def connected(self, connection: Connection, is_present: bool) -> None:
        if self.connection is not connection:
            return
        self.is_connected = True
        if not is_present:
            self.expected.clear()
        # An earlier CONNECT that ends the session may still be on its way.
        is_certain = all(
            one.is_acked
            or (one.is_closed and not one.process.is_alive)
            or not _may_end(one.options)
            for one in self.connections
        )
        is_certain = is_certain and not _may_end(replace(connection.options, clean=False))
        self.session_id = connection.session_id if is_certain else None
        if connection.options.subscribes and self.subscribed != connection.session_id:
            self.packet(connection, "subscribe", 0)
        for (sid, packet_id), (name, is_received) in self.publishing.items():
            if sid != connection.session_id:
                continue
            if is_received:
                self.packet(connection, "pubrel", packet_id)
            else:
                self.packet(connection, "publish", packet_id, name)

    def lost(self, connection: Connection) -> None:
        if self.connection is connection:
            self.connection = None
            self.is_connected = False

    def subscribed_to(self, connection: Connection) -> None:
        if self.connection is connection:
            self.subscribed = connection.session_id

    def delivered(
        self, connection: Connection, packet_id: int, message: Message, dup: bool
    ) -> None:
        if self.connection is not connection:
            return
        self.world.note(self.client_id, f"receives {packet_id} {message} dup={dup}")
        exchange = (connection.session_id, packet_id)
        if message.qos == 1 or exchange not in self.packet_ids:
            self.world.judge.received(self, connection.session_id, message, dup=dup)
        if message.qos == 1:
            self.answer(connection, "puback", packet_id)
        else:
            self.packet_ids.add(exchange)
            self.answer(connection, "pubrec", packet_id)

    def released(self, connection: Connection, packet_id: int) -> None:
        if self.connection is connection:
            self.packet_ids.discard((connection.session_id, packet_id))
            self.packet(connection, "pubcomp", packet_id)

    def pubrec(self, connection: Connection, packet_id: int) -> None:
        exchange = (connection.session_id, packet_id)
        if self.connection is connection and exchange in self.publishing:
            name, is_received = self.publishing[exchange]
            if not is_received:
                self.published.append(name)
            self.publishing[exchange] = (name, True)
            self.packet(connection, "pubrel", packet_id)

    def refused(self, connection: Connection, packet_id: int) -> None:
        """Take PUBREC that says that the message is not stored: its exchange is over."""
        if self.connection is connection:
            self.publishing.pop((connection.session_id, packet_id), None)

    def pubcomp(self, connection: Connection, packet_id: int) -> None:
        if self.connection is connection:
            self.publishing.pop((connection.session_id, packet_id), None)


def _may_end(options: Step) -> bool:
    """Tell whether a CONNECT may end the session that it finds, or that it makes."""
    return options.clean or options.expiry != NEVER_EXPIRES
