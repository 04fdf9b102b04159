import asyncio

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from api.messages.messages import MessageMaker
from api.messages.spans import TracingApiPublisher
from mqlake.clock import ManualClock
from mqlake.errors import LogError
from mqlake.log.contract import LogWriter
from mqlake.log.memory import MemoryLog, MemoryLogWriter
from mqlake.processes.log_disk import ELSEWHERE
from mqlake.processes.tracing import Tracer
from mqlake.records.messages import HEADER_TRACEPARENT, INBOUND

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class InMemory(TracingApiPublisher):
    """Appends to a log in memory, which takes so many at once."""

    def __init__(self, tracer: Tracer, most: int = 10) -> None:
        super().__init__("127.0.0.1:1", ELSEWHERE, tracer)
        self.log = MemoryLog()
        self.log.create(INBOUND, 1)
        self._most = most

    async def _opened_writer(self) -> LogWriter:
        return MemoryLogWriter(self.log, max_queued_records=self._most)


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
    placed = asyncio.run(publisher.publish([traced, plain]))
    assert [(one.partition, one.offset) for one in placed] == [(0, 0), (0, 1)]
    (span,) = exporter.get_finished_spans()
    assert span.name == "accept"
    assert (span.attributes or {})["messaging.destination.name"] == "a/b"
    headers = [dict(one.headers).get(HEADER_TRACEPARENT) for one in publisher.log.records(INBOUND)]
    assert span.context is not None
    assert headers == [f"00-{SAMPLED[3:35]}-{span.context.span_id:016x}-01".encode(), None]
    asyncio.run(publisher.close())


def test_a_span_of_what_the_log_refuses_ends_with_the_reason() -> None:
    exporter = InMemorySpanExporter()
    publisher = InMemory(Tracer("api", 1.0, SimpleSpanProcessor(exporter)), most=0)
    maker = MessageMaker("site", 0, ManualClock())
    refused = maker.make("default", "a", b"x", qos=1, retain=False)
    with pytest.raises(LogError):
        asyncio.run(publisher.publish([refused]))
    (span,) = exporter.get_finished_spans()
    assert (span.attributes or {})["error.message"] == "0 records wait for the log, no more fit"
