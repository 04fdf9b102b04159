"""The records of the log: which headers they carry and how fields become key, value and headers.

`docs/records.md` is this module in prose. Values are bare payloads so that any Kafka consumer can
use them; everything else is in the key and the headers. A record says its version
(`mqlake.records.versions`). Log topic names are here too, so that none is spelled by hand.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from mqlake.errors import InvalidRecord
from mqlake.records.versions import (
    HEADER_MQTT,
    NEWEST_READ,
    OLDEST_READ,
    READ_VERSIONS,
    RECORD_VERSION,
    VERSION_HEADER,
    Headers,
)
from mqlake.topics.names import SHARE_PREFIX

INBOUND: Final = "mqlake.inbound"
ROUTES: Final = "mqlake.routes"
ROUTES_IN_FORCE: Final = "mqlake.routes_in_force"
SESSIONS: Final = "mqlake.sessions"
EVENTS: Final = "mqlake.events"
GATEWAYS: Final = "mqlake.gateways"
RULES: Final = "mqlake.rules"
OUTPUTS: Final = "mqlake.outputs"
DEAD_LETTERS: Final = "mqlake.dead_letters"
METRICS: Final = "mqlake.metrics"
ACCESS: Final = "mqlake.access"
RUNNER: Final = "mqlake.runner"
JOBS: Final = "mqlake.jobs"
ALARMS: Final = "mqlake.alarms"
DELIVERY_PREFIX: Final = "mqlake.delivery."
UNDELIVERED_PREFIX: Final = "mqlake.undelivered."

# Header names, beside those that say the version.
HEADER_ID: Final = "id"
HEADER_CLIENT_ID: Final = "client_id"
HEADER_USERNAME: Final = "username"
HEADER_ORIGIN: Final = "origin"
HEADER_PROPERTIES: Final = "properties"
HEADER_SOURCE: Final = "source"
HEADER_EXCHANGE: Final = "exchange"
HEADER_BY: Final = "by"
HEADER_NUMBER: Final = "number"
HEADER_SINCE: Final = "since"
HEADER_REACH: Final = "reach"
"""Header of a route whose gateway waits until other sites know of it."""
HEADER_PEERHOST: Final = "peerhost"
HEADER_TRACEPARENT: Final = "traceparent"
# Of rules, see `mqlake.records.rules`.
HEADER_RULE: Final = "rule"
HEADER_OUTPUT: Final = "output"
HEADER_CHAIN: Final = "chain"
HEADER_TS: Final = "ts"
HEADER_TOPIC: Final = "topic"
HEADER_STAGE: Final = "stage"
HEADER_ACTION: Final = "action"
HEADER_ERROR: Final = "error"
HEADER_TABLE: Final = "table"
HEADER_EVENT_TIME: Final = "event_time"
HEADER_WATERMARK: Final = "watermark"

# Of events, in `mqlake.events`.
MESSAGE_DROPPED: Final = "message.dropped"
TOO_LARGE: Final = "too_large"
"""Reason of `MESSAGE_DROPPED`: larger than its target takes."""

FLAG_QOS: Final = 0b0000_0011
FLAG_RETAIN: Final = 0b0000_0100
FLAG_DUP: Final = 0b0000_1000
FLAG_UNSHARED: Final = 0b0001_0000
"""A message of another site, for no share group: that site sees to its groups."""

# No tenant name starts with U+0000, so a barrier or a control record never looks like a message.
BARRIER_KEY_PREFIX: Final = b"\0barrier/"
NO_MESSAGE: Final = b"\0"
CONTROL_KEY_PREFIX: Final = b"\0control/"

VERSION_KEY: Final = b"\0version"
"""In `mqlake.gateways`: of the record that says in which version gateways write."""

SKIPPED_KEY: Final = b"\0skipped"
"""Key of a record that only says that offsets before it were skipped (`mqlake.log.lost_end`)."""

BAN_KEY_PREFIX: Final = b"\0ban/"
"""In `mqlake.gateways`: of the record of a ban, `mqlake.bans`."""
RIGHTS_KEY: Final = b"\0rights"
"""In `mqlake.gateways`: of the record of the rights in force, `mqlake.rights.applied`."""
TENANT_KEY_PREFIX: Final = b"\0tenant/"
"""In `mqlake.gateways`: of the record of a tenant, `mqlake.records.tenants`."""
REACH_KEY: Final = b"\0reach"
"""In `mqlake.gateways`: of the record by which the federator answers `HEADER_REACH`."""
GROWTH_KEY: Final = b"\0growth"
"""In `mqlake.gateways`: of the record of the log's growth, `mqlake.log.growth`."""
RETIRING: Final = "retiring"
"""In a heartbeat: another process has the name of a gone gateway, and settles its remains."""
NO_GATEWAY: Final = b"\0"
"""In `mqlake.gateways`: begins the keys that are not of a gateway's heartbeat."""

