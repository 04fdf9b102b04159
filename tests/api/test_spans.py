import asyncio
from typing import Any, NamedTuple

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from api.messages import MadeMessage, MessageMaker
from api.spans import TracingPublisher
from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.records import HEADER_TRACEPARENT
from mqlake.tracing import Tracer

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Record(NamedTuple):
    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return 7


class InMemory(TracingPublisher):
    """Appends to a list."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self.messages: list[MadeMessage] = []

    def _produce(self, servers: str, message: MadeMessage, report: Any) -> None:
        if message.value == b"refuse":
            raise LogError("full", definite=True)
        self.messages.append(message)
        report(None, Record())


def test_sampled_messages_bear_their_span() -> None:
    exporter = InMemorySpanExporter()
    publisher = InMemory(Tracer("api", 0.0, SimpleSpanProcessor(exporter)))
    maker = MessageMaker("site", 0, ManualClock())
    traced = maker.make(
        "default",
        "a/b",
        b"x",
        qos=0,
        retain=False,
        properties={"user_property": [("traceparent", SAMPLED)]},
    )
    plain = maker.make("default", "a/b", b"x", qos=0, retain=False)
    placed = asyncio.run(publisher.publish("", [traced, plain]))
    assert [(one.partition, one.offset) for one in placed] == [(2, 7)] * 2
    (span,) = exporter.get_finished_spans()
    assert span.name == "accept"
    assert (span.attributes or {})["messaging.destination.name"] == "a/b"
    headers = [dict(one.headers).get(HEADER_TRACEPARENT) for one in publisher.messages]
    assert span.context is not None
    assert headers == [f"00-{SAMPLED[3:35]}-{span.context.span_id:016x}-01".encode(), None]
    publisher.close()


def test_a_span_of_what_the_log_refuses_ends_with_the_reason() -> None:
    exporter = InMemorySpanExporter()
    publisher = InMemory(Tracer("api", 1.0, SimpleSpanProcessor(exporter)))
    maker = MessageMaker("site", 0, ManualClock())
    refused = maker.make("default", "a", b"refuse", qos=1, retain=False)
    with pytest.raises(LogError):
        asyncio.run(publisher.publish("", [refused]))
    (span,) = exporter.get_finished_spans()
    assert (span.attributes or {})["error.message"] == "full"
