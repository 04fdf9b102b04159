"""Spans of messages that come through this gateway, when traces are asked for.

Used instead of the publisher and the delivery without spans, so that those pay nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.process.delivery import Delivery
from ingest.gateway.routing.publishing import Publisher
from mqlake.errors import InvalidRecord
from mqlake.records.messages import (
    HEADER_CLIENT_ID,
    HEADER_SOURCE,
    HEADER_TRACEPARENT,
    decode_source,
)

if TYPE_CHECKING:
    from ingest.gateway.base.context import Context
    from ingest.gateway.process.delivery import DeliveryContext
    from ingest.protocol.packets import Publish
    from mqlake.errors import LogError
    from mqlake.log.contract import AppendCallback
    from mqlake.processes.tracing import Tracer
    from mqlake.records.messages import LogRecord
    from mqlake.records.versions import Headers

USER_PROPERTY: Final = HEADER_TRACEPARENT
"""User property of a 5.0 publisher with its own span, which ours continue."""

ACCEPT: Final = "accept"
ROUTE: Final = "route"
DELIVER: Final = "deliver"


class TracingPublisher(Publisher):
    """A publisher whose sampled messages bear a `traceparent`; its span ends with the log's answer.

    Args:
        tracer: Makes spans.
        context: Context that all parts of the gateway share.
        arguments: Further arguments of `Publisher`, in its order.
    """

    def __init__(self, tracer: Tracer, context: Context, *arguments: Any) -> None:
        super().__init__(context, *arguments)
        self._tracer = tracer
        self._gateway = context.me.gateway

    def publish(
        self,
        key_prefix: str,
        publish: Publish,
        protocol_level: int,
        headers_of_client: Headers,
        on_appended: AppendCallback,
    ) -> None:
        tracer = self._tracer
        client_id = next(
            (value for name, value in headers_of_client if name == HEADER_CLIENT_ID), b""
        )
        attributes = {
            **_known(publish.topic_name, self._gateway),
            "messaging.operation.name": ACCEPT,
            "messaging.client.id": client_id.decode(errors="replace"),
            "messaging.message.body.size": len(publish.payload),
            "mqtt.qos": publish.qos,
        }
        span = tracer.begin(ACCEPT, "SERVER", traceparent_of(publish), attributes)
        if span is None:
            super().publish(key_prefix, publish, protocol_level, headers_of_client, on_appended)
            return
        header = tracer.header(span)

        def end(partition: int, offset: int, error: LogError | None) -> None:
            on_appended(partition, offset, error)
            span.set_attribute("messaging.destination.partition.id", str(partition))
            span.set_attribute("messaging.kafka.offset", offset)
            tracer.end(span, error)

        super().publish(key_prefix, publish, protocol_level, [*headers_of_client, header], end)


class TracingDelivery(Delivery):
    """A delivery that tells how sampled messages were routed and which clients got them.

    Args:
        tracer: Makes spans.
        parts: Parts of the gateway that its delivery uses.
    """

    def __init__(self, tracer: Tracer, parts: DeliveryContext) -> None:
        super().__init__(parts)
        self._tracer = tracer
        self._gateway = parts.context.me.gateway

    def _receive(self, record: LogRecord, now_ms: int) -> None:
        counters = self._counters
        sent, repeated = counters.messages_sent, counters.deliveries_repeated
        super()._receive(record, now_ms)
        for name, value in record.headers:
            if name == HEADER_TRACEPARENT and repeated == counters.deliveries_repeated:
                self._tell(record, value, counters.messages_sent - sent)

    def _tell(self, record: LogRecord, traceparent: bytes, sent: int) -> None:
        try:
            source = decode_source(dict(record.headers).get(HEADER_SOURCE, b""))
        except InvalidRecord:
            return
        topic_name = (record.key or b"").decode(errors="replace").partition("/")[2]
        known = _known(topic_name, self._gateway)
        parent = traceparent.decode("ascii", errors="replace")
        begin, routed = source.received_at_ms, record.timestamp_ms
        self._tracer.span(
            ROUTE,
            "INTERNAL",
            parent,
            {**known, "messaging.kafka.offset": source.offset},
            from_ms=begin,
            to_ms=routed,
        )
        self._tracer.span(
            DELIVER,
            "CONSUMER",
            parent,
            {**known, "messaging.operation.name": DELIVER, "mqlake.messages_sent": sent},
            from_ms=max(begin, routed),
            to_ms=self._clock.now_ms(),
        )


def traceparent_of(publish: Publish) -> str | None:
    """Return the publisher's own span, if its message names one."""
    pairs = publish.properties.get("user_property", ()) if publish.properties else ()
    return next((value for name, value in pairs if name == USER_PROPERTY), None)


def _known(topic_name: str, gateway: str) -> dict[str, Any]:
    return {
        "messaging.system": "mqtt",
        "messaging.destination.name": topic_name,
        "mqlake.gateway": gateway,
    }