QUESTION_KEY_PREFIX: Final = b"\0question/"

# U+0000 cannot stand in a client's filter, so such a route is never a subscription.
RETAINED_FILTER_PREFIX: Final = "\0retained/"

Properties = dict[str, Any]


class LogRecord(NamedTuple):
    """One record as read. A named tuple: the cheapest to build of types that mypy can check."""

    partition: int
    offset: int
    timestamp_ms: int
    """UTC epoch; set by the writer, else by the log."""
    key: bytes | None
    value: bytes | None
    """None is a tombstone in a compacted log topic."""
    headers: Headers


def delivery_topic(gateway: str) -> str:
    """Return the log topic with the messages that the router chose for one gateway."""
    return DELIVERY_PREFIX + gateway


def undelivered_topic(query: str) -> str:
    """Return the log topic in which a query's records wait for log topics that do not take them."""
    return UNDELIVERED_PREFIX + query


@dataclass(slots=True)
class Message:
    """An application message as the log holds it, in `mqlake.inbound` and the delivery topics."""

    tenant: str
    topic_name: str
    payload: bytes
    qos: int
    retain: bool
    message_id: bytes
    """16 bytes, see `mqlake.identifiers`."""
    client_id: str
    received_at_ms: int
    """UTC epoch; the log record's own timestamp."""
    origin: str
    """`<site>/<gateway>` that accepted it."""
    dup: bool = False
    protocol_level: int = 4
    username: str | None = None
    properties: Properties | None = None
    """5.0 PUBLISH properties that belong to the message, by specification name in snake_case."""


def message_key(tenant: str, topic_name: str) -> bytes:
    """Return the key of a message: `<tenant>/<topic name>`; a tenant name holds no slash."""
    return f"{tenant}/{topic_name}".encode()


def mqtt_header(protocol_level: int, qos: int, *, retain: bool, dup: bool) -> bytes:
    """Return the value of the `mqtt` header."""
    flags = qos | (FLAG_RETAIN if retain else 0) | (FLAG_DUP if dup else 0)
    return bytes((RECORD_VERSION, protocol_level, flags))


def group_header(mqtt: bytes, groups: Collection[str]) -> bytes:
    """Return the `mqtt` header of a message that another site has given to share groups here.

    It is no message for anybody else (`is_message`): behind the three bytes stand the groups.

    Args:
        mqtt: MQTT fields of the message.
        groups: Share groups, as `$share/<share name>/<topic filter>`.
    """
    return mqtt[:3] + "".join(f"\n{one}" for one in groups).encode()


def groups_of(mqtt: bytes) -> tuple[str, ...]:
    """Return the share groups that a message is for alone; none: it is not of `group_header`."""
    return tuple(mqtt[4:].decode(errors="replace").split("\n")) if len(mqtt) > 4 else ()


def is_retained(headers: Mapping[str, bytes]) -> bool:
    """Tell whether the headers are those of a message with the RETAIN flag."""
    mqtt = headers.get(HEADER_MQTT, b"")
    return len(mqtt) == 3 and mqtt[2] & FLAG_RETAIN != 0


def encode_properties(properties: Properties) -> bytes:
    """Return message properties as one JSON object; binary values become `{"base64": "…"}`."""
    return json.dumps(
        properties, ensure_ascii=False, separators=(",", ":"), default=_to_json
    ).encode()


def decode_properties(data: bytes) -> Properties:
    """Undo `encode_properties`.

    Raises:
        InvalidRecord: Not a JSON object, or its user properties are not pairs.
    """
    try:
        properties = json.loads(data, object_hook=_from_json)
    except (ValueError, RecursionError) as exc:
        raise InvalidRecord(f"header {HEADER_PROPERTIES!r} is not JSON: {exc}") from exc
    if not isinstance(properties, dict):
        raise InvalidRecord(f"header {HEADER_PROPERTIES!r} is not a JSON object")
    if "user_property" in properties:
        try:
            pairs = [(name, value) for name, value in properties["user_property"]]
        except (TypeError, ValueError) as exc:
            raise InvalidRecord("property user_property is not a list of pairs") from exc
        properties["user_property"] = pairs
    return properties


