"""A message between a record of `mqlake.inbound` and a PUBLISH between two sites.

The message's own fields go along: payload, QoS, RETAIN, properties, and with them its identifier,
the client that published it and the gateway that accepted it. So the rows of one message at all
sites have the same `id` and `origin`. The time of a record is that of the site whose log it is in.
"""

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple, cast

from ingest.federation.envelope import (
    NAME,
    ROUTING,
    ChainKey,
    InvalidEnvelope,
    SiteMessage,
    from_header,
    from_mqtt,
    to_header,
    to_mqtt,
)
from ingest.federation.sites.streams.streams import StreamKey
from ingest.protocol.packets import MQTT_5_0, Publish
from ingest.protocol.properties import NO_PROPERTIES, Properties
from mqlake.errors import InvalidTopic
from mqlake.records.messages import (
    FLAG_QOS,
    FLAG_RETAIN,
    FLAG_UNSHARED,
    HEADER_CHAIN,
    HEADER_CLIENT_ID,
    HEADER_ID,
    HEADER_ORIGIN,
    HEADER_PROPERTIES,
    HEADER_TRACEPARENT,
    HEADER_USERNAME,
    LogRecord,
    decode_properties,
    encode_properties,
    group_header,
    is_message,
    mqtt_header,
)
from mqlake.records.versions import HEADER_MQTT, Headers
from mqlake.topics.names import split_shared, validate_topic_filter

HEADER_HANDED: Final = "mqlake-handed"
"""Header of a record that a neighbour has handed over for a group: a `GroupOrigin`, with dots."""

HANDED: Final = "mqlake-handed"
"""User property with the share group, and the position that the message is handed over from."""

OFFER: Final = "offer"
"""Level of the topic of offers, in the place of that of messages."""

RECORD: Final = "mqlake-record"
"""User property with the headers that go along, as a JSON object."""

_TEXTS: Final = (
    HEADER_CLIENT_ID,
    HEADER_ORIGIN,
    HEADER_USERNAME,
    HEADER_TRACEPARENT,
    HEADER_CHAIN,
)
_ID_BYTES: Final = 16
_MQTT_BYTES: Final = 3


class GroupOrigin(NamedTuple):
    """Site and position from which a message for one share group alone was handed over."""

    site: int
    epoch: int
    """Epoch of its log."""
    partition: int
    sequence: int
    """Offset and one."""
    after: int
    """Number of the message handed over for the group before it, or of the position before."""
    group: str
    """As `$share/<share name>/<topic filter>`, of the federation."""

    def named(self) -> SiteMessage:
        """Return the message that stands for it among those that a site has had.

        Its stream is one of each group: that of a message for all has the same numbers.
        """
        digest = blake2b(self.group.encode(), digest_size=8).digest()
        stream = int.from_bytes(digest) << 16 | self.partition
        key = ChainKey(~self.site, self.epoch, "")
        message = SiteMessage(key, self.sequence, self.after, 0, 0, b"", 0, retain=False)
        message.partition = stream
        return message


@dataclass(slots=True)
class Carried:
    """A message on its way, and further fields of its record."""

    message: SiteMessage
    protocol_level: int
    """Protocol level of the publisher."""
    headers: Headers
    """Identifier, client, origin, …"""
    sender: int
    """The site that it comes from; this one for messages of its own clients."""
    handed: GroupOrigin | None = None
    """It is for one share group, which no member has had it of."""
    is_again: bool = False
    """This site shows it again, as the latest retained message of its topic."""


def of_record(record: LogRecord, tenant: str, site: int, epoch: int) -> Carried | None:
    """Read a message of a tenant from the log; None for all other records.

    Args:
        record: Record of `mqlake.inbound`.
        tenant: Tenant whose messages are federated.
        site: This one, the origin of messages without an envelope.
        epoch: Epoch of its log.

    Raises:
        InvalidEnvelope: It has one that cannot be read.
        InvalidRecord: Or properties.
    """
    headers = dict(record.headers)
    key = record.key
    if key is None or not key.startswith(tenant.encode() + b"/") or not is_message(key, headers):
        return None
    topic = key.decode().partition("/")[2]
    if topic.startswith("$"):
        return None
    return _carried(record, headers, topic, site, epoch)


