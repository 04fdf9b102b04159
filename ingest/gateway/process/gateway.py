"""The parts of a gateway, each with those that it uses; `ingest.gateway.process.process` runs them.

Nothing else knows all of this: each part is given the parts that it calls. Where two need each
other, the lower one is given a function.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ingest.gateway.authentication.authenticator import Authenticator
from ingest.gateway.authentication.links import open_chain
from ingest.gateway.base.deadlines import Deadlines
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
from ingest.gateway.limits.applied_rights import AppliedRightsFollower
from ingest.gateway.limits.bans import Bans
from ingest.gateway.limits.client_limits import ConnectLimit
from ingest.gateway.limits.tenants import Tenants
from ingest.gateway.listeners.arrivals import Arrivals
from ingest.gateway.listeners.listeners import Listeners
from ingest.gateway.process.agent_check import AgentCheck
from ingest.gateway.process.control import Control
from ingest.gateway.process.delivery import Delivery
from ingest.gateway.process.foundation import Foundation
from ingest.gateway.process.reloading import Reloading
from ingest.gateway.process.renewal import Renewal
from ingest.gateway.process.status import Status
from ingest.gateway.process.tracing import TracingDelivery
from ingest.gateway.retained.system_topics import Counted, SystemTopics
from ingest.gateway.sending.retained_scans import RetainedSources
from ingest.gateway.sending.sender_context import SenderContext
from ingest.gateway.sending.session_log import SessionLog
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
from ingest.gateway.sharing.share_routes import ShareRoutes
from ingest.gateway.sharing.share_settling import ShareSettler
from ingest.session.share_acts import SHARE
from mqlake.record_versions import RECORD_VERSION

if TYPE_CHECKING:
    import asyncio

    from ingest.gateway.log.partitions import Partitions
    from ingest.gateway.peers.hosts import Host
    from ingest.gateway.settings.gateway import GatewaySettings
    from mqlake.clock import Clock
    from mqlake.log.contract import LogAccess
    from mqlake.tracing import Tracer


class Gateway(Foundation):
    """All parts of a gateway; arguments as of `Foundation`."""

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
        lost = self._suspend
        super().__init__(settings, log, partitions, stop, clock, tracer, host, records, lost)
        self._make_sessions()
        self._make_doors()
        self._make_delivery(tracer)
        self._make_clients()

    def _make_sessions(self) -> None:
        """Make the keepers of sessions and share groups, held here or owned."""
        context, log, writer, lease = self.context, self.log, self.writer, self.lease
        me, ends, count = self.me, self.ends, self.partitions.sessions
        subscriptions, delivered, lake = self.subscriptions, self.delivered, self.lake
        self.session_log = SessionLog(writer, me, lease, self.ending, count)
        self.lookup = lookup = Lookup(log.ranges, ends.inbound, context.clock)
        reached = delivered.next_offsets, ends.inbound
        catching_up = CatchingUp(log.ranges, lake, *reached, self.drops, self.partitions)
        gaps = Gaps(context, catching_up)
        self.resumer = Resumer(context, catching_up, gaps, lookup, lake)
        missed = ShareGaps(context, catching_up, gaps, ends)
        self.histories = Histories(context, subscriptions, catching_up)
        self.slow_clients = SlowClients(context, subscriptions, catching_up, delivered, lease)
        self.share_groups = groups = ShareGroups(
            context, self.share_log, self.routes, subscriptions, delivered, ends, lookup, missed
        )
        ended = EndedSessions(context, self.share_log)
        then = ShareRoutes(context, log.ranges, ends)
        settler = ShareSettler(context, log, ends, self.partitions, then)
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
        stores = ShardReaders.open(log), self.database, self.peers
        self.shards = shards = Shards(me, count, writer, *stores, lease, context.clock, actions)
        self.shared_limits.absent_subscriptions = shards.absent_subscriptions
        logs = self.session_log, self.share_log
        self.sessions = Sessions(context, *logs, shards, groups, delivered, self.peers, lease)
        self.histories.on_live = self.sessions.marks.wait_for_offsets
        self.slow_clients.on_live = self.sessions.marks.wait_for_offsets
        self.counted = Counted(self.sessions, subscriptions, self.retained)
        self.system_topics = SystemTopics(context, self.counted, self.overload, self._clients_of)

    def _make_doors(self) -> None:
        """Make the parts that let clients in, and know those that are in."""
        settings = self.settings
        self.draining = Draining(self.context, self.connections, self._is_idle)
        clock = self.context.clock
        self.authenticator = Authenticator(
            settings.credentials_file,
            allow_anonymous=settings.lets_anybody_in,
            failed_logins_per_minute=settings.failed_logins_per_minute,
            clock=clock,
        )
        named, lets_in = settings.authenticators, settings.lets_anybody_in
        self.chain = open_chain(self.authenticator, named, clock, allow_anonymous=lets_in)
        self.bans = Bans(settings.bans_file, self.context, self.connections, self.writer)
        rights = AppliedRightsFollower(self.authorizer, self.connections, self.peers, self.tasks)
        counted = self.shared_limits, self.context.of_tenants
        self.tenants = Tenants(settings, self.connections, *counted, self.loop)
        followers = self.bans, rights, self.tenants, self.reach, self.growing
        self.peers.on_other = [one.receive for one in followers]
        self.arrivals = Arrivals()
        self.listeners = Listeners(
            settings.all_listeners,
            self.arrivals,
            timeout_seconds=settings.connect_timeout_seconds,
        )
        told = (lambda: self.draining.state), (lambda: self.overload.level)
        self.agent_check = AgentCheck(settings.host, settings.agent_check_port, *told)
        read = self.listeners, self.chain, self.authorizer, self.bans
        self.reloading = Reloading(*read, self.connections, self.tasks, self.context)
        asked = settings.name, (lambda: self.shards.places), self.peers.address, clock
        self.redirecting = Redirecting(*asked) if settings.redirect_clients else None

    def _make_delivery(self, tracer: Tracer | None) -> None:
        """Make the parts for messages on their way out, and for questions that come with them."""
        context, subscriptions, sessions = self.context, self.subscriptions, self.sessions
        reload, on_answer = self.reloading.begin, self.retained_questions.receive_answer
        control = Control(
            context, sessions, subscriptions, self.draining, reload, on_answer, self._told
        )
        known = self.delivered, subscriptions, self.share_groups, self.retained, self.routes
        asked = control.process, self.retained_answers.receive_question
        told = self.delivery_events, self.latencies, self.lease, self.shared_limits
        again = self.log.ranges, self.ends, self._deliveries_gone, self.tasks, self.ending
        outward = context, *known, *asked, *told, *again
        self.delivery = (
            Delivery(*outward) if tracer is None else TracingDelivery(*outward, tracer=tracer)
        )
        groups, shards = self.share_groups, self.shards
        self.renewal = Renewal(
            self.lease, shards, groups, sessions, self.session_log, self.delivery, self.tasks
        )
        inward = self.publisher, self.wills, self.routes
        doors = self.connections, self.listeners, self.draining
        held = shards, self.peers, self.slow_clients
        load = self.authorizer, self.latencies, self.overload
        below, limits = (context, self.writer, self.counted), self.shared_limits
        self.status = Status(*below, *doors, *inward, *held, *load, limits)

    def _make_clients(self) -> None:
        """Make the contexts of each client's connection and session."""
        context, publisher, delivered = self.context, self.publisher, self.delivered
        groups, histories, sessions = self.share_groups, self.histories, self.sessions
        self.deadlines = Deadlines(self.loop)
        asked = self.retained, self.retained_questions, self.system_topics
        charge = self.shared_limits.charge_retained
        sources = RetainedSources(self.loop, *asked, self.lease, delivered, self.shard_of, charge)
        of_session = SessionContext(
            self.me,
            context.origin,
            context.clock,
            self.peers,
            SenderContext(context, self.delivery_events, groups, sources),
            self.subscriptions,
            groups,
            histories,
            self.slow_clients,
            publisher,
            delivered,
            self.session_log,
            self.share_log,
            self.shared_limits,
            sessions.release_if_stored,
        )
        routed = self.tasks, self.routes, self.reach
        of_connection = ConnectionContext(
            context,
            self.connections,
            self.arrivals,
            self.deadlines,
            self.overload,
            self.draining,
            ConnectLimit(self.settings.limits, self.loop),
            self.shared_limits,
            self.bans,
            self.tenants,
            self.chain,
            self.authorizer,
            self.redirecting,
            OpeningContext(context, of_session, sessions, self.resumer),
            ReceiverContext(context, publisher, self.lookup, self.log_room, self.retained_quota),
            SubscriberContext(
                context, *routed, groups, histories, publisher, delivered, self.shared_limits
            ),
        )
        self.make_connection = partial(ClientConnection, of_connection)

    # Called by lower parts

    def _suspend(self) -> None:
        self.shards.suspend()

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
