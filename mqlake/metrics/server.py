"""A port at which Prometheus finds the metrics of a process, `http://<host>:<port>/metrics`.

Served by threads of their own, so that a process that is stuck still says so.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from mqlake import VERSION
from mqlake.logs import logged_lines
from mqlake.metrics.families import Families
from mqlake.settings import MetricsSettings

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

_logger = logging.getLogger(__name__)

Read = Callable[[Families], None]
"""Adds a process's metrics; called at each scrape, from any thread."""


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
        name: Of the process.
        is_healthy: Whether it does its work.
        read: Adds its own metrics.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Reader(name, is_healthy, read))
    return registry


class MetricsServer:
    """Serves a process's metrics, if it is to; a port that is taken costs the metrics alone."""

    def __init__(self, settings: MetricsSettings, registry: CollectorRegistry) -> None:
        self._server: WSGIServer | None = None
        if not settings.port:
            return
        try:
            self._server, self._thread = start_http_server(settings.port, settings.host, registry)
        except OSError as exc:
            fields = {"host": settings.host, "port": settings.port, "reason": str(exc)}
            _logger.error("no metrics are served", extra={"fields": fields})

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
