"""The sockets of a federator beside a log: where it listens, and sites that it connects to."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from ingest.federation.pauses import Pauses
from ingest.federation.sites.links.connection import CONNECT_SECONDS, LISTENER, SiteConnection
from ingest.gateway.listeners.accepting import Acceptor
from ingest.gateway.listeners.arrivals import Arrivals
from ingest.gateway.listeners.sockets import open_sockets
from ingest.protocol.packets import MQTT_5_0, Connect
from mqlake.errors import OperationalError

if TYPE_CHECKING:
    from ingest.federation.settings import FederationSettings, NeighborSettings
    from ingest.federation.sites.links.connection import ConnectionOwner
    from ingest.federation.sites.links.link import SiteLink

_logger = logging.getLogger(__name__)

GOODBYE_SECONDS: Final = 1.0

MOST_BYTES: Final = 4 * 1024 * 1024
"""Memory that connections may take before they have logged in: that of 512 silent ones, 64 TLS
handshakes or 56 of the largest packets. A site has few neighbours."""


class _Certificate(NamedTuple):
    context: ssl.SSLContext


class SiteConnections:
    """All connections of a site, by whomever they are made. Make it inside the event loop.

    Args:
        settings: Settings of the process.
        owner: Gets the events of each.

    Attributes:
        made: Those that have not ended.
        arrivals: Those that have come and not logged in.
    """

    def __init__(self, settings: FederationSettings, owner: ConnectionOwner) -> None:
        self.made: set[SiteConnection] = set()
        self.arrivals = Arrivals(MOST_BYTES)
        self._settings = settings
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._acceptors: list[Acceptor] = []

    async def listen(self) -> None:
        """Let neighbours connect, if that is set.

        Raises:
            OperationalError: The port is taken, or the certificate cannot be read.
        """
        listen = self._settings.listen
        if not listen.port:
            return
        certificate = None
        if listen.certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            try:
                context.load_cert_chain(listen.certificate, listen.key)
            except OSError as exc:
                raise OperationalError(
                    f"certificate {listen.certificate} cannot be used: {exc}"
                ) from exc
            certificate = _Certificate(context)
        self._acceptors = [
            Acceptor(
                LISTENER,
                one,
                self._new,
                certificates=certificate,
                arrivals=self.arrivals,
                limit=None,
                proxies=None,
                timeout_seconds=CONNECT_SECONDS,
            )
            for one in open_sockets(listen.host, listen.port)
        ]

    async def connect(self, link: SiteLink) -> None:
        """Connect to a neighbour whenever there is no connection, until cancelled."""
        neighbour = link.neighbour
        pauses = Pauses(self._settings.reconnect_max_seconds)
        while True:
            await link.detached.wait()
            context = neighbour.tls_context()
            try:
                async with asyncio.timeout(self._settings.reconnect_max_seconds):
                    _, connection = await self._loop.create_connection(
                        lambda: self._new(neighbour), *neighbour.address, ssl=context
                    )
                await connection.ended.wait()
                reason = connection.reason
                if connection.was_open:
                    pauses.reset()
            except (OSError, TimeoutError) as exc:
                reason = str(exc) or type(exc).__name__
            if link.connection is None:
                if link.reason != reason:
                    fields = {"site": link.site, "uri": neighbour.uri, "reason": reason}
                    _logger.warning("a neighbour cannot be reached", extra={"fields": fields})
                link.reason = reason
            await pauses.wait()

    def _connect_packet(self, neighbour: NeighborSettings) -> Connect:
        settings = self._settings
        return Connect(
            f"mqlake-site-{settings.host.id}",
            MQTT_5_0,
            clean_start=True,
            keep_alive=settings.keep_alive_seconds,
            username=str(settings.host.id),
            password=neighbour.password.get_secret_value().encode(),
            properties={
                "receive_maximum": settings.max_inflight,
                "maximum_packet_size": settings.max_packet_bytes,
            },
        )

    def _new(self, neighbour: NeighborSettings | None = None) -> SiteConnection:
        return SiteConnection(
            self._owner,
            None if neighbour is None else self._connect_packet(neighbour),
            None if neighbour is None else neighbour.id,
            window=self._settings.max_inflight,
            max_packet_bytes=self._settings.max_packet_bytes,
            keep_alive_seconds=self._settings.keep_alive_seconds,
            arrivals=self.arrivals,
        )

    async def close(self) -> None:
        """Say goodbye to all neighbours; one that does not listen is not waited for."""
        for acceptor in self._acceptors:
            acceptor.close()
        connections = list(self.made)
        for one in connections:
            one.close("this site's federator stops")
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                for one in connections:
                    await one.ended.wait()
        for one in connections:
            one.abort()
