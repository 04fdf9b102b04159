"""The lower parts of a gateway: the log, its name, publishing, retained messages."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ingest.gateway.authentication.authorizer import Authorizer
from ingest.gateway.base.connections import Connections
from ingest.gateway.base.context import Context
from ingest.gateway.base.counters import GatewayCounters
from ingest.gateway.base.denials import Denials
from ingest.gateway.base.drops import Drops
from ingest.gateway.base.ending import Ending
from ingest.gateway.base.events import Events
from ingest.gateway.base.tasks import Tasks
from ingest.gateway.base.tenant_counters import CountersOfTenants
from ingest.gateway.lake.reader import LakeReader
from ingest.gateway.limits.protection import Protection
from ingest.gateway.limits.shared_limits import SharedLimits
from ingest.gateway.load.latency import GatewayLatencies
from ingest.gateway.load.log_room import LogRoom
from ingest.gateway.load.memory import Memory
from ingest.gateway.load.overload import OverloadMeter
from ingest.gateway.log.delivered import Delivered
from ingest.gateway.log.ends import Ends
from ingest.gateway.log.lease import Lease
from ingest.gateway.peers.hosts import Host, LinuxHost
from ingest.gateway.peers.peers import Peers
from ingest.gateway.process.disk import DiskWatch
from ingest.gateway.process.growing import Growing
from ingest.gateway.process.tracing import TracingPublisher
from ingest.gateway.retained.retained import Retained
from ingest.gateway.retained.retained_publishers import RetainedPublishers
from ingest.gateway.retained.retained_questions import RetainedAnswers, RetainedQuestions
from ingest.gateway.retained.retained_quota import RetainedQuota
from ingest.gateway.retained.retained_shards import RetainedShards
from ingest.gateway.routing.late_routes import LateRoutes
from ingest.gateway.routing.publishing import Publisher
from ingest.gateway.routing.reach import Reach
from ingest.gateway.routing.routes import Routes
from ingest.gateway.sending.delivery_events import DeliveryEvents
from ingest.gateway.sending.wanted_events import WantedEvents
from ingest.gateway.sending.wills import Wills
from ingest.gateway.sharing.share_log import ShareLog
from ingest.gateway.store.database import Database
from ingest.session.subscriptions import Subscriptions
from mqlake.identifiers import MessageIdentifiers, machine_number
from mqlake.log.versioned_writer import VersionedWriter
from mqlake.log_disk import LogDisk
from mqlake.shard_records import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.gateway.log.partitions import Partitions
    from ingest.gateway.sending.sending import Sender
    from ingest.gateway.settings.gateway import GatewaySettings
    from mqlake.clock import Clock
    from mqlake.log.contract import LogAccess
    from mqlake.tracing import Tracer


class Foundation:
    """The lower parts of a gateway, made and not begun.

    Args:
        settings: Of the gateway.
        log: Where messages, routes, barriers and sessions go and come from.
        partitions: Of the log's topics.
        stop: Set when it is to end; it may do that itself.
        clock: For message times and timeouts.
        tracer: Makes spans of messages; without one there are none.
        host: Tells processes of this machine apart.
        records: The newest version of records that it knows; the one of this release.
        on_lease_lost: Called when others may take this gateway for dead.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        log: LogAccess,
        partitions: Partitions,
        stop: asyncio.Event,
        clock: Clock,
        tracer: Tracer | None,
        host: Host | None,
        records: int,
        on_lease_lost: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.me = me = Run(settings.name, secrets.token_hex(8))
        self.loop = loop = asyncio.get_running_loop()
        self.writer = writer = VersionedWriter(log.writer)
        spare = VersionedWriter(log.spare or log.writer)
        self.log = log = replace(log, writer=writer, spare=spare)
        self.reader = log.open_reader()
        self.ends = Ends(self.reader)
        self.partitions = partitions
        self.counters = counters = GatewayCounters()
        events = Events(writer, settings.name, counters, clock, loop)
        of_tenants = CountersOfTenants(writer, me, clock)
        self.drops = drops = Drops(counters, of_tenants, events)
        self.denials = denials = Denials(counters, events)
        counted = counters, of_tenants
        self.context = Context(settings, me, clock, loop, *counted, events, drops, denials)
        self.tasks = Tasks(loop)
        self.ending = Ending(stop, self.reader)
        self.lease = lease = Lease(clock, settings.lease_seconds, on_lease_lost)
        writer.on_log_time = lease.heard_log

        def use_version(version: int) -> None:
            writer.use(version)
            spare.use(version)

        fail, identity = self.ending.fail, host or LinuxHost()
        self.peers = Peers(
            writer, spare, log.open_reader(), me, clock, lease, identity, use_version, fail, records
        )
        self.delivered = Delivered(partitions.inbound)
        shards = partitions.retained
        self.subscriptions: Subscriptions[Sender] = Subscriptions(settings.share_strategy)
        self.database = Database(settings.store_dir)
        self.retained = Retained(self.database, shards, clock)
        self._make_limits(shards)
        self.lake = None if settings.lake_dir is None else LakeReader(settings.lake_dir)
        self.latencies = GatewayLatencies(clock)
        self.delivery_events = told = DeliveryEvents(
            events, writer, counters, settings.delivery_events_per_second, loop
        )
        self.wanted_events = WantedEvents(log.open_reader(), lambda: told.want(self.wanted_events))
        self.reach = Reach(settings.suback_sites_seconds, loop)
        self.log_room = LogRoom(loop)
        self.share_log = ShareLog(writer, me, lease, self.ending, partitions.sessions)
        self._make_protection()
        self._make_publishing(tracer)
        self._make_retained()

    def _make_limits(self, shards: int) -> None:
        """Make the parts that count what many clients share, and what they have retained."""
        settings, usage = self.settings, self.retained.usage
        reached = self.subscriptions.reach, settings.name
        counts = any(one.deliveries_per_second for one in settings.all_listeners)
        self.shared_limits = SharedLimits(
            settings.limits, self.loop, self.peers.shared, usage, *reached, counts_deliveries=counts
        )
        self.peers.on_word = self.shared_limits.heard
        self.shard_of = partial(self.writer.partition_of, partitions=shards)
        publishers = RetainedPublishers(settings.limits, self.retained, shards, self.context.clock)
        quota = self.shared_limits, publishers, self.retained
        self.retained_quota = RetainedQuota(*quota, self.shard_of)

    def _make_protection(self) -> None:
        """Make the parts that see when there is too much to do."""
        settings, writer = self.settings, self.writer
        self.connections = sockets = Connections(self.counters, settings.max_connections)
        memory, held = Memory(settings.overload.memory_bytes), self.log_room.__len__
        meter = OverloadMeter(
            writer.queued, held, memory.part, sockets.part, writer.round_trip_seconds
        )
        self.overload = Protection(self.context, meter, sockets)

    def _make_publishing(self, tracer: Tracer | None) -> None:
        """Make the parts that messages go through on their way in."""
        context, settings, partitions = self.context, self.settings, self.partitions.inbound
        self.routes = Routes(
            settings.name,
            self.me.incarnation,
            self.writer,
            partitions,
            lambda: self.peers.named_from,
            linger_seconds=settings.route_linger_seconds,
            barrier_timeout_seconds=settings.barrier_timeout_seconds,
            clock=context.clock,
            may_count=self.share_log.counts,
            share_strategy=settings.share_strategy,
            asks_sites=settings.suback_sites_seconds > 0,
        )
        self.late_routes = LateRoutes(self.me, self.log.ranges, self.ends, self.routes)
        identifiers = MessageIdentifiers(
            context.clock, datacenter=settings.datacenter, machine=machine_number()
        )
        inward = (context, self.writer, self.routes, identifiers, partitions, self.latencies)
        self.publisher = (
            Publisher(*inward) if tracer is None else TracingPublisher(*inward, tracer=tracer)
        )
        self.authorizer = Authorizer(settings.rights_file)
        asked = self.authorizer, self.retained_quota, self.shared_limits
        self.wills = Wills(self.publisher, context.origin, *asked, self.drops)
        self.disk = DiskWatch(LogDisk(settings.log_disk), self.publisher)
        counted = self.publisher, self.delivered, self.routes
        self.growing = Growing(
            self.partitions, self.writer, *counted, self.tasks, settings.lease_seconds
        )

    def _make_retained(self) -> None:
        """Make the parts that keep retained messages, and ask other gateways for theirs."""
        name, retained, partitions = self.settings.name, self.retained, self.partitions
        sources, clock = (self.log.ranges, self.lake, self.routes), self.context.clock
        self.retained_shards = shards = RetainedShards(
            name, retained, self.peers, *sources, partitions, clock
        )
        asked = self.writer, retained, shards, partitions, clock
        self.retained_questions = RetainedQuestions(self.me, *asked)
        self.retained_answers = RetainedAnswers(name, self.writer, retained, self.loop)
