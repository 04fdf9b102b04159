"""Grants or refuses a subscription, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingest.protocol.errors import ProtocolViolation
from ingest.protocol.packets import MQTT_3_1_1, MQTT_5_0, Subscription
from ingest.protocol.reason_codes import DisconnectReasonCode, SubackReasonCode
from mqlake.errors import InvalidTopic
from mqlake.topics.names import has_more_levels, is_system, split_shared, validate_topic_filter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.gateway.base.client import Client
    from ingest.gateway.base.denials import Denials
    from ingest.gateway.sessions.histories import Wish
    from ingest.gateway.settings.gateway import GatewaySettings
    from mqlake.rights.compiled import ClientRights

CLAUSES_311: Final = {
    "MQTT5-4.7.1-1": "MQTT311-4.7.1-2",
    "MQTT5-4.7.1-2": "MQTT311-4.7.1-3",
    "MQTT5-4.7.3-1": "MQTT311-4.7.3-1",
}
"""The statements about topic filters under their numbers in 3.1.1; 3.1 has its Appendix A.

The decoder has refused long ones and those with U+0000; shared ones have no clause below 5.0.
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


def refusal(
    asked: Subscription,
    wish: Wish | None,
    connection: Client,
    settings: GatewaySettings,
    denials: Denials,
) -> SubackReasonCode | None:
    """Return why a subscription is not granted, or None.

    Topics of the gateway itself are at every gateway: there is nothing to share. Neither have they
    a history, nor has a share group one that would be a member's.
    """
    if asked.topic_filter in settings.refused_topic_filters:
        return SubackReasonCode.UNSPECIFIED_ERROR  # [MQTT5-3.9.3-2]
    share_name, plain = split_shared(asked.topic_filter)
    if has_more_levels(plain, settings.max_topic_levels):
        return SubackReasonCode.TOPIC_FILTER_INVALID
    if share_name and is_system(plain):
        return SubackReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
    if wish is not None and (share_name or is_system(plain)):
        return SubackReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    if not _may_have(connection.rights, plain, asked.qos, is_shared=bool(share_name)):
        reason = "the client may not subscribe to this"
        denials.add(connection, "subscribe", reason, asked.topic_filter)
        return SubackReasonCode.NOT_AUTHORIZED
    return None if wish is None else wish.refusal


def _may_have(rights: ClientRights | None, topic_filter: str, qos: int, *, is_shared: bool) -> bool:
    """Tell whether the client may ask for a plain filter.

    Of a share group it must be able to take every message of its turn: no other member gets that.
    """
    if rights is None:
        return True
    return rights.may_subscribe(topic_filter, qos) and (
        not is_shared or rights.may_receive_all(topic_filter)
    )


def codes(
    asked: Sequence[Subscription], refusals: Sequence[SubackReasonCode | None]
) -> list[SubackReasonCode]:
    """Return the answers to subscriptions that the log has taken.

    The QoS asked for is the QoS granted, wildcards and all. [MQTT5-3.8.4-7] [MQTT5-3.2.2-10]
    [MQTT311-3.8.4-5] [MQTT311-3.8.3-2]
    """
    return [
        SubackReasonCode(one.qos) if refusal is None else refusal
        for one, refusal in zip(asked, refusals, strict=True)
    ]
