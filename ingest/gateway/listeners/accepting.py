"""Accepting where something comes before MQTT: a proxy's header, a TLS handshake.

The event loop's own servers know neither PROXY headers nor certificates that change, so these
listeners take their connections themselves. A header is read from the socket to its last byte and
not one further (`MSG_PEEK`): the bytes behind it belong to TLS or to the client.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, Final, Protocol

from ingest.gateway.listeners.arrivals import HANDSHAKE_BYTES, PLACE_BYTES, Arrivals
from ingest.gateway.listeners.limits import ConnectionLimit
from ingest.gateway.listeners.proxy_protocol import (
    V2_MAX_BYTES,
    ProxyHeader,
    ProxyProtocolError,
    parse_proxy_header,
)
from ingest.gateway.listeners.transports import Facts, ProtocolMaker

Network = IPv4Network | IPv6Network

logger = logging.getLogger(__name__)

ACCEPTS_PER_TURN: Final = 64
"""Then the loop's other work has its turn."""
EXHAUSTED_PAUSE_SECONDS: Final = 0.5
"""How long nothing is accepted after the process has run out of file descriptors or memory."""
TLS_SHUTDOWN_SECONDS: Final = 5.0

_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class ServerCertificate(Protocol):
    """Has the TLS context of connections that are accepted now."""

    @property
    def context(self) -> ssl.SSLContext: ...


