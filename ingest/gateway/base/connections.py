"""All sockets of a gateway, also those whose clients were not let in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from ingest.protocol.reason_codes import DisconnectReasonCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest.gateway.base.counters import GatewayCounters

PAUSED_BY_END: Final = "stopping"


class Renewable(Protocol):
    """Implemented by `ingest.gateway.clients.admission.Admission`."""

    def renew_login(self) -> None: ...
    def renew_rights(self) -> None: ...
    def renew_bans(self) -> None: ...
    def renew_tenant(self) -> None: ...


class Socket(Protocol):
    """Implemented by `ingest.gateway.clients.connection.ClientConnection`."""

    is_closing: bool

    @property
    def admission(self) -> Renewable:
        """Says whether its client may stay."""
        ...

    @property
    def session(self) -> object | None:
        """Session of its client, once that was let in."""
        ...

    @property
    def is_answered(self) -> bool: ...
    @property
    def held_bytes(self) -> int: ...
    def regain(self, credits: int, now: float) -> None: ...
    def pause_reading(self, why: str) -> None: ...
    def resume_reading(self, why: str) -> None: ...
    def close(
        self, reason_code: DisconnectReasonCode, *, log_reason: str, lingers: bool = False
    ) -> None: ...


class Connections:
    """Knows the sockets from `connection_made` to `connection_lost`.

    Args:
        counters: Counters of the gateway.
        max_connections: Bound; further ones are refused at CONNECT.
    """

    def __init__(self, counters: GatewayCounters, max_connections: int) -> None:
        self._counters = counters
        self._max_connections = max_connections
        self._sockets: set[Socket] = set()
        self._is_closing = False
        self._last_closed: asyncio.Future[None] | None = None  # while a task waits for that

    def __len__(self) -> int:
        return len(self._sockets)

    def __iter__(self) -> Iterator[Socket]:
        return iter(self._sockets)

    @property
    def is_full(self) -> bool:
        """Tell whether the last one was one too many."""
        return len(self._sockets) > self._max_connections

    def part(self) -> float:
        """Return which part of those that it may have there are, 0 to 1 and above."""
        return len(self._sockets) / self._max_connections

    def opened(self, socket: Socket) -> int:
        """Note a socket; return its number, counted from the start."""
        self._counters.connections_opened += 1
        self._sockets.add(socket)
        if self._is_closing:
            _close(socket)
        return self._counters.connections_opened

    def closed(self, socket: Socket) -> None:
        """Forget a socket."""
        self._sockets.discard(socket)
        if not self._sockets and self._last_closed is not None and not self._last_closed.done():
            self._last_closed.set_result(None)
            self._last_closed = None

    def pause_all(self) -> None:
        """Read no more from any client."""
        for socket in self._sockets:
            socket.pause_reading(PAUSED_BY_END)

    def close_all(self) -> None:
        """Close all sockets, and those that are being accepted just now."""
        self._is_closing = True
        for socket in list(self._sockets):
            _close(socket)

    async def wait_closed(self) -> None:
        """Wait until there is none."""
        if self._sockets:
            self._last_closed = asyncio.get_running_loop().create_future()
            await self._last_closed


def _close(socket: Socket) -> None:
    socket.close(DisconnectReasonCode.SERVER_SHUTTING_DOWN, log_reason="the gateway stops")
