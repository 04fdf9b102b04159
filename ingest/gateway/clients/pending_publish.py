"""A message that a client has published, until the log has answered for it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.history.lookup import Position
    from mqlake.errors import LogError


class Storing(Protocol):
    """Implemented by `ingest.gateway.clients.receiving.Receiver`, which describes it."""

    def stored(
        self, packet_id: int, qos: int, partition: int, offset: int, error: LogError | None
    ) -> None: ...
    def look_for(
        self,
        packet_id: int,
        exchange: bytes,
        starts: list[int],
        on_found: Callable[[Position | None], None],
    ) -> None: ...


class PendingPublish:
    """A QoS 1 or 2 message until the log has it; called with the outcome."""

    __slots__ = ("_packet_id", "_qos", "_receiver")

    def __init__(self, receiver: Storing, packet_id: int, qos: int) -> None:
        self._receiver = receiver
        self._packet_id = packet_id
        self._qos = qos

    def __call__(self, partition: int, offset: int, error: LogError | None) -> None:
        self._receiver.stored(self._packet_id, self._qos, partition, offset, error)


class PendingExchange(PendingPublish):
    """A QoS 2 message of a session that outlives its connection: stored once, or not at all.

    When the log has not answered, it may or may not have the message: it is looked for there.
    """

    __slots__ = ("_exchange", "_starts")

    def __init__(
        self, receiver: Storing, packet_id: int, exchange: bytes, starts: list[int]
    ) -> None:
        super().__init__(receiver, packet_id, 2)
        self._exchange = exchange
        self._starts = starts

    def __call__(self, partition: int, offset: int, error: LogError | None) -> None:
        if error is None or error.definite:
            super().__call__(partition, offset, error)
        else:
            on_found = partial(self._found, error)
            self._receiver.look_for(self._packet_id, self._exchange, self._starts, on_found)

    def _found(self, error: LogError, position: Position | None) -> None:
        if position is None:
            self._receiver.stored(self._packet_id, 2, -1, -1, error)
        else:
            self._receiver.stored(self._packet_id, 2, *position, None)
