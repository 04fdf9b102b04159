"""QoS 1 and 2 messages on their way to one client: packet identifiers, window, queue.

    offer ──window free──► in flight ──PUBACK──► done                        QoS 1
       │                      └──PUBREC──► released ──PUBCOMP──► done        QoS 2
       └──window full──► queue ──take_ready──► in flight

The window is the client's Receive Maximum; a message holds its place in it until PUBACK, PUBCOMP or
a PUBREC that refuses it. [MQTT5-4.9.0-1] Messages leave in the order in which they were offered.
[MQTT5-4.6.0-5] [MQTT311-4.6.0-6]
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, TypeVar

MAX_PACKET_ID: Final = 65_535

Message = TypeVar("Message")


class Offer(Enum):
    """What became of a message that has no packet identifier yet."""

    QUEUED = auto()
    DROPPED = auto()


class _Released:
    """Marks a QoS 2 exchange whose message the client has: only PUBREL and PUBCOMP are left."""


_RELEASED: Final = _Released()


@dataclass(slots=True)
class _Exchange(Generic[Message]):
    message: Message | _Released
    qos: int


class OutgoingMessages(Generic[Message]):
    """The exchanges of one connection.

    Args:
        window: How many may be in flight, 1 to 65,535.
        max_queued: How many more may wait; a message beyond that is dropped (the newest goes).
    """

    __slots__ = ("_inflight", "_last_packet_id", "_max_queued", "_queue", "_window")

    def __init__(self, *, window: int, max_queued: int) -> None:
        self._window = window
        self._max_queued = max_queued
        # Invariant: len(_inflight) <= _window; keys are the packet identifiers in use.
        self._inflight: dict[int, _Exchange[Message]] = {}
        # Invariant: empty whenever the window has room and the socket takes data.
        self._queue: deque[tuple[Message, int]] = deque()
        self._last_packet_id = 0

    @property
    def inflight_count(self) -> int:
        return len(self._inflight)

    @property
    def queued_count(self) -> int:
        return len(self._queue)

    def offer(self, message: Message, qos: int, *, writable: bool) -> int | Offer:
        """Take a message; return its packet identifier when it is to be sent now.

        Args:
            message: Whatever the caller wants back to send it.
            qos: 1 or 2.
            writable: False while the client's socket takes no more; the message then waits.
        """
        if writable and not self._queue and len(self._inflight) < self._window:
            return self._start(message, qos)
        if len(self._queue) >= self._max_queued:
            return Offer.DROPPED
        self._queue.append((message, qos))
        return Offer.QUEUED

    def take_ready(self) -> tuple[int, Message] | None:
        """Return the next waiting message and its packet identifier, if the window has room."""
        if not self._queue or len(self._inflight) >= self._window:
            return None
        message, qos = self._queue.popleft()
        return self._start(message, qos), message

    def receive_puback(self, packet_id: int) -> bool:
        """End a QoS 1 exchange; False when no such exchange waits for PUBACK."""
        exchange = self._inflight.get(packet_id)
        if exchange is None or exchange.qos != 1:
            return False
        del self._inflight[packet_id]
        return True

    def receive_pubrec(self, packet_id: int, *, refused: bool) -> bool:
        """Note that the client has a QoS 2 message, or refuses it; False when unknown.

        After True and not refused, PUBREL is due. [MQTT5-4.3.3-4] [MQTT311-4.3.3-1]
        """
        exchange = self._inflight.get(packet_id)
        if exchange is None or exchange.qos != 2:
            return False
        if refused:
            del self._inflight[packet_id]
        else:
            exchange.message = _RELEASED
        return True

    def receive_pubcomp(self, packet_id: int) -> bool:
        """End a QoS 2 exchange; False when none was released under this identifier."""
        exchange = self._inflight.get(packet_id)
        if exchange is None or exchange.message is not _RELEASED:
            return False
        del self._inflight[packet_id]
        return True

    def abandon(self, packet_id: int) -> None:
        """Forget a message that was started but turned out to be impossible to send."""
        del self._inflight[packet_id]

    def _start(self, message: Message, qos: int) -> int:
        # The window is at most 65,535, so with room in it a free identifier exists.
        packet_id = self._last_packet_id
        inflight = self._inflight
        while True:
            packet_id = packet_id + 1 if packet_id < MAX_PACKET_ID else 1
            if packet_id not in inflight:
                break
        self._last_packet_id = packet_id
        inflight[packet_id] = _Exchange(message, qos)
        return packet_id
