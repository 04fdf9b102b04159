import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from mqlake.processes.tracing import open_tracer
from mqlake.settings import TracingSettings


class Collector:
    """Takes OTLP over HTTP, as a collector does."""

    def __init__(self) -> None:
        received = self.received = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                received.append((self.path, ExportTraceServiceRequest.FromString(body)))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    received: list[tuple[str, Any]]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def test_without_an_endpoint_there_is_no_tracer() -> None:
    assert open_tracer(TracingSettings(), "gateway-1") is None


def test_spans_reach_a_collector(collector: Collector) -> None:
    settings = TracingSettings(otlp_endpoint=collector.url, sample_ratio=1.0)
    tracer = open_tracer(settings, "gateway-1")
    assert tracer is not None
    span = tracer.begin("accept", "SERVER", None, {"mqtt.qos": 1})
    assert span is not None
    traceparent = tracer.traceparent(span)
    tracer.end(span, ValueError("no"))
    tracer.span("route", "INTERNAL", traceparent, {}, from_ms=1_000, to_ms=900)
    tracer.close()
    ((path, request),) = collector.received
    assert path == "/v1/traces"
    (resource,) = request.resource_spans
    names = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert (names["service.name"], names["service.instance.id"]) == ("mqlake", "gateway-1")
    accept, route = resource.scope_spans[0].spans
    assert route.parent_span_id == accept.span_id
    assert traceparent.startswith(f"00-{accept.trace_id.hex()}-{accept.span_id.hex()}-")
    assert int(traceparent[-2:], 16) & 1, "sampled"
    assert accept.status.code == 2
    assert (route.start_time_unix_nano, route.end_time_unix_nano) == (10**9, 10**9)


def test_the_path_of_a_collector_may_be_given(collector: Collector) -> None:
    settings = TracingSettings(otlp_endpoint=f"{collector.url}/v1/traces", sample_ratio=1.0)
    tracer = open_tracer(settings, "x")
    assert tracer is not None
    tracer.span("route", "INTERNAL", "", {}, from_ms=1, to_ms=2)
    tracer.close()
    assert collector.received[0][0] == "/v1/traces"
