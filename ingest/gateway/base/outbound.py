"""A message on its way to clients: decoded once, encoded once per protocol level."""

from typing import Any, Final, cast

from ingest.gateway.base.drops import DropReason, Drops
from ingest.protocol.encoder import encode_topic_name
from ingest.protocol.errors import LocalProtocolError
from ingest.protocol.packets import MQTT_3_1_1, MQTT_5_0
from ingest.protocol.properties import NO_PROPERTIES, Properties
from ingest.protocol.publish_template import PublishTemplate
from ingest.session.subscriptions import Copy
from mqlake.errors import InvalidRecord
from mqlake.records.messages import (
    FLAG_QOS,
    FLAG_RETAIN,
    FLAG_UNSHARED,
    HEADER_CHAIN,
    HEADER_CLIENT_ID,
    HEADER_ID,
    HEADER_PROPERTIES,
    LogRecord,
    Source,
    decode_properties,
    groups_of,
)
from mqlake.records.versions import HEADER_MQTT, check_version

_EXPIRY: Final = "message_expiry_interval"

LOCAL: Final = -1
"""Partition of a message that is not in the log: one of the gateway's own, below `$SYS`."""


class OutboundMessage:
    """A message from the router, shared by all its subscribers.

    Its properties go out as they came in: [MQTT5-3.3.2-4] [MQTT5-3.3.2-15] [MQTT5-3.3.2-16]
    [MQTT5-3.3.2-17] [MQTT5-3.3.2-20]

    Args:
        topic_name: As published.
        payload: As published.
        qos: As published; a subscriber gets at most this.
        retain: The RETAIN flag as published.
        properties: Properties of a 5.0 publisher, else empty.
        received_at_ms: When it was accepted, UTC epoch; message expiry counts from here.
        partition: Partition of `mqlake.inbound`, or `LOCAL`.
        offset: Offset in that partition.

    Attributes:
        publisher: Client identifier of the publisher; set where it is asked for.
        message_id: 16 bytes; empty unless events of deliveries are wanted.
        chain: Header of messages that rules have published; empty unless events are wanted.
    """

    __slots__ = (
        "_expiry",
        "_left",
        "_template_3",
        "_template_5",
        "chain",
        "expires_at_ms",
        "message_id",
        "offset",
        "partition",
        "payload",
        "properties",
        "publisher",
        "qos",
        "received_at_ms",
        "retain",
        "topic_name",
    )

    def __init__(
        self,
        topic_name: str,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: Properties,
        received_at_ms: int,
        partition: int,
        offset: int,
    ) -> None:
        self.topic_name = topic_name
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.received_at_ms = received_at_ms
        self.partition = partition
        self.offset = offset
        self.publisher = ""
        self.message_id = b""
        self.chain = b""
        self._expiry = expiry = properties.get(_EXPIRY, 0) if properties else 0
        self.expires_at_ms = received_at_ms + expiry * 1000 if _EXPIRY in properties else None
        self._template_3: PublishTemplate | None = None
        self._template_5: PublishTemplate | None = None
        self._left = expiry  # in the 5.0 template

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms

    def template(self, protocol_level: int, now_ms: int) -> PublishTemplate:
        """Return the encoded message for a level; with an expiry it counts the time passed.

        The interval sent is the rest of the one received [MQTT5-3.3.2-6], never more: the clock of
        the gateway that received it may be ahead of ours.
        """
        if protocol_level < MQTT_5_0:
            if self._template_3 is None:
                self._template_3 = PublishTemplate(
                    self.topic_name, self.payload, NO_PROPERTIES, protocol_level=MQTT_3_1_1
                )
            return self._template_3
        properties = self.properties
        if self.expires_at_ms is not None:
            left = min(max(0, self.expires_at_ms - now_ms + 999) // 1000, self._expiry)
            if left != self._left:
                self._left = left
                self._template_5 = None
            if self._template_5 is None:
                properties = cast("Properties", {**properties, _EXPIRY: left})
        if self._template_5 is None:
            self._template_5 = PublishTemplate(
                self.topic_name, self.payload, properties, protocol_level=MQTT_5_0
            )
        return self._template_5


def deliver_copies(
    message: OutboundMessage, copies: list[Copy[Any]], tenant: str, drops: Drops, now_ms: int
) -> None:
    """Give a message to the clients that are to have it, unless it has expired."""
    if message.is_expired(now_ms):  # [MQTT5-3.3.2-5]
        for copy in copies:
            qos = min(copy.qos, message.qos)
            drops.add(DropReason.EXPIRED, tenant, copy.client.client_id, message.topic_name, qos)
        return
    for copy in copies:
        copy.client.deliver(message, copy, now_ms)


class InboundMessage:
    """A message where it was stored; it is decoded only for a client that gets it.

    Args:
        record: Record of `mqlake.inbound`, neither a barrier nor a control record.
        headers: The record's.
    """

    __slots__ = ("_headers", "_record", "publisher", "tenant", "topic_name")

    def __init__(self, record: LogRecord, headers: dict[str, bytes]) -> None:
        self._record = record
        self._headers = headers
        key = (record.key or b"").decode(errors="replace")
        self.tenant, _, self.topic_name = key.partition("/")
        self.publisher = headers.get(HEADER_CLIENT_ID, b"").decode(errors="replace")

    @property
    def groups(self) -> tuple[str, ...] | None:
        """The share groups that are to have it; `("",)`: subscribers in none. None: all."""
        mqtt = self._headers.get(HEADER_MQTT, b"")
        if len(mqtt) > 3:
            return groups_of(mqtt)
        return ("",) if len(mqtt) == 3 and mqtt[2] & FLAG_UNSHARED else None

    def read(self, now_ms: int) -> OutboundMessage:
        """Return the message to be sent.

        Raises:
            InvalidRecord: No such message can be sent to a client.
        """
        record = self._record
        source = Source(record.partition, record.offset, record.timestamp_ms)
        message = read_message(self.topic_name, record.value or b"", self._headers, source, now_ms)
        message.publisher = self.publisher
        note_origin(message, self._headers)
        return message


def note_origin(message: OutboundMessage, headers: dict[str, bytes]) -> None:
    """Keep the headers that events of its delivery tell."""
    message.message_id = headers.get(HEADER_ID, b"")
    message.chain = headers.get(HEADER_CHAIN, b"")


def read_message(
    topic_name: str, payload: bytes, headers: dict[str, bytes], source: Source, now_ms: int
) -> OutboundMessage:
    """Read a message to be sent; the log is open to others, so see that it can be encoded, too.

    Raises:
        InvalidRecord: No such message can be sent to a client.
    """
    mqtt = headers.get(HEADER_MQTT, b"")
    if len(mqtt) < 3:
        raise InvalidRecord(f"header {HEADER_MQTT!r} is {mqtt!r}, expected 3 bytes or more")
    check_version(mqtt[0], "message")
    flags = mqtt[2]
    qos = flags & FLAG_QOS
    if qos > 2:
        raise InvalidRecord(f"QoS is {qos}, expected 0, 1 or 2")
    encoded = headers.get(HEADER_PROPERTIES)
    properties = (
        NO_PROPERTIES if encoded is None else cast("Properties", decode_properties(encoded))
    )
    if not topic_name:
        raise InvalidRecord("topic name is empty, expected a character")
    try:
        encode_topic_name(topic_name)
        message = OutboundMessage(
            topic_name,
            payload,
            qos,
            flags & FLAG_RETAIN != 0,
            properties,
            source.received_at_ms,
            source.partition,
            source.offset,
        )
        if properties:
            message.template(MQTT_5_0, now_ms)
    except LocalProtocolError as exc:
        raise InvalidRecord(str(exc)) from exc
    except (TypeError, ValueError, AttributeError) as exc:
        raise InvalidRecord(f"header {HEADER_PROPERTIES!r} holds a wrong type: {exc}") from exc
    return message
