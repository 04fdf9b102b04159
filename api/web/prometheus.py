"""Metrics of the API for Prometheus: its requests by route and status, and their duration."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mqlake.metrics.families import Families
from mqlake.metrics.names import OTHER

BOUNDS_SECONDS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)
WEBSOCKET: Final = "WebSocket"
SWITCHED: Final = 101
"""Status of a WebSocket that was let in."""
METHODS: Final = {WEBSOCKET, "GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"}
"""Other methods, which clients make up, are not to become labels."""
GONE: Final = 499
"""Status of a request whose client went before it was answered."""


@dataclass(slots=True)
class _Durations:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_SECONDS) + 1))
    seconds: float = 0.0


class RequestMetrics:
    """Counts requests; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._durations: dict[tuple[str, str], _Durations] = {}

    def add(self, scope: Mapping[str, Any], status: int, seconds: float) -> None:
        """Count a request.

        Args:
            scope: ASGI scope of the request; says which route has answered.
            status: HTTP status of the answer; 0 without one.
            seconds: To the beginning of the answer: a stream's end says nothing.
        """
        given = scope.get("method", WEBSOCKET)
        method, route = given if given in METHODS else OTHER, route_of(scope)
        status = status or (SWITCHED if method == WEBSOCKET else GONE)
        with self._lock:
            self._requests[method, route, str(status)] += 1
            durations = self._durations.setdefault((method, route), _Durations())
            durations.counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
            durations.seconds += seconds

    def read(self, families: Families) -> None:
        """Add all there is to tell."""
        with self._lock:
            for labels, count in self._requests.items():
                families.add("mqlake_api_requests_total", count, *labels)
            for key, found in self._durations.items():
                families.add_histogram(
                    "mqlake_api_request_duration_seconds",
                    BOUNDS_SECONDS,
                    found.counts,
                    found.seconds,
                    *key,
                )


def route_of(scope: Mapping[str, Any]) -> str:
    """Return the path of the route as the API's document has it, without prefix and values."""
    path = getattr(scope.get("route"), "path_format", None)
    return path if isinstance(path, str) else OTHER
