"""All listeners of a gateway: opened together, closed together."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ingest.gateway.listeners.accepting import Acceptor
from ingest.gateway.listeners.arrivals import Arrivals
from ingest.gateway.listeners.certificates import Certificates
from ingest.gateway.listeners.info import ListenerInfo, MakeConnection
from ingest.gateway.listeners.limits import ConnectionLimit, LimitedConnection
from ingest.gateway.listeners.sockets import BACKLOG, open_sockets, open_unix_socket
from ingest.gateway.listeners.tenancy import tenancy_of
from ingest.gateway.listeners.websocket import WebSocket, WebSocketRules
from ingest.gateway.settings.listeners import (
    PROTOCOL_LEVELS,
    ListenerSettings,
    SecureWebSocketListener,
    TlsListener,
    UnixListener,
    WebSocketListener,
    address_of,
)
from ingest.protocol.packets import MQTT_3_1
from mqlake.errors import OperationalError
from mqlake.records.tenants import limits_in

logger = logging.getLogger(__name__)

_LEVEL_3_1: Final = frozenset({MQTT_3_1})


class Listeners:
    """The listeners that the settings name.

    Args:
        settings: In this order they are opened.
        arrivals: Arrivals of the gateway; has connections until their first byte of MQTT.
        timeout_seconds: For each step between a connection's start and its first byte of MQTT: the
            PROXY header, the TLS handshake, the WebSocket handshake.
    """

    def __init__(
        self, settings: Sequence[ListenerSettings], arrivals: Arrivals, *, timeout_seconds: float
    ) -> None:
        self._settings = settings
        self._arrivals = arrivals
        self._timeout = timeout_seconds
        self._certificates: list[Certificates] = []
        self._in_handshake: set[WebSocket] = set()
        self._closing: list[Callable[[], object]] = []
        self.infos: list[ListenerInfo] = []

    @property
    def addresses(self) -> tuple[str, ...]:
        """The URL of each listener, hosts as configured."""
        return tuple(address_of(settings) for settings in self._settings)

    async def start(self, make_connection: MakeConnection) -> None:
        """Open all listeners.

        Args:
            make_connection: Makes the protocol of each connection. Its transport offers the facts
                that `ingest.gateway.listeners.transports` lists.

        Raises:
            OperationalError: One cannot be opened; then none is open.
        """
        try:
            for settings in self._settings:
                await self._open(settings, make_connection)
        except OperationalError:
            self.stop_accepting()
            raise

    def stop_accepting(self) -> None:
        """Close the listening sockets, and connections without a first byte of MQTT yet."""
        while self._closing:
            self._closing.pop()()
        for connection in list(self._in_handshake):
            connection.abort()

    async def reload_certificates(self) -> None:
        """Read the files of all TLS listeners again, for the connections from now on.

        Where they cannot be used the earlier ones stay in force; the log says so.
        """
        for certificates in self._certificates:
            await certificates.reload()

    async def _open(self, settings: ListenerSettings, make_connection: MakeConnection) -> None:
        address = address_of(settings)
        name = settings.name or address
        limits = limits_in(settings)
        info = ListenerInfo(
            name,
            settings.kind,
            address,
            frozenset(PROTOCOL_LEVELS[version] for version in settings.versions),
            settings.max_connections,
            settings.use_identity_as_username,
            settings.use_identity_as_client_id,
            settings.identity,
            settings.authenticate_by,
            tenancy_of(settings),
            limits.pop("connects", 0),
            tuple(limits.items()),
        )
        certificates = None
        if isinstance(settings, (TlsListener, SecureWebSocketListener)):
            certificates = Certificates(name, settings)
            await certificates.load()
            self._certificates.append(certificates)
        make = self._maker(settings, info, make_connection)
        limit = None
        if settings.max_connections is not None:
            limit = ConnectionLimit(name, settings.max_connections, self._arrivals)
            make = partial(LimitedConnection, limit, make)
        for opened in self._sockets(settings):
            await self._serve(opened, settings, name, make, certificates, limit)
        self.infos.append(info)
        logger.info("listening", extra={"fields": {"listener": name, "address": address}})

    def _sockets(self, settings: ListenerSettings) -> list[socket.socket]:
        if not isinstance(settings, UnixListener):
            return open_sockets(settings.host, settings.port)
        opened = open_unix_socket(settings.file, int(settings.mode, 8))
        file = settings.file
        made = file.stat().st_ino

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                if file.stat().st_ino == made:  # not that of a process which came after us
                    file.unlink()

        self._closing.append(remove)
        return [opened]

    def _maker(
        self, settings: ListenerSettings, info: ListenerInfo, make_connection: MakeConnection
    ) -> Callable[[], asyncio.Protocol]:
        """Return the factory of the protocol next to the socket (or to TLS)."""
        if not isinstance(settings, (WebSocketListener, SecureWebSocketListener)):
            return lambda: make_connection(info)
        has_3_1 = MQTT_3_1 in info.protocol_levels
        rules = WebSocketRules(
            info,
            replace(info, protocol_levels=_LEVEL_3_1) if has_3_1 else None,
            settings.path,
            settings.origins,
            self._timeout,
        )
        in_handshake, arrivals = self._in_handshake, self._arrivals
        return lambda: WebSocket(rules, make_connection, in_handshake, arrivals)

    async def _serve(
        self,
        listener: socket.socket,
        settings: ListenerSettings,
        name: str,
        make: Callable[[], asyncio.Protocol],
        certificates: Certificates | None,
        limit: ConnectionLimit | None,
    ) -> None:
        if certificates is not None or settings.proxy_protocol:
            acceptor = Acceptor(
                name,
                listener,
                make,
                certificates=certificates,
                arrivals=self._arrivals,
                limit=limit,
                proxies=settings.proxy_networks if settings.proxy_protocol else None,
                timeout_seconds=self._timeout,
            )
            self._closing.append(acceptor.close)
            return
        loop = asyncio.get_running_loop()
        # Nothing comes before the first byte: the loop's own server accepts fastest.
        if listener.family == socket.AF_UNIX:
            server = await loop.create_unix_server(make, sock=listener, backlog=BACKLOG)
        else:
            server = await loop.create_server(make, sock=listener, backlog=BACKLOG)
        self._closing.append(server.close)
