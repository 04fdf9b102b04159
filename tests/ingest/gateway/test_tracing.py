from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ingest.gateway.routing.publishing import Publisher
from mqlake.processes.tracing import Tracer
from mqlake.records.messages import HEADER_TRACEPARENT, LogRecord
from tests.ingest.gateway.harness import Client, Harness, running_gateway

if TYPE_CHECKING:
    from ingest.protocol.properties import Properties

pytestmark = pytest.mark.anyio

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{SPAN}-01"


def traced(ratio: float) -> tuple[Tracer, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return Tracer("gateway-1", ratio, SimpleSpanProcessor(exporter)), exporter


def header(record: LogRecord) -> str | None:
    found = dict(record.headers).get(HEADER_TRACEPARENT)
    return None if found is None else found.decode()


async def published(harness: Harness, *traceparents: str | None) -> list[str | None]:
    """Publish a message each to a subscriber and to nobody; return their log headers."""
    client = await Client.connect(harness.port, "alice", level=5)
    await client.subscribe("a/#", 1)
    publisher = await Client.connect(harness.port, "publisher", level=5)
    for traceparent in traceparents:
        properties: Properties = {}
        if traceparent is not None:
            properties["user_property"] = [("traceparent", traceparent)]
        await publisher.publish("a/b", b"12", 1, properties=properties)
        message = await client.message()
        assert message.properties.get("user_property") == properties.get("user_property")
    return [header(record) for record in harness.inbound()]


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_a_sampled_message_has_three_spans_in_one_trace() -> None:
    tracer, exporter = traced(1.0)
    async with running_gateway(tracer=tracer) as harness:
        (found,) = await published(harness, None)
        spans = by_name(exporter)
        assert set(spans) == {"accept", "route", "deliver"}
        accept = spans["accept"].context
        assert accept is not None
        assert found is not None
        assert found.startswith(f"00-{accept.trace_id:032x}-{accept.span_id:016x}-")
        for name in ("route", "deliver"):
            parent = spans[name].parent
            assert parent is not None
            assert (parent.trace_id, parent.span_id) == (accept.trace_id, accept.span_id)
        attributes = spans["accept"].attributes or {}
        assert attributes["messaging.client.id"] == "publisher"
        assert attributes["messaging.destination.name"] == "a/b"
        assert attributes["messaging.message.body.size"] == 2
        assert (spans["deliver"].attributes or {})["mqlake.messages_sent"] == 1
        assert spans["accept"].resource.attributes["service.instance.id"] == "gateway-1"
        for span in spans.values():
            assert span.start_time is not None
            assert span.end_time is not None
            assert span.start_time <= span.end_time


async def test_the_span_of_a_publisher_is_continued() -> None:
    tracer, exporter = traced(0.0)
    async with running_gateway(tracer=tracer) as harness:
        found = await published(harness, None, SAMPLED, f"00-{TRACE}-{SPAN}-00", "nonsense")
        assert [one is not None for one in found] == [False, True, False, False]
        spans = by_name(exporter)
        assert len(exporter.get_finished_spans()) == 3
        parent = spans["accept"].parent
        assert parent is not None
        assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == (TRACE, SPAN)


async def test_what_the_router_repeats_is_told_once() -> None:
    tracer, exporter = traced(1.0)
    async with running_gateway(tracer=tracer) as harness:
        await published(harness, None)
        harness.router.repeat_all()
        await harness.delivered()
        assert harness.counters.deliveries_repeated > 0
        assert len([one for one in exporter.get_finished_spans() if one.name == "deliver"]) == 1


async def test_without_a_tracer_nothing_is_different() -> None:
    async with running_gateway() as harness:
        assert type(harness.gateway.publisher) is Publisher
        assert await published(harness, SAMPLED) == [None]
