"""The sockets of a federator beside a log: where it listens, and sites that it connects to."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ingest.federation.pauses import Pauses
from ingest.federation.sites.connection import SiteConnection
from ingest.protocol.packets import MQTT_5_0, Connect
from mqlake.errors import OperationalError

if TYPE_CHECKING:
    from ingest.federation.settings import FederationSettings, NeighborSettings
    from ingest.federation.sites.connection import ConnectionOwner
    from ingest.federation.sites.link import SiteLink

_logger = logging.getLogger(__name__)

GOODBYE_SECONDS: Final = 1.0


class SiteConnections:
    """All connections of a site, by whomever they are made. Make it inside the event loop.

    Args:
        settings: Of the process.
        owner: Told of the events of each.

    Attributes:
        made: Those that have not ended.
    """

    def __init__(self, settings: FederationSettings, owner: ConnectionOwner) -> None:
        self.made: set[SiteConnection] = set()
        self._settings = settings
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Let neighbours connect, if that is set.

        Raises:
            OperationalError: The port is taken, or the certificate cannot be read.
        """
        listen = self._settings.listen
        if not listen.port:
            return
        context = None
        try:
            if listen.certificate is not None:
                context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                context.load_cert_chain(listen.certificate, listen.key)
            self._server = await self._loop.create_server(
                self._new, listen.host, listen.port, ssl=context
            )
        except OSError as exc:
            raise OperationalError(
                f"neighbours cannot connect to {listen.host}:{listen.port}: {exc}"
            ) from exc

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
        )

    async def close(self) -> None:
        """Say goodbye to all neighbours; one that does not listen is not waited for."""
        if self._server is not None:
            self._server.close()
        connections = list(self.made)
        for one in connections:
            one.close("this site's federator stops")
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                for one in connections:
                    await one.ended.wait()
        for one in connections:
            one.abort()
