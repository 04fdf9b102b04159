"""A port at which Prometheus finds the metrics of a process, `http://<host>:<port>/metrics`.

Served by threads of their own, so that a process that is stuck still says so; by a few at once,
each for some seconds at most. At an address of this machine alone it answers to that address and to
localhost, not to a name that a page of some site leads here (DNS rebinding).
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from mqlake import VERSION
from mqlake.logs import logged_lines
from mqlake.metrics.families import Families
from mqlake.security.addresses import is_loopback, names_this_machine
from mqlake.settings import MetricsSettings

_logger = logging.getLogger(__name__)

Read = Callable[[Families], None]
"""Adds a process's metrics; called at each scrape, from any thread."""

MOST_AT_ONCE: Final = 8
"""Connections; more are closed."""
IDLE_SECONDS: Final = 10.0
"""A client may say, or take, nothing for so long."""


class _Reader(Collector):
    def __init__(self, name: str, is_healthy: Callable[[], bool], read: Read) -> None:
        self._name = name
        self._is_healthy = is_healthy
        self._read = read

    def collect(self) -> Iterator[Family]:
        families = Families()
        families.add("mqlake_build_info", 1, self._name, VERSION)
        families.add("mqlake_healthy", int(self._is_healthy()), self._name)
        for level, count in logged_lines().items():
            families.add("mqlake_logged_lines_total", count, level)
        self._read(families)
        return iter(families)

    def describe(self) -> Iterable[Family]:
        return ()  # else it would be asked while its process starts


def new_registry(name: str, is_healthy: Callable[[], bool], read: Read) -> CollectorRegistry:
    """Return the metrics that are served for a process.

    Args:
        name: Name of the process.
        is_healthy: Whether it does its work.
        read: Adds its own metrics.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Reader(name, is_healthy, read))
    return registry


class _Handler(WSGIRequestHandler):
    timeout = IDLE_SECONDS

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has gone, or that says nothing."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def _application(registry: CollectorRegistry, host: str) -> Any:
    """Return the application of a server that listens on an address."""
    metrics, is_private = make_wsgi_app(registry), is_loopback(host)

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        if is_private and not names_this_machine(environ.get("HTTP_HOST", "")):
            start_response("421 Misdirected Request", [("Content-Type", "text/plain")])
            return [b"ask by an address or localhost, not by another name\n"]
        return metrics(environ, start_response)

    return answer


class MetricsServer:
    """Serves a process's metrics, if it is to; a port that is taken costs the metrics alone."""

    def __init__(self, settings: MetricsSettings, registry: CollectorRegistry) -> None:
        self._server: WSGIServer | None = None
        if not settings.port:
            return
        application = _application(registry, settings.host)
        try:
            found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
            kind = _Server6 if found[0][0] == socket.AF_INET6 else _Server
            self._server = make_server(settings.host, settings.port, application, kind, _Handler)
        except OSError as exc:
            fields = {"host": settings.host, "port": settings.port, "reason": str(exc)}
            _logger.error("no metrics are served", extra={"fields": fields})
            return
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
