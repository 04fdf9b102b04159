"""From the router's records to the clients of this gateway."""

import logging
from typing import Final, cast

from ingest.gateway.connection import ClientConnection
from ingest.gateway.counters import Counters
from ingest.gateway.outbound import OutboundMessage
from ingest.gateway.routes import Routes
from ingest.log.contract import LogRecord
from ingest.protocol.errors import LocalProtocolError
from ingest.protocol.packets import MQTT_5_0
from ingest.protocol.properties import NO_PROPERTIES, Properties
from ingest.session.subscriptions import Copy, Subscriptions
from mqlake.clock import Clock
from mqlake.errors import InvalidRecord, InvalidTopic
from mqlake.records import (
    BARRIER_KEY_PREFIX,
    FLAG_QOS,
    FLAG_RETAIN,
    HEADER_CLIENT_ID,
    HEADER_MQTT,
    HEADER_PROPERTIES,
    HEADER_SOURCE,
    RECORD_VERSION,
    Source,
    decode_properties,
    decode_source,
)
from mqlake.topics import validate_topic_name

logger = logging.getLogger(__name__)

_BARRIER_FIRST_BYTE: Final = BARRIER_KEY_PREFIX[:1]


class Delivery:
    """Takes `mqlake.delivery.<gateway>` apart: once per message and client.

    The router repeats itself after a restart; what is not above the high-water mark of its source
    partition has been here before.

    Args:
        marks: Per partition of `mqlake.inbound` the last offset that is not for this gateway any
            more: the one before its first barrier.
    """

    def __init__(
        self,
        marks: list[int],
        subscriptions: Subscriptions[ClientConnection],
        routes: Routes,
        counters: Counters,
        clock: Clock,
    ) -> None:
        self.marks = marks
        self._subscriptions = subscriptions
        self._routes = routes
        self._counters = counters
        self._clock = clock

    def receive_records(self, records: list[LogRecord]) -> None:
        """Hand a batch to the clients; a record that cannot be read is counted and passed over."""
        self._counters.deliveries_received += len(records)
        now_ms = self._clock.now_ms()
        for record in records:
            try:
                self._receive(record, now_ms)
            except (InvalidRecord, UnicodeDecodeError) as exc:
                self._counters.deliveries_malformed += 1
                logger.warning(
                    "delivery cannot be read",
                    extra={"fields": {"offset": record.offset, "reason": str(exc)}},
                )

    def settle(self) -> None:
        """Let subscriptions count without condition whose starts have passed."""
        self._subscriptions.settle(self.marks)

    def _receive(self, record: LogRecord, now_ms: int) -> None:
        headers = dict(record.headers)
        source = decode_source(headers.get(HEADER_SOURCE, b""))
        partition, offset = source.partition, source.offset
        if not 0 <= partition < len(self.marks):
            raise InvalidRecord(f"source partition {partition}, expected below {len(self.marks)}")
        if offset <= self.marks[partition]:
            self._counters.deliveries_repeated += 1
            return
        self.marks[partition] = offset
        key = record.key or b""
        if key[:1] == _BARRIER_FIRST_BYTE:
            self._routes.receive_barrier(key, partition)
            return
        tenant, _, topic_name = key.decode().partition("/")
        publisher = headers.get(HEADER_CLIENT_ID, b"").decode()
        copies = self._subscriptions.copies(tenant, topic_name, partition, offset, publisher)
        if source.shared_filters:
            copies = copies.copy()
            for topic_filter in source.shared_filters:
                self._add_shared(copies, tenant, topic_filter, partition, offset)
        if not copies:
            return
        message = _read_message(topic_name, record.value or b"", headers, source, now_ms)
        if message.is_expired(now_ms):
            self._counters.dropped_expired += len(copies)  # [MQTT5-3.3.2-5]
            return
        for copy in copies:
            copy.client.sender.deliver(message, copy, now_ms)

    def _add_shared(
        self,
        copies: list[Copy[ClientConnection]],
        tenant: str,
        topic_filter: str,
        partition: int,
        offset: int,
    ) -> None:
        copy = self._subscriptions.shared_copy(tenant, topic_filter, partition, offset)
        if copy is None:
            self._counters.dropped_no_member += 1
        else:
            copies.append(copy)


def _read_message(
    topic_name: str, payload: bytes, headers: dict[str, bytes], source: Source, now_ms: int
) -> OutboundMessage:
    """Read what is to be sent; the log is open to others, so what comes out can also be encoded.

    Raises:
        InvalidRecord: No such message can be sent to a client.
    """
    mqtt = headers.get(HEADER_MQTT, b"")
    if len(mqtt) != 3 or mqtt[0] != RECORD_VERSION:
        raise InvalidRecord(f"header {HEADER_MQTT!r} is {mqtt!r}, expected version 1")
    flags = mqtt[2]
    qos = flags & FLAG_QOS
    if qos > 2:
        raise InvalidRecord(f"QoS is {qos}, expected 0, 1 or 2")
    encoded = headers.get(HEADER_PROPERTIES)
    properties = (
        NO_PROPERTIES if encoded is None else cast("Properties", decode_properties(encoded))
    )
    try:
        validate_topic_name(topic_name)
        message = OutboundMessage(
            topic_name, payload, qos, flags & FLAG_RETAIN != 0, properties, source.received_at_ms
        )
        if properties:
            message.template(MQTT_5_0, now_ms)
    except (InvalidTopic, LocalProtocolError) as exc:
        raise InvalidRecord(str(exc)) from exc
    except (TypeError, ValueError, AttributeError) as exc:
        raise InvalidRecord(f"header {HEADER_PROPERTIES!r} holds a wrong type: {exc}") from exc
    return message
