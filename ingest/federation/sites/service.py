"""The federator's process beside the log of an mqlake site.

It reads the log for each neighbour (`link`) and appends messages of neighbours (`inlet`). A message
is acknowledged to the neighbour when the log has it. Each second, and at the end, it writes how far
all is (`mqlake.records.federation`); a new run begins there and reads the log beyond.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from contextlib import suppress
from functools import partial as bind
from typing import TYPE_CHECKING, Any, Final

from ingest.federation.envelope import ROUTING, InvalidEnvelope
from ingest.federation.finding import SiteOverlay
from ingest.federation.overlay_events import WayDown, WayUp
from ingest.federation.packets import InvalidPacket
from ingest.federation.prefixes import Prefixes
from ingest.federation.sites.checkpoints import CheckpointParts, SiteCheckpoints
from ingest.federation.sites.figures import counted, figures_of
from ingest.federation.sites.full_log import FullLog
from ingest.federation.sites.group_routes import GroupRoutes
from ingest.federation.sites.handing import Handing
from ingest.federation.sites.links.connections import SiteConnections
from ingest.federation.sites.links.events import LinkEvents
from ingest.federation.sites.links.link import LinkContext, SiteLink
from ingest.federation.sites.links.words import (
    Asked,
    DeliveryWays,
    Hello,
    InvalidWord,
    Passed,
    Reached,
    Word,
    decode,
)
from ingest.federation.sites.recovery import recover
from ingest.federation.sites.retaining import Retaining
from ingest.federation.sites.spreading import Spreading
from ingest.federation.sites.streams.log_messages import HANDED
from ingest.federation.sites.streams.outlet import SiteLog
from ingest.federation.sites.streams.passing import Passing
from ingest.federation.sites.taking import Taking, TakingContext
from ingest.protocol.packets import Publish
from mqlake.errors import LogError, OperationalError
from mqlake.identifiers import MessageIdentifiers, machine_number
from mqlake.processes.log_disk import LogDisk
from mqlake.records.federation import LinkPosition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ingest.federation.settings import FederationSettings, NeighborSettings
    from ingest.federation.sites.links.connection import SiteConnection
    from ingest.federation.sites.streams.inlet import Inlet
    from ingest.protocol.packets import Connect
    from mqlake.clock import Clock
    from mqlake.log.contract import LogAccess
    from mqlake.log.growth import Growth

_logger = logging.getLogger(__name__)

MAP_SECONDS: Final = 0.5
LAST_CHECKPOINT_SECONDS: Final = 5.0


class SiteService:
    """One site's federator and its links. Make it inside the event loop.

    Args:
        settings: Settings of the process.
        clock: Clock of the machine.
        log: Log of the site.
        make_topic: Makes a log topic unless it is there.
        growth: Returns how the log grows.
    """

    def __init__(
        self,
        settings: FederationSettings,
        clock: Clock,
        log: LogAccess,
        make_topic: Callable[[str], Awaitable[None]],
        growth: Callable[[], Growth | None],
    ) -> None:
        self.settings = settings
        self.site = settings.host.id
        self.links: dict[int, SiteLink] = {}
        self.strangers = 0
        """Connections of unknown clients, or with another password."""
        self.is_ready = False
        self._clock = clock
        self._log = log
        self._make_topic = make_topic
        self._loop = asyncio.get_running_loop()
        self._due = asyncio.Event()
        self._prefixes = Prefixes([(one.local, one.federated) for one in settings.prefixes])
        run = clock.now_ms()
        self.finding = SiteOverlay(settings, run, clock.monotonic())
        self.spreading = Spreading(
            settings,
            self._prefixes,
            log,
            clock,
            self.links,
            self._due.set,
            self._fail,
            lambda: self.routes.update(),
        )
        self._make_groups(run)
        identifiers = MessageIdentifiers(clock, datacenter=0, machine=machine_number())
        self.retaining = Retaining(settings, self._prefixes, log, identifiers, self._fail)
        self._events = LinkEvents(log.writer, settings.tenant, self.site, clock)
        self._passing = Passing(self.site, self.spreading.interest)
        self.taking = self._make_taking()
        # A window of the neighbour's messages, and one of those that it gives back.
        self.full_log = FullLog(LogDisk(settings.log_disk), 2 * settings.max_inflight, self._events)
        self._checkpoints = self._make_checkpoints(run, growth)
        self._messages = f"{settings.control_prefix}/{ROUTING}/"
        self._for_groups = f"{settings.control_prefix}/{HANDED}/"
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self.connections = SiteConnections(settings, self)
        self._connecting: dict[int, asyncio.Task[None]] = {}

    def _make_groups(self, run: int) -> None:
        """Make the parts that hand messages to share groups of other sites."""
        self.routes = GroupRoutes(
            self.site,
            self.settings.tenant,
            self._prefixes,
            self.spreading.groups,
            self._log,
            self._make_topic,
            run,
            self._fail,
        )
        self.handing = Handing(
            self.settings,
            self._prefixes,
            self._log.writer,
            lambda: self.inlet,
            self.spreading.groups,
            self.routes,
            self.spreading,
            self._fail,
        )

    def _make_checkpoints(self, run: int, growth: Callable[[], Growth | None]) -> SiteCheckpoints:
        parts = CheckpointParts(
            links=self.links,
            spreading=self.spreading,
            retaining=self.retaining,
            taking=self.taking,
        )
        return SiteCheckpoints(self.site, run, self._log, self._clock, parts, growth, self._due)

    def _make_taking(self) -> Taking:
        return Taking(
            TakingContext(
                settings=self.settings,
                prefixes=self._prefixes,
                writer=self._log.writer,
                clock=self._clock,
                links=self.links,
                is_latest=lambda topic, message: self.retaining.retained.is_latest(topic, message),
                on_failure=self._fail,
                passing=self._passing,
                events=self._events,
            )
        )

    # The process.

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set.

        Raises:
            MqlakeError: The log fails, or the port is taken. The next run finds out which of the
                unacknowledged messages are in the log.
        """
        found = await recover(self._log, self._clock.now_ms())
        self.taking.inlet = found.inlet
        self._checkpoints.begin(found.epoch, found.ends)
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait())]
        try:
            await self.routes.start(len(found.ends))
            await self.spreading.start(found.interest)
            await self.retaining.start(found)
            for one in self.settings.neighbors:
                # A new one gets messages published from now on, also before it is there.
                self._add(one, found.links.get(one.id) or self._position_at(found.ends))
            await self.connections.listen()
            await self._checkpoints.write()
            tasks.append(asyncio.create_task(self._checkpoints.run()))
            tasks.append(asyncio.create_task(self._tell_map()))
            self.is_ready = True
            waited: list[asyncio.Future[Any]] = [*tasks, self._failed]
            done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks += self._connecting.values()
            for task in tasks:
                task.cancel()
            await self.connections.close()
            await asyncio.gather(*tasks, return_exceptions=True)
            for link in self.links.values():
                await link.close()
            await self.spreading.stop()
            await self.routes.close()
            await self.retaining.stop()
            self.taking.stop()
            self.full_log.stop()
            if self.is_ready and stop.is_set() and not self._failed.done():
                with suppress(LogError, OperationalError, TimeoutError):
                    async with asyncio.timeout(LAST_CHECKPOINT_SECONDS):
                        await self._checkpoints.write()
        for ended in done:
            ended.result()

    def reload(self, neighbours: tuple[NeighborSettings, ...]) -> None:
        """Take other neighbours; links are not cut to those of which nothing but rates is new."""
        self.finding.become(neighbours, self._clock.monotonic())
        wanted = {one.id: one for one in neighbours}
        for site, link in list(self.links.items()):
            if site in wanted and link.take_rates(wanted[site]):
                continue
            if link.connection is not None:
                link.connection.close("the neighbour's settings have changed")
            self._forget(site)
            del self.links[site]
            if site in wanted:
                self._add(wanted[site], link.position)
                continue
            self.spreading.remove(site)
            self.routes.remove(site)
            if site in self._connecting:
                self._connecting.pop(site).cancel()
        for site, one in wanted.items():
            if site not in self.links:
                self._add(one, self._position_at(self._checkpoints.ends))

    def _add(self, neighbour: NeighborSettings, position: LinkPosition) -> None:
        """Have a link, and connect it if it is this site that does."""
        context = LinkContext(
            settings=self.settings,
            log=self._site_log(),
            open_reader=self._log.open_reader,
            clock=self._clock,
            retained=self.retaining.all,
            events=self._events,
            make_topic=self._make_topic,
        )
        link = self.links[neighbour.id] = SiteLink(context, neighbour, position)
        self.spreading.add(link)
        self.routes.add(link.site)
        self.retaining.allow((*link.allows, *link.allowed))
        before = self._connecting.pop(neighbour.id, None)
        if before is not None:
            before.cancel()
        if neighbour.uri:
            connecting = asyncio.create_task(self.connections.connect(link))
            self._connecting[neighbour.id] = connecting
            connecting.add_done_callback(self._note_end)

    def _position_at(self, ends: Mapping[int, int]) -> LinkPosition:
        """Return where a link begins that is new."""
        clock = dict(self.retaining.retained.position.clock)
        return LinkPosition(dict(ends), clock, is_new=True)

    def _site_log(self) -> SiteLog:
        settings = self.settings
        return SiteLog(
            self.site,
            self.epoch,
            settings.tenant,
            settings.control_prefix,
            settings.hop_limit,
            self._prefixes,
            self.spreading.wanted,
            lambda number, then: self.inlet.hear_offer(number, then),
        )

    def _note_end(self, connecting: asyncio.Task[None]) -> None:
        error = None if connecting.cancelled() else connecting.exception()
        if error is not None:
            self._fail(error)

    # The map.

    async def _tell_map(self) -> None:
        while True:
            self.finding.overlay.tick(self._clock.monotonic())
            self._say_map()
            await asyncio.sleep(MAP_SECONDS)

    def _say_map(self) -> None:
        """Tell neighbours the news of the map of the federation."""
        for site, payload in self.finding.ready(self._clock.monotonic()):
            link = self.links.get(site)
            if link is not None and link.connection is not None:
                link.connection.publish([Publish(self.finding.topic, payload)])

    # Callbacks of connections.

    def authenticate(self, connect: Connect) -> int | None:
        """Let in neighbours that know the password of the link."""
        for one in self.links.values():
            if connect.username == str(one.site):
                expected = one.neighbour.password.get_secret_value().encode()
                if hmac.compare_digest(expected, connect.password or b""):
                    return one.site
        self.strangers += 1
        fields = {"username": (connect.username or "")[:64]}
        _logger.warning("a client that is no neighbour is refused", extra={"fields": fields})
        return None

    def is_made(self, connection: SiteConnection) -> None:
        """Know it, to end it with this run."""
        self.connections.made.add(connection)

    def is_open(self, connection: SiteConnection) -> None:
        """Say the interest, if the connection is to stay."""
        link = self._link_of(connection)
        if link is None or not link.attach(connection, min(self.site, link.site)):
            connection.close("another connection of this neighbour stays")
            return
        self._forget(link.site)  # another one that this takes the place of
        self.spreading.open(link, connection, self.taking.holding.limits(link.site))
        self.finding.step(WayUp(link.site), self._clock.monotonic())
        self._say_map()

    def is_closed(self, connection: SiteConnection) -> None:
        """Do without it."""
        self.connections.made.discard(connection)
        link = self._link_of(connection)
        if link is not None and link.connection is connection:
            link.detach(connection)
            self._forget(link.site)
            self.spreading.close(link)
            self.finding.step(WayDown(link.site), self._clock.monotonic())
            self._say_map()

    def _forget(self, site: int) -> None:
        """Forget what came on a connection: what is not acknowledged comes again."""
        self.taking.close(site)
        self.handing.close(site)
        self.full_log.close(site)

    def acknowledged(self, connection: SiteConnection, packet_id: int) -> None:
        """Move the neighbour's cursor."""
        link = self._link_of(connection)
        if link is not None and link.connection is connection:
            link.acknowledged(packet_id)

    def returned(self, connection: SiteConnection, packet_id: int) -> None:
        """Take a message of a share group back."""
        link = self._link_of(connection)
        if link is None or link.connection is not connection:
            return
        take_back = bind(self._returned, connection, packet_id)
        if not self.full_log.hold(link.site, connection, take_back):
            take_back()

    def _returned(self, connection: SiteConnection, packet_id: int) -> None:
        link = self._link_of(connection)
        if link is not None and link.connection is connection:
            link.returned(packet_id, self.handing.take_back)

    def receive(self, connection: SiteConnection, publish: Publish) -> None:
        """Take a message of a neighbour, or a control packet."""
        link = self._link_of(connection)
        if link is None or link.connection is not connection:
            return
        is_message = publish.topic_name.startswith((self._messages, self._for_groups))
        receive = bind(self._receive, connection, publish)
        if not (is_message and self.full_log.hold(link.site, connection, receive)):
            receive()

    def _receive(self, connection: SiteConnection, publish: Publish) -> None:
        link = self._link_of(connection)
        if link is None or link.connection is not connection:
            return
        try:
            if publish.topic_name.startswith(self._messages):
                self.taking.take(link, connection, publish)
            elif publish.topic_name.startswith(self._for_groups):
                self.handing.take(link, connection, publish)
            elif publish.topic_name.startswith(self.finding.prefix):
                self.finding.hear(publish.payload, self._clock.monotonic())
                self._say_map()
            elif publish.packet_id:
                self.taking.hear_offer(link, connection, publish)
            else:
                self._hear(link, connection, decode(publish.payload))
        except (InvalidEnvelope, InvalidPacket, InvalidWord) as exc:
            self.inlet.counters.malformed += 1
            fields = {"site": link.site, "reason": str(exc)}
            _logger.warning("a packet of a neighbour cannot be read", extra={"fields": fields})
            if publish.packet_id:
                connection.acknowledge(publish.packet_id)

    def _hear(
        self,
        link: SiteLink,
        connection: SiteConnection,
        word: Word,
    ) -> None:
        if isinstance(word, DeliveryWays):
            link.direct(word)
        elif isinstance(word, Asked):
            self._passing.ask(link.site, word.questions)
        elif isinstance(word, Passed):
            self._passing.hear(link.site, word.numbers)
        elif isinstance(word, Reached):
            self.spreading.hear_reached(link, word)
        elif not isinstance(word, Hello):
            self.spreading.hear(link, word)
        elif word.site != link.site:
            raise InvalidWord(f"hello of site {word.site}, expected {link.site}")
        else:
            self.spreading.complete(link, word)
            self.taking.holding.note(link.site, knows_limits=word.limits is not None)
            link.begin(connection, word.limits or {})

    def _link_of(self, connection: SiteConnection) -> SiteLink | None:
        return None if connection.site is None else self.links.get(connection.site)

    def _fail(self, error: BaseException) -> None:
        """End the run: the next one learns which of the appended messages the log has."""
        if not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # a caller that waits gets it; none need

    # Health and status.

    def health(self) -> tuple[bool, str]:
        """Tell whether it does its work, with one line about it."""
        if not self.is_ready:
            return False, "reads the log after the last checkpoint"
        missing = [str(site) for site, link in self.links.items() if not link.is_up]
        detail = f"{len(self.links) - len(missing)} of {len(self.links)} neighbours there"
        if missing:
            detail += f"; not {', '.join(missing)}"
        held = [str(site) for site in self.links if self.taking.holding.reason(site)]
        if held:
            detail += f"; held back for messages that are missing: {', '.join(held)}"
        if full := [str(site) for site in self.links if self.full_log.reason(site)]:
            detail += f"; held back as the log is full: {', '.join(full)}"
        return True, detail  # a neighbour may be away for long, and gets all of it then

    def warnings(self) -> dict[str, str]:
        """Return what the log should say once of each limit that is too small, by its name."""
        words = "max_packet_bytes of a neighbour is too small: it never gets the messages beyond it"
        too_large = any(link.counters.too_large for link in self.links.values())
        return {"max_packet_bytes": words} if too_large else {}

    def figures(self) -> dict[str, Any]:
        """Return the figures that `mqlake federation status` shows."""
        return {
            "site": self.site,
            "epoch": self.epoch,
            **figures_of(self.links, self.spreading, self.retaining, self.taking, self.full_log),
            "overlay": self.finding.figures(),
            "counters": {**counted(self.inlet.counters), "strangers": self.strangers},
        }

    @property
    def inlet(self) -> Inlet:
        """Messages that this site has had of others."""
        return self.taking.inlet

    @property
    def epoch(self) -> int:
        """Return the epoch of this site's log."""
        return self._checkpoints.epoch
