"""What happens to clients and sessions, as records of `mqlake.events`.

Told after the fact and without waiting: an event that the log does not take is counted, nothing
else depends on it.
"""

from collections.abc import Mapping
from typing import Any, Final

from ingest.gateway.counters import Counters
from mqlake import compact_json
from mqlake.clock import Clock
from mqlake.errors import LogError
from mqlake.log.contract import LogWriter
from mqlake.records import EVENTS, RECORD_VERSION, Headers

_HEADERS: Final[Headers] = []


class Events:
    """Appends events to the log.

    Args:
        log: Where to.
        gateway: Name of this gateway.
        counters: Counts what the log did not take.
        clock: For the time of an event.
    """

    def __init__(self, log: LogWriter, gateway: str, counters: Counters, clock: Clock) -> None:
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
        """Likewise, of an earlier time and with headers."""
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
        key = f"{tenant}/{client_id}".encode()
        try:
            self._log.append(EVENTS, key, data, headers, self._appended, partition=0)
        except LogError:
            self._counters.events_lost += 1

    def _appended(self, _partition: int, _offset: int, error: LogError | None) -> None:
        if error is not None:
            self._counters.events_lost += 1
