"""SUBSCRIBE and UNSUBSCRIBE of one client: into the gateway's tree and the router's routes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from ingest.protocol.errors import ProtocolViolation
from ingest.protocol.packets import (
    MQTT_3_1_1,
    MQTT_5_0,
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
from ingest.session.subscriptions import ClientSubscription
from mqlake.errors import InvalidTopic, LogError
from mqlake.session_records import RetainedScan
from mqlake.topics import is_system, split_shared, validate_topic_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ingest.gateway.client_session import ClientSession
    from ingest.gateway.connection import ClientConnection
    from ingest.gateway.histories import History, Wish
    from ingest.gateway.sending import Sender
    from ingest.protocol.properties import Properties

logger = logging.getLogger(__name__)

HELD_BY_SUBSCRIBE: Final = "subscribe"

# Retain Handling of a subscription (5.0: 3.8.3.1).
RETAINED_IF_NEW: Final = 1
RETAINED_NEVER: Final = 2


CLAUSES_311: Final = {
    "MQTT5-4.7.1-1": "MQTT311-4.7.1-2",
    "MQTT5-4.7.1-2": "MQTT311-4.7.1-3",
    "MQTT5-4.7.3-1": "MQTT311-4.7.3-1",
}
"""The statements about topic filters under their numbers in 3.1.1; 3.1 has its Appendix A.

