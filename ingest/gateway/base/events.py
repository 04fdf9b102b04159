"""Events of clients and sessions, as records of `mqlake.events`.

Reported after the fact and without waiting: an event that the log does not take is counted, nothing
else depends on it. They are handed to the log in portions: each request by itself would cost the
log more than all the rest of a connect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mqlake.errors import LogError
from mqlake.records import compact_json
from mqlake.records.messages import EVENTS
from mqlake.records.versions import RECORD_VERSION

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from ingest.gateway.base.counters import GatewayCounters
    from mqlake.clock import Clock
    from mqlake.log.contract import LogWriter
    from mqlake.records.versions import Headers

PORTION_SECONDS: Final = 0.02
"""How long an event waits for others."""
PORTION: Final = 500
"""Most events that wait."""

_HEADERS: Final[Headers] = []


class Events:
    """Appends events to the log.

    Args:
        log: Takes the records.
        gateway: Name of this gateway.
        counters: Counts events that the log did not take.
        clock: For the time of an event.
        loop: In which portions are due.
    """

    def __init__(
        self,
        log: LogWriter,
        gateway: str,
        counters: GatewayCounters,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._loop = loop
        self._waiting: list[tuple[bytes, bytes, Headers]] = []
        self._log = log
        self._gateway = gateway
        self._counters = counters
        self._clock = clock

    def add(self, event: str, tenant: str, client_id: str, **fields: Any) -> None:
        """Append one event; the fields must have a JSON form."""
        self.write(event, tenant, client_id, fields, _HEADERS, self._clock.now_ms())

    def write(
        self,
        event: str,
        tenant: str,
        client_id: str,
        fields: Mapping[str, Any],
        headers: Headers,
        at_ms: int,
    ) -> None:
        """Report an event of an earlier time, with headers."""
        value = {
            "v": RECORD_VERSION,
            "event": event,
            "ts": at_ms,
            "tenant": tenant,
            "client_id": client_id,
            "gateway": self._gateway,
            **fields,
        }
        data = compact_json.encode(value)
        waiting = self._waiting
        waiting.append((f"{tenant}/{client_id}".encode(), data, headers))
        if len(waiting) == 1:
            self._loop.call_later(PORTION_SECONDS, self.flush)
        elif len(waiting) == PORTION:
            self.flush()

    def flush(self) -> None:
        """Hand waiting events to the log; the timer of a full portion calls it once more."""
        waiting, self._waiting = self._waiting, []
        append, appended = self._log.append, self._appended
        for key, data, headers in waiting:
            try:
                append(EVENTS, key, data, headers, appended, partition=0)
            except LogError:
                self._counters.events_lost += 1

    def _appended(self, _partition: int, _offset: int, error: LogError | None) -> None:
        if error is not None:
            self._counters.events_lost += 1
