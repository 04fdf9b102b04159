"""The gateway: what its connections share, and the tasks that keep it going."""

import asyncio
import logging
import secrets
import shutil
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.authentication.authenticator import Authenticator
from ingest.gateway.catching_up import CatchingUp
from ingest.gateway.client_session import SessionContext
from ingest.gateway.connection import ClientConnection, ConnectionContext
from ingest.gateway.connections import Connections
from ingest.gateway.context import Context
from ingest.gateway.control import Control
from ingest.gateway.counters import Counters
from ingest.gateway.deadlines import Deadlines
from ingest.gateway.delivered import Delivered
from ingest.gateway.delivery import Delivery
from ingest.gateway.delivery_events import DeliveryEvents
from ingest.gateway.draining import SERVING, Draining
from ingest.gateway.drops import DropReason, Drops
from ingest.gateway.ends import Ends
from ingest.gateway.events import Events
from ingest.gateway.gaps import Gaps
from ingest.gateway.histories import Histories
from ingest.gateway.hosts import Host, LinuxHost
from ingest.gateway.lake.reader import LakeReader
from ingest.gateway.latency import GatewayLatencies
from ingest.gateway.listeners.listeners import Listeners
from ingest.gateway.listeners.settings import advertised
from ingest.gateway.log_room import LogRoom
from ingest.gateway.lookup import Lookup
from ingest.gateway.opening import OpeningContext
from ingest.gateway.partitions import Partitions
from ingest.gateway.peers import Lease, Peers
from ingest.gateway.publishing import Publisher
from ingest.gateway.receiving import ReceiverContext
from ingest.gateway.redirecting import Redirecting
from ingest.gateway.resuming import Resumer
from ingest.gateway.retained import Retained
from ingest.gateway.retained_questions import RetainedAnswers, RetainedQuestions
from ingest.gateway.retained_scans import RetainedSources
from ingest.gateway.retained_shards import RetainedShards
from ingest.gateway.routes import Routes
from ingest.gateway.sending import Sender, SenderContext
from ingest.gateway.session_log import SessionLog
from ingest.gateway.sessions import Sessions
from ingest.gateway.settings import GatewaySettings
from ingest.gateway.shards import Actions, Shards
from ingest.gateway.share_groups import ShareGroups
from ingest.gateway.share_log import ShareLog
from ingest.gateway.share_settling import ShareSettler
from ingest.gateway.store.database import Database
from ingest.gateway.subscribing import SubscriberContext
from ingest.gateway.system_topics import Counted, SystemTopics
from ingest.gateway.tasks import Tasks
from ingest.gateway.tracing import TracingDelivery, TracingPublisher
from ingest.gateway.wanted_events import WantedEvents
from ingest.gateway.wills import Wills
from ingest.session.share_groups import SHARE
from ingest.session.subscriptions import Subscriptions
from mqlake.clock import Clock
from mqlake.credentials import CredentialsError
from mqlake.errors import (
    BatchNotTaken,
    InvalidRecord,
    LogError,
    NewerRecord,
    OffsetGone,
    OperationalError,
)
from mqlake.identifiers import MessageIdentifiers, machine_number
from mqlake.log.contract import LogAccess
from mqlake.log.versioned_writer import VersionedWriter
from mqlake.offsets import latest
from mqlake.record_versions import RECORD_VERSION
from mqlake.records import (
    ROUTES,
    Route,
    decode_route_key,
    delivery_topic,
)
from mqlake.shard_records import Run

if TYPE_CHECKING:
    from ingest.session.effects import Ended
    from ingest.session.share_parts import GroupKey
    from mqlake.tracing import Tracer

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.25
"""How often the disk is looked at, subscriptions settle, wills and expiries are due."""

STUCK_SECONDS: Final = 5.0
"""An unanswered barrier older than this means that deliveries do not flow."""

SHARDS_SECONDS: Final = 60.0
"""How long nothing may come while a starting gateway reads the shards that it is to own."""

RETAINED_SECONDS: Final = 600.0
"""How long it may take to read the retained messages that it has a copy of."""

LOOK_SECONDS: Final = 0.005

SHUTDOWN_SECONDS: Final = 5.0


