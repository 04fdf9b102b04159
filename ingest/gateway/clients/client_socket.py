"""One client's socket: bytes out, reading that pauses and resumes, and the end of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

    from ingest.gateway.base.counters import GatewayCounters

FLUSH_BYTES: Final = 64 * 1024
"""More than this goes to the socket at once, so that `is_writable` is true of a burst too."""

PAUSED_BY_SOCKET: Final = "socket"

CLOSE_TIMEOUT_SECONDS: Final = 5.0
"""How long a closing socket may take to send the rest before it is cut."""

LINGER_SECONDS: Final = 1.0
"""How long a client that was sent a reason for its end may go on sending until it has read it.

A socket that is closed with bytes unread is reset, and bytes on their way to the client are lost.
"""


class ClientSocket:
    """The socket's side of a connection, which knows no packets.

    Reading is paused for one or more reasons. Writing is collected and leaves once per turn of the
    event loop.

    Args:
        loop: Event loop of the gateway.
        counters: Counters of packets and bytes.

    Attributes:
        transport: Transport of the connection; None before the connection is made.
        buffered_bytes: Number of bytes written and not yet given to the transport.
        pauses: Reasons why nothing is read; empty: bytes are read.
    """

    __slots__ = (
        "_buffer",
        "_counters",
        "_hears_in",
        "_is_read",
        "_loop",
        "buffered_bytes",
        "pauses",
        "transport",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, counters: GatewayCounters) -> None:
        self._loop = loop
        self._counters = counters
        self.transport: asyncio.Transport | None = None
        self._buffer: list[bytes] = []
        self.buffered_bytes = 0
        self.pauses: tuple[str, ...] = ()
        self._hears_in: tuple[str, ...] = ()
        self._is_read = True

    def write(self, data: bytes) -> None:
        """Send bytes at the end of this turn of the loop."""
        if not self._buffer:
            self._loop.call_soon(self._flush)
        self._buffer.append(data)
        self.buffered_bytes += len(data)
        if self.buffered_bytes > FLUSH_BYTES:
            self._flush()

    def pause(self, why: str) -> None:
        """Read no more until `resume` for the same reason."""
        if why not in self.pauses:
            self.pauses += (why,)
            self.read_or_not()

    def resume(self, why: str) -> bool:
        """Undo `pause`; return whether this was the last reason for the pause."""
        if why not in self.pauses:
            return False
        self.pauses = tuple(one for one in self.pauses if one != why)
        return not self.pauses

    def hear_in(self, pauses: tuple[str, ...]) -> None:
        """Read while these are the reasons of a pause and no others; the bytes are kept."""
        self._hears_in = pauses
        self.read_or_not()

    @property
    def hears(self) -> bool:
        """Tell whether bytes are read in the present pause."""
        return self.pauses == self._hears_in

    def read_or_not(self) -> None:
        """Have the transport read, or not, as the pauses have it."""
        wanted = not self.pauses or self.pauses == self._hears_in
        if wanted is self._is_read or self.transport is None:
            return
        self._is_read = wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    @property
    def waiting_bytes(self) -> int:
        """How much the client has not been sent yet, of what was written."""
        in_transport = 0 if self.transport is None else self.transport.get_write_buffer_size()
        return self.buffered_bytes + in_transport

    def end(self, last_words: bytes) -> None:
        """Give the transport the rest, with these bytes behind it."""
        if last_words:
            self._buffer.append(last_words)
        self._flush()

    def close(self, *, lingers: bool) -> float | None:
        """Close it; return after how many seconds it is to be cut, None if it was never open.

        Args:
            lingers: The client is probably sending just now: what it still sends is thrown away.
        """
        transport = self.transport
        if transport is None:
            return None
        if lingers and transport.can_write_eof():
            transport.write_eof()
            transport.resume_reading()
            return LINGER_SECONDS
        transport.close()
        return CLOSE_TIMEOUT_SECONDS

    def abort(self) -> None:
        """Cut it: unsent bytes are lost."""
        if self.transport is not None:
            self.transport.abort()

    def lost(self) -> None:
        """Throw away what can no longer be sent."""
        self._buffer.clear()

    def _flush(self) -> None:
        if self._buffer and self.transport is not None:
            buffer = self._buffer
            self._buffer = []
            self.buffered_bytes = 0
            data = buffer[0] if len(buffer) == 1 else b"".join(buffer)
            counters = self._counters
            counters.packets_sent += len(buffer)
            counters.bytes_sent += len(data)
            self.transport.write(data)
