"""SUBSCRIBE and UNSUBSCRIBE of one client: into the gateway's tree and the router's routes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.clients.granting import check_topic_filter, codes, refusal
from ingest.gateway.clients.owed_retained import owe_retained
from ingest.gateway.routing.route_rounds import RouteRequest
from ingest.protocol.packets import (
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from ingest.protocol.reason_codes import (
    DisconnectReasonCode,
    SubackReasonCode,
    UnsubackReasonCode,
)
from ingest.session.client.checkpoint import Before
from ingest.session.subscriptions import ClientSubscription
from mqlake.errors import LogError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from ingest.gateway.base.client import Client
    from ingest.gateway.base.denials import Denials
    from ingest.gateway.base.events import Events
    from ingest.gateway.base.tasks import Tasks
    from ingest.gateway.limits.shared_limits import SharedLimits
    from ingest.gateway.listeners.info import ListenerInfo
    from ingest.gateway.log.delivered import Delivered
    from ingest.gateway.routing.publishing import Publisher
    from ingest.gateway.routing.reach import Reach
    from ingest.gateway.routing.routes import Routes
    from ingest.gateway.sending.sending import Sender
    from ingest.gateway.sessions.client_session import ClientSession
    from ingest.gateway.sessions.histories import Histories, SubscribeHistory, Wish
    from ingest.gateway.settings.gateway import GatewaySettings
    from ingest.gateway.sharing.share_groups import ShareGroups
    from ingest.protocol.properties import Properties
    from mqlake.records.progress import RetainedScan

logger = logging.getLogger(__name__)

PAUSED_BY_SUBSCRIBE: Final = "subscribe"
PAUSED_BY_UNSUBSCRIBE: Final = "unsubscribe"


SHARED_KINDS: Final = ("subscriptions", "session_bytes")
"""Stocks of many clients that a SUBSCRIBE adds to."""

UNREACHED: Final = "not all sites of the federation may know of it yet"
"""Reason string of a SUBACK that has waited for them as long as it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberContext:
    """Parts of a gateway that all its subscribers use.

    Attributes:
        settings: Settings of the gateway, with defaults filled in.
        loop: Event loop on which everything runs.
        events: Takes events for rules and other readers.
        denials: Counts attempts of clients without the right.
        tasks: Owns coroutines that wait for the log and the router.
        routes: Routes of this gateway.
        reach: Knows whether other sites know of these routes.
        share_groups: The share groups that have members at this gateway.
        histories: Reads history for subscribers that ask for it.
        publisher: Knows messages that the log has confirmed.
        delivered: Position up to which the gateway has read its deliveries.
        shared_limits: Know how many subscriptions and bytes many clients may have together.
    """

    settings: GatewaySettings
    loop: asyncio.AbstractEventLoop
    events: Events
    denials: Denials
    tasks: Tasks
    routes: Routes
    reach: Reach
    share_groups: ShareGroups
    histories: Histories
    publisher: Publisher
    delivered: Delivered
    shared_limits: SharedLimits


class _Room:
    """Room for one SUBSCRIBE in a session, and in stocks that others share with it."""

    __slots__ = (
        "_context",
        "_count",
        "_listener",
        "_most",
        "_most_bytes",
        "_session",
        "_shared",
        "_size",
    )

    def __init__(
        self, context: SubscriberContext, session: ClientSession, listener: ListenerInfo
    ) -> None:
        limits = context.settings.limits
        self._context = context
        self._session = session
        self._listener = listener
        self._most, self._most_bytes = limits.subscriptions, limits.session_bytes
        whose = session.tenant, session.principal, listener
        self._shared = [
            kind for kind in SHARED_KINDS if context.shared_limits.is_limited(kind, *whose)
        ]
        self._count = 0
        self._size = 0

    def take(self, topic_filter: str) -> bool:
        """Take room for one more filter; False: there is none."""
        session = self._session
        count = self._count + 1
        size = self._size + len(topic_filter.encode())
        if self._most and len(session.subscriptions) + count > self._most:
            return False
        if self._most_bytes and session.size + size > self._most_bytes:
            return False
        shared = self._context.shared_limits
        for kind in self._shared:
            amount = count if kind == "subscriptions" else size
            if shared.full(kind, session.tenant, session.principal, amount, self._listener):
                return False
        self._count, self._size = count, size
        return True


