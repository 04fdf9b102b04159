"""`message.delivered` and `message.acked`: reported when a running rule asks for them, and bounded.

There is one for each message and client, so a gateway that reported all could do little else.
A part that delivers looks at `delivered` or `acked` and calls nothing while they are empty. Events
wait in a queue of one second's worth, and go to the log in small portions behind everything else;
those that find the queue full are counted and not reported.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from ingest.gateway.base.outbound import LOCAL
from mqlake.records.messages import HEADER_CHAIN

if TYPE_CHECKING:
    import asyncio

    from ingest.gateway.base.counters import GatewayCounters
    from ingest.gateway.base.events import Events
    from ingest.gateway.base.outbound import OutboundMessage
    from ingest.gateway.sending.wanted_events import WantedEvents
    from mqlake.log.contract import LogWriter
    from mqlake.records.versions import Headers

DELIVERED: Final = "message.delivered"
ACKED: Final = "message.acked"

PORTION_SECONDS: Final = 0.02
"""Between two portions."""
MAX_QUEUED_RECORDS: Final = 1_000
"""Records on their way into the log beyond which events wait: publishers go first."""


class _Told(NamedTuple):
    event: str
    tenant: str
    client_id: str
    fields: tuple[bytes, str, int, str, int]
    """Message identifier, topic name, QoS, publisher, time of receipt: not the message itself, its
    payload would stay in memory."""
    chain: bytes
    at_ms: int


class DeliveryEvents:
    """Tells of deliveries.

    Args:
        events: Writes them.
        log: Whose queue is looked at.
        counters: Counts events that are left out.
        per_second: Events a second at most; 0: none.
        loop: In which all of this runs.

    Attributes:
        delivered: Tenants for which `message.delivered` is reported; the deliverer's to ask.
        acked: Tenants for which `message.acked` is reported.
        is_wanted: Either is reported for any tenant.
    """

    __slots__ = (
        "_counters",
        "_events",
        "_is_scheduled",
        "_log",
        "_loop",
        "_per_second",
        "_portion",
        "_waiting",
        "acked",
        "delivered",
        "is_wanted",
    )

    def __init__(
        self,
        events: Events,
        log: LogWriter,
        counters: GatewayCounters,
        per_second: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._events = events
        self._log = log
        self._counters = counters
        self._loop = loop
        self._per_second = per_second
        self._portion = max(1, round(per_second * PORTION_SECONDS))
        self._waiting: deque[_Told] = deque()
        self._is_scheduled = False
        self.delivered: frozenset[str] = frozenset()
        self.acked: frozenset[str] = frozenset()
        self.is_wanted = False

    def want(self, wanted: WantedEvents) -> None:
        """Tell from now on the events that rules ask for, and no others."""
        if not self._per_second:
            return
        self.delivered = wanted.tenants(DELIVERED.replace(".", "_"))
        self.acked = wanted.tenants(ACKED.replace(".", "_"))
        self.is_wanted = bool(self.delivered or self.acked)

    def add(
        self,
        event: str,
        tenant: str,
        client_id: str,
        message: OutboundMessage,
        qos: int,
        now_ms: int,
    ) -> None:
        """Take note of a delivery to a client of a tenant for which it is wanted."""
        if message.partition == LOCAL:
            return
        if len(self._waiting) >= self._per_second:
            self._counters.events_left_out += 1
            return
        fields = (
            message.message_id,
            message.topic_name,
            qos,
            message.publisher,
            message.received_at_ms,
        )
        self._waiting.append(_Told(event, tenant, client_id, fields, message.chain, now_ms))
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_later(PORTION_SECONDS, self._write_portion)

    def _write_portion(self) -> None:
        waiting = self._waiting
        if self._log.queued() <= MAX_QUEUED_RECORDS:
            for _ in range(min(self._portion, len(waiting))):
                self._write(waiting.popleft())
        self._is_scheduled = bool(waiting)
        if waiting:
            self._loop.call_later(PORTION_SECONDS, self._write_portion)

    def _write(self, told: _Told) -> None:
        message_id, topic_name, qos, publisher, received_at_ms = told.fields
        headers: Headers = [(HEADER_CHAIN, told.chain)] if told.chain else []
        self._events.write(
            told.event,
            told.tenant,
            told.client_id,
            {
                "id": message_id.hex() or None,
                "topic": topic_name,
                "qos": qos,
                "from_client_id": publisher,
                "received_at": received_at_ms,
            },
            headers,
            told.at_ms,
        )