class Acceptor:
    """Takes connections from one listening socket and brings them to their first byte.

    Args:
        name: Name of the listener, for the log.
        listener: Socket that listens already; `close` closes it.
        make: Makes a connection's protocol when all before it went well.
        certificates: Certificate for TLS; None: connections come without TLS.
        arrivals: Arrivals of the process, with the connections until their protocol is made.
        limit: Limit of the listener, in which protocols of `make` count themselves; None: no limit.
        proxies: Networks of the proxies that alone may connect, each connection with a PROXY
            header; None: there are no such headers.
        timeout_seconds: Bound for reading the header, and another time for the handshake.
    """

    def __init__(
        self,
        name: str,
        listener: socket.socket,
        make: Callable[[], asyncio.Protocol],
        *,
        certificates: ServerCertificate | None,
        arrivals: Arrivals,
        limit: ConnectionLimit | None,
        proxies: Sequence[Network] | None,
        timeout_seconds: float,
    ) -> None:
        self._name = name
        self._listener = listener
        self._make = make
        self._certificates = certificates
        self._arrivals = arrivals
        self._limit = limit
        self._proxies = proxies
        self._timeout = timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._arriving: set[_Incoming] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._is_accepting = False
        self._go_on()

    def close(self) -> None:
        """Accept no more and cut those that have not arrived."""
        self._is_closed = True
        self._hold()
        if self._pause is not None:
            self._pause.cancel()
        self._listener.close()
        for incoming in self._arriving:
            incoming.task.cancel()

    def _hold(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self._loop.remove_reader(self._listener.fileno())

    def _go_on(self) -> None:
        self._pause = None
        if not self._is_closed and not self._is_accepting:
            self._is_accepting = True
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if exc.errno not in _EXHAUSTED:
                    raise
                self._log(logging.ERROR, "connections wait", reason=exc.strerror)
                self._arrivals.end_one()
                self._hold()
                self._pause = self._loop.call_later(EXHAUSTED_PAUSE_SECONDS, self._go_on)
                return
            if self._limit is not None and not self._limit.has_room():
                self._limit.log_refused(address)
                connection.close()
                continue
            connection.setblocking(False)
            incoming = _Incoming(self._name, connection, address)
            incoming.task = self._loop.create_task(self._bring_in(incoming))
            incoming.task.add_done_callback(partial(self._arrived, incoming))
            self._arriving.add(incoming)
            self._enter(incoming, address)

    def _enter(self, incoming: "_Incoming", address: Any) -> None:
        place_bytes = PLACE_BYTES if self._certificates is None else HANDSHAKE_BYTES
        host = str(address[0]) if isinstance(address, tuple) else ""
        self._arrivals.enter(incoming, host, self._name, place_bytes)

    def _arrived(self, incoming: "_Incoming", task: asyncio.Task[None]) -> None:
        self._arriving.discard(incoming)
        self._arrivals.leave(incoming)
        if task.cancelled():  # perhaps before its first step
            incoming.connection.close()

    async def _bring_in(self, incoming: "_Incoming") -> None:
        connection, address = incoming.connection, incoming.address
        facts: Facts = {}
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._proxies is not None:
                _check_proxy(address, self._proxies)
                async with asyncio.timeout(self._timeout):
                    header = await read_proxy_header(connection)
                facts["proxy_peername"] = address
                if header.client is not None:
                    facts["peername"] = header.client
                    self._arrivals.leave(incoming)
                    self._enter(incoming, header.client)
                facts["sni"] = header.server_name
                facts["client_certificate_common_name"] = header.certificate_common_name
            make_arrival = self._arrival_maker(incoming, facts)
            if self._certificates is None:
                await self._loop.connect_accepted_socket(make_arrival, connection)
            else:
                await self._loop.connect_accepted_socket(
                    make_arrival,
                    connection,
                    ssl=self._certificates.context,
                    ssl_handshake_timeout=self._timeout,
                    ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS,
                )
        except (OSError, TimeoutError, ProxyProtocolError) as exc:  # ssl.SSLError is an OSError
            connection.close()
            self._log(logging.INFO, "connection refused", peer=address, reason=_reason(exc))
        except BaseException:
            connection.close()
            raise

    def _arrival_maker(self, incoming: "_Incoming", facts: Facts) -> Callable[[], asyncio.Protocol]:
        def make() -> asyncio.Protocol:
            self._arrivals.leave(incoming)  # the protocol enters by itself
            return self._make()

        return lambda: ProtocolMaker(make, facts)

    def _log(self, level: int, event: str, **fields: Any) -> None:
        logger.log(level, event, extra={"fields": {"listener": self._name, **fields}})


class _Incoming:
    """A connection until its protocol is made."""

    __slots__ = ("_listener", "address", "connection", "task")

    def __init__(self, listener: str, connection: socket.socket, address: Any) -> None:
        self._listener = listener
        self.connection = connection
        self.address = address
        self.task: asyncio.Task[None]

    def give_way(self, reason: str) -> None:
        self.task.cancel()
        fields = {"listener": self._listener, "peer": self.address, "reason": reason}
        logger.info("connection refused", extra={"fields": fields})


def _check_proxy(address: Any, proxies: Sequence[Network]) -> None:
    """Let a proxy in; at a Unix socket, where files have modes, all are.

    Raises:
        ProxyProtocolError: It is none of them.
    """
    if not isinstance(address, tuple):
        return
    host = ip_address(str(address[0]).partition("%")[0])
    host = getattr(host, "ipv4_mapped", None) or host
    if not any(host in network for network in proxies):
        raise ProxyProtocolError(f"{host} is none of this listener's proxies")


async def read_proxy_header(connection: socket.socket) -> ProxyHeader:
    """Take a PROXY header from a connection that does not block; leave the bytes behind it.

    Raises:
        ProxyProtocolError: Something else came.
        OSError: The connection broke.
    """
    received = b""
    while True:
        await _until_readable(connection)
        try:
            waiting = connection.recv(V2_MAX_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            continue
        if not waiting:
            raise ProxyProtocolError(f"closed after {len(received)} bytes of a PROXY header")
        header = parse_proxy_header(received + waiting)
        if header is not None:
            connection.recv(header.size - len(received))
            return header
        # All of it belongs to the header; bytes that stayed would wake us again and again.
        received += connection.recv(len(waiting))


async def _until_readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not readable.done():
            readable.set_result(None)

    descriptor = connection.fileno()
    loop.add_reader(descriptor, wake)
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)


def _reason(exc: Exception) -> str:
    if isinstance(exc, TimeoutError) and not str(exc):
        return "no PROXY header in time"
    return getattr(exc, "reason", None) or str(exc)
