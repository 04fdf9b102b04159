"""Traces as an option: which message went where and when, sent to an OpenTelemetry collector.

The context goes with the message as the log header `traceparent`, in the form of the W3C. A message
that is not sampled has no header, so later processes look for nothing. Without an endpoint nothing
of this is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mqlake import VERSION
from mqlake.errors import SettingsError
from mqlake.records.messages import HEADER_TRACEPARENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

    from mqlake.settings import TracingSettings

TRACES_PATH: Final = "/v1/traces"
NS_PER_MS: Final = 1_000_000


class Tracer:
    """Makes the spans of a process.

    Args:
        process: Its name.
        sample_ratio: Part of the messages whose publishers do not say whether they are traced.
        processor: Takes the spans that have ended.
    """

    def __init__(self, process: str, sample_ratio: float, processor: SpanProcessor) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create(
            {
                "service.name": "mqlake",
                "service.instance.id": process,
                "service.version": VERSION,
            }
        )
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
            resource=resource,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("mqlake", VERSION)
        self._propagator = TraceContextTextMapPropagator()
        self._kinds = {kind.name: kind for kind in trace.SpanKind}
        self._set_in_context = trace.set_span_in_context
        self._error = trace.Status(trace.StatusCode.ERROR)

    def begin(
        self,
        name: str,
        kind: str,
        traceparent: str | None,
        attributes: Mapping[str, Any],
        *,
        at_ms: int | None = None,
    ) -> Span | None:
        """Begin a span; None when its message is not sampled.

        Args:
            name: Name of the span.
            kind: Kind of the span: SERVER, CONSUMER and so on.
            traceparent: Span that caused it; ignored when it is malformed.
            attributes: Those that are known.
            at_ms: When it began, UTC epoch; without it now.
        """
        parent = self._context(traceparent)
        start = None if at_ms is None else at_ms * NS_PER_MS
        span = self._tracer.start_span(
            name, parent, kind=self._kinds[kind], attributes=dict(attributes), start_time=start
        )
        return span if span.is_recording() else None

    def span(
        self,
        name: str,
        kind: str,
        traceparent: str,
        attributes: Mapping[str, Any],
        *,
        from_ms: int,
        to_ms: int,
    ) -> None:
        """Tell of something that is over, between two times of the UTC epoch."""
        found = self.begin(name, kind, traceparent, attributes, at_ms=from_ms)
        if found is not None:
            found.end(max(from_ms, to_ms) * NS_PER_MS)

    def traceparent(self, span: Span) -> str:
        """Return the value of the log header of a span's message."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._set_in_context(span))
        return carrier[HEADER_TRACEPARENT]

    def header(self, span: Span) -> tuple[str, bytes]:
        """Return the log header of a span's message."""
        return HEADER_TRACEPARENT, self.traceparent(span).encode("ascii")

    def end(self, span: Span, error: Exception | None = None) -> None:
        """End a span now."""
        if error is not None:
            span.set_status(self._error)
            span.set_attribute("error.message", str(error))
        span.end()

    def close(self) -> None:
        """Send the remaining spans; blocks."""
        self._provider.shutdown()

    def _context(self, traceparent: str | None) -> Context:
        from opentelemetry.context import Context

        carrier = {} if traceparent is None else {HEADER_TRACEPARENT: traceparent}
        # Not the context of the running code: each message has its own.
        return self._propagator.extract(carrier, Context())


def open_tracer(settings: TracingSettings, process: str) -> Tracer | None:
    """Return the tracer of a process; None without a collector.

    Raises:
        SettingsError: The packages of the extra `tracing` are not there.
    """
    if not settings.otlp_endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as exc:
        raise SettingsError(
            f"setting tracing.otlp_endpoint needs the extra tracing (mqlake[tracing]): {exc}"
        ) from exc
    endpoint = settings.otlp_endpoint.rstrip("/")
    if not endpoint.endswith(TRACES_PATH):
        endpoint += TRACES_PATH
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=5)
    return Tracer(process, settings.sample_ratio, BatchSpanProcessor(exporter))
