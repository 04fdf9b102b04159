"""The row a rule's expression is evaluated on, and the names the rule language has for it.

`ROW` has the columns that the engine builds for each record, in this order; `MESSAGE` and `EVENTS`
are the columns that rules select, each an expression over that row.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple


class RowColumn(NamedTuple):
    """One column of the row: its name and its Spark SQL type."""

    name: str
    type: str


ROW: Final = (
    RowColumn("id", "STRING"),
    RowColumn("tenant", "STRING"),
    RowColumn("topic", "STRING"),
    RowColumn("clientid", "STRING"),
    RowColumn("username", "STRING"),
    RowColumn("payload", "BINARY"),
    RowColumn("payload_json", "VARIANT"),
    RowColumn("qos", "INT"),
    RowColumn("retain", "BOOLEAN"),
    RowColumn("dup", "BOOLEAN"),
    RowColumn("protocol_level", "INT"),
    RowColumn("publish_received_at", "BIGINT"),
    RowColumn("timestamp", "BIGINT"),
    RowColumn("peerhost", "STRING"),
    RowColumn("gateway", "STRING"),
    RowColumn("site", "STRING"),
    RowColumn("properties", "VARIANT"),
    RowColumn("event", "STRING"),
    RowColumn("event_fields", "VARIANT"),
    RowColumn("log_partition", "INT"),
    RowColumn("log_offset", "BIGINT"),
)
"""`payload_json` is NULL when the payload is not JSON; `properties`, `event` and `event_fields` are
NULL where there are none. Messages have no event, events no payload."""


@dataclass(frozen=True, slots=True)
class RuleColumn:
    """A name of the language.

    Attributes:
        name: As rules write it.
        kind: `text`, `binary`, `integer`, `boolean` or `json`.
        expression: Spark SQL over the row; for `json` a VARIANT.
        meaning: For people.
        is_selected: Whether `SELECT *` has it.
        is_nullable: Whether it can be missing.
    """

    name: str
    kind: str
    expression: str
    meaning: str
    is_selected: bool = True
    is_nullable: bool = False


MESSAGE: Final = (
    RuleColumn("id", "text", "id", "message identifier, 32 hexadecimal digits"),
    RuleColumn("clientid", "text", "clientid", "client identifier of the publisher"),
    RuleColumn("username", "text", "username", "user name of the publisher", is_nullable=True),
    RuleColumn("payload", "binary", "payload", "payload: as text, or its fields where it is JSON"),
    RuleColumn("topic", "text", "topic", "topic name"),
    RuleColumn("qos", "integer", "qos", "QoS of the PUBLISH"),
    RuleColumn("retain", "boolean", "retain", "RETAIN flag of the PUBLISH"),
    RuleColumn("dup", "boolean", "dup", "DUP flag of the PUBLISH"),
    RuleColumn(
        "flags",
        "json",
        "to_variant_object(named_struct('dup', dup, 'retain', retain))",
        "both flags as an object: flags.retain, flags.dup",
        is_selected=False,
    ),
    RuleColumn(
        "pub_props",
        "json",
        "properties",
        "properties of the PUBLISH (MQTT 5.0)",
        is_nullable=True,
    ),
    RuleColumn(
        "user_properties",
        "json",
        "properties",
        "user properties of the PUBLISH as an object; of a name given twice the last value",
        is_selected=False,
        is_nullable=True,
    ),
    RuleColumn("peerhost", "text", "peerhost", "address of the publisher", is_nullable=True),
    RuleColumn(
        "proto_ver",
        "integer",
        "protocol_level",
        "MQTT of the publisher: 3 (3.1), 4 (3.1.1) or 5 (5.0)",
        is_selected=False,
    ),
    RuleColumn(
        "publish_received_at",
        "integer",
        "publish_received_at",
        "when the gateway accepted the message, milliseconds UTC",
    ),
    RuleColumn("timestamp", "integer", "timestamp", "the same, as EMQX names it"),
    RuleColumn("tenant", "text", "tenant", "tenant that owns the topic"),
    RuleColumn("gateway", "text", "gateway", "gateway that accepted the message"),
    RuleColumn("node", "text", "gateway", "the same, as EMQX names it", is_selected=False),
    RuleColumn("site", "text", "site", "site of that gateway", is_selected=False),
    RuleColumn(
        "event", "text", "'message.publish'", "what happened: message.publish", is_selected=False
    ),
)
"""Columns that rules over topic filters select."""


def _field(name: str, kind: str, key: str, meaning: str, *, is_nullable: bool = True) -> RuleColumn:
    types = {"text": "string", "integer": "bigint", "boolean": "boolean"}
    expression = f"try_variant_get(event_fields, '$.{key}', '{types[kind]}')"
    return RuleColumn(name, kind, expression, meaning, is_nullable=is_nullable)


_EVENT_BASE: Final = (
    RuleColumn("event", "text", "event", "what happened, for example client.connected"),
    _field("clientid", "text", "client_id", "client identifier", is_nullable=False),
    _field("tenant", "text", "tenant", "tenant of the client", is_nullable=False),
    _field("gateway", "text", "gateway", "gateway that tells it"),
    _field("timestamp", "integer", "ts", "when it happened, milliseconds UTC", is_nullable=False),
)

_DELIVERY: Final = (
    _field("id", "text", "id", "message identifier, 32 hexadecimal digits"),
    _field("topic", "text", "topic", "topic name"),
    _field("qos", "integer", "qos", "QoS with which the client got it"),
    _field("from_clientid", "text", "from_client_id", "client identifier of the publisher"),
    _field(
        "publish_received_at", "integer", "received_at", "when it was accepted, milliseconds UTC"
    ),
)

EVENTS: Final[dict[str, tuple[RuleColumn, ...]]] = {
    "client_connected": (
        *_EVENT_BASE,
        _field("username", "text", "username", "user name"),
        _field("proto_ver", "integer", "protocol_level", "3 (3.1), 4 (3.1.1) or 5 (5.0)"),
        _field("peername", "text", "peer", "address and port of the client"),
        _field("clean_start", "boolean", "clean_start", "Clean Start of the CONNECT"),
        _field("keepalive", "integer", "keep_alive", "Keep Alive of the CONNECT, seconds"),
        _field("expiry_interval", "integer", "expiry", "session expiry interval, seconds"),
        _field("session_present", "boolean", "session_present", "whether a session was resumed"),
    ),
    "client_disconnected": (
        *_EVENT_BASE,
        _field("reason", "text", "reason", "why the connection ended"),
    ),
    "session_subscribed": (
        *_EVENT_BASE,
        _field("topic", "text", "filter", "the topic filter"),
        _field("qos", "integer", "qos", "QoS of the subscription"),
    ),
    "session_unsubscribed": (
        *_EVENT_BASE,
        _field("topic", "text", "filter", "the topic filter"),
    ),
    "message_delivered": (*_EVENT_BASE, *_DELIVERY),
    "message_acked": (*_EVENT_BASE, *_DELIVERY),
    "message_dropped": (
        *_EVENT_BASE,
        _field("topic", "text", "topic", "topic name"),
        _field("qos", "integer", "qos", "QoS of the message"),
        _field("reason", "text", "reason", "why: queue_full, slow_client, expired, too_large, …"),
        _field("count", "integer", "count", "how many of this client, topic and reason"),
    ),
    "rule_failed": (
        *_EVENT_BASE,
        _field("rule", "text", "rule", "identifier of the rule", is_nullable=False),
        _field("rule_version", "integer", "rule_version", "its version"),
        _field(
            "stage", "text", "stage", "evaluate: the rule failed; action: one of its actions did"
        ),
        _field("action", "text", "action", "index and function of the action"),
        _field("error", "text", "error", "what went wrong"),
        _field("topic", "text", "topic", "topic name of the message, or $events/… of the event"),
        _field("count", "integer", "count", "failures of the rule since the last such event"),
    ),
}
"""Columns that rules over `$events/<name>` select, by event."""
