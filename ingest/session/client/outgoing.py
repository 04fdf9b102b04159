"""QoS 1 and 2 messages on their way to one client: packet identifiers, window, queue, resends.

    offer ──window free──► in flight ──PUBACK──► done                        QoS 1
       │                      └──PUBREC──► released ──PUBCOMP──► done        QoS 2
       └──window full──► queue ──take_ready──► in flight

The window is the client's Receive Maximum; a message counts in it until PUBACK, PUBCOMP or
a PUBREC that refuses it. [MQTT5-4.9.0-1] Messages leave in the order in which they were offered.
[MQTT5-4.6.0-5] [MQTT311-4.6.0-6] After `resume` messages in flight leave again, under their packet
identifiers and in their order, before anything else. [MQTT5-4.4.0-1] [MQTT311-4.4.0-1]
[MQTT5-4.6.0-1] [MQTT311-4.6.0-1]
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_PACKET_ID: Final = 65_535

_NO_EXCHANGE: Final = (None, 0)

Message = TypeVar("Message")


class Offer(Enum):
    """Outcome of a message that has no packet identifier yet."""

    QUEUED = auto()
    DROPPED = auto()


class SharedQueue(Protocol):
    """Messages that wait for several sessions together, by size."""

    @property
    def is_full(self) -> bool:
        """Tell whether nothing more may wait."""

    def add(self, size: int) -> None:
        """Count a message that waits from now on; a negative size: one that waits no more."""


class Ready(NamedTuple, Generic[Message]):
    """A message to be sent now."""

    packet_id: int
    message: Message
    dup: bool
    """It was sent before, on an earlier connection. [MQTT5-3.3.1-1] [MQTT311-3.3.1-1]"""


class Exchange(NamedTuple, Generic[Message]):
    """The exchange under one packet identifier."""

    packet_id: int
    qos: int
    message: Message | None
    """None once the client has the message and only PUBREL and PUBCOMP are left."""


class OutgoingMessages(Generic[Message]):
    """The exchanges of one session.

    QoS 1: [MQTT5-4.3.2-1] [MQTT5-4.3.2-3] [MQTT311-4.3.2-1]. QoS 2: [MQTT5-4.3.3-1]
    [MQTT5-4.3.3-3] [MQTT5-4.3.3-5] [MQTT5-4.3.3-6]. Never more than the window in flight:
    [MQTT5-3.3.4-9] [MQTT5-4.9.0-2]. An exchange is finished though its subscription is gone:
    [MQTT5-3.10.4-3] [MQTT311-3.10.4-3]. Every topic is ordered: [MQTT311-4.6.0-5]

    Args:
        window: How many may be in flight, 1 to 65,535.
        max_queued: How many more may wait; a message beyond that is dropped (the newest goes,
            unless the caller makes room by `drop_oldest`).
        max_queued_bytes: Bound by the sizes that callers give; no further message is taken once it
            is reached. 0: no bound.
        shared: Counts messages for others, too; None: they are not counted.
    """

    __slots__ = (
        "_inflight",
        "_last_packet_id",
        "_queue",
        "_resend",
        "max_queued",
        "max_queued_bytes",
        "queued_bytes",
        "shared",
        "window",
    )

    def __init__(
        self,
        *,
        window: int,
        max_queued: int,
        max_queued_bytes: int = 0,
        shared: SharedQueue | None = None,
    ) -> None:
        self.window = window
        self.shared = shared
        self.max_queued = max_queued
        self.max_queued_bytes = max_queued_bytes
        # Invariant: the sizes of the messages in the queue.
        self.queued_bytes = 0
        # Invariants: the keys are the packet identifiers in use, in the order of the first sending;
        # len(_inflight) - len(_resend) <= window.
        # A message is None once it is released (QoS 2): the client has it, PUBREL and PUBCOMP are
        # left.
        self._inflight: dict[int, tuple[Message | None, int]] = {}
        # Those in flight that this connection has not sent again yet.
        self._resend: dict[int, None] = {}
        # Invariant: empty whenever the window has room and the socket takes data.
        # Made when something waits: empty it would be the largest part of an idle session.
        self._queue: deque[tuple[Message, int, int]] | None = None
        self._last_packet_id = 0

    @property
    def inflight_count(self) -> int:
        return len(self._inflight)

    @property
    def queued_count(self) -> int:
        return len(self._queue) if self._queue else 0

    @property
    def has_room(self) -> bool:
        """Tell whether a message offered now could leave at once."""
        return not self._queue and not self._resend and len(self._inflight) < self.window

    @property
    def has_most(self) -> bool:
        """Tell whether as much waits as may for this session: then room can be made here."""
        if self.max_queued_bytes and self.queued_bytes >= self.max_queued_bytes:
            return True
        return self.queued_count >= self.max_queued

    @property
    def is_full(self) -> bool:
        """Tell whether a message that has to wait finds no room."""
        return self.has_most or (self.shared is not None and self.shared.is_full)

    def offer(self, message: Message, qos: int, *, writable: bool, size: int = 0) -> int | Offer:
        """Take a message; return its packet identifier when it is to be sent now.

        Args:
            message: Any object that the caller wants back to send it.
            qos: 1 or 2.
            writable: False while the client's socket takes no more; the message then waits.
            size: Bytes that it takes while it waits.
        """
        if writable and self.has_room:
            return self._start(message, qos)
        return Offer.QUEUED if self.put(message, qos, size) else Offer.DROPPED

    def drop_oldest(self) -> Message | None:
        """Take the message out that has waited longest; None when none waits."""
        return self._take_first()[0] if self._queue else None

    def take_ready(self) -> Ready[Message] | None:
        """Return the next message to send, if one waits and the window has room."""
        while self._resend:
            if len(self._inflight) - len(self._resend) >= self.window:
                return None
            packet_id = next(iter(self._resend))
            del self._resend[packet_id]
            message, _ = self._inflight[packet_id]
            if message is not None:
                return Ready(packet_id, message, dup=True)
        if not self._queue or len(self._inflight) >= self.window:
            return None
        message, qos = self._take_first()
        return Ready(self._start(message, qos) if qos else 0, message, dup=False)

    def put(self, message: Message, qos: int, size: int = 0) -> bool:
        """Queue a message, for an absent client QoS 0 too; False when there is no room."""
        if self.is_full:
            return False
        if self._queue is None:
            self._queue = deque()
        self._queue.append((message, qos, size))
        self._count(size)
        return True

    def leave(self) -> None:
        """Count for others no more: the session is over here."""
        if self.shared is not None:
            self.shared.add(-self.queued_bytes)
            self.shared = None

    def _count(self, size: int) -> None:
        self.queued_bytes += size
        if self.shared is not None:
            self.shared.add(size)

    def _take_first(self) -> tuple[Message, int]:
        assert self._queue is not None
        message, qos, size = self._queue.popleft()
        self._count(-size)
        return message, qos

    def is_in_flight(self, packet_id: int) -> bool:
        """Return whether an exchange under this packet identifier is not over."""
        return packet_id in self._inflight

    def message(self, packet_id: int) -> Message | None:
        """Return the message in flight under a packet identifier, None when the client has it."""
        return self._inflight.get(packet_id, _NO_EXCHANGE)[0]

    def receive_puback(self, packet_id: int) -> bool:
        """End a QoS 1 exchange; False when no such exchange waits for PUBACK."""
        _, qos = self._inflight.get(packet_id, _NO_EXCHANGE)
        if qos != 1:
            return False
        self.abandon(packet_id)
        return True

    def receive_pubrec(self, packet_id: int, *, refused: bool) -> bool:
        """Note that the client has a QoS 2 message, or refuses it; False when unknown.

        After True and not refused, PUBREL is due. [MQTT5-4.3.3-4] [MQTT311-4.3.3-1] A message that
        was refused is not sent again. [MQTT5-4.4.0-2]
        """
        _, qos = self._inflight.get(packet_id, _NO_EXCHANGE)
        if qos != 2:
            return False
        if refused:
            self.abandon(packet_id)
        else:
            self._inflight[packet_id] = (None, qos)
            self._resend.pop(packet_id, None)
        return True

    def receive_pubcomp(self, packet_id: int) -> bool:
        """End a QoS 2 exchange; False when none was released under this identifier."""
        message, qos = self._inflight.get(packet_id, _NO_EXCHANGE)
        if not qos or message is not None:
            return False
        self.abandon(packet_id)
        return True

    def abandon(self, packet_id: int) -> None:
        """Forget a message, for instance one that turned out to be impossible to send."""
        del self._inflight[packet_id]
        if self._resend:
            self._resend.pop(packet_id, None)

    def withdraw(self, packet_id: int) -> bool:
        """Send a message no more that an earlier connection has sent; return whether PUBREL is due.

        The client of a QoS 2 message may keep its packet identifier, and would take the next
        message under it for this one: PUBREL ends that.
        """
        _, qos = self._inflight[packet_id]
        if qos != 2:
            self.abandon(packet_id)
            return False
        self._inflight[packet_id] = (None, qos)
        return True

    def resume(self) -> list[int]:
        """Begin a new connection: `take_ready` gives messages in flight once more.

        Returns:
            The packet identifiers whose PUBREL is to be sent again, in order.
        """
        released = []
        self._resend.clear()
        for packet_id, (message, _) in self._inflight.items():
            if message is None:
                released.append(packet_id)
            else:
                self._resend[packet_id] = None
        return released

    def exchanges(self) -> Iterator[Exchange[Message]]:
        """Yield messages in flight, in the order of the first sending."""
        for packet_id, (message, qos) in self._inflight.items():
            yield Exchange(packet_id, qos, message)

    def restore(self, exchange: Exchange[Message]) -> None:
        """Take back an exchange of an earlier connection; `resume` follows."""
        self._inflight[exchange.packet_id] = (exchange.message, exchange.qos)
        self._last_packet_id = exchange.packet_id

    @property
    def last_packet_id(self) -> int:
        """The packet identifier that was given last; 0 before any."""
        return self._last_packet_id

    def go_on_behind(self, packet_id: int) -> None:
        """Give packet identifiers behind this one, as the last connection would have."""
        self._last_packet_id = packet_id

    def take_waiting(self, belongs: Callable[[Message], bool]) -> list[Message]:
        """Take out some waiting messages, oldest first."""
        if not self._queue:
            return []
        taken = [one for one in self._queue if belongs(one[0])]
        if taken:
            self._queue = deque(one for one in self._queue if not belongs(one[0]))
            self._count(-sum(size for _, _, size in taken))
        return [message for message, _, _ in taken]

    def waiting(self) -> Iterator[Message]:
        """Yield messages that wait without a packet identifier, oldest first."""
        for message, _, _ in self._queue or ():
            yield message

    def _start(self, message: Message, qos: int) -> int:
        # The window is at most 65,535, so with room in it a free identifier exists.
        # [MQTT5-2.2.1-4] [MQTT311-2.3.1-4]
        packet_id = self._last_packet_id
        inflight = self._inflight
        while True:
            packet_id = packet_id + 1 if packet_id < MAX_PACKET_ID else 1
            if packet_id not in inflight:
                break
        self._last_packet_id = packet_id
        inflight[packet_id] = (message, qos)
        return packet_id
