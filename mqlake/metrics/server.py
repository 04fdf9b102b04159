"""A port of a process for those who watch it: `http://<host>:<port>/metrics`, `/live`, `/ready`.

`/metrics` is for Prometheus. `/live` is 503 when the process has to be ended, as it does nothing
any more; never because something else is away. `/ready` is 503 while it takes no new work, and says
why. Served by threads of their own, so that a process that is stuck still says so; by a few at
once. Who keeps a place and asks nothing, or does not take its answer, gives way to others. At an
address of this machine alone it answers to that address and to localhost, not to a name that a page
of some site leads here (DNS rebinding).
"""

import asyncio
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any, Final, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from mqlake import VERSION
from mqlake.logs import logged_lines
from mqlake.metrics.families import Families
from mqlake.security.addresses import is_loopback, names_this_machine
from mqlake.security.networks import network_of
from mqlake.settings import MetricsSettings

_logger = logging.getLogger(__name__)

Read = Callable[[Families], None]
"""Adds a process's metrics; called at each scrape, from any thread."""


class WatchedProcess(Protocol):
    """How a process is: interface of `mqlake.processes.heart.Heart`, asked from any thread."""

    @property
    def name(self) -> str: ...
    @property
    def is_live(self) -> bool: ...
    @property
    def is_healthy(self) -> bool: ...
    def readiness(self) -> tuple[bool, str]: ...


MOST_AT_ONCE: Final = 8
"""Connections; for a further one another gives way."""
_WELL: Final = "200 OK"
_UNWELL: Final = "503 Service Unavailable"
ANSWER_SECONDS: Final = 5.0
"""An event loop that is stuck for so long has no metrics, which says just that."""
IDLE_SECONDS: Final = 10.0
"""A client may say, or take, nothing for so long."""
_PLACE: Final = "mqlake.place"
"""In the environment of a request: its `_Place`."""


class _Reader(Collector):
    def __init__(self, health: WatchedProcess, read: Read) -> None:
        self._health = health
        self._read = read

    def collect(self) -> Iterator[Family]:
        families = Families()
        families.add("mqlake_build_info", 1, self._health.name, VERSION)
        families.add("mqlake_healthy", int(self._health.is_healthy), self._health.name)
        for level, count in logged_lines().items():
            families.add("mqlake_logged_lines_total", count, level)
        self._read(families)
        return iter(families)

    def describe(self) -> Iterable[Family]:
        return ()  # else it would be asked while its process starts


def in_event_loop(read: Read) -> Read:
    """Return a function for other threads that has the running event loop add a process's metrics.

    It raises TimeoutError when the loop is stuck.
    """
    loop = asyncio.get_running_loop()

    async def look(families: Families) -> None:
        read(families)

    def read_there(families: Families) -> None:
        asyncio.run_coroutine_threadsafe(look(families), loop).result(ANSWER_SECONDS)

    return read_there


class _Handler(WSGIRequestHandler):
    server: "_Server"

    def setup(self) -> None:
        self.request.settimeout(IDLE_SECONDS)
        super().setup()

    def get_environ(self) -> dict[str, Any]:
        return {**super().get_environ(), _PLACE: self.server.places.of(self.connection)}

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@dataclass(slots=True)
class _Place:
    """The place of a connection; it has none any more when it has given way.

    Attributes:
        network: Network of its client.
        is_busy: Its answer is being made.
    """

    network: str
    is_busy: bool = False


class _Places:
    """The places of connections, the oldest first; used by the threads of all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[socket.socket, _Place] = {}

    def take(self, connection: socket.socket, address: str) -> bool:
        """Give a connection a place, perhaps that of another; False: there is none.

        Of the address that has most of those that are not busy, the oldest gives way: its thread
        ends, as its connection is shut.
        """
        new = _Place(network_of(address))
        with self._lock:
            if len(self._places) >= MOST_AT_ONCE:
                idle = {one: found for one, found in self._places.items() if not found.is_busy}
                counts = Counter(found.network for found in (*idle.values(), new))
                first = max(idle, key=lambda one: counts[idle[one].network], default=None)
                if first is None:
                    return False
                del self._places[first]
                with suppress(OSError):
                    first.shutdown(socket.SHUT_RDWR)
            self._places[connection] = new
        return True

    def of(self, connection: socket.socket) -> _Place:
        with self._lock:
            return self._places.get(connection) or _Place("")

    def leave(self, connection: socket.socket) -> None:
        with self._lock:
            self._places.pop(connection, None)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self.places = _Places()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.places.take(request, client_address[0]):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        self.places.leave(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has gone, or that says nothing."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def _application(health: WatchedProcess, read: Read, host: str) -> Any:
    """Return the application of a server that listens on an address."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Reader(health, read))
    metrics, is_private = make_wsgi_app(registry), is_loopback(host)

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        def say(status: str, text: str) -> list[bytes]:
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{text}\n".encode()]

        if is_private and not names_this_machine(environ.get("HTTP_HOST", "")):
            return say("421 Misdirected Request", "ask by an address or localhost, not by a name")
        if environ.get("PATH_INFO") == "/live":
            is_live = health.is_live
            return say(*(_WELL, "live") if is_live else (_UNWELL, health.readiness()[1]))
        if environ.get("PATH_INFO") == "/ready":
            is_ready, detail = health.readiness()
            return say(_WELL if is_ready else _UNWELL, detail)
        place: _Place = environ[_PLACE]
        place.is_busy = True
        try:
            return metrics(environ, start_response)  # all of them are made before it returns
        finally:
            place.is_busy = False

    return answer


class MetricsServer:
    """Serves the port of a process, if it is to have one; that it is taken costs no more than that.

    Args:
        settings: Address to listen on.
        health: How the process is.
        read: Adds the metrics of its own.
    """

    def __init__(self, settings: MetricsSettings, health: WatchedProcess, read: Read) -> None:
        self._server: WSGIServer | None = None
        if not settings.port:
            return
        application = _application(health, read, settings.host)
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
