"""Promises that the tables can be held against: SQL, by the names of the fault tests' checkers.

Each audit is a SELECT of *cases* over the relations of `views`: tenant, verdict (`ok`,
`broken`, or `unknown` where the tables do not decide it), how many cases, when, and a witness as
JSON. `bin/mqlake audit` asks for them through the API, the view `mqlake.audit` is the same for
Spark Connect. `docs/audit.md` is this module in prose.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from api.relations.views import VIEW_SCHEMA

AUDIT_VIEW: Final = "audit"

GRACE_SECONDS: Final = 60
"""The tables are some seconds behind the log, not all by the same."""

SERVED_TOGETHER_SECONDS: Final = 5
"""So long after another gateway has a client the former one may still be closing."""

EXPIRY_TOLERANCE_SECONDS: Final = 2

COLUMNS: Final = ("tenant", "audit", "checked", "broken", "unknown", "first_at", "witness")
"""Columns of the answer; `checked` are decided cases, the witness is of the earliest broken one."""

Relation = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Audit:
    """One promise.

    Attributes:
        name: That of the checker in `resilience.checkers`.
        promise: The promise in words.
        cases: SQL with `{messages}` and so on for relations, `{since}` for a timestamp.
    """

    name: str
    promise: str
    cases: str


LOST: Final = Audit(
    "lost",
    "no delivery of a message with QoS 1 or 2 is dropped for want of room, none goes unread",
    """
    SELECT tenant, 'ok' AS verdict, count(*) AS n, max(ts) AS at, '' AS witness
    FROM {messages} WHERE qos > 0 AND ts >= {since} GROUP BY tenant
    UNION ALL
    SELECT tenant, CASE WHEN reason = 'no_member' THEN 'unknown' ELSE 'broken' END, `count`, ts,
        to_json(named_struct('client_id', client_id, 'topic', topic, 'qos', qos, 'reason', reason,
            'count', `count`, 'gateway', gateway, 'detail', detail, 'ts', ts))
    FROM {drops} WHERE ts >= {since} AND (reason = 'unread'
        OR (qos > 0 AND reason IN ('queue_full', 'unreadable', 'no_member')))
    """,
)

DUPLICATE: Final = Audit(
    "duplicate-qos2",
    "an accepted message is in the history once",
    """
    SELECT tenant, CASE WHEN times > 1 THEN 'broken' ELSE 'ok' END AS verdict, count(*) AS n,
        min(ts) AS at, min_by(to_json(named_struct('id', id, 'topic', topic, 'times', times,
            'ts', ts)), ts) AS witness
    FROM (
        SELECT tenant, id, min(topic) AS topic, min(ts) AS ts, count(*) AS times
        FROM {messages} WHERE ts >= {since} GROUP BY tenant, id
    ) AS identifiers
    GROUP BY tenant, CASE WHEN times > 1 THEN 'broken' ELSE 'ok' END
    """,
)

ORDER: Final = Audit(
    "order",
    "messages of one publisher and topic are in the log in the order in which they were accepted",
    # An identifier is its time, its maker, a number; its time never goes back in a process.
    """
    SELECT tenant, CASE WHEN made < before THEN 'broken' ELSE 'ok' END AS verdict, count(*) AS n,
        min(ts) AS at, min_by(to_json(named_struct('id', id, 'topic', topic,
            'client_id', client_id, 'log_partition', log_partition, 'log_offset', log_offset,
            'ts', ts)), ts) AS witness
    FROM (
        SELECT tenant, id, topic, client_id, log_partition, log_offset, ts,
            substring(id, 1, 12) AS made, max(substring(id, 1, 12)) OVER (
                PARTITION BY tenant, topic, client_id, substring(id, 13, 12)
                ORDER BY log_partition, log_offset
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS before
        FROM {messages} WHERE ts >= {since}
    ) AS sequence
    GROUP BY tenant, CASE WHEN made < before THEN 'broken' ELSE 'ok' END
    """,
)

RETAINED: Final = Audit(
    "retained",
    "the retained message of a topic is the last one that was published to it with RETAIN",
    """
    SELECT tenant, CASE
            WHEN at >= {settled} OR expiry IS NOT NULL THEN 'unknown'
            WHEN kept_offset IS NULL AND bytes = 0 THEN 'ok'
            WHEN kept_offset IS NULL THEN 'broken'
            WHEN kept_partition <> log_partition OR kept_offset > log_offset THEN 'unknown'
            WHEN kept_offset < log_offset OR bytes = 0 THEN 'broken'
            ELSE 'ok'
        END AS verdict, 1 AS n, at, to_json(named_struct('topic', topic,
            'kind', CASE WHEN kept_offset IS NULL THEN 'lost' WHEN bytes = 0 THEN 'resurrected'
                ELSE 'back in time' END,
            'log_partition', log_partition, 'log_offset', log_offset,
            'retained_offset', kept_offset, 'ts', at)) AS witness
    FROM (
        SELECT last_ones.tenant, last_ones.topic, last_ones.newest.at, last_ones.newest.bytes,
            last_ones.newest.expiry, last_ones.newest.log_partition, last_ones.newest.log_offset,
            kept.log_partition AS kept_partition, kept.log_offset AS kept_offset
        FROM (
            SELECT tenant, topic, max_by(named_struct('at', ts, 'log_partition', log_partition,
                'log_offset', log_offset, 'bytes', octet_length(payload_bytes), 'expiry',
                get_json_object(properties, '$.message_expiry_interval')), log_offset) AS newest
            FROM {messages} WHERE retain AND ts >= {since} GROUP BY tenant, topic
        ) AS last_ones
        LEFT JOIN {retained} AS kept
            ON kept.tenant = last_ones.tenant AND kept.topic = last_ones.topic
    ) AS topics
    """,
)

WILL: Final = Audit(
    "will",
    "a will is published when it is due",
    """
    SELECT tenant, CASE WHEN will_at < {settled} THEN 'broken'
            WHEN will_at IS NULL THEN 'ok' ELSE 'unknown' END AS verdict,
        1 AS n, coalesce(will_at, connected_at) AS at,
        to_json(named_struct('client_id', client_id, 'topic', will_topic, 'gateway', gateway,
            'due', will_at)) AS witness
    FROM {sessions} WHERE will_topic IS NOT NULL AND coalesce(will_at, connected_at) >= {since}
    """,
)

SESSION_PRESENT: Final = Audit(
    "session-present",
    'a client that asked for a clean start gets no "session present"',
    """
    SELECT tenant, CASE WHEN get_json_object(fields, '$.session_present') = 'true'
            THEN 'broken' ELSE 'ok' END AS verdict, 1 AS n, ts AS at, fields AS witness
    FROM {events} WHERE event = 'client.connected' AND ts >= {since}
        AND get_json_object(fields, '$.clean_start') = 'true'
    """,
)

_LATER: Final = "ORDER BY log_offset DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
"""A frame of the later rows that grows from row to row, and is not computed again for each."""

TWO_HOLDERS: Final = Audit(
    "two-holders",
    "a gateway that another one has taken a client from serves it no longer",
    """
    SELECT tenant, CASE
            WHEN taken_at IS NULL THEN 'ok'
            WHEN left_at IS NULL OR left_at > back_at THEN 'unknown'
            WHEN left_at > taken_at + {together} THEN 'broken'
            ELSE 'ok'
        END AS verdict, 1 AS n, ts AS at, to_json(named_struct('client_id', client_id,
            'gateway', gateway, 'connected', ts, 'taken', taken_at, 'left', left_at)) AS witness
    FROM (
        SELECT tenant, client_id, gateway, event, ts,
            min(CASE WHEN event = 'client.connected' THEN ts END)
                OVER (PARTITION BY tenant, client_id {later}) AS taken_at,
            min(CASE WHEN event = 'client.disconnected' THEN ts END)
                OVER (PARTITION BY tenant, client_id, gateway {later}) AS left_at,
            min(CASE WHEN event = 'client.connected' THEN ts END)
                OVER (PARTITION BY tenant, client_id, gateway {later}) AS back_at
        FROM {events}
        WHERE ts >= {since} AND event IN ('client.connected', 'client.disconnected')
    ) AS connections
    WHERE event = 'client.connected'
    """,
)

_DELIVERED: Final = """
        SELECT tenant, client_id, ts, get_json_object(fields, '$.id') AS id,
            get_json_object(fields, '$.topic') AS topic,
            timestamp_millis(CAST(get_json_object(fields, '$.received_at') AS BIGINT))
                AS received_at
        FROM {events} WHERE event = 'message.delivered' AND ts >= {since}
"""
"""There while a rule asks for these events."""

PHANTOM: Final = Audit(
    "phantom",
    "a message that is delivered was accepted, on this topic",
    # History that was deleted is no proof: its topic has to have an older message still.
    """
    SELECT tenant, CASE
            WHEN topic = published_topic THEN 'ok'
            WHEN published_topic IS NOT NULL THEN 'broken'
            WHEN id IS NULL OR at >= {settled} OR made < {since} THEN 'unknown'
            WHEN oldest <= made THEN 'broken'
            ELSE 'unknown'
        END AS verdict, 1 AS n, at, to_json(named_struct('id', id, 'client_id', client_id,
            'topic', topic, 'published_topic', published_topic, 'ts', at)) AS witness
    FROM (
        SELECT delivered.tenant, delivered.client_id, delivered.ts AS at, delivered.id,
            delivered.topic, delivered.received_at AS made, published.topic AS published_topic,
            topics.oldest
        FROM ({delivered}) AS delivered
        LEFT JOIN {messages} AS published
            ON published.id = delivered.id AND published.tenant = delivered.tenant
        LEFT JOIN (
            SELECT tenant, topic, min(ts) AS oldest FROM {messages} GROUP BY tenant, topic
        ) AS topics
            ON topics.tenant = delivered.tenant AND topics.topic = delivered.topic
    ) AS deliveries
    """,
)

EXPIRED: Final = Audit(
    "expired",
    "a message is not delivered after its Message Expiry Interval",
    """
    SELECT tenant, CASE WHEN at > ends THEN 'broken' ELSE 'ok' END AS verdict, 1 AS n, at,
        to_json(named_struct('id', id, 'client_id', client_id, 'topic', topic, 'ended', ends,
            'ts', at)) AS witness
    FROM (
        SELECT delivered.tenant, delivered.client_id, delivered.topic, delivered.id,
            delivered.ts AS at, timestamp_millis(unix_millis(published.ts)
                + 1000 * ({tolerance} + CAST(get_json_object(published.properties,
                    '$.message_expiry_interval') AS BIGINT))) AS ends
        FROM ({delivered}) AS delivered
        INNER JOIN {messages} AS published
            ON published.id = delivered.id AND published.tenant = delivered.tenant
        WHERE get_json_object(published.properties, '$.message_expiry_interval') IS NOT NULL
    ) AS deliveries
    """,
)

AUDITS: Final = (
    LOST,
    PHANTOM,
    DUPLICATE,
    ORDER,
    RETAINED,
    WILL,
    SESSION_PRESENT,
    EXPIRED,
    TWO_HOLDERS,
)

_BEGINNING: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - formatted as UTC below


def audit_select(relation: Relation, since: datetime | None = None) -> str:
    """Return the SELECT of `COLUMNS`: one row for each tenant and audit that has cases.

    Args:
        relation: Returns the SQL for a relation's name.
        since: UTC; cases before it are left out.
    """
    start = (since or _BEGINNING).strftime("%Y-%m-%d %H:%M:%S")
    names = ("messages", "retained", "sessions", "events", "drops")
    places = {name: relation(name) for name in names} | {
        "since": f"TIMESTAMP '{start}'",
        "settled": f"(current_timestamp() - INTERVAL '{GRACE_SECONDS}' SECOND)",
        "together": f"INTERVAL '{SERVED_TOGETHER_SECONDS}' SECOND",
        "tolerance": str(EXPIRY_TOLERANCE_SECONDS),
        "later": _LATER,
    }
    places["delivered"] = _DELIVERED.format_map(places)
    return " UNION ALL ".join(
        f"SELECT tenant, '{audit.name}' AS audit,"  # noqa: S608 - our own text
        " sum(CASE WHEN verdict <> 'unknown' THEN n ELSE 0 END) AS checked,"
        " sum(CASE WHEN verdict = 'broken' THEN n ELSE 0 END) AS broken,"
        " sum(CASE WHEN verdict = 'unknown' THEN n ELSE 0 END) AS unknown,"
        " min(CASE WHEN verdict = 'broken' THEN at END) AS first_at,"
        " min_by(witness, CASE WHEN verdict = 'broken' THEN at END) AS witness"
        f" FROM ({audit.cases.format_map(places)}) AS cases GROUP BY tenant"
        for audit in AUDITS
    )


def audit_view() -> str:
    """Return the SELECT of the view, of all tenants and times."""
    return audit_select(lambda name: f"{VIEW_SCHEMA}.{name}")