def _to_json(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode("ascii")}
    raise TypeError(f"property of type {type(value).__name__} has no JSON form")


def _from_json(value: dict[str, Any]) -> Any:
    if len(value) == 1 and isinstance(value.get("base64"), str):
        return b64decode(value["base64"], validate=True)
    return value


def message_headers(message: Message) -> Headers:
    """Return the headers of a message; the gateway's hot path builds the same list from parts."""
    headers: Headers = [
        (
            HEADER_MQTT,
            mqtt_header(
                message.protocol_level, message.qos, retain=message.retain, dup=message.dup
            ),
        ),
        (HEADER_ID, message.message_id),
        (HEADER_CLIENT_ID, message.client_id.encode()),
        (HEADER_ORIGIN, message.origin.encode()),
    ]
    if message.username is not None:
        headers.append((HEADER_USERNAME, message.username.encode()))
    if message.properties:
        headers.append((HEADER_PROPERTIES, encode_properties(message.properties)))
    return headers


@dataclass(slots=True)
class Source:
    """Position of a delivery's message in `mqlake.inbound`, and the share groups it was chosen for.

    Header `source` of a delivery: `<partition>:<offset>:<timestamp ms>`, then one line per chosen
    share group as `$share/<share name>/<topic filter>`. Subscriptions that are not shared need no
    line: the gateway's own tree finds them.
    """

    partition: int
    offset: int
    received_at_ms: int
    shared_filters: tuple[str, ...] = ()


def decode_source(data: bytes) -> Source:
    """Read the `source` header.

    Raises:
        InvalidRecord: Not of the form above.
    """
    try:
        position, has_lines, lines = data.partition(b"\n")
        partition, offset, received_at_ms = position.split(b":")
        shared_filters = tuple(lines.decode().split("\n")) if has_lines else ()
        return Source(int(partition), int(offset), int(received_at_ms), shared_filters)
    except ValueError as exc:
        raise InvalidRecord(f"header {HEADER_SOURCE!r} is {data!r}, expected p:o:ms") from exc


def encode_source(source: Source) -> bytes:
    """Write the `source` header, as the router does."""
    position = f"{source.partition}:{source.offset}:{source.received_at_ms}"
    return "\n".join((position, *source.shared_filters)).encode()


IS_MESSAGE: Final = (
    "NOT startswith(key, X'00') AND octet_length(mqtt) = 3"
    f" AND substring(mqtt, 1, 1) BETWEEN X'{OLDEST_READ:02x}' AND X'{NEWEST_READ:02x}'"
    " AND is_valid_utf8(CAST(key AS STRING)) AND contains(CAST(key AS STRING), '/')"
)
"""`is_message` in Spark SQL, over the key and the header `mqtt` of a record."""


def is_message(key: bytes | None, headers: Mapping[str, bytes]) -> bool:
    """Tell whether a record of `mqlake.inbound` is a message.

    Barriers are none, nor are records that others may write there: readers pass over them.
    """
    return not _reason_for_none(key, headers)


def _reason_for_none(key: bytes | None, headers: Mapping[str, bytes]) -> str:
    if key is None or key.startswith(NO_MESSAGE):
        return f"key {key!r} is not that of a message"
    mqtt = headers.get(HEADER_MQTT, b"")
    if len(mqtt) != 3 or mqtt[0] not in READ_VERSIONS:
        expected = f"version {OLDEST_READ} to {NEWEST_READ}"
        return f"header {HEADER_MQTT!r} is {mqtt!r}, expected {expected}"
    try:
        has_tenant = "/" in key.decode()
    except UnicodeDecodeError as exc:
        return f"record is not UTF-8 where it must be: {exc}"
    return "" if has_tenant else f"key {key!r} has no tenant"


