"""SUBSCRIBE and UNSUBSCRIBE of one client: into the gateway's tree and the router's routes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ingest.protocol.errors import ProtocolViolation
from ingest.protocol.packets import Suback, Subscribe, Unsuback, Unsubscribe
from ingest.protocol.reason_codes import (
    DisconnectReasonCode,
    SubackReasonCode,
    UnsubackReasonCode,
)
from ingest.session.subscriptions import ClientSubscription
from mqlake.errors import InvalidTopic, LogError
from mqlake.records import Route
from mqlake.topics import validate_topic_filter

if TYPE_CHECKING:
    from ingest.gateway.connection import ClientConnection

logger = logging.getLogger(__name__)

HELD_BY_SUBSCRIBE: Final = "subscribe"


def check_topic_filter(topic_filter: str) -> None:
    """Accept a topic filter, shared ones included.

    Raises:
        ProtocolViolation: Not a topic filter.
    """
    try:
        validate_topic_filter(topic_filter)
    except InvalidTopic as exc:
        raise ProtocolViolation(
            DisconnectReasonCode.TOPIC_FILTER_INVALID, str(exc), exc.clause
        ) from exc


class _PendingSubscribe:
    """A SUBSCRIBE until the router has its routes. Implements `ingest.gateway.routes.Waiter`."""

    __slots__ = ("_new", "_subscribe", "_subscriber")

    def __init__(
        self,
        subscriber: Subscriber,
        subscribe: Subscribe,
        new: list[ClientSubscription[ClientConnection]],
    ) -> None:
        self._subscriber = subscriber
        self._subscribe = subscribe
        self._new = new

    def counted(self, starts: list[int]) -> None:
        self._subscriber.count(self._new, starts)

    def routed(self) -> None:
        granted = [SubackReasonCode(asked.qos) for asked in self._subscribe.subscriptions]
        self._subscriber.answer(self._subscribe.packet_id, granted)

    def failed(self, error: LogError) -> None:
        # Filters that the client had before are in force with their new options.
        failed = {subscription.topic_filter for subscription in self._new}
        self._subscriber.fail(
            self._subscribe.packet_id,
            [
                SubackReasonCode.UNSPECIFIED_ERROR
                if asked.topic_filter in failed
                else SubackReasonCode(asked.qos)
                for asked in self._subscribe.subscriptions
            ],
            error,
        )


class Subscriber:
    """Takes SUBSCRIBE and UNSUBSCRIBE of one client and holds its subscriptions by filter."""

    __slots__ = ("_connection", "_gateway", "_tenant", "subscriptions")

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._gateway = connection.gateway
        self._tenant = connection.tenant
        self.subscriptions: dict[str, ClientSubscription[ClientConnection]] = {}

    def process_subscribe(self, subscribe: Subscribe) -> None:
        """Subscribe; SUBACK goes out when the router has the routes.

        Raises:
            ProtocolViolation: A topic filter is malformed; nothing is subscribed.
        """
        for asked in subscribe.subscriptions:
            check_topic_filter(asked.topic_filter)
        identifiers = subscribe.properties.get("subscription_identifier")
        new: dict[str, ClientSubscription[ClientConnection]] = {}
        replaced: dict[str, None] = {}
        for asked in subscribe.subscriptions:
            subscription = ClientSubscription(
                self._connection,
                asked.topic_filter,
                asked.qos,
                no_local=asked.no_local,
                retain_as_published=asked.retain_as_published,
                identifier=identifiers[0] if identifiers else None,
            )
            existing = self.subscriptions.get(asked.topic_filter)
            if existing is None:
                new[asked.topic_filter] = subscription
            else:
                # Replaced without a gap: it counts from where the old one did. [MQTT5-3.8.4-3]
                replaced[asked.topic_filter] = None
                subscription.starts = existing.starts
                self._gateway.subscriptions.remove(self._tenant, existing)
                self._add(subscription)
        pending = _PendingSubscribe(self, subscribe, list(new.values()))
        # What follows on this connection counts for the new subscriptions: it waits for the log to
        # have their barriers, not for the router.
        self._connection.hold(HELD_BY_SUBSCRIBE)
        routes = [self._route(topic_filter) for topic_filter in new]
        # SUBACK waits for the router also where an earlier SUBSCRIBE for the filter still does.
        also = [self._route(topic_filter) for topic_filter in replaced]
        if self._gateway.routes.subscribe(routes, pending, also=also):
            pending.counted([offset + 1 for offset in self._gateway.publisher.acked])
            pending.routed()

    def process_unsubscribe(self, unsubscribe: Unsubscribe) -> None:
        """Unsubscribe; after UNSUBACK nothing is sent for these filters [MQTT5-3.10.4-2].

        Raises:
            ProtocolViolation: A topic filter is malformed; nothing is unsubscribed.
        """
        for topic_filter in unsubscribe.topic_filters:
            check_topic_filter(topic_filter)
        reason_codes = []
        for topic_filter in unsubscribe.topic_filters:
            if topic_filter in self.subscriptions:
                self._remove(topic_filter)
                reason_codes.append(UnsubackReasonCode.SUCCESS)
            else:
                reason_codes.append(UnsubackReasonCode.NO_SUBSCRIPTION_EXISTED)
        self._connection.send(Unsuback(unsubscribe.packet_id, reason_codes))

    def remove_all(self) -> None:
        """Drop all subscriptions: the client is gone."""
        for topic_filter in list(self.subscriptions):
            self._remove(topic_filter)

    def count(self, new: list[ClientSubscription[ClientConnection]], starts: list[int]) -> None:
        """Take subscriptions up that count from the given offsets, by partition."""
        for subscription in new:
            if self._connection.is_closing:
                self._gateway.routes.unsubscribe(self._route(subscription.topic_filter))
            else:
                subscription.starts = starts
                self._add(subscription)
        self._gateway.loop.call_soon(self._connection.release, HELD_BY_SUBSCRIBE)

    def answer(self, packet_id: int, reason_codes: list[SubackReasonCode]) -> None:
        """Send SUBACK."""
        self._connection.send(Suback(packet_id, reason_codes))

    def fail(self, packet_id: int, reason_codes: list[SubackReasonCode], error: LogError) -> None:
        """Send SUBACK for subscriptions of which the log did not take all routes."""
        logger.warning(
            "subscriptions failed",
            extra={"fields": {"client_id": self._connection.client_id, "reason": str(error)}},
        )
        self.answer(packet_id, reason_codes)
        self._connection.release(HELD_BY_SUBSCRIBE)

    def _add(self, subscription: ClientSubscription[ClientConnection]) -> None:
        self._gateway.subscriptions.add(self._tenant, subscription)
        self.subscriptions[subscription.topic_filter] = subscription

    def _remove(self, topic_filter: str) -> None:
        subscription = self.subscriptions.pop(topic_filter)
        self._gateway.subscriptions.remove(self._tenant, subscription)
        self._gateway.routes.unsubscribe(self._route(topic_filter))

    def _route(self, topic_filter: str) -> Route:
        return Route(self._gateway.settings.name, self._tenant, topic_filter)