class Gateway:
    """One gateway process.

    Args:
        settings: Who it is and what it allows.
        log: Where messages, routes, barriers and sessions go and come from.
        partitions: Of the log's topics.
        clock: For message times and timeouts.
        tracer: Makes spans of messages; without one there are none.
        host: Tells processes of this machine apart.
        records: The newest version of records that it knows; the one of this release.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        log: LogAccess,
        partitions: Partitions,
        clock: Clock,
        tracer: "Tracer | None" = None,
        host: Host | None = None,
        records: int = RECORD_VERSION,
    ) -> None:
        self.settings = settings
        writer = VersionedWriter(log.writer)
        log = replace(log, writer=writer)
        self.incarnation = secrets.token_hex(8)
        self.me = Run(settings.name, self.incarnation)
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.counters = Counters()
        self.latencies = GatewayLatencies(clock)
        self.origin = f"{settings.site}/{settings.name}"
        self.subscriptions: Subscriptions[Sender] = Subscriptions(settings.share_strategy)
        self.events = Events(log.writer, settings.name, self.counters, clock)
        self.drops = Drops(self.counters, self.events)
        context = Context(
            settings, self.me, clock, self.loop, self.counters, self.events, self.drops
        )
        self._writer = writer
        self._reader = log.open_reader()
        self._ends = Ends(self._reader)
        self.delivered = Delivered(partitions.inbound)
        self.connections = Connections(self.counters, settings.max_connections)
        self.delivery_events = DeliveryEvents(
            self.events,
            log.writer,
            self.counters,
            settings.delivery_events_per_second,
            self.loop,
        )
        self._wanted_events = WantedEvents(
            log.open_reader(), lambda: self.delivery_events.want(self._wanted_events)
        )
        self._database = Database(settings.store_dir)
        self.retained: Retained = Retained(self._database, clock)
        self.authenticator = Authenticator(
            settings.credentials_file,
            allow_anonymous=settings.allow_anonymous,
            failed_logins_per_minute=settings.failed_logins_per_minute,
            clock=clock,
        )
        self.deadlines = Deadlines(self.loop)
        self.tasks = Tasks(self.loop)
        self.lease = Lease(clock, settings.lease_seconds, self._lease_lost)
        self.peers = Peers(
            writer, log.open_reader(), self.me, clock, self.lease, host or LinuxHost(), records
        )
        self.peers.on_superseded = self._superseded
        self.peers.on_version = writer.use
        self.peers.on_outdated = self._outdated
        writer.use(self.peers.version)
        self.session_log = SessionLog(writer, self.me, self.lease, partitions.sessions)
        self.share_log = ShareLog(writer, self.me, self.lease, partitions.sessions)
        self.routes = Routes(
            settings.name,
            self.incarnation,
            writer,
            partitions.inbound,
            linger_seconds=settings.route_linger_seconds,
            barrier_timeout_seconds=settings.barrier_timeout_seconds,
            clock=clock,
            share_strategy=settings.share_strategy,
        )
        inward = (
            writer,
            self.routes,
            MessageIdentifiers(clock, datacenter=settings.datacenter, machine=machine_number()),
            self.counters,
            clock,
            partitions.inbound,
            self.latencies,
        )
        self.publisher = (
            Publisher(*inward)
            if tracer is None
            else TracingPublisher(*inward, tracer=tracer, gateway=settings.name)
        )
        self.wills = Wills(self.publisher, self.origin)
        self._lake = None if settings.lake_dir is None else LakeReader(settings.lake_dir)
        self.lookup = Lookup(log.ranges, self._ends.inbound, clock)
        catching_up = CatchingUp(
            log.ranges, self._lake, self.delivered.next_offsets, self._ends.inbound, self.drops
        )
        gaps = Gaps(context, catching_up)
        self.share_groups = ShareGroups(
            context,
            self.share_log,
            self.routes,
            self.subscriptions,
            self.delivered,
            self._ends,
            self.lookup,
            gaps,
        )
        self.shards = Shards(
            self.me,
            partitions.sessions,
            writer,
            log.open_reader(),
            log.open_reader(),
            self._database,
            self.peers,
            self.lease,
            clock,
            Actions(
                find=self.lookup.find,
                next_offsets=self._next_published,
                publish_wills=self.wills.publish,
                pass_on=self.share_groups.pass_on_stored,
                ended=self._session_ended,
                withdraw=ShareSettler(context, log, self._ends, partitions.inbound).withdraw,
                group_ended=self._group_ended,
                told=self.told,
            ),
        )
        self.sessions = Sessions(
            context,
            self.session_log,
            self.share_log,
            self.shards,
            self.share_groups,
            self.delivered,
            self.peers,
            self.lease,
        )
        self.system_topics = SystemTopics(
            context, Counted(self.sessions, self.subscriptions, self.retained)
        )
        self.retained_shards = RetainedShards(
            settings.name,
            self.retained,
            self.peers,
            log.ranges,
            self._lake,
            self.routes,
            partitions.inbound,
        )
        self.retained_questions = RetainedQuestions(
            self.me, log.writer, self.retained, self.retained_shards, clock
        )
        self._retained_answers = RetainedAnswers(
            settings.name, log.writer, self.retained, self.loop
        )
        self.resumer = Resumer(context, catching_up, gaps, self.lookup, self._lake)
        self.histories = Histories(context, self.subscriptions, catching_up)
        self.draining = Draining(context, self.connections, lambda: self.is_idle)
        redirecting = None
        if settings.redirect_clients:
            redirecting = Redirecting(
                settings.name, lambda: self.shards.places, self.peers.address, clock
            )
        self._control = Control(
            context,
            self.sessions,
            self.subscriptions,
            self.draining,
            self.reload,
            self.retained_questions.receive_answer,
            self.told,
        )
        outward = (
            self.delivered,
            self.subscriptions,
            self.share_groups,
            self.retained,
            self.routes,
            self.counters,
            self.drops,
            clock,
            self._control.process,
            self._retained_answers.receive_question,
            self.delivery_events,
            self.latencies,
            self.lease,
        )
        self._delivery = (
            Delivery(*outward)
            if tracer is None
            else TracingDelivery(*outward, tracer=tracer, gateway=settings.name)
        )
        self.log_room = LogRoom(self.loop)
        senders = SenderContext(
            context,
            self.delivery_events,
            self.share_groups,
            RetainedSources(
                self.loop,
                self.retained,
                self.retained_questions,
                self.system_topics,
                self.lease,
                self.delivered,
                lambda key: writer.partition_of(key, partitions.inbound),
            ),
        )
        of_session = SessionContext(
            self.me,
            self.origin,
            clock,
            senders,
            self.subscriptions,
            self.share_groups,
            self.histories,
            self.publisher,
            self.delivered,
            self.session_log,
            self.share_log,
            self.sessions.release_if_stored,
        )
        of_connection = ConnectionContext(
            context,
            self.connections,
            self.deadlines,
            self.draining,
            self.authenticator,
            redirecting,
            OpeningContext(context, of_session, self.sessions, self.resumer),
            ReceiverContext(context, self.publisher, self.lookup, self.log_room),
            SubscriberContext(
                context,
                self.tasks,
                self.routes,
                self.share_groups,
                self.histories,
                self.publisher,
                self.delivered,
            ),
        )
        self._make_connection = partial(ClientConnection, of_connection)
        self.listeners = Listeners(
            settings.all_listeners, timeout_seconds=settings.connect_timeout_seconds
        )
        self._reload: asyncio.Task[None] | None = None
        self._is_open = False
        self._problem = "starting"
        self._bug = ""
        self._failure: OperationalError | None = None
        self._is_trusted = True
        self._is_confirming = False
        self._stop: asyncio.Event

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then take leave of the clients and the router.

        Raises:
            LogError: The log cannot be reached at the start.
            OperationalError: The port cannot be opened, or deliveries are gone.
        """
        self._stop = stop
        self.loop.set_exception_handler(self._report_bug)
        try:
            await self._open_log()
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(work)
                    for work in (
                        self.routes.run(),
                        self.lookup.run(),
                        self.resumer.run(),
                        self.histories.run(),
                        self.share_groups.run(),
                        self._tick(),
                        self.draining.run(),
                    )
                ]
                try:
                    await self._listen()
                    await stop.wait()
                    if self._is_trusted:
                        await self._shut_down()
                    else:
                        self._close_connections()
                finally:
                    for task in running:
                        task.cancel()
            if self._failure is not None:
                raise self._failure
        finally:
            self.listeners.stop_accepting()
            self.tasks.close()
            self.authenticator.close()
            await self._reader.close()
            await self.shards.close()
            await self.retained_shards.close()
            await self.peers.close()
            await self._wanted_events.close()
            if self._lake is not None:
                await self._lake.close()

    # What connections ask of the gateway

    @property
    def is_idle(self) -> bool:
        """Whether no client is here and the log has everything of those that were."""
        return (
            self.sessions.is_idle
            and self.share_groups.is_idle
            and self.session_log.is_saved
            and self.share_log.is_saved
            and self.shards.is_idle
            and not self._writer.queued()
        )

    # Health

    def health(self) -> tuple[bool, str]:
        """Return whether messages flow, and one line about it."""
        problem = self._problem or self._bug
        if not problem:
            if not self.routes.is_answered:
                problem = "waiting for the router's first answer"
            elif self.routes.oldest_wait_seconds > STUCK_SECONDS:
                problem = f"no answer from the router for {self.routes.oldest_wait_seconds:.0f} s"
            elif self.publisher.is_refusing:
                problem = f"publishers are refused: {self.publisher.is_refusing}"
        if problem:
            return False, problem
        clients = self.sessions.connected_count
        state = "" if self.draining.state == SERVING else f", {self.draining.state}"
        return True, f"{clients} clients, {len(self.subscriptions)} subscriptions{state}"

    def figures(self) -> dict[str, Any]:
        """Return what is worth showing of this gateway."""
        return {
            "address": f"{self.settings.host}:{self.settings.port}",
            "listeners": list(self.listeners.addresses),
            **self._load(),
            "retained": len(self.retained),
            **self._counts(),
        }

    def queues(self) -> dict[str, float]:
        """Return what waits here, and how far our clock is ahead of the log's, by name."""
        queues: dict[str, float] = {
            "log_queue_records": self._writer.queued(),
            "clock_ahead_seconds": self.peers.clock_ahead_seconds,
        }
        if self._is_open:
            queues["waiting_wills"] = self.wills.waiting
            queues["refusing_publishers"] = int(bool(self.publisher.is_refusing))
            queues["route_wait_seconds"] = self.routes.oldest_wait_seconds
        return queues

    def _load(self) -> dict[str, int]:
        return {
            "clients": self.sessions.connected_count,
            "sessions": len(self.sessions),
            "subscriptions": len(self.subscriptions),
        }

    def _counts(self) -> dict[str, int]:
        return {name: getattr(self.counters, name) for name in Counters.__slots__}

    # Tasks

    async def _open_log(self) -> None:
        settings = self.settings
        await self.peers.open()
        await self._wanted_events.open()
        self._beat()
        await self.shards.open()
        stale = self._own_routes(await self._reader.read_compacted(ROUTES))
        # From the end: no client of this run can be owed what lies before its first barrier.
        log_topic = delivery_topic(settings.name)
        ends = await self._reader.end_offsets(log_topic)
        self.delivered.next = ends[0]
        await self._reader.start(
            log_topic, ends, self._delivery.receive_records, self._report_log_error
        )
        self._watch_disk()
        starts = await self.routes.open(stale)
        self.publisher.acked[:] = starts
        marks = self.delivered.marks
        # The answer to the first barrier may be here already.
        marks[:] = latest(marks, [start - 1 for start in starts])
        self._is_open = True
        self._beat()
        await self._own_shards()
        await self._load_retained()

    def _own_routes(self, keys: Any) -> list[Route]:
        """Return the routes that an earlier run of this gateway has left in the log."""
        routes = []
        for key in keys:
            try:
                route = decode_route_key(key)
            except InvalidRecord as exc:
                logger.warning("route ignored", extra={"fields": {"reason": str(exc)}})
                continue
            if route.gateway == self.settings.name:
                routes.append(route)
        return routes

    async def _listen(self) -> None:
        self.system_topics.process_due()
        await self.listeners.start(self._make_connection)
        self._problem = ""

    async def _own_shards(self) -> None:
        """Wait until this gateway owns the shards that it is to own.

        Raises:
            LogError: They could not be read in time.
        """
        position, read_at = -1, self.loop.time()
        while not self.shards.is_settled:
            if self.shards.position != position:
                position, read_at = self.shards.position, self.loop.time()
            elif self.loop.time() - read_at > SHARDS_SECONDS:
                raise LogError(
                    f"the shards of this gateway were not read: nothing came for "
                    f"{SHARDS_SECONDS:.0f} s",
                    definite=True,
                )
            self._beat()
            self.shards.tick()
            await asyncio.sleep(LOOK_SECONDS)
        # What an earlier run of this gateway has left is settled before its clients come.
        self.shards.tick()
        try:
            async with asyncio.timeout(SHARDS_SECONDS):
                await self.shards.finish()
        except TimeoutError:
            raise LogError(
                f"the shards of this gateway were not settled within {SHARDS_SECONDS:.0f} s",
                definite=True,
            ) from None

    async def _load_retained(self) -> None:
        """Wait until this gateway has copies of the retained messages that it is to have.

        Raises:
            LogError: They could not be read in time.
        """
        try:
            async with asyncio.timeout(RETAINED_SECONDS):
                while not self.retained_shards.is_settled:
                    self._beat()
                    self.shards.tick()
                    self.retained_shards.tick()
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise LogError(
                f"retained messages were not read within {RETAINED_SECONDS:.0f} s", definite=True
            ) from None

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                self._do_what_is_due()
            except OperationalError as error:  # its store: only a new run reads again
                self._fail(error)

    def _do_what_is_due(self) -> None:
        self._watch_disk()
        self._beat()
        self.latencies.adjust()
        self.sessions.save_marks()
        self._delivery.settle()
        self.shards.tick()
        self.sessions.tick()
        self.retained_shards.tick()
        self.retained_questions.tick()
        self._renew_lease()
        self.drops.record()
        self.retained.purge()
        self.system_topics.process_due()

    def _beat(self) -> None:
        self.peers.beat(
            {
                "site": self.settings.site,
                "state": self.draining.state,
                "listeners": self.listeners.addresses,
                "addresses": advertised(self.settings.all_listeners, self.settings.advertised_host),
                "shards": self.shards.owned,
                "shard_count": self.shards.count,
                **self._load(),
                "counters": self._counts(),
                "latency": self.latencies.counts(),
            }
        )

    def _watch_disk(self) -> None:
        """Refuse messages before the log's disk is full: a full disk would stop the log itself."""
        log_dir = self.settings.log_dir
        if log_dir is None:
            return
        try:
            free = shutil.disk_usage(log_dir).free
        except OSError as exc:
            problem = f"the log's disk cannot be looked at: {exc.strerror}"
        else:
            least = self.settings.min_free_disk_bytes
            problem = ""
            if free < least:
                problem = f"{free >> 20} MiB free on the log's disk, {least >> 20} MiB needed"
        if problem != self.publisher.is_refusing:
            logger.warning(
                "publishers are %s",
                "refused" if problem else "accepted again",
                extra={"fields": {"reason": problem}},
            )
            self.publisher.is_refusing = problem

    def _report_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Show an exception that nothing was prepared for: what it interrupted is not done.

        After half a batch of the log, or when a store fails, this gateway ends: only a new run
        reads it again.
        """
        loop.default_exception_handler(context)
        reason = context.get("exception") or context["message"]
        self._bug = f"internal error, see the log: {reason}"
        error = context.get("exception")
        if isinstance(error, BatchNotTaken | OperationalError):
            is_newer = isinstance(error.__cause__, NewerRecord)
            self._fail(OperationalError(str(error) if is_newer else self._bug))

    def _fail(self, failure: OperationalError) -> None:
        """End without writing anything more: what this process knows is not to be trusted."""
        if self._failure is None:
            self._failure = failure
            self._is_trusted = False
            self.session_log.close()
            self.share_log.close()
            self._reader.pause()
            self._stop.set()

    # Whether this gateway may act

    def _superseded(self) -> None:
        self._fail(OperationalError(f"another gateway named {self.settings.name} has started"))

    def _outdated(self, reason: str) -> None:
        self._fail(OperationalError(reason))

    def _lease_lost(self) -> None:
        logger.warning(
            "this gateway was not heard of, nothing is delivered",
            extra={"fields": {"lease_seconds": self.lease.seconds}},
        )
        self.shards.suspend()

    def _renew_lease(self) -> None:
        """Find out what others have done, as soon as they hear this gateway again."""
        if self.lease.holds() or not self.lease.is_in_time() or self._is_confirming:
            return
        self._is_confirming = True
        self.share_groups.suspend()
        self.shards.reclaim()
        self.sessions.confirm(self.confirmed)

    def confirmed(self) -> None:
        """Go on: the sessions that are left are this gateway's."""
        logger.info("this gateway is heard of again")
        self._is_confirming = False
        self.lease.confirm()
        self.session_log.confirmed()
        self._delivery.confirmed()

    # What it does as owner of shards

    def _next_published(self) -> list[int]:
        return [offset + 1 for offset in self.publisher.acked]

    def _session_ended(self, ended: "Ended") -> None:
        key = ended.key
        self.share_log.forget_member(key, ended.shared_filters, ended.epoch)
        if ended.is_expired:
            logger.info(
                "session expired", extra={"fields": {"tenant": key[0], "client_id": key[1]}}
            )
            self.counters.sessions_expired += 1

    def _group_ended(self, group: "GroupKey", dropped: int) -> None:
        if dropped:
            self.drops.add(DropReason.NO_MEMBER, group.tenant, "", "", 1, dropped)

    def told(self, action: str, value: dict[str, Any]) -> None:
        """Take what the owner of a shard says.

        Raises:
            InvalidRecord: A member is missing.
        """
        if action == SHARE:
            self.share_groups.told(value)
        else:
            self.sessions.told(action, value)

    def reload(self) -> None:
        """Use new certificates and users for new connections; who is connected stays."""
        self._reload = self.loop.create_task(self._reload_files())

    async def _reload_files(self) -> None:
        await self.listeners.reload_certificates()
        try:
            users = await self.authenticator.reload()
        except CredentialsError as exc:
            logger.error(
                "credentials not reloaded, the old ones stay",
                extra={"fields": {"reason": str(exc)}},
            )
        else:
            if users is not None:
                logger.info("credentials reloaded", extra={"fields": {"users": users}})

    def _report_log_error(self, error: LogError) -> None:
        logger.warning("deliveries cannot be read", extra={"fields": {"reason": str(error)}})
        if isinstance(error, OffsetGone):
            # Nothing that comes later may count: sessions go on from where they are now, and the
            # next run reads what is gone here where it was published.
            self._reader.pause()
            self._failure = OperationalError(
                "the log has removed deliveries of this gateway before it read them; sessions "
                "get what they missed when their clients are back"
            )
            self._stop.set()

    def _close_connections(self) -> None:
        self.listeners.stop_accepting()
        self.connections.close_all()

    async def _shut_down(self) -> None:
        """Answer what the clients have sent, tell them, withdraw the routes."""
        self._problem = "stopping"
        self.listeners.stop_accepting()
        self.connections.hold_all()
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await self._writer.flush(SHUTDOWN_SECONDS)
        except (TimeoutError, LogError) as exc:
            logger.warning("the log did not take all", extra={"fields": {"reason": str(exc)}})
        self._close_connections()
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                while not (self.session_log.is_saved and self.share_log.is_saved):
                    await self._writer.flush(SHUTDOWN_SECONDS)
                    await asyncio.sleep(LOOK_SECONDS)
                await self.shards.finish()
        except (TimeoutError, LogError) as exc:  # another owner, or the next run, does the rest
            logger.warning("not all is settled", extra={"fields": {"reason": str(exc)}})
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await self.share_groups.close()
                self.peers.leave()
                await self.routes.close()
                await self._writer.flush(SHUTDOWN_SECONDS)
                await self.connections.wait_closed()
        except (TimeoutError, LogError) as exc:
            logger.warning("not all could be told", extra={"fields": {"reason": str(exc)}})
