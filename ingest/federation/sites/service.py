"""The federator's process beside the log of an mqlake site.

It reads the log for each neighbour (`link`) and appends what neighbours bring (`inlet`). A message
is acknowledged to the neighbour when the log has it. Each second, and at the end, it writes how far
all is (`mqlake.federation_records`); a new run begins there and reads what the log has beyond.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import ssl
from contextlib import suppress
from functools import partial as bind
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final

from ingest.federation.envelope import ROUTING, InvalidEnvelope
from ingest.federation.packets import CONTROL
from ingest.federation.prefixes import Prefixes
from ingest.federation.sites.connection import (
    Connection,
    Hello,
    InvalidHello,
    decode_hello,
    encode_hello,
)
from ingest.federation.sites.figures import figures_of
from ingest.federation.sites.inlet import Inlet, Verdict
from ingest.federation.sites.link import SiteLink
from ingest.federation.sites.log_messages import Carried, of_publish, to_record
from ingest.federation.sites.outlet import SiteLog
from ingest.federation.sites.recovery import recover
from ingest.federation.sites.streams import Streams
from ingest.protocol.packets import MQTT_5_0, Connect, Publish
from mqlake.errors import LogError, OperationalError
from mqlake.federation_records import (
    FEDERATION,
    KEY,
    FederationCheckpoint,
    LinkPlaces,
    encode_checkpoint,
)
from mqlake.matching import TopicFilterTrie
from mqlake.records import INBOUND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingest.federation.settings import FederationSettings, NeighborSettings
    from mqlake.clock import Clock
    from mqlake.log.contract import LogAccess

_logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS: Final = 1.0
NOWHERE: Final = -1
GOODBYE_SECONDS: Final = 1.0
LAST_CHECKPOINT_SECONDS: Final = 5.0
FIRST_PAUSE_SECONDS: Final = 0.1
_random: Final = SystemRandom()


class SiteService:
    """One site's federator and its links. Make it inside the event loop.

    Args:
        settings: Of the process.
        clock: Of the machine.
        log: Of the site.
    """

    def __init__(self, settings: FederationSettings, clock: Clock, log: LogAccess) -> None:
        self.settings = settings
        self.site = settings.host.id
        self.links: dict[int, SiteLink] = {}
        self.inlet = Inlet(Streams(), {})
        self.strangers = 0
        """Connections of whom nobody knows here, or with another password."""
        self.port = 0
        """Where it listens."""
        self.is_ready = False
        self._clock = clock
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._prefixes = Prefixes([(one.local, one.federated) for one in settings.prefixes])
        self._federated: TopicFilterTrie[None] = TopicFilterTrie()
        self._control = f"{settings.control_prefix}/{CONTROL}/{self.site}"
        self._messages = f"{settings.control_prefix}/{ROUTING}/"
        self._epoch = 0
        self._ends: Mapping[int, int] = {}
        self._written = b""
        self._written_at = NOWHERE
        """Offset of the last checkpoint: nobody else writes behind it."""
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._connections: set[Connection] = set()
        self._connecting: dict[int, asyncio.Task[None]] = {}

    # The process.

    async def run(self, stop: asyncio.Event) -> None:
        """Run until it is told to stop.

        Raises:
            MqlakeError: The log fails, or the port is taken. What is not known to be in the log
                then is found out by the next run.
        """
        found = await recover(self._log, self._clock.now_ms())
        self._epoch, self.inlet, self._ends = found.epoch, found.inlet, found.ends
        server: asyncio.Server | None = None
        stopped = asyncio.create_task(stop.wait())
        checkpoints = asyncio.create_task(self._checkpoints())
        try:
            for one in self.settings.neighbors:
                # One that is new gets what is published from now on, also before it is there.
                self._add(one, found.links.get(one.id) or LinkPlaces(dict(found.ends)))
            server = await self._listen()
            await self._checkpoint()
            self.is_ready = True
            waited: list[asyncio.Future[Any]] = [stopped, self._failed, checkpoints]
            done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if server is not None:
                server.close()
            tasks = (stopped, checkpoints, *self._connecting.values())
            for task in tasks:
                task.cancel()
            await self._close_connections()
            await asyncio.gather(*tasks, return_exceptions=True)
            for link in self.links.values():
                await link.close()
            if stop.is_set() and not self._failed.done():
                with suppress(LogError, OperationalError, TimeoutError):
                    async with asyncio.timeout(LAST_CHECKPOINT_SECONDS):
                        await self._checkpoint()
        for ended in done:
            ended.result()

    async def _listen(self) -> asyncio.Server | None:
        listen = self.settings.listen
        if not listen.port:
            return None
        context = None
        try:
            if listen.certificate is not None:
                context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                context.load_cert_chain(listen.certificate, listen.key)
            server = await self._loop.create_server(
                self._new_connection, listen.host, listen.port, ssl=context
            )
        except OSError as exc:
            raise OperationalError(
                f"neighbours cannot connect to {listen.host}:{listen.port}: {exc}"
            ) from exc
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _connect(self, link: SiteLink) -> None:
        """Connect to a neighbour whenever there is no connection, until cancelled."""
        neighbour = link.neighbour
        pause = FIRST_PAUSE_SECONDS
        while True:
            await link.detached.wait()
            context = neighbour.tls_context()
            try:
                async with asyncio.timeout(self.settings.reconnect_max_seconds):
                    _, connection = await self._loop.create_connection(
                        lambda: self._new_connection(neighbour), *neighbour.address, ssl=context
                    )
                await connection.ended.wait()
                reason = connection.reason
                if connection.was_open:
                    pause = FIRST_PAUSE_SECONDS
            except (OSError, TimeoutError) as exc:
                reason = str(exc) or type(exc).__name__
            if link.connection is None:
                if link.reason != reason:
                    fields = {"site": link.site, "uri": neighbour.uri, "reason": reason}
                    _logger.warning("a neighbour cannot be reached", extra={"fields": fields})
                link.reason = reason
            # Half of it by chance, so that all federators do not come back at the same moment.
            await asyncio.sleep(pause * _random.uniform(0.5, 1))
            pause = min(2 * pause, self.settings.reconnect_max_seconds)

    def _connect_packet(self, neighbour: NeighborSettings) -> Connect:
        settings = self.settings
        return Connect(
            f"mqlake-site-{self.site}",
            MQTT_5_0,
            clean_start=True,
            keep_alive=settings.keep_alive_seconds,
            username=str(self.site),
            password=neighbour.password.get_secret_value().encode(),
            properties={
                "receive_maximum": settings.max_inflight,
                "maximum_packet_size": settings.max_packet_bytes,
            },
        )

    def _new_connection(self, neighbour: NeighborSettings | None = None) -> Connection:
        return Connection(
            self,
            None if neighbour is None else self._connect_packet(neighbour),
            None if neighbour is None else neighbour.id,
            window=self.settings.max_inflight,
            max_packet_bytes=self.settings.max_packet_bytes,
            keep_alive_seconds=self.settings.keep_alive_seconds,
        )

    def reload(self, neighbours: tuple[NeighborSettings, ...]) -> None:
        """Take other neighbours; links to those that stay as they are are not cut."""
        wanted = {one.id: one for one in neighbours}
        for site, link in list(self.links.items()):
            if wanted.get(site) != link.neighbour:
                if link.connection is not None:
                    link.connection.close("the neighbour's settings have changed")
                del self.links[site]
                if site in wanted:
                    self._add(wanted[site], link.places)
                elif site in self._connecting:
                    self._connecting.pop(site).cancel()
        for site, one in wanted.items():
            if site not in self.links:
                self._add(one, LinkPlaces(dict(self._ends)))

    def _add(self, neighbour: NeighborSettings, places: LinkPlaces) -> None:
        """Have a link, and connect it if it is this site that does."""
        for one in neighbour.filters_out or self.settings.filters_out:
            self._federated.insert(one, None)
        link = self.links[neighbour.id] = SiteLink(
            self.settings, neighbour, self._site_log(), places, self._log.open_reader, self._clock
        )
        before = self._connecting.pop(neighbour.id, None)
        if before is not None:
            before.cancel()
        if neighbour.uri:
            connecting = asyncio.create_task(self._connect(link))
            self._connecting[neighbour.id] = connecting
            connecting.add_done_callback(self._note_end)

    def _site_log(self) -> SiteLog:
        settings = self.settings
        return SiteLog(
            self.site,
            self._epoch,
            settings.tenant,
            settings.control_prefix,
            settings.hop_limit,
            self._prefixes,
            self._federated,
        )

    def _note_end(self, connecting: asyncio.Task[None]) -> None:
        error = None if connecting.cancelled() else connecting.exception()
        if error is not None:
            self._fail(error)

    async def _close_connections(self) -> None:
        """Say goodbye to all neighbours; one that does not listen is not waited for."""
        connections = list(self._connections)
        for one in connections:
            one.close("this site's federator stops")
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                for one in connections:
                    await one.ended.wait()
        for one in connections:
            one.abort()

    # Checkpoints.

    async def _checkpoints(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_SECONDS)
            try:
                await self._checkpoint()
            except LogError as exc:
                # The next one says more; until then a new run repeats more.
                _logger.warning("no checkpoint", extra={"fields": {"reason": str(exc)}})

    async def _checkpoint(self) -> None:
        reader = self._log.open_reader()
        was_idle = not self.inlet.pending
        try:
            ends = await reader.end_offsets(INBOUND)
        finally:
            await reader.close()
        if was_idle:
            # What is appended after the question was asked is behind these.
            for partition, end in ends.items():
                self.inlet.read[partition] = max(end, self.inlet.read.get(partition, 0))
        self._ends = ends
        for link in self.links.values():
            link.ends = ends
        value = encode_checkpoint(
            FederationCheckpoint(
                self._epoch,
                self.inlet.read,
                self.inlet.streams.to_json(),
                {site: link.places for site, link in self.links.items()},
            )
        )
        if value != self._written:
            _, offset = await self._log.writer.append_durably(FEDERATION, KEY, value, [])
            if self._written_at not in (NOWHERE, offset - 1):
                self._written_at = offset
                raise OperationalError(
                    f"another federator of site {self.site} writes to this log: there must be one"
                )
            self._written, self._written_at = value, offset

    # What connections say.

    def authenticate(self, connect: Connect) -> int | None:
        """Let in neighbours that know the password of the link."""
        for one in self.links.values():
            if connect.username == str(one.site):
                expected = one.neighbour.password.get_secret_value().encode()
                if hmac.compare_digest(expected, connect.password or b""):
                    return one.site
        self.strangers += 1
        fields = {"username": (connect.username or "")[:64]}
        _logger.warning("somebody is refused who is no neighbour", extra={"fields": fields})
        return None

    def is_made(self, connection: Connection) -> None:
        """Know it, to end it with this run."""
        self._connections.add(connection)

    def is_open(self, connection: Connection) -> None:
        """Say what this site wants, if the connection is to stay."""
        link = self._link_of(connection)
        if link is None or not link.attach(connection, min(self.site, link.site)):
            connection.close("another connection of this neighbour stays")
            return
        hello = encode_hello(Hello(self.site, tuple(link.wants)))
        connection.publish([Publish(self._control, hello)])

    def is_closed(self, connection: Connection) -> None:
        """Do without it."""
        self._connections.discard(connection)
        link = self._link_of(connection)
        if link is not None:
            link.detach(connection)

    def acknowledged(self, connection: Connection, packet_id: int) -> None:
        """Move the neighbour's cursor."""
        link = self._link_of(connection)
        if link is not None and link.connection is connection:
            link.acknowledged(packet_id)

    def receive(self, connection: Connection, publish: Publish) -> None:
        """Take a message of a neighbour, or its hello."""
        link = self._link_of(connection)
        if link is None or link.connection is not connection:
            return
        try:
            if not publish.topic_name.startswith(self._messages):
                hello = decode_hello(publish.payload)
                if hello.site != link.site:
                    raise InvalidHello(f"hello of site {hello.site}, expected {link.site}")
                link.hear_hello(connection, hello.wants)
                return
            carried = of_publish(publish, prefix=self.settings.control_prefix)
        except (InvalidEnvelope, InvalidHello) as exc:
            self.inlet.counters.malformed += 1
            fields = {"site": link.site, "reason": str(exc)}
            _logger.warning("a packet of a neighbour cannot be read", extra={"fields": fields})
            if publish.packet_id:
                connection.acknowledge(publish.packet_id)
            return
        self._take(link, carried, bind(connection.acknowledge, publish.packet_id))

    def _link_of(self, connection: Connection) -> SiteLink | None:
        return None if connection.site is None else self.links.get(connection.site)

    def _take(self, link: SiteLink, carried: Carried, acknowledge: Any) -> None:
        counters = self.inlet.counters
        message = carried.message
        counters.received += 1
        if message.key.origin == self.site:
            counters.echoes += 1
            acknowledge()
            return
        if not link.may_bring(message.topic):
            counters.refused += 1
            acknowledge()
            return
        verdict = self.inlet.take(message, acknowledge)
        if verdict is Verdict.DUPLICATE:
            acknowledge()
        elif verdict is Verdict.NEW:
            message.hops += 1
            carried.sender = link.site
            topic = self._prefixes.to_local(message.topic)
            key, value, headers = to_record(carried, self.settings.tenant, topic)
            done = bind(self._appended, carried)
            try:
                self._log.writer.append(INBOUND, key, value, headers, done)
            except LogError as exc:
                self._fail(exc)

    def _appended(
        self, carried: Carried, partition: int, offset: int, error: LogError | None
    ) -> None:
        if error is not None:
            self._fail(error)
        else:
            self.inlet.appended(carried.message, partition, offset)

    def _fail(self, error: BaseException) -> None:
        """End the run: what the log has of what was appended is known by the next one."""
        if not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # who waits gets it; nobody need

    # What people ask.

    def health(self) -> tuple[bool, str]:
        """Whether it does what it is for, and one line."""
        if not self.is_ready:
            return False, "reads what the log has beyond the last checkpoint"
        missing = [str(site) for site, link in self.links.items() if not link.is_up]
        detail = f"{len(self.links) - len(missing)} of {len(self.links)} neighbours there"
        if missing:
            detail += f"; not {', '.join(missing)}"
        return True, detail  # a neighbour may be away for long, and gets all of it then

    def figures(self) -> dict[str, Any]:
        """Return what `mqlake federation status` shows."""
        return figures_of(self)

    @property
    def epoch(self) -> int:
        """Of this site's log."""
        return self._epoch
