"""The parts of a gateway, each with those that it uses; `ingest.gateway.process.process` runs them.

Nothing else knows all of this: each part is given the parts that it calls. Where two need each
other, the lower one is given a function.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ingest.gateway.authentication.authenticator import Authenticator
from ingest.gateway.authentication.authorizer import Authorizer
from ingest.gateway.authentication.links import open_chain
from ingest.gateway.base.connections import Connections
from ingest.gateway.base.context import Context
from ingest.gateway.base.counters import GatewayCounters
from ingest.gateway.base.deadlines import Deadlines
from ingest.gateway.base.denials import Denials
from ingest.gateway.base.drops import Drops
from ingest.gateway.base.ending import Ending
from ingest.gateway.base.events import Events
from ingest.gateway.base.reports import Reports
from ingest.gateway.base.tasks import Tasks
from ingest.gateway.base.tenant_counters import CountersOfTenants
from ingest.gateway.clients.connection import ClientConnection
from ingest.gateway.clients.connection_context import ConnectionContext
from ingest.gateway.clients.draining import Draining
from ingest.gateway.clients.opening import OpeningContext
from ingest.gateway.clients.receiver_context import ReceiverContext
from ingest.gateway.clients.redirecting import Redirecting
from ingest.gateway.clients.subscribing import SubscriberContext
from ingest.gateway.history.catching_up import CatchingUp
from ingest.gateway.history.gaps import Gaps
from ingest.gateway.history.lookup import Lookup
from ingest.gateway.history.remembered import RememberedLog
from ingest.gateway.lake.reader import LakeReader
from ingest.gateway.limits.applied_rights import AppliedRightsFollower
from ingest.gateway.limits.bans import Bans
from ingest.gateway.limits.client_limits import ConnectLimit
from ingest.gateway.limits.protection import Protection
from ingest.gateway.limits.shared_limits import SharedLimits
from ingest.gateway.limits.tenants import Tenants
from ingest.gateway.listeners.arrivals import Arrivals
from ingest.gateway.listeners.listeners import Listeners
from ingest.gateway.load.latency import GatewayLatencies
from ingest.gateway.load.log_room import LogRoom
from ingest.gateway.load.memory import Memory
from ingest.gateway.load.overload import OverloadMeter
from ingest.gateway.log.delivered import Delivered
from ingest.gateway.log.ends import Ends
from ingest.gateway.log.lease import Lease
from ingest.gateway.peers.hosts import Host, LinuxHost, boot_id
from ingest.gateway.peers.peers import HeartbeatLog, Peers
from ingest.gateway.process.agent_check import AgentCheck
from ingest.gateway.process.control import Control
from ingest.gateway.process.delivery import Delivery, DeliveryContext
from ingest.gateway.process.disk import DiskWatch
from ingest.gateway.process.growing import Growing
from ingest.gateway.process.reloading import Reloading
from ingest.gateway.process.renewal import Renewal
from ingest.gateway.process.status import Status, StatusContext
from ingest.gateway.process.tracing import TracingDelivery, TracingPublisher
from ingest.gateway.retained.advancing import Advancing
from ingest.gateway.retained.copying import Copying
from ingest.gateway.retained.retained import Retained
from ingest.gateway.retained.retained_questions import RetainedAnswers, RetainedQuestions
from ingest.gateway.retained.retained_quota import RetainedQuota
from ingest.gateway.retained.retained_shards import RetainedShards
from ingest.gateway.retained.system_topics import Counted, SystemTopics
from ingest.gateway.routing.late_routes import LateRoutes
from ingest.gateway.routing.publishing import Publisher
from ingest.gateway.routing.reach import Reach
from ingest.gateway.routing.routes import Routes, RouteSettings
from ingest.gateway.sending.delivery_events import DeliveryEvents
from ingest.gateway.sending.retained_scans import RetainedSources
from ingest.gateway.sending.sender_context import SenderContext
from ingest.gateway.sending.session_log import SessionLog
from ingest.gateway.sending.wanted_events import WantedEvents
from ingest.gateway.sending.wills import Wills
from ingest.gateway.sessions.histories import Histories
from ingest.gateway.sessions.resuming import Resumer
from ingest.gateway.sessions.session_context import SessionContext
from ingest.gateway.sessions.sessions import Sessions
from ingest.gateway.sessions.slow_clients import SlowClients
from ingest.gateway.shards.ended import EndedSessions
from ingest.gateway.shards.shard_acts import Actions
from ingest.gateway.shards.shard_readers import ShardReaders
from ingest.gateway.shards.shards import Shards
from ingest.gateway.sharing.share_gaps import ShareGaps
from ingest.gateway.sharing.share_groups import ShareGroups
from ingest.gateway.sharing.share_log import ShareLog
from ingest.gateway.sharing.share_routes import ShareRoutes
from ingest.gateway.sharing.share_settling import ShareSettler
from ingest.gateway.store.database import Database
from ingest.gateway.store.retained import open_kept
from ingest.session.groups.share_acts import SHARE
from ingest.session.subscriptions import Subscriptions
from mqlake.identifiers import MessageIdentifiers, machine_number
from mqlake.log.versioned_writer import VersionedWriter
from mqlake.processes.log_disk import LogDisk
from mqlake.records.shards import Run
from mqlake.records.versions import RECORD_VERSION

if TYPE_CHECKING:
    from ingest.gateway.log.partitions import Partitions
    from ingest.gateway.peers.hosts import Host
    from ingest.gateway.sending.sending import Sender
    from ingest.gateway.settings.gateway import GatewaySettings
    from mqlake.clock import Clock
    from mqlake.log.contract import LogAccess
    from mqlake.processes.tracing import Tracer


class Gateway:
    """All parts of a gateway, made and not begun.

    Args:
        settings: Settings of the gateway, with defaults filled in.
        log: Log to which messages, routes, barriers and sessions go, and from which they come.
        partitions: Numbers of partitions of the log topics.
        stop: Event that ends the gateway when it is set; the gateway may set it, too.
        clock: Clock for message times and timeouts.
        tracer: Makes spans of messages; None: there are no spans.
        host: Tells processes of this machine apart.
        records: The newest version of records that the gateway knows; the one of this release.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        log: LogAccess,
        partitions: Partitions,
        stop: asyncio.Event,
        clock: Clock,
        tracer: Tracer | None = None,
        host: Host | None = None,
        records: int = RECORD_VERSION,
    ) -> None:
        self.settings = settings
        self.me = Run(settings.name, secrets.token_hex(8))
        self.loop = asyncio.get_running_loop()
        self.partitions = partitions
        self._make_log(log, clock, stop)
        self._make_peers(host or LinuxHost(), records)
        self._make_limits()
        self._make_protection()
        self._make_publishing(tracer)
        self._make_retained()
        self._make_sessions()
        self._make_doors()
        self._make_delivery(tracer)
        self._make_clients()

    def _make_log(self, log: LogAccess, clock: Clock, stop: asyncio.Event) -> None:
        """Make the parts that write to the log, and the context of all others."""
        settings, loop = self.settings, self.loop
        self.writer = writer = VersionedWriter(log.writer)
        self.spare = VersionedWriter(log.spare or log.writer)
        self.log = log = replace(log, writer=writer, spare=self.spare)
        self.reader = log.open_reader()
        self.ends = Ends(self.reader)
        self.counters = counters = GatewayCounters()
        events = Events(writer, settings.name, counters, clock, loop)
        of_tenants = CountersOfTenants(writer, self.me, clock)
        self.drops = Drops(counters, of_tenants, events)
        self.denials = Denials(counters, events)
        self.context = Context(
            settings=settings,
            me=self.me,
            clock=clock,
            loop=loop,
            counters=counters,
            of_tenants=of_tenants,
            events=events,
            drops=self.drops,
            denials=self.denials,
        )
        self.tasks = Tasks(loop)
        self.ending = Ending(stop, self.reader)
        self.lease = Lease(clock, settings.lease_seconds, lambda: self.shards.suspend())
        self.answers = Reports(self.lease.holds)
        writer.on_log_time = self._reports_come

    def _make_peers(self, host: Host, records: int) -> None:
        """Make the parts that know other gateways, and what they all have."""
        settings, clock, shards = self.settings, self.context.clock, self.partitions.retained
        self.peers = Peers(
            HeartbeatLog(self.writer, self.spare, self.log.open_reader()),
            self.me,
            clock,
            self.lease,
            host,
            use_version=self._use_version,
            fail=self.ending.fail,
            records=records,
        )
        self.delivered = Delivered(self.partitions.inbound)
        self.subscriptions: Subscriptions[Sender] = Subscriptions(settings.share_strategy)
        self.database = Database(settings.store_dir)
        self.kept = open_kept(settings.store_dir, settings.name, shards, boot_id())
        self.retained = Retained(self.kept, shards, clock)
        self.lake = None if settings.lake_dir is None else LakeReader(settings.lake_dir)
        self.latencies = GatewayLatencies(clock)
        self.reach = Reach(settings.suback_sites_seconds, self.loop)
        self.log_room = LogRoom(self.loop)
        self.share_log = ShareLog(
            self.writer, self.me, self.lease, self.ending, self.partitions.sessions, self.loop
        )
        per_second = settings.delivery_events_per_second
        self.delivery_events = DeliveryEvents(
            self.context.events, self.writer, self.counters, per_second, self.loop
        )
        self.wanted_events = WantedEvents(
            self.log.open_reader(), lambda: self.delivery_events.want(self.wanted_events)
        )

    def _make_limits(self) -> None:
        """Make the parts that count what many clients share."""
        settings, shards, retained = self.settings, self.partitions.retained, self.retained
        self.shared_limits = SharedLimits(
            settings.limits,
            self.loop,
            self.peers.shared,
            retained.usage,
            self.subscriptions.reach,
            settings.name,
            counts_deliveries=any(one.deliveries_per_second for one in settings.all_listeners),
        )
        self.peers.on_word = self.shared_limits.heard
        self.shard_of = partial(self.writer.partition_of, partitions=shards)
        self.retained_quota = RetainedQuota(self.shared_limits, retained, self.shard_of)

    def _make_protection(self) -> None:
        """Make the parts that see when there is too much to do."""
        settings, writer = self.settings, self.writer
        self.connections = Connections(self.counters, settings.max_connections)
        meter = OverloadMeter(
            queued=writer.queued,
            paused_by_log=self.log_room.__len__,
            memory=Memory(settings.overload.memory_bytes).part,
            connections=self.connections.part,
            round_trip=writer.round_trip_seconds,
        )
        self.overload = Protection(self.context, meter, self.connections)

    def _make_publishing(self, tracer: Tracer | None) -> None:
        """Make the parts that messages go through on their way in."""
        context, settings, partitions = self.context, self.settings, self.partitions.inbound
        self.routes = routes = Routes(
            self.me,
            self.writer,
            partitions,
            lambda: self.peers.named_from,
            settings=RouteSettings(
                linger_seconds=settings.route_linger_seconds,
                barrier_timeout_seconds=settings.barrier_timeout_seconds,
                share_strategy=settings.share_strategy,
                asks_sites=settings.suback_sites_seconds > 0,
            ),
            clock=context.clock,
            may_count=self.share_log.counts,
        )
        self.late_routes = LateRoutes(self.me, self.log.ranges, self.ends, routes)
        identifiers = MessageIdentifiers(
            context.clock, datacenter=settings.datacenter, machine=machine_number()
        )
        make = Publisher if tracer is None else partial(TracingPublisher, tracer)
        self.publisher: Publisher = make(
            context, self.writer, routes, identifiers, partitions, self.latencies
        )
        self.authorizer = Authorizer(settings.rights_file)
        self.wills = Wills(
            self.publisher,
            context.origin,
            self.authorizer,
            self.retained_quota,
            self.shared_limits,
            self.drops,
        )
        self.disk = DiskWatch(LogDisk(settings.log_disk), self.publisher)
        self.growing = Growing(
            self.partitions,
            self.writer,
            self.publisher,
            self.delivered,
            routes,
            self.tasks,
            settings.lease_seconds,
        )

    def _make_retained(self) -> None:
        """Make the parts that keep retained messages, and ask other gateways for theirs."""
        name, retained, partitions = self.settings.name, self.retained, self.partitions
        clock = self.context.clock
        copying = Copying(retained, self.log.ranges, self.ends, self.lake)
        self.retained_shards = RetainedShards(
            name, retained, self.peers, copying, self.routes, partitions, clock
        )
        self.advancing = Advancing(self.delivered, self.ends, self.routes, clock)
        self.retained_questions = RetainedQuestions(
            self.me, self.writer, retained, self.retained_shards, partitions, clock
        )
        self.retained_answers = RetainedAnswers(name, self.writer, retained, self.loop)

    def _make_sessions(self) -> None:
        """Make the keepers of sessions and share groups, held here or owned."""
        context, log, writer, lease = self.context, self.log, self.writer, self.lease
        ends, peers, count = self.ends, self.peers, self.partitions.sessions
        subscriptions, delivered = self.subscriptions, self.delivered
        self.session_log = SessionLog(writer, self.me, lease, self.ending, count, self.loop)
        self.lookup = lookup = Lookup(log.ranges, ends.inbound, context.clock)
        reached, drops, counts = delivered.next_offsets, self.drops, self.partitions
        reading = partial(CatchingUp, log.ranges, self.lake, reached, ends.inbound, drops, counts)
        catching_up, returning = reading(), reading(RememberedLog())
        gaps = Gaps(context, catching_up)
        missed = ShareGaps(context, catching_up, gaps, ends)
        self.histories = Histories(context, subscriptions, catching_up)
        self.slow_clients = SlowClients(context, subscriptions, catching_up, delivered, lease)
        self.resumer = Resumer(context, returning, gaps, lookup, self.lake, self.slow_clients)
        then = ShareRoutes(context, log.ranges, ends)
        self.settler = settler = ShareSettler(context, log, ends, counts, then)
        self.share_groups = groups = ShareGroups(
            context, self.share_log, self.routes, subscriptions, delivered, ends, lookup, missed
        )
        ended = EndedSessions(context, self.share_log)
        actions = Actions(
            find=lookup.find,
            next_offsets=self.publisher.next_offsets,
            end_offsets=ends.inbound,
            publish_wills=self.wills.publish,
            pass_on=groups.pass_on_stored,
            ended=ended.session,
            withdraw=settler.withdraw,
            group_ended=ended.group,
            told=self._told,
        )
        self.shards = shards = Shards(
            self.me, count, writer, ShardReaders.open(log), self.database, peers, lease, actions
        )
        self.shared_limits.absent_subscriptions = shards.absent_subscriptions
        self.sessions = sessions = Sessions(
            context, self.session_log, self.share_log, shards, groups, delivered, peers, lease
        )
        self.histories.on_live = sessions.marks.wait_for_offsets
        self.slow_clients.on_live = sessions.marks.wait_for_offsets
        self.counted = Counted(sessions, subscriptions, self.retained)
        self.system_topics = SystemTopics(context, self.counted, self.overload, self._clients_of)

    def _make_doors(self) -> None:
        """Make the parts that let clients in, and know those that are in."""
        settings, context, connections = self.settings, self.context, self.connections
        clock = context.clock
        self.draining = Draining(context, connections, self._is_idle)
        self.authenticator = Authenticator(
            settings.credentials_file,
            allow_anonymous=settings.lets_anybody_in,
            failed_logins_per_minute=settings.failed_logins_per_minute,
            clock=clock,
        )
        self.chain = open_chain(
            self.authenticator,
            settings.authenticators,
            clock,
            allow_anonymous=settings.lets_anybody_in,
        )
        self.bans = Bans(settings.bans_file, context, connections, self.writer)
        rights = AppliedRightsFollower(self.authorizer, connections, self.peers, self.tasks)
        self.tenants = Tenants(
            settings, connections, self.shared_limits, context.of_tenants, self.loop
        )
        followers = self.bans, rights, self.tenants, self.reach, self.growing
        self.peers.on_other = [one.receive for one in followers]
        self.arrivals = Arrivals()
        self.listeners = Listeners(
            settings.all_listeners, self.arrivals, timeout_seconds=settings.connect_timeout_seconds
        )
        self.agent_check = AgentCheck(
            settings.host,
            settings.agent_check_port,
            state=lambda: self.draining.state,
            level=lambda: self.overload.level,
        )
        self.reloading = Reloading(
            self.listeners, self.chain, self.authorizer, self.bans, connections, self.tasks, context
        )
        self.redirecting = None
        if settings.redirect_clients:
            self.redirecting = Redirecting(
                settings.name, lambda: self.shards.places, self.peers.address, clock
            )

    def _make_delivery(self, tracer: Tracer | None) -> None:
        """Make the parts for messages on their way out, and for questions that come with them."""
        context, groups, lease = self.context, self.share_groups, self.lease
        control = Control(
            context,
            self.sessions,
            self.subscriptions,
            self.draining,
            reload=self.reloading.begin,
            on_answer=self.retained_questions.receive_answer,
            told=self._told,
        )
        outward = DeliveryContext(
            context=context,
            delivered=self.delivered,
            subscriptions=self.subscriptions,
            share_groups=groups,
            settler=self.settler,
            retained=self.retained,
            routes=self.routes,
            on_control=control.process,
            on_question=self.retained_answers.receive_question,
            told=self.delivery_events,
            latencies=self.latencies,
            lease=lease,
            limits=self.shared_limits,
            ranges=self.log.ranges,
            ends=self.ends,
            on_gone=self._deliveries_gone,
            tasks=self.tasks,
        )
        delivery = Delivery(outward) if tracer is None else TracingDelivery(tracer, outward)
        kept, answers, tasks = self.session_log, self.answers, self.tasks
        self.delivery = delivery
        self.renewal = Renewal(
            lease, self.shards, groups, self.sessions, kept, answers, delivery, tasks
        )
        self.status = Status(
            StatusContext(
                context=context,
                writer=self.writer,
                counted=self.counted,
                connections=self.connections,
                listeners=self.listeners,
                draining=self.draining,
                publisher=self.publisher,
                wills=self.wills,
                routes=self.routes,
                shards=self.shards,
                peers=self.peers,
                slow_clients=self.slow_clients,
                resumer=self.resumer,
                authorizer=self.authorizer,
                latencies=self.latencies,
                overload=self.overload,
                shared_limits=self.shared_limits,
            )
        )

    def _make_clients(self) -> None:
        """Make the contexts of each client's connection and session."""
        context = self.context
        self.deadlines = Deadlines(self.loop)
        connections = ConnectionContext(
            settings=self.settings,
            incarnation=self.me.incarnation,
            clock=context.clock,
            loop=self.loop,
            counters=self.counters,
            of_tenants=context.of_tenants,
            denials=self.denials,
            drops=self.drops,
            connections=self.connections,
            arrivals=self.arrivals,
            deadlines=self.deadlines,
            overload=self.overload,
            draining=self.draining,
            connect_limit=ConnectLimit(self.settings.limits, self.loop),
            shared_limits=self.shared_limits,
            bans=self.bans,
            tenants=self.tenants,
            chain=self.chain,
            authorizer=self.authorizer,
            redirecting=self.redirecting,
            sessions=self.sessions,
            openings=OpeningContext(
                max_expiry_interval=self.settings.max_session_expiry_interval,
                drops=self.drops,
                events=context.events,
                of_session=self._session_context(),
                sessions=self.sessions,
                resumer=self.resumer,
            ),
            receivers=self._receiver_context(),
            subscribers=self._subscriber_context(),
        )
        self.make_connection = partial(ClientConnection, connections)

    def _session_context(self) -> SessionContext:
        context = self.context
        senders = SenderContext(
            settings=self.settings,
            clock=context.clock,
            counters=self.counters,
            of_tenants=context.of_tenants,
            drops=self.drops,
            told=self.delivery_events,
            groups=self.share_groups,
            retained=RetainedSources(
                loop=self.loop,
                own=self.retained,
                questions=self.retained_questions,
                system_topics=self.system_topics,
                lease=self.lease,
                delivered=self.delivered,
                shard_of=self.shard_of,
                charge=self.shared_limits.charge_retained,
            ),
        )
        return SessionContext(
            me=self.me,
            origin=context.origin,
            clock=context.clock,
            peers=self.peers,
            senders=senders,
            subscriptions=self.subscriptions,
            share_groups=self.share_groups,
            histories=self.histories,
            slow_clients=self.slow_clients,
            publisher=self.publisher,
            delivered=self.delivered,
            session_log=self.session_log,
            share_log=self.share_log,
            shared_limits=self.shared_limits,
            release=self.sessions.release_if_stored,
        )

    def _receiver_context(self) -> ReceiverContext:
        settings = self.settings
        return ReceiverContext(
            counters=self.counters,
            of_tenants=self.context.of_tenants,
            denials=self.denials,
            drops=self.drops,
            publisher=self.publisher,
            answers=self.answers,
            lookup=self.lookup,
            log_room=self.log_room,
            retained_quota=self.retained_quota,
            forwards=settings.limits.when_retained_full == "forward",
            window=settings.receive_maximum,
            most_levels=settings.max_topic_levels,
        )

    def _subscriber_context(self) -> SubscriberContext:
        return SubscriberContext(
            settings=self.settings,
            loop=self.loop,
            events=self.context.events,
            denials=self.denials,
            tasks=self.tasks,
            routes=self.routes,
            reach=self.reach,
            share_groups=self.share_groups,
            histories=self.histories,
            publisher=self.publisher,
            delivered=self.delivered,
            shared_limits=self.shared_limits,
        )

    # Called by lower parts

    def _use_version(self, version: int) -> None:
        self.writer.use(version)
        self.spare.use(version)

    def _reports_come(self, log_time_ms: int) -> None:
        """Look whether sessions are still held, before the log reports on what was written."""
        self.lease.heard_log(log_time_ms)
        self.answers.look()

    def _deliveries_gone(self, log_begins: dict[int, int]) -> None:
        """Have sessions, and copies of retained messages, get what deliveries do not bring."""
        self.sessions.deliveries_gone([log_begins[one] for one in range(len(log_begins))])
        self.retained_shards.begin_anew()

    def _clients_of(self, tenant: str) -> int:
        return self.shared_limits.connections_of(tenant)

    def _is_idle(self) -> bool:
        """Tell whether no client is here and the log has everything of those that were."""
        are_idle = all(one.is_idle for one in (self.sessions, self.share_groups, self.shards))
        are_saved = self.session_log.is_saved and self.share_log.is_saved
        return are_idle and are_saved and not self.writer.queued()

    def _told(self, action: str, value: dict[str, Any]) -> None:
        """Take a message of the owner of a shard.

        Raises:
            InvalidRecord: A member is missing.
        """
        if action == SHARE:
            self.share_groups.told(value)
        else:
            self.sessions.told(action, value)
