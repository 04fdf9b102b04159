import asyncio
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mqlake.clock import ManualClock
from mqlake.processes.tracing import Tracer
from rules.actions.contract import NO_RETRY, ActionError, Problems, Work
from rules.runner.tracing import TracedAction
from tests.rules.test_templates import work_for

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Takes:
    """An action that takes 20 ms and has its problems."""

    max_batch = 7
    concurrency = 2
    may_fall_behind = False
    runs_recovered = True
    retry = NO_RETRY

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.is_closed = False
        self.is_broken = False

    async def run(self, batch: Sequence[Work]) -> Problems:
        self._clock.advance(0.02)
        if self.is_broken:
            raise ActionError("away")
        return {1: ActionError("refused")}

    async def close(self) -> None:
        self.is_closed = True


def test_each_try_of_a_sampled_message_is_told() -> None:
    clock, exporter = ManualClock(), InMemorySpanExporter()
    action = Takes(clock)
    tracer = Tracer("rules", 0.0, SimpleSpanProcessor(exporter))
    traced = TracedAction(action, "http", tracer, clock)
    assert (traced.max_batch, traced.concurrency, traced.may_fall_behind) == (7, 2, False)
    batch = [work_for({}, traceparent=parent) for parent in (PARENT, PARENT, b"")]
    assert set(asyncio.run(traced.run(batch))) == {1}
    action.is_broken = True
    with pytest.raises(ActionError):
        asyncio.run(traced.run(batch[:1]))
    asyncio.run(traced.close())
    assert action.is_closed
    spans = exporter.get_finished_spans()
    assert [error_of(span) for span in spans] == [None, "refused", "away"]
    for span in spans:
        assert span.parent is not None
        assert span.parent.span_id == 0xB7AD6B7169203331
        assert (span.attributes or {})["mqlake.action"] == "http"
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.end_time - span.start_time == 20_000_000


def error_of(span: ReadableSpan) -> object:
    return (span.attributes or {}).get("error.message")