def of_handed(record: LogRecord, group: str, after: int, site: int, epoch: int) -> Carried | None:
    """Read a message that the router gives to a neighbour for a share group.

    Args:
        record: Record of `mqlake.delivery.<way>`, with the position that its source says.
        group: Group in the federation's names.
        after: Sequence of the one before it in its partition that went to that neighbour for the
            group; 0: none is known.
        site: This one.
        epoch: Epoch of its log.

    Raises:
        InvalidEnvelope: As `of_record`.
        InvalidRecord: See `of_record`.
    """
    headers = dict(record.headers)
    _, separator, topic = (record.key or b"").decode(errors="replace").partition("/")
    if len(headers.get(HEADER_MQTT, b"")) < _MQTT_BYTES or not separator or topic.startswith("$"):
        return None
    carried = _carried(record, headers, topic, site, epoch)
    sequence = record.offset + 1
    before = after if 0 < after < sequence else sequence - 1
    carried.handed = GroupOrigin(site, epoch, record.partition, sequence, before, group)
    return carried


def _carried(
    record: LogRecord, headers: dict[str, bytes], topic: str, site: int, epoch: int
) -> Carried:
    payload = record.value or b""
    mqtt = headers[HEADER_MQTT]
    envelope = headers.get(NAME)
    sender = site
    if envelope is None:
        message = SiteMessage(
            ChainKey(site, epoch, topic),
            record.offset + 1,
            record.offset,
            0,
            record.timestamp_ms,
            payload,
            mqtt[2] & FLAG_QOS,
            bool(mqtt[2] & FLAG_RETAIN),
            partition=record.partition,
        )
    else:
        message, sender = from_header(envelope, topic, payload)
    if HEADER_PROPERTIES in headers:
        message.properties = cast("Properties", decode_properties(headers[HEADER_PROPERTIES]))
    kept: Headers = [(name, headers[name]) for name in (HEADER_ID, *_TEXTS) if name in headers]
    is_again = envelope is not None and sender == site
    return Carried(message, mqtt[1], kept, sender, is_again=is_again)


def to_publish(carried: Carried, site: int, *, prefix: str) -> Publish:
    """Return the PUBLISH that takes a message from this site to a neighbour."""
    message = carried.message
    topic, properties = to_mqtt(message, site, prefix=prefix, protocol_level=MQTT_5_0)
    found: dict[str, object] = {"level": carried.protocol_level}
    for name, value in carried.headers:
        found[name] = value.hex() if name == HEADER_ID else value.decode(errors="replace")
    users = properties["user_property"]
    users.insert(1, (RECORD, json.dumps(found, separators=(",", ":"), ensure_ascii=False)))
    if carried.handed is not None:
        users.insert(2, (HANDED, json.dumps(carried.handed, separators=(",", ":"))))
        topic = f"{prefix}/{HANDED}/{message.topic}"
    return Publish(topic, message.payload, 1, properties=properties)


def to_offer(publish: Publish, *, prefix: str) -> Publish:
    """Return the PUBLISH that offers a message in place of that of `to_publish`.

    It says where the message is in its origin's log, as its envelope does: origin, epoch, partition
    and sequence.
    """
    envelope = publish.properties["user_property"][0][1]
    position = ".".join(envelope.split(".")[1:5])
    return Publish(f"{prefix}/{OFFER}", position.encode(), 1)


def of_offer(publish: Publish) -> tuple[StreamKey, int]:
    """Read a PUBLISH of `to_offer`.

    Raises:
        InvalidEnvelope: It is no such PUBLISH.
    """
    try:
        origin, epoch, partition, sequence = map(int, publish.payload.split(b"."))
    except ValueError as exc:
        raise InvalidEnvelope(f"offer {publish.payload[:80]!r}, expected four numbers") from exc
    return StreamKey(origin, epoch, partition), sequence


def of_publish(publish: Publish, *, prefix: str) -> Carried:
    """Read a PUBLISH of `to_publish`.

    Raises:
        InvalidEnvelope: It is no such PUBLISH.
    """
    topic_name = publish.topic_name
    topic = topic_name.removeprefix(f"{prefix}/{HANDED}/")
    is_handed = topic != topic_name
    if is_handed:
        topic_name = f"{prefix}/{ROUTING}/{topic}"
    message, sender = from_mqtt(topic_name, publish.payload, publish.properties, prefix=prefix)
    users = message.properties.get("user_property", [])
    if not users or users[0][0] != RECORD:
        raise InvalidEnvelope(f"PUBLISH of a site without a user property {RECORD}")
    level, headers = _read_headers(users[0][1])
    users = users[1:]
    origin = None
    if is_handed:
        if not users or users[0][0] != HANDED:
            raise InvalidEnvelope(f"message for a share group without a user property {HANDED}")
        origin, users = _read_origin(users[0][1]), users[1:]
    own = dict(message.properties)
    if users:
        own["user_property"] = users
    else:
        del own["user_property"]
    message.properties = cast("Properties", own) if own else NO_PROPERTIES
    return Carried(message, level, headers, sender, origin)


