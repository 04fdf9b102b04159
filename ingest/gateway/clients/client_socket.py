"""One client's socket: bytes out, reading that pauses and resumes, and the end of both."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, Final, cast

from ingest.gateway.base.deadlines import UNWATCHED

if TYPE_CHECKING:
    from ingest.gateway.clients.connection_context import ConnectionContext

FLUSH_BYTES: Final = 64 * 1024
"""More than this goes to the socket at once, so that `is_writable` is true of a burst too."""

PAUSED_BY_SOCKET: Final = "socket"

CLOSE_TIMEOUT_SECONDS: Final = 5.0
"""How long a closing socket may take to send the rest before it is cut."""

LINGER_SECONDS: Final = 1.0
"""How long a client that was told why it is turned out may go on sending until it has read that.

A socket that is closed with bytes unread is reset, and bytes on their way to the client are lost.
"""


class ClientSocket(asyncio.Protocol):
    """The socket's side of a connection; `closing.py` and `connection.py` have the packets' side.

    Reading is paused for one or more reasons. Writing is collected and leaves once per turn of the
    event loop.

    Attributes:
        peer: Address of the client, for people.
        is_writable: False while the socket has enough to send.
        is_closing: Nothing more is read or sent.
        slot: Of `Deadlines`.
        transport: None before `connection_made`.

    Args:
        context: Of all connections.
    """

    __slots__ = (
        "_buffer",
        "_buffered_bytes",
        "_context",
        "_hears_in",
        "_is_read",
        "_pauses",
        "is_closing",
        "is_writable",
        "peer",
        "slot",
        "transport",
    )

    def __init__(self, context: ConnectionContext) -> None:
        self._context = context
        self.peer = ""
        self.is_writable = True
        self.is_closing = False
        self.slot = UNWATCHED
        self.transport: asyncio.Transport | None = None
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._pauses: tuple[str, ...] = ()
        self._hears_in: tuple[str, ...] = ()
        """Pauses in which bytes are read all the same, and kept."""
        self._is_read = True

    @abstractmethod
    def _process_packets(self) -> None:
        """Take the bytes that were read now, or waited while reading was paused."""

    @abstractmethod
    def _hear(self) -> None:
        """Look at bytes that were read in a pause; read no more unless all are done with."""

    @abstractmethod
    def _detach(self, reason: str) -> None:
        """Let the session go on without this connection."""

    @abstractmethod
    def deadline_passed(self) -> None:
        """Act on a client that is too late: called by `Deadlines`."""

    @property
    def address(self) -> str:
        """Of the client, without its port; "" where there is none."""
        return self.peer.rpartition(":")[0]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, not the base class.
        self.transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        high = self._context.settings.max_write_buffer_bytes
        self.transport.set_write_buffer_limits(high=high)

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self.resume_reading(PAUSED_BY_SOCKET)

    def write(self, data: bytes) -> None:
        """Send bytes at the end of this turn of the loop."""
        if not self._buffer:
            self._context.loop.call_soon(self._flush)
        self._buffer.append(data)
        self._buffered_bytes += len(data)
        if self._buffered_bytes > FLUSH_BYTES:
            self._flush()

    def pause_reading(self, why: str) -> None:
        """Read no more until `resume_reading` for the same reason.

        One that is closing reads on: nothing else tells that the client has closed it, too.
        """
        if not self.is_closing and why not in self._pauses:
            self._pauses += (why,)
            self._read_or_not()

    def resume_reading(self, why: str) -> None:
        """Undo `pause_reading`; nothing happens when this was not a reason for the pause."""
        if why not in self._pauses:
            return
        self._pauses = tuple(one for one in self._pauses if one != why)
        if not self.is_closing and self.transport is not None:
            self._read_or_not()
            if not self._pauses:
                self._process_packets()

    def hear_in(self, *pauses: str) -> None:
        """Read while these are the reasons of a pause and no others: see `_hear`."""
        self._hears_in = pauses
        self._read_or_not()
        if self._pauses == pauses:
            self._hear()

    def _read_or_not(self) -> None:
        wanted = not self._pauses or self._pauses == self._hears_in
        if wanted is self._is_read or self.transport is None:
            return
        self._is_read = wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _pause_if_overfull(self) -> None:
        """Read no more from a client that sends, but does not read its answers.

        Messages to it stop at `max_write_buffer_bytes`; answers may take as much again, so that a
        subscriber that is merely slow is still heard.
        """
        assert self.transport is not None
        most = 2 * self._context.settings.max_write_buffer_bytes
        if self.transport.get_write_buffer_size() > most:
            self.pause_reading(PAUSED_BY_SOCKET)

    def _finish(self, last_words: bytes, reason: str, *, lingers: bool = False) -> None:
        """Send the rest and close; the session lets go of the connection at once.

        Bytes that the client still sends are thrown away.
        """
        if last_words:
            self._buffer.append(last_words)
        self.is_closing = True
        self._flush()
        self._detach(reason)
        transport = self.transport
        if transport is not None:
            if lingers and last_words and transport.can_write_eof():
                self._context.deadlines.set(self, LINGER_SECONDS)
                transport.write_eof()
                transport.resume_reading()
            else:
                self._context.deadlines.set(self, CLOSE_TIMEOUT_SECONDS)
                transport.close()

    def _abort(self) -> None:
        """Cut it: unsent bytes are lost."""
        if self.transport is not None:
            self.transport.abort()

    def _flush(self) -> None:
        if self._buffer and self.transport is not None:
            buffer = self._buffer
            self._buffer = []
            self._buffered_bytes = 0
            data = buffer[0] if len(buffer) == 1 else b"".join(buffer)
            counters = self._context.counters
            counters.packets_sent += len(buffer)
            counters.bytes_sent += len(data)
            self.transport.write(data)