class SubscribeHandler:
    """Takes SUBSCRIBE and UNSUBSCRIBE of one connection for its session."""

    __slots__ = ("_connection", "_context", "_session")

    def __init__(
        self, context: SubscriberContext, connection: Client, session: ClientSession
    ) -> None:
        self._context = context
        self._connection = connection
        self._session = session

    def process_subscribe(self, subscribe: Subscribe) -> None:
        """Subscribe; SUBACK goes out when the router has the routes.

        Several filters are taken in their order. [MQTT5-3.8.4-5] [MQTT311-3.8.4-4]

        Raises:
            ProtocolViolation: A topic filter is malformed; nothing is subscribed.
        """
        for asked in subscribe.subscriptions:
            check_topic_filter(asked.topic_filter, self._connection.protocol.protocol_level)
        context, session = self._context, self._session
        wish = context.histories.wish(subscribe)
        # Asked once: the rights may be others when the log has answered.
        refusals = [
            refusal(one, wish, self._connection, context.settings, context.denials)
            for one in subscribe.subscriptions
        ]
        new, replaced = self._make_subscriptions(subscribe, refusals)
        # One at a time: the next one finds the session as this one leaves it. It waits for the log
        # to have the barriers, not for the router.
        self._connection.pause_reading(PAUSED_BY_SUBSCRIBE)
        routes = session.routes(new)
        # SUBACK waits for the router also where an earlier SUBSCRIBE for the filter still does.
        also = session.routes(replaced)
        is_routed = context.routes.are_routed([*routes, *also])
        added = list(new.values())

        def entered(request: RouteRequest) -> None:
            """Take the subscriptions up at once: messages behind their barriers count.

            It is delivered even if it comes before the log has said where the barriers are.
            """
            if wish is None:  # else history comes first
                self._take_up(added, request.starts)
            context.tasks.start(
                self._complete(subscribe, refusals, wish, added, request, was_routed=is_routed)
            )

        if routes or also:
            context.share_groups.subscribe(routes, entered)
        else:  # topics of the gateway itself: nothing of them comes through the log
            request = RouteRequest(routes, context.publisher.next_offsets(), context.loop)
            request.count(request.starts)
            request.finish()
            entered(request)

    def _make_subscriptions(
        self, subscribe: Subscribe, refusals: list[SubackReasonCode | None]
    ) -> tuple[dict[str, ClientSubscription[Sender]], dict[str, None]]:
        """Replace subscriptions that the session has; return the others, and the filters of these.

        Args:
            subscribe: SUBSCRIBE of the client.
            refusals: Reason why it does not get each; those are added for which there is no room.
        """
        session = self._session
        identifiers = subscribe.properties.get("subscription_identifier")
        new: dict[str, ClientSubscription[Sender]] = {}
        replaced: dict[str, None] = {}
        room = _Room(self._context, session, self._connection.listener)
        for number, asked in enumerate(subscribe.subscriptions):
            if refusals[number] is not None:
                continue
            is_new = asked.topic_filter not in session.subscriptions
            if is_new and asked.topic_filter not in new and not room.take(asked.topic_filter):
                refusals[number] = SubackReasonCode.QUOTA_EXCEEDED
                continue
            subscription = ClientSubscription(
                session.sender,
                asked.topic_filter,
                asked.qos,
                no_local=asked.no_local,
                retain_as_published=asked.retain_as_published,
                retain_handling=asked.retain_handling,
                identifier=identifiers[0] if identifiers else None,
            )
            if not is_new:
                # Replaced without a gap: it counts from where the old one did. [MQTT5-3.8.4-3]
                # [MQTT5-3.8.4-4] [MQTT311-3.8.4-3]
                replaced[asked.topic_filter] = None
                session.replace_subscription(subscription)
            else:
                new[asked.topic_filter] = subscription
        return new, replaced

    async def _complete(
        self,
        subscribe: Subscribe,
        refusals: Sequence[SubackReasonCode | None],
        wish: Wish | None,
        new: list[ClientSubscription[Sender]],
        request: RouteRequest,
        *,
        was_routed: bool,
    ) -> None:
        """See a SUBSCRIBE through the log and the router, and answer it.

        It counts from barriers that go to the log after it came and before anything that this
        gateway accepts later: messages acknowledged before, by any gateway, are below them.
        SUBACK waits for the log to have the session as it is now, and for the router to have the
        routes, unless it had them already; if that is set, for other sites to know of them, too.
        Retained messages and history follow when the barriers
        are back: by then the store has all that was accepted before the SUBSCRIBE.

        Args:
            subscribe: SUBSCRIBE of the client.
            refusals: Reason why it does not get each; None: it does.
            wish: For history; None: for none.
            new: The filters that it has not had.
            request: For their routes.
            was_routed: The router had all of them.
        """
        asked = subscribe.subscriptions
        granted = [one for one, refused in zip(asked, refusals, strict=True) if refused is None]
        is_taken_up = wish is None
        try:
            starts = await request.counted
            routes_end = self._context.routes.end
            if not is_taken_up:
                is_taken_up = True
                self._take_up(new, starts)
            if self._session.is_ended:
                return  # the next holder of the session has it without this
            for one in new:
                self._tell("session.subscribed", filter=one.topic_filter, qos=one.qos)
            scans, history = self._owe(granted, new, starts, wish)
            kept = [one.topic_filter for one in granted]
            await self._save(kept, is_owed=bool(scans) or history is not None)
        except LogError as error:
            if is_taken_up:
                self._remove(new)
            else:
                self._unroute(new)
            self._fail(subscribe, refusals, new, error)
            return
        if not was_routed:
            await request.routed
        reason = "" if wish is None else wish.reason
        if not await self._context.reach.wait(routes_end):
            reason = reason or UNREACHED
        self._answer(subscribe.packet_id, codes(asked, refusals), reason)
        await request.routed
        for scan in scans:
            if scan.topic_filter in self._session.subscriptions:
                self._session.sender.retained.send(scan)
        if history is not None:
            self._context.histories.start(history)

    def process_unsubscribe(self, unsubscribe: Unsubscribe) -> None:
        """Unsubscribe; after UNSUBACK nothing is sent for these filters [MQTT5-3.10.4-2].

        [MQTT311-3.10.4-2] Filters are compared as they are [MQTT5-3.10.4-1] [MQTT311-3.10.4-1], one
        after the other [MQTT5-3.10.4-6] [MQTT311-3.10.4-6]; UNSUBACK comes in any case
        [MQTT5-3.10.4-4] [MQTT5-3.10.4-5] [MQTT311-3.10.4-4] [MQTT311-3.10.4-5], its reason codes in
        the order of the filters [MQTT5-3.11.3-1].

        Raises:
            ProtocolViolation: A topic filter is malformed; nothing is unsubscribed.
        """
        for topic_filter in unsubscribe.topic_filters:
            check_topic_filter(topic_filter, self._connection.protocol.protocol_level)
        self._unsubscribe_once_known(unsubscribe, set())

    def _unsubscribe_once_known(
        self, unsubscribe: Unsubscribe, known: set[tuple[str, int]]
    ) -> None:
        """Unsubscribe when the log has as the client's what share groups have given it.

        Their shards name it as the client's as long as it is a member. The client answers nothing
        meanwhile, so its window bounds what it is given.

        Args:
            unsubscribe: UNSUBSCRIBE of the client.
            known: Shared filters and packet identifiers of messages that the log has.
        """
        session, sender = self._session, self._session.sender
        if session.connection is not self._connection:
            return  # it has gone without UNSUBACK, and is still subscribed
        for topic_filter in unsubscribe.topic_filters if session.is_stored else ():
            given = {(topic_filter, one) for one in sender.outbox.in_flight_of(topic_filter)}
            if not given <= known:
                self._connection.pause_reading(PAUSED_BY_UNSUBSCRIBE)
                again = partial(self._unsubscribe_once_known, unsubscribe, known | given)
                sender.once_known(topic_filter, again)
                return
        if known:
            self._context.loop.call_soon(self._connection.resume_reading, PAUSED_BY_UNSUBSCRIBE)
        self._unsubscribe(unsubscribe)

    def _unsubscribe(self, unsubscribe: Unsubscribe) -> None:
        reason_codes = []
        for topic_filter in unsubscribe.topic_filters:
            if topic_filter in self._session.subscriptions:
                self._session.remove_subscription(topic_filter)
                self._tell("session.unsubscribed", filter=topic_filter)
                reason_codes.append(UnsubackReasonCode.SUCCESS)
            else:
                reason_codes.append(UnsubackReasonCode.NO_SUBSCRIPTION_EXISTED)
        unsuback = Unsuback(unsubscribe.packet_id, reason_codes)

        def saved(error: LogError | None) -> None:
            if error is None:
                self._connection.send(unsuback)
            else:  # the client asks again when it is back
                self._connection.close(
                    DisconnectReasonCode.UNSPECIFIED_ERROR, log_reason=str(error)
                )

        try:
            self._session.save(saved, before=Before.SUBACK)
        except LogError as error:
            saved(error)

    def _tell(self, event: str, **fields: Any) -> None:
        session = self._session
        self._context.events.add(event, session.tenant, session.client_id, **fields)

    def _take_up(self, new: list[ClientSubscription[Sender]], starts: list[int]) -> None:
        """Put subscriptions in force that count from offsets, by partition, some not yet known."""
        for subscription in new:
            subscription.starts = starts
            self._session.add_subscription(subscription)

    def _owe(
        self,
        granted: list[Subscription],
        new: list[ClientSubscription[Sender]],
        starts: list[int],
        wish: Wish | None,
    ) -> tuple[list[RetainedScan], SubscribeHistory | None]:
        """Return the retained messages that subscriptions are owed, or the history.

        Never both: a retained message is the newest of the history.
        """
        session = self._session
        if wish is None:
            next_offsets = self._context.delivered.next_offsets()
            return owe_retained(session, granted, new, starts, next_offsets), None
        kept = [one.topic_filter for one in granted if one.topic_filter in session.subscriptions]
        if not kept:
            return [], None
        return [], self._context.histories.open(session, kept, wish.from_ms, starts)

    async def _save(self, topic_filters: Iterable[str], *, is_owed: bool) -> None:
        """Write subscriptions, before them owed messages; then their client is heard again.

        Raises:
            LogError: The log does not have it.
        """
        progress = self._session.progress
        saved: asyncio.Future[None] = self._context.loop.create_future()

        def report(error: LogError | None) -> None:
            if saved.done():  # the gateway stops
                return
            if error is None:
                saved.set_result(None)
            else:
                saved.set_exception(error)

        def save_progress() -> bool:
            assert progress is not None
            progress.touch()
            return progress.save()

        for topic_filter in topic_filters:
            if topic_filter in self._session.subscriptions:
                self._session.note_changed(topic_filter)
        owes = is_owed and progress is not None
        self._session.save(report, before=Before.SUBACK, progress=save_progress if owes else None)
        self._context.loop.call_soon(self._connection.resume_reading, PAUSED_BY_SUBSCRIBE)
        await saved

    def _remove(self, subscriptions: list[ClientSubscription[Sender]]) -> None:
        """Take subscriptions back that the log does not have."""
        for one in subscriptions:
            if self._session.subscriptions.get(one.topic_filter) is one:
                self._session.remove_subscription(one.topic_filter)

    def _unroute(self, subscriptions: list[ClientSubscription[Sender]]) -> None:
        """Let go of the routes of subscriptions that were never taken up."""
        for route in self._session.routes(one.topic_filter for one in subscriptions):
            self._context.share_groups.unsubscribe(route)

    def _answer(
        self, packet_id: int, reason_codes: list[SubackReasonCode], reason: str = ""
    ) -> None:
        """Send SUBACK: the identifier of SUBSCRIBE, a code for each filter, in their order.

        [MQTT5-2.2.1-6] [MQTT5-3.8.4-1] [MQTT5-3.8.4-2] [MQTT5-3.8.4-6] [MQTT5-3.9.3-1]
        [MQTT311-2.3.1-7] [MQTT311-3.8.4-1] [MQTT311-3.8.4-2] [MQTT311-3.9.3-1]
        """
        properties: Properties = {"reason_string": reason} if reason else {}
        self._connection.send(Suback(packet_id, reason_codes, properties))
        if self._session.sender.groups:
            self._context.share_groups.member_moved(self._session.sender)

    def _fail(
        self,
        subscribe: Subscribe,
        refusals: Sequence[SubackReasonCode | None],
        new: list[ClientSubscription[Sender]],
        error: LogError,
    ) -> None:
        """Send SUBACK for subscriptions of which the log did not take all routes.

        Filters that the client had before are in force with their new options.
        """
        logger.warning(
            "subscriptions failed",
            extra={
                "fields": {
                    "client_id": self._session.client_id,
                    "connection_id": self._connection.connection_id,
                    "reason": str(error),
                }
            },
        )
        failed = {subscription.topic_filter for subscription in new}
        asked = subscribe.subscriptions
        reason_codes = [
            SubackReasonCode.UNSPECIFIED_ERROR if one.topic_filter in failed else code
            for one, code in zip(asked, codes(asked, refusals), strict=True)
        ]
        self._answer(subscribe.packet_id, reason_codes)
        self._connection.resume_reading(PAUSED_BY_SUBSCRIBE)