def _read_origin(text: str) -> GroupOrigin:
    try:
        *numbers, group = json.loads(text)
        if len(numbers) != len(GroupOrigin._fields) - 1 or any(
            type(one) is not int for one in numbers
        ):
            raise ValueError("expected five numbers and a group")
        validate_topic_filter(group)
        site, epoch, partition, sequence, after = numbers
        origin = GroupOrigin(site, epoch, partition, sequence, after, group)
        if min(numbers) < 0 or origin.after >= origin.sequence or origin.partition >= 1 << 16:
            raise ValueError("numbers that cannot be")
        if not split_shared(group).share_name:
            raise ValueError("no share group")
    except (ValueError, TypeError, AttributeError, InvalidTopic, RecursionError) as exc:
        raise InvalidEnvelope(f"user property {HANDED} cannot be read: {exc!r}") from exc
    return origin


def _read_headers(text: str) -> tuple[int, Headers]:
    try:
        found = json.loads(text)
        level = found["level"]
        if level not in (3, 4, 5):
            raise ValueError(f"protocol level {level!r}")
        message_id = bytes.fromhex(found[HEADER_ID])
        if len(message_id) != _ID_BYTES:
            raise ValueError(f"identifier of {len(message_id)} bytes, expected {_ID_BYTES}")
        headers = [(HEADER_ID, message_id)]
        headers += [(name, found[name].encode()) for name in _TEXTS if name in found]
        if HEADER_CLIENT_ID not in found or HEADER_ORIGIN not in found:
            raise ValueError("no client identifier or no origin")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise InvalidEnvelope(f"user property {RECORD} cannot be read: {exc!r}") from exc
    return level, headers


def to_record(
    carried: Carried, tenant: str, local_topic: str, *, retain: bool
) -> tuple[bytes, bytes, Headers]:
    """Return key, value and headers of the record that holds a neighbour's message.

    Args:
        carried: It. Its envelope says whether it was published with RETAIN.
        tenant: Whose topic.
        local_topic: As it is called here.
        retain: Whether it is to be retained here.
    """
    message = carried.message
    mqtt = mqtt_header(carried.protocol_level, message.qos, retain=retain, dup=False)
    if carried.handed is None:
        # Its origin sees to the share groups of all sites.
        mqtt = bytes((*mqtt[:2], mqtt[2] | FLAG_UNSHARED))
    headers = [(HEADER_MQTT, mqtt), *carried.headers, to_header(message, carried.sender)]
    if message.properties:
        properties = encode_properties(dict(message.properties))
        headers.append((HEADER_PROPERTIES, properties))
    return f"{tenant}/{local_topic}".encode(), message.payload, headers


def to_group_record(
    carried: Carried, tenant: str, local_topic: str, local_group: str
) -> tuple[bytes, bytes, Headers]:
    """Return key, value and headers of the record of a message that a share group is given."""
    origin = carried.handed
    assert origin is not None
    key, value, headers = to_record(carried, tenant, local_topic, retain=False)
    mqtt = group_header(headers[0][1], [local_group])
    text = ".".join(map(str, origin[:5])) + f".{origin.group}"
    return key, value, [(HEADER_MQTT, mqtt), *headers[1:], (HEADER_HANDED, text.encode())]


def _read_handed(value: bytes) -> GroupOrigin:
    try:
        *numbers, group = value.decode().split(".", 5)
        site, epoch, partition, sequence, after = map(int, numbers)
    except ValueError as exc:
        raise InvalidEnvelope(f"header {HEADER_HANDED} cannot be read: {exc!r}") from exc
    return GroupOrigin(site, epoch, partition, sequence, after, group)


def site_message_of(record: LogRecord) -> SiteMessage | None:
    """Return the position in another log that a record is from; None: it is from none.

    Raises:
        InvalidEnvelope: It has an envelope that cannot be read.
    """
    handed = dict(record.headers).get(HEADER_HANDED)
    if handed is not None:
        return _read_handed(handed).named()
    for name, value in record.headers:
        if name == NAME:
            topic = (record.key or b"").decode(errors="replace").partition("/")[2]
            return from_header(value, topic, b"")[0]
    return None
