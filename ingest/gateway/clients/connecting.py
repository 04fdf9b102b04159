"""Answers to CONNECT: why a client is turned away, and the properties of CONNACK for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingest.gateway.clients.receiving import is_payload_as_told
from ingest.protocol.errors import ProtocolViolation
from ingest.protocol.packets import MQTT_3_1_1, MQTT_5_0
from ingest.protocol.reason_codes import ConnackReasonCode
from mqlake.topics.names import SYSTEM_LEVEL, has_more_levels, is_system

if TYPE_CHECKING:
    from ingest.gateway.settings.gateway import GatewaySettings
    from ingest.protocol.packets import Connect
    from ingest.protocol.properties import Properties
    from mqlake.rights.compiled import ClientRights

KEEP_ALIVE_FACTOR: Final = 1.5
"""Keep alive intervals for which a client may be silent. [MQTT5-3.1.2-22] [MQTT311-3.1.2-24]"""


def refusal_of(
    connect: Connect, settings: GatewaySettings, *, is_full: bool
) -> tuple[ConnackReasonCode, str] | None:
    """Return why a well-formed CONNECT is turned away, or None when it is welcome.

    [MQTT5-3.1.4-2] No client identifier is, but the empty one without clean session.
    [MQTT5-3.1.3-5] [MQTT5-3.1.3-8] [MQTT311-3.1.3-5] [MQTT311-3.1.3-9]

    Raises:
        ProtocolViolation: A value is not allowed.
    """
    level, will = connect.protocol_level, connect.will
    if is_full:
        if settings.server_reference:
            return ConnackReasonCode.USE_ANOTHER_SERVER, "too many connections"
        return ConnackReasonCode.SERVER_BUSY, "too many connections"
    needs_id = level < MQTT_3_1_1 or (level == MQTT_3_1_1 and not connect.clean_start)
    if not connect.client_id and needs_id:  # [MQTT311-3.1.3-8]
        raise ProtocolViolation(
            ConnackReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            "empty client identifier",
            "MQTT311-3.1.3-8" if level == MQTT_3_1_1 else "MQTT31-3.1",
        )
    if will is None:
        return None
    if is_system(will.topic_name):
        reason = f"the will's topic is the server's, below {SYSTEM_LEVEL}"
        return ConnackReasonCode.NOT_AUTHORIZED, reason
    most = settings.max_topic_levels
    if has_more_levels(will.topic_name, most):
        reason = f"the will's topic has more than {most} levels"
        return ConnackReasonCode.TOPIC_NAME_INVALID, reason
    if settings.limits.session_bytes and will.size > settings.limits.session_bytes:
        reason = f"the will is larger than a session may be, {settings.limits.session_bytes} bytes"
        return ConnackReasonCode.QUOTA_EXCEEDED, reason
    if will.properties and not is_payload_as_told(will.properties, will.payload):
        raise ProtocolViolation(
            ConnackReasonCode.PAYLOAD_FORMAT_INVALID,
            "the will's payload is not UTF-8",
            "MQTT5-3.1.3.2.3",
        )
    return None


def denial_of(connect: Connect, rights: ClientRights | None) -> str:
    """Return why a client may not come in as it wants to, or ""."""
    if rights is None:
        return ""
    if not rights.may_connect():
        return "it may not have this client identifier"
    will = connect.will
    if will is not None and not rights.may_publish(will.topic_name, will.qos, will.retain):
        return "it may not publish its will"
    return ""


def keep_alive_of(connect: Connect, settings: GatewaySettings) -> int:
    """Return how long a client may be silent, in seconds; one of 3.x as long as it says.

    [MQTT5-3.2.2-22]
    """
    most = settings.max_keep_alive_seconds
    if connect.protocol_level < MQTT_5_0 or not most or 0 < connect.keep_alive <= most:
        return connect.keep_alive
    return most


def connack_properties(
    connect: Connect,
    client_id: str,
    expiry_interval: int,
    keep_alive: int,
    settings: GatewaySettings,
) -> Properties:
    """Return the properties for a 5.0 client: those that differ from the defaults.

    So none of QoS 2 and retained messages: there are both, for wills as well.
    [MQTT5-3.2.2-9] [MQTT5-3.2.2-12] [MQTT5-3.2.2-13]

    Args:
        connect: CONNECT of the client.
        client_id: Client identifier that it has now.
        expiry_interval: How long its session outlives the connection, in seconds.
        keep_alive: How long it may be silent, in seconds.
        settings: Settings of the gateway.
    """
    properties: Properties = {
        "receive_maximum": settings.receive_maximum,
        "maximum_packet_size": settings.max_packet_bytes,
        "topic_alias_maximum": settings.topic_alias_maximum,
    }
    if not connect.client_id:  # [MQTT5-3.1.3-7]
        properties["assigned_client_identifier"] = client_id
    if connect.properties.get("session_expiry_interval", 0) != expiry_interval:
        properties["session_expiry_interval"] = expiry_interval
    if keep_alive != connect.keep_alive:  # [MQTT5-3.1.2-21] [MQTT5-3.2.2-21]
        properties["server_keep_alive"] = keep_alive
    prefix = settings.response_topic_prefix
    # [MQTT5-3.1.2-28]
    if prefix and connect.properties.get("request_response_information"):
        properties["response_information"] = f"{prefix}{client_id}/"
    return properties