What is long or holds U+0000 the decoder has refused; shared ones have no clause below 5.0.
"""


def check_topic_filter(topic_filter: str, protocol_level: int) -> None:
    """Accept a topic filter, shared ones included.

    Raises:
        ProtocolViolation: Not a topic filter.
    """
    try:
        validate_topic_filter(topic_filter)
    except InvalidTopic as exc:
        clause = exc.clause
        if protocol_level < MQTT_5_0 and clause in CLAUSES_311:
            clause = CLAUSES_311[clause] if protocol_level == MQTT_3_1_1 else "MQTT31-A"
        raise ProtocolViolation(
            DisconnectReasonCode.TOPIC_FILTER_INVALID, str(exc), clause
        ) from exc


class _PendingSubscribe:
    """A SUBSCRIBE on its way through the log and the router.

    It counts from barriers that go to the log after it came and before anything that this gateway
    accepts later: what was acknowledged before is below them, by whichever gateway. It is in force
    at once, so that what is behind the barriers is delivered even if it comes before the log has
    said where they are. SUBACK waits for the log to have the session as it is now, and for the
    router to have the routes, unless it had them already. Retained messages follow when the
    barriers are back: by then the store has all that was accepted before the SUBSCRIBE. Implements
    `ingest.gateway.routes.SubscribeWaiter`.

    Args:
        subscriber: Of the connection.
        subscribe: What the client asked for.
        new: The filters that it has not had.
        was_routed: The router had all of them.
        wish: For history; None: for none.
    """

    __slots__ = (
        "_history",
        "_is_answered",
        "_is_back",
        "_is_saved",
        "_is_taken_up",
        "_new",
        "_scans",
        "_subscribe",
        "_subscriber",
        "_was_routed",
        "_wish",
    )

    def __init__(
        self,
        subscriber: Subscriber,
        subscribe: Subscribe,
        new: list[ClientSubscription[Sender]],
        *,
        was_routed: bool,
        wish: Wish | None,
    ) -> None:
        self._subscriber = subscriber
        self._subscribe = subscribe
        self._new = new
        self._was_routed = was_routed
        self._wish = wish
        self._history: History | None = None
        self._scans: list[RetainedScan] = []
        self._is_taken_up = False
        self._is_back = False
        self._is_saved = False
        self._is_answered = False

    def sent(self, starts: list[int]) -> None:
        if self._wish is None:  # else history comes first
            self._take_up(starts)

    def _take_up(self, starts: list[int]) -> None:
        self._is_taken_up = True
        self._subscriber.take_up(self._new, starts)

    def counted(self, starts: list[int]) -> None:
        if not self._is_taken_up:
            self._take_up(starts)
        if self._subscriber.is_ended:
            return  # whoever gets the session next has it without this
        asked = self._subscribe.subscriptions
        if self._wish is None:
            self._scans = self._subscriber.count(asked, self._new, starts, self.saved)
        else:
            self._history = self._subscriber.count_history(
                asked, self._new, starts, self.saved, self._wish
            )

    def saved(self, error: LogError | None) -> None:
        """The log has the session with its new subscriptions, or could not take it."""
        if error is not None:
            self.failed(error)
            return
        self._is_saved = True
        self._proceed()

    def routed(self) -> None:
        self._is_back = True
        self._proceed()

    def _proceed(self) -> None:
        if not self._is_saved or not (self._is_back or self._was_routed):
            return
        if not self._is_answered:
            self._is_answered = True
            granted = [
                self._subscriber.grant(asked, self._wish) for asked in self._subscribe.subscriptions
            ]
            reason = "" if self._wish is None else self._wish.reason
            self._subscriber.answer(self._subscribe.packet_id, granted, reason)
        if self._is_back:
            scans, self._scans = self._scans, []
            self._subscriber.send_retained(scans)
            if self._history is not None:
                self._subscriber.start_history(self._history)

    def failed(self, error: LogError) -> None:
        if self._is_taken_up:
            self._subscriber.remove(self._new)
        else:
            self._subscriber.unroute(self._new)
        # Filters that the client had before are in force with their new options.
        failed = {subscription.topic_filter for subscription in self._new}
        self._subscriber.fail(
            self._subscribe.packet_id,
            [
                SubackReasonCode.UNSPECIFIED_ERROR
                if asked.topic_filter in failed
                else self._subscriber.grant(asked, self._wish)
                for asked in self._subscribe.subscriptions
            ],
            error,
        )


class Subscriber:
    """Takes SUBSCRIBE and UNSUBSCRIBE of one connection for its session."""

    __slots__ = ("_connection", "_gateway", "_session")

    def __init__(self, connection: ClientConnection, session: ClientSession) -> None:
        self._connection = connection
        self._session = session
        self._gateway = connection.gateway

    def process_subscribe(self, subscribe: Subscribe) -> None:
        """Subscribe; SUBACK goes out when the router has the routes.

        Several filters are taken in their order. [MQTT5-3.8.4-5] [MQTT311-3.8.4-4]

        Raises:
            ProtocolViolation: A topic filter is malformed; nothing is subscribed.
        """
        for asked in subscribe.subscriptions:
            check_topic_filter(asked.topic_filter, self._connection.protocol.protocol_level)
        session = self._session
        identifiers = subscribe.properties.get("subscription_identifier")
        wish = self._gateway.histories.wish(subscribe)
        new: dict[str, ClientSubscription[Sender]] = {}
        replaced: dict[str, None] = {}
        for asked in subscribe.subscriptions:
            if self._refusal(asked, wish) is not None:
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
            if asked.topic_filter in session.subscriptions:
                # Replaced without a gap: it counts from where the old one did. [MQTT5-3.8.4-3]
                # [MQTT5-3.8.4-4] [MQTT311-3.8.4-3]
                replaced[asked.topic_filter] = None
                session.replace_subscription(subscription)
            else:
                new[asked.topic_filter] = subscription
        # One at a time: the next one finds the session as this one leaves it. It waits for the log
        # to have the barriers, not for the router.
        self._connection.hold(HELD_BY_SUBSCRIBE)
        routes = session.routes(new)
        # SUBACK waits for the router also where an earlier SUBSCRIBE for the filter still does.
        also = session.routes(replaced)
        is_routed = self._gateway.routes.are_routed([*routes, *also])
        pending = _PendingSubscribe(
            self, subscribe, list(new.values()), was_routed=is_routed, wish=wish
        )
        if routes or also:
            self._gateway.share_groups.subscribe(routes, pending)
        else:  # what the gateway itself says: nothing of it comes through the log
            starts = [offset + 1 for offset in self._gateway.publisher.acked]
            pending.sent(starts)
            pending.counted(starts)
            pending.routed()

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
            self._session.save(saved)
        except LogError as error:
            saved(error)

    def _tell(self, event: str, **fields: Any) -> None:
        session = self._session
        self._gateway.events.add(event, session.tenant, session.client_id, **fields)

    def grant(self, asked: Subscription, wish: Wish | None) -> SubackReasonCode:
        """Return the answer to a subscription that the log has taken.

        The QoS asked for is the QoS granted, wildcards and all. [MQTT5-3.8.4-7] [MQTT5-3.2.2-10]
        [MQTT311-3.8.4-5] [MQTT311-3.8.3-2]
        """
        refused = self._refusal(asked, wish)
        return SubackReasonCode(asked.qos) if refused is None else refused

    def _refusal(self, asked: Subscription, wish: Wish | None) -> SubackReasonCode | None:
        """Return why a subscription is not granted, or None.

        What a gateway says of itself every gateway says: there is nothing to share. Neither has it
        a history, nor has a share group one that would be a member's.
        """
        if asked.topic_filter in self._gateway.settings.refused_topic_filters:
            return SubackReasonCode.UNSPECIFIED_ERROR  # [MQTT5-3.9.3-2]
        share_name, plain = split_shared(asked.topic_filter)
        if share_name and is_system(plain):
            return SubackReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        if wish is not None and (share_name or is_system(plain)):
            return SubackReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        return None if wish is None else wish.refusal

    @property
    def is_ended(self) -> bool:
        """Whether the session is nothing to this gateway any more."""
        return self._session.is_ended

    def take_up(self, new: list[ClientSubscription[Sender]], starts: list[int]) -> None:
        """Put subscriptions in force that count from offsets, by partition, some not yet known."""
        for subscription in new:
            subscription.starts = starts
            self._session.add_subscription(subscription)

    def count(
        self,
        asked: list[Subscription],
        new: list[ClientSubscription[Sender]],
        starts: list[int],
        on_saved: Callable[[LogError | None], None],
    ) -> list[RetainedScan]:
        """Write down subscriptions that count from the given offsets, by partition.

        Returns:
            What they are owed of the retained messages; the log has that before it has them.
        """
        self._tell_subscribed(new)
        scans = self._new_scans(asked, new, starts)
        for scan in scans:
            self._session.sender.owe_retained(scan)
        self._save(on_saved, progress=bool(scans))
        return scans

    def count_history(
        self,
        asked: list[Subscription],
        new: list[ClientSubscription[Sender]],
        starts: list[int],
        on_saved: Callable[[LogError | None], None],
        wish: Wish,
    ) -> History | None:
        """Write down subscriptions that get their history before they are in force.

        No retained messages: what is retained is the newest of the history.

        Returns:
            What they are owed; the log has it before it has them. None: nothing was granted.
        """
        self._tell_subscribed(new)
        granted = [
            one.topic_filter
            for one in asked
            if self._refusal(one, wish) is None and one.topic_filter in self._session.subscriptions
        ]
        history = None
        if granted:
            history = self._gateway.histories.open(self._session, granted, wish.from_ms, starts)
        self._save(on_saved, progress=history is not None)
        return history

    def start_history(self, history: History) -> None:
        self._gateway.histories.start(history)

    def _tell_subscribed(self, new: list[ClientSubscription[Sender]]) -> None:
        for one in new:
            self._tell("session.subscribed", filter=one.topic_filter, qos=one.qos)

    def _save(self, on_saved: Callable[[LogError | None], None], *, progress: bool) -> None:
        """Write the session, what it is owed before that; then its client is heard again."""
        if progress and self._session.progress is not None:
            self._session.progress.touch()
            self._session.progress.save()
        try:
            self._session.save(on_saved)
        except LogError as error:
            on_saved(error)
        self._gateway.loop.call_soon(self._connection.release, HELD_BY_SUBSCRIBE)

    def _new_scans(
        self,
        asked: list[Subscription],
        new: Iterable[ClientSubscription[Sender]],
        starts: list[int],
    ) -> list[RetainedScan]:
        """Return what the subscriptions of a SUBSCRIBE want of the retained messages.

        Retain Handling says whether [MQTT5-3.3.1-9] [MQTT5-3.3.1-10] [MQTT5-3.3.1-11], in 3.x
        always [MQTT311-3.3.1-6] [MQTT311-3.3.1-8]; shared subscriptions get none (5.0: 4.8.2).
        """
        scans = []
        fresh = {subscription.topic_filter: subscription for subscription in new}
        next_offsets = self._gateway.next_offsets()
        for one in asked:
            if one.retain_handling == RETAINED_NEVER or split_shared(one.topic_filter).share_name:
                continue
            added = fresh.get(one.topic_filter)
            if added is None and one.retain_handling == RETAINED_IF_NEW:
                continue
            subscription = self._session.subscriptions.get(one.topic_filter)
            if subscription is None:
                continue  # it was refused
            identifier = subscription.identifier
            scans.append(
                RetainedScan(
                    one.topic_filter,
                    one.qos,
                    () if identifier is None else (identifier,),
                    # Where live messages begin, for this subscription or for its new options.
                    list(starts if added is not None else next_offsets),
                )
            )
        return scans

    def remove(self, subscriptions: list[ClientSubscription[Sender]]) -> None:
        """Take subscriptions back that the log does not have."""
        for one in subscriptions:
            if self._session.subscriptions.get(one.topic_filter) is one:
                self._session.remove_subscription(one.topic_filter)

    def unroute(self, subscriptions: list[ClientSubscription[Sender]]) -> None:
        """Let go of the routes of subscriptions that were never taken up."""
        for route in self._session.routes(one.topic_filter for one in subscriptions):
            self._gateway.share_groups.unsubscribe(route)

    def send_retained(self, scans: list[RetainedScan]) -> None:
        """Send what is retained for filters that are still subscribed."""
        for scan in scans:
            if scan.topic_filter in self._session.subscriptions:
                self._session.sender.send_retained(scan)

    def answer(
        self, packet_id: int, reason_codes: list[SubackReasonCode], reason: str = ""
    ) -> None:
        """Send SUBACK: the identifier of SUBSCRIBE, a code for each filter, in their order.

        [MQTT5-2.2.1-6] [MQTT5-3.8.4-1] [MQTT5-3.8.4-2] [MQTT5-3.8.4-6] [MQTT5-3.9.3-1]
        [MQTT311-2.3.1-7] [MQTT311-3.8.4-1] [MQTT311-3.8.4-2] [MQTT311-3.9.3-1]
        """
        properties: Properties = {"reason_string": reason} if reason else {}
        self._connection.send(Suback(packet_id, reason_codes, properties))

    def fail(self, packet_id: int, reason_codes: list[SubackReasonCode], error: LogError) -> None:
        """Send SUBACK for subscriptions of which the log did not take all routes."""
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
        self.answer(packet_id, reason_codes)
        self._connection.release(HELD_BY_SUBSCRIBE)
