"""The Delta tables: names, columns with their units, keys and clustering.

`docs/tables.md` is this module in prose. The lake writes the tables; jobs that
delete do so by the query application; everything else reads. Columns are only ever added.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    """Spark SQL type."""
    comment: str


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    comment: str
    columns: tuple[Column, ...]
    cluster_by: tuple[str, ...] = ()
    """Empty for tables that are small, or read as a whole; maintenance only joins their files."""


MESSAGES: Final = Table(
    name="messages",
    comment="Every accepted message, once; appended in the order of the log's partitions",
    columns=(
        Column("id", "string", "message identifier, 32 hexadecimal digits, sortable by time"),
        Column("tenant", "string", "tenant that owns the topic"),
        Column("topic", "string", "topic name"),
        Column("payload", "binary", "payload as published"),
        Column("qos", "tinyint", "QoS of the PUBLISH: 0, 1 or 2"),
        Column("retain", "boolean", "RETAIN flag of the PUBLISH"),
        Column("dup", "boolean", "DUP flag of the PUBLISH"),
        Column("client_id", "string", "client identifier of the publisher"),
        Column("username", "string", "user name of the publisher; null without one"),
        Column("protocol_level", "tinyint", "MQTT of the publisher: 3 (3.1), 4 (3.1.1) or 5 (5.0)"),
        Column("properties", "string", "5.0 message properties as a JSON object; null without any"),
        Column("origin", "string", "site/gateway that accepted the message"),
        Column("ts", "timestamp", "when the gateway accepted it, UTC, milliseconds"),
        Column("log_partition", "int", "partition of mqlake.inbound"),
        Column("log_offset", "bigint", "offset in that partition; with it the key of the row"),
    ),
    cluster_by=("tenant", "topic", "ts"),
)

NEXT_OFFSETS: Final = "next_offsets"
"""In the metadata of a commit of `RETAINED`: by partition the first offset that it has not seen."""

RETAINED: Final = Table(
    name="retained",
    comment="The retained message of each topic",
    columns=(
        Column("tenant", "string", "tenant that owns the topic"),
        Column("topic", "string", "topic name; with the tenant the key of the row"),
        Column("payload", "binary", "payload as published; never empty"),
        Column("qos", "tinyint", "QoS of the PUBLISH: 0, 1 or 2"),
        Column("id", "string", "message identifier, 32 hexadecimal digits, sortable by time"),
        Column("client_id", "string", "client identifier of the publisher"),
        Column("username", "string", "user name of the publisher; null without one"),
        Column("protocol_level", "tinyint", "MQTT of the publisher: 3 (3.1), 4 (3.1.1) or 5 (5.0)"),
        Column("properties", "string", "5.0 message properties as a JSON object; null without any"),
        Column("origin", "string", "site/gateway that accepted the message"),
        Column("ts", "timestamp", "when the gateway accepted it, UTC, milliseconds"),
        Column("expires_at", "timestamp", "when its message expiry interval ends; null without"),
        Column("log_partition", "int", "partition of mqlake.inbound"),
        Column("log_offset", "bigint", "offset in that partition"),
    ),
)

SESSIONS: Final = Table(
    name="sessions",
    comment="Every session that has not ended, connected or not",
    columns=(
        Column("tenant", "string", "tenant of the client"),
        Column("client_id", "string", "client identifier; with the tenant the key of the row"),
        Column("id", "string", "session identifier, 16 hexadecimal digits"),
        Column("username", "string", "user name of the client; null without one"),
        Column("protocol_level", "tinyint", "MQTT of the client: 3 (3.1), 4 (3.1.1) or 5 (5.0)"),
        Column("keep_alive", "int", "seconds; 0: off"),
        Column("clean_start", "boolean", "of the last CONNECT"),
        Column("expiry", "bigint", "seconds after the connection ends; 4294967295: never"),
        Column("gateway", "string", "gateway that owns the session"),
        Column("incarnation", "string", "run of that gateway"),
        Column("connected", "boolean", "whether a client is connected"),
        Column("connected_at", "timestamp", "when it connected last, UTC"),
        Column("disconnected_at", "timestamp", "when it left, UTC; null while connected"),
        Column("reason", "string", "why it left; null while connected"),
        Column("subscriptions", "int", "how many, see the table subscriptions"),
        Column("will_topic", "string", "topic of its will; null without one"),
        Column("will_at", "timestamp", "when the will is published, UTC; null when it is not due"),
        Column("in_flight_out", "int", "messages to the client that are not acknowledged"),
        Column("in_flight_in", "int", "QoS 2 messages from the client that are not released"),
        Column("qos2_unacknowledged", "int", "QoS 2 exchanges not finished, both directions"),
        Column("cursor", "array<bigint>", "next offset of mqlake.inbound for each partition"),
        Column("log_offset", "bigint", "offset in mqlake.sessions of what the session is"),
        Column("progress_offset", "bigint", "offset there of how far it is; null before any"),
    ),
)

SUBSCRIPTIONS: Final = Table(
    name="subscriptions",
    comment="Every subscription of every session",
    columns=(
        Column("tenant", "string", "tenant of the client"),
        Column("client_id", "string", "client identifier"),
        Column("filter", "string", "topic filter as subscribed; with the client the key"),
        Column("qos", "tinyint", "most that the client is sent: 0, 1 or 2"),
        Column("no_local", "boolean", "5.0: not what the client itself published"),
        Column("retain_as_published", "boolean", "5.0: the RETAIN flag is passed on"),
        Column("retain_handling", "tinyint", "5.0: 0 send retained, 1 only if new, 2 do not send"),
        Column("identifier", "bigint", "5.0: subscription identifier; null without one"),
        Column("session_id", "string", "column id of sessions"),
        Column("log_offset", "bigint", "offset in mqlake.sessions"),
        Column("own_record", "boolean", "whether it stands there by itself, not in its session"),
    ),
)

EVENTS: Final = Table(
    name="events",
    comment="What happened to clients: connections, subscriptions; appended, each event once",
    columns=(
        Column("ts", "timestamp", "when it happened, UTC, milliseconds"),
        Column("event", "string", "name, for example client.connected"),
        Column("tenant", "string", "tenant of the client"),
        Column("client_id", "string", "client identifier"),
        Column("gateway", "string", "gateway where it happened"),
        Column("reason", "string", "why; null for events without a reason"),
        Column("filter", "string", "topic filter of a subscription event"),
        Column("qos", "tinyint", "QoS of a subscription event"),
        Column("fields", "string", "the whole event as a JSON object"),
        Column("log_partition", "int", "partition of mqlake.events"),
        Column("log_offset", "bigint", "offset in that partition; with it the key of the row"),
    ),
)

DROPS: Final = Table(
    name="drops",
    comment="Messages that a client did not get, and why; appended, added up per second",
    columns=(
        Column("ts", "timestamp", "when it happened, UTC, milliseconds"),
        Column("tenant", "string", "tenant of the client"),
        Column("client_id", "string", "client identifier of the subscriber"),
        Column("topic", "string", "topic name; of `unread` and `unsynced`, the log topic"),
        Column("qos", "tinyint", "QoS with which they would have been sent"),
        Column("reason", "string", "why, for example queue_full, expired, unread, unsynced"),
        Column("count", "bigint", "how many messages"),
        Column("gateway", "string", "gateway that dropped them"),
        Column("detail", "string", "of what a query did not read or write: which records of which"),
        Column("log_partition", "int", "partition of mqlake.events"),
        Column("log_offset", "bigint", "offset in that partition; with it the key of the row"),
    ),
)

DEAD_LETTERS: Final = Table(
    name="dead_letters",
    comment="What rules could not evaluate and actions could not carry out; appended",
    columns=(
        Column("ts", "timestamp", "when it was given up, UTC, milliseconds"),
        Column("tenant", "string", "tenant of the rule"),
        Column("rule", "string", "identifier of the rule"),
        Column("rule_version", "int", "version of the rule"),
        Column(
            "stage",
            "string",
            "evaluate: the rule failed; action: one of its actions did; rerun: it no longer fails",
        ),
        Column("action", "string", "index and function of the action; null for evaluate"),
        Column("error", "string", "what went wrong"),
        Column("topic", "string", "topic name of the message, or $events/… of the event"),
        Column("client_id", "string", "client identifier of the publisher"),
        Column(
            "value", "binary", "evaluate: payload or event; action: the output row; rerun: empty"
        ),
        Column("source", "string", "log topic of the record, or the job of a backfill"),
        Column("log_partition", "int", "partition of the record"),
        Column("log_offset", "bigint", "offset of the record in that partition"),
        Column("index", "int", "which output of the rule for that record; 0 for evaluate"),
    ),
)

LATE: Final = Table(
    name="late",
    comment="Messages that came too late for a window, join or detection of a rule; appended",
    columns=(
        Column("ts", "timestamp", "when it was left out, UTC, milliseconds"),
        Column("tenant", "string", "tenant of the rule"),
        Column("rule", "string", "identifier of the rule"),
        Column("rule_version", "int", "version of the rule"),
        Column("topic", "string", "topic name of the message, or $events/… of the event"),
        Column("client_id", "string", "client identifier of the publisher"),
        Column("event_time", "timestamp", "the message's time, as the rule takes it"),
        Column("watermark", "timestamp", "everything up to it was taken for complete"),
        Column("value", "binary", "payload or event"),
        Column("source", "string", "log topic of the record"),
        Column("log_partition", "int", "partition of the record"),
        Column("log_offset", "bigint", "offset of the record in that partition"),
    ),
)

RULES: Final = Table(
    name="rules",
    comment="Every rule: its newest version and what became of it",
    columns=(
        Column("tenant", "string", "tenant of the rule"),
        Column("id", "string", "identifier of the rule; with the tenant the key of the row"),
        Column("version", "int", "newest version; counts up with each change"),
        Column("name", "string", "for people"),
        Column("description", "string", "for people"),
        Column("sql", "string", "the statement"),
        Column("enabled", "boolean", "whether it is to run"),
        Column("actions", "string", "its actions as a JSON array, *** for what may be secret"),
        Column("created_at", "timestamp", "when version 1 was made, UTC"),
        Column("updated_at", "timestamp", "when this version was made, UTC"),
        Column("state", "string", "running, stopped, failed or paused; null before the first"),
        Column("state_version", "int", "version that the state is of"),
        Column("error", "string", "why it does not run; null without an error"),
        Column("log_offset", "bigint", "offset in mqlake.rules of the definition"),
        Column("activation_offset", "bigint", "offset there of the state; null before the first"),
        Column(
            "made_by",
            "string",
            "who has made this version, with whose rights it acts; null: of before that was noted",
        ),
    ),
)

AUDIT_LOG: Final = Table(
    name="audit_log",
    comment="Who has changed what, and who has logged in, by the API or a file; appended",
    columns=(
        Column("ts", "timestamp", "when it was answered, UTC, milliseconds"),
        Column("tenant", "string", "tenant that was asked for; default where none can be"),
        Column(
            "tenants",
            "string",
            "those of what was changed, JSON; [] for all; null for a row of before they were noted",
        ),
        Column(
            "caller", "string", "api-token, key:<id>, an account, file; of a failed login its name"
        ),
        Column("role", "string", "viewer, editor or admin; null for who has not logged in"),
        Column("credential", "string", "token, key, session, password, oidc, shell or file"),
        Column("address", "string", "address of the caller; empty for a file"),
        Column("agent", "string", "which program asked, as it says itself"),
        Column("request_id", "string", "X-Request-ID of the answer"),
        Column("operation", "string", "method and path as in the OpenAPI document; or reload"),
        Column("target", "string", "the path with its names and parameters; or the file"),
        Column("status", "smallint", "HTTP status of the answer; null for a file"),
        Column("gateway", "string", "gateway that read a file; null for the API"),
        Column("detail", "string", "why a file is not used; null otherwise"),
        Column("asked", "string", "body of the request as JSON, without secrets; null without"),
        Column("before", "string", "what was there as JSON, without secrets; null for nothing"),
        Column("after", "string", "what is there since; as above"),
        Column("log_partition", "int", "partition of mqlake.events"),
        Column("log_offset", "bigint", "offset in that partition; with it the key of the row"),
    ),
)

TABLES: Final = (
    MESSAGES,
    RETAINED,
    SESSIONS,
    SUBSCRIPTIONS,
    EVENTS,
    DROPS,
    DEAD_LETTERS,
    LATE,
    RULES,
    AUDIT_LOG,
)
OF_TOPICS: Final = {
    MESSAGES.name: "topic",
    RETAINED.name: "topic",
    DROPS.name: "topic",
    EVENTS.name: "filter",
}
"""Tables of which a caller with rights to some topics sees the rows of these, with the column that
names the topic: of `events` a topic filter, or the topic that a client was denied."""
FOR_ADMINISTRATORS: Final = frozenset({AUDIT_LOG.name})
"""Tables that only queries of administrators may name."""

RULE_TABLE_PREFIX: Final = "rule_"
RULE_TABLE_PATTERN: Final = r"rule_[a-z][a-z0-9_]{0,62}"
"""Names, as users write them, of the tables that rules write to (`mqlake.records.rule_tables`);
their other columns are those of the rule's rows."""

RULE_TABLE_COLUMNS: Final = (
    Column("output_id", "string", "rule/version/source:partition:offset:index; the key of the row"),
    Column("rule", "string", "identifier of the rule"),
    Column("rule_version", "int", "version of the rule"),
    Column("ts", "timestamp", "when the gateway accepted the message, UTC, milliseconds"),
    Column("tenant", "string", "tenant of the rule"),
)


def is_there(table: Path) -> bool:
    """Tell whether a folder is a table: the folder of a table being made has no commit yet."""
    return any((table / "_delta_log").glob("*.json"))
