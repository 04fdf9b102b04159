"""The retained messages that a SUBSCRIBE is owed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqlake.records.progress import RetainedScan
from mqlake.topics.names import split_shared

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingest.gateway.sending.sending import Sender
    from ingest.gateway.sessions.client_session import ClientSession
    from ingest.protocol.packets import Subscription
    from ingest.session.subscriptions import ClientSubscription

# Retain Handling of a subscription (5.0: 3.8.3.1).
RETAINED_IF_NEW: Final = 1
RETAINED_NEVER: Final = 2


def owe_retained(
    session: ClientSession,
    granted: list[Subscription],
    new: Iterable[ClientSubscription[Sender]],
    starts: list[int],
    next_offsets: list[int],
) -> list[RetainedScan]:
    """Note, and return, scans of the retained messages for the subscriptions of a SUBSCRIBE.

    Retain Handling says whether [MQTT5-3.3.1-9] [MQTT5-3.3.1-10] [MQTT5-3.3.1-11], in 3.x
    always [MQTT311-3.3.1-6] [MQTT311-3.3.1-8]; shared subscriptions get none (5.0: 4.8.2).

    Args:
        session: Whose.
        granted: Subscriptions that the client gets.
        new: Those of them that it had not.
        starts: Per partition the offset from which on a new subscription counts.
        next_offsets: The same for one that is replaced: the gateway's present position.
    """
    scans = []
    fresh = {subscription.topic_filter: subscription for subscription in new}
    for one in granted:
        if one.retain_handling == RETAINED_NEVER or split_shared(one.topic_filter).share_name:
            continue
        added = fresh.get(one.topic_filter)
        if added is None and one.retain_handling == RETAINED_IF_NEW:
            continue
        subscription = session.subscriptions.get(one.topic_filter)
        if subscription is None:
            continue  # it was unsubscribed meanwhile
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
    for scan in scans:
        session.sender.retained.owe(scan)
    return scans
