"""How many connections a listener may have: those beyond it are closed at once, as Mosquitto does.

Before the TLS and WebSocket handshakes, which are the cost of a crowd of clients; the gateway's own
limit is answered in MQTT. A connection whose client has not logged in gives way to another one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.listeners.arrivals import Arrivals

logger = logging.getLogger(__name__)


class ConnectionLimit:
    """The connections of one listener and how many there may be."""

    __slots__ = ("_arrivals", "connections", "maximum", "name")

    def __init__(self, name: str, maximum: int, arrivals: Arrivals) -> None:
        self.name = name
        self.maximum = maximum
        self._arrivals = arrivals
        self.connections = 0

    def has_room(self) -> bool:
        """Tell whether there is room for one more, or make it."""
        return self.connections < self.maximum or self._arrivals.end_one(listener=self.name)

    def log_refused(self, peer: Any) -> None:
        reason = f"{self.connections} connections, this listener takes {self.maximum}"
        fields = {"listener": self.name, "peer": peer, "reason": reason}
        logger.info("connection refused", extra={"fields": fields})


class LimitedConnection(asyncio.Protocol):
    """Counts a connection; everything else is done by the protocol above.

    Args:
        limit: Limit of its listener.
        make: Makes the protocol above when there is room.
    """

    __slots__ = ("_above", "_limit", "_make")

    def __init__(self, limit: ConnectionLimit, make: Callable[[], asyncio.Protocol]) -> None:
        self._limit = limit
        self._make = make
        self._above: asyncio.Protocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._limit.has_room():
            self._limit.log_refused(transport.get_extra_info("peername"))
            cast("asyncio.Transport", transport).abort()
            return
        self._limit.connections += 1
        self._above = self._make()
        self._above.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        above, self._above = self._above, None
        if above is not None:
            self._limit.connections -= 1
            above.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._above is not None:
            self._above.data_received(data)

    def pause_writing(self) -> None:
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        if self._above is not None:
            self._above.resume_writing()