def decode_message(
    key: bytes, value: bytes | None, headers: Headers, received_at_ms: int
) -> Message:
    """Read a message from a record of `mqlake.inbound` or of a delivery topic.

    Raises:
        InvalidRecord: A header is missing or malformed, or the version is not ours.
    """
    found = dict(headers)
    if reason := _reason_for_none(key, found):
        raise InvalidRecord(reason)
    mqtt = found[HEADER_MQTT]
    flags = mqtt[2]
    try:
        tenant, _, topic_name = key.decode().partition("/")
        username = found.get(HEADER_USERNAME)
        properties = found.get(HEADER_PROPERTIES)
        return Message(
            tenant=tenant,
            topic_name=topic_name,
            payload=value or b"",
            qos=flags & FLAG_QOS,
            retain=bool(flags & FLAG_RETAIN),
            dup=bool(flags & FLAG_DUP),
            message_id=found[HEADER_ID],
            client_id=found[HEADER_CLIENT_ID].decode(),
            received_at_ms=received_at_ms,
            origin=found[HEADER_ORIGIN].decode(),
            protocol_level=mqtt[1],
            username=None if username is None else username.decode(),
            properties=None if properties is None else decode_properties(properties),
        )
    except KeyError as exc:
        raise InvalidRecord(f"header {exc} is missing") from exc
    except UnicodeDecodeError as exc:
        raise InvalidRecord(f"record is not UTF-8 where it must be: {exc}") from exc


class Route(NamedTuple):
    """One line of `mqlake.routes`: a gateway has subscribers for a filter.

    Key `<gateway>/<tenant>/<topic filter as subscribed>` (shared ones with their `$share/<name>/`),
    value the member count in ASCII; no value means no subscribers. A record that a gateway writes
    of itself bears its run and its number: a barrier names it so.
    """

    gateway: str
    tenant: str
    topic_filter: str

    @property
    def is_shared(self) -> bool:
        return self.topic_filter.startswith(SHARE_PREFIX)


def route_key(route: Route) -> bytes:
    return f"{route.gateway}/{route.tenant}/{route.topic_filter}".encode()


def retained_route(gateway: str, shard: int) -> Route:
    """Return the route by which a gateway gets every retain-flagged message of a partition.

    Args:
        gateway: Its name.
        shard: Partition of `mqlake.inbound`; those of all tenants, so the route has none.
    """
    return Route(gateway, "", f"{RETAINED_FILTER_PREFIX}{shard}")


def question_key(gateway: str) -> bytes:
    """Return the key of a question: the router passes it on to the gateway, in its place."""
    return QUESTION_KEY_PREFIX + gateway.encode("ascii")


def route_headers(
    incarnation: str, number: int, since: int, *, asks_sites: bool = False
) -> Headers:
    """Return the headers of a record of a gateway's own.

    Args:
        incarnation: Run of the gateway.
        number: Number of its route records, the first being 1.
        since: Offset in `mqlake.gateways` at which that run began; later runs have higher ones.
        asks_sites: It waits until other sites know of it.
    """
    headers = [
        VERSION_HEADER,
        (HEADER_BY, incarnation.encode()),
        (HEADER_NUMBER, b"%d" % number),
        (HEADER_SINCE, b"%d" % since),
    ]
    return [*headers, (HEADER_REACH, b"")] if asks_sites else headers


def decode_route_key(key: bytes) -> Route:
    """Read the key of a route.

    Raises:
        InvalidRecord: Fewer than three parts.
    """
    parts = key.decode(errors="replace").split("/", 2)
    if len(parts) != 3:
        raise InvalidRecord(f"route key {key!r}, expected gateway/tenant/filter")
    return Route(*parts)


@dataclass(slots=True, frozen=True)
class Barrier:
    r"""A record sent through every partition of `mqlake.inbound` to learn that a route is in force.

    The router passes it to its gateway only after it has applied `mqlake.routes` up to and
    including `routes_offset` and the route record with `route_number`, or not at all. Key
    `\0barrier/<gateway>/<incarnation>/<round>/<routes_offset>/<route_number>`, no value.
    """

    gateway: str
    incarnation: str
    """Tells apart the runs of one gateway; barriers of an earlier run are ignored."""
    round: int
    routes_offset: int
    """-1 for none."""
    route_number: int = 0
    """Number of the route in this run of the gateway; 0 for none."""


def barrier_key(barrier: Barrier) -> bytes:
    return BARRIER_KEY_PREFIX + (
        f"{barrier.gateway}/{barrier.incarnation}/{barrier.round}/{barrier.routes_offset}/"
        f"{barrier.route_number}"
    ).encode("ascii")


def decode_barrier_key(key: bytes) -> Barrier:
    """Read the key of a barrier.

    Raises:
        InvalidRecord: Not five parts, or not numbers where there must be.
    """
    try:
        parts = key[len(BARRIER_KEY_PREFIX) :].decode("ascii").split("/")
        gateway, incarnation, round_, routes_offset, route_number = parts
        return Barrier(gateway, incarnation, int(round_), int(routes_offset), int(route_number))
    except ValueError as exc:
        raise InvalidRecord(f"barrier key {key!r} is malformed") from exc
