"""Counters of each tenant's clients at this gateway, reported in `mqlake.metrics`.

Plain integers, added to on the packet path. No part waits for a record, and it is not repeated: the
next record of a tenant says it all.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final

from mqlake.errors import LogError
from mqlake.records.messages import METRICS
from mqlake.records.versions import VERSION_HEADER
from mqlake.tenant_metrics import (
    COUNTED,
    TenantMetrics,
    TenantMetricsKey,
    encode_tenant_metrics,
    tenant_metrics_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqlake.clock import Clock
    from mqlake.log.contract import LogWriter
    from mqlake.records.shards import Run

TELL_SECONDS: Final = 5.0
MOST_TOLD: Final = 500
"""Records at once; further tenants are reported next time, those first that have waited longest."""


@dataclass(slots=True)
class TenantCounters:
    """Counters of one tenant; the fields are `COUNTED`, in its order."""

    connects: int = 0
    """Clients that were let in."""
    messages_received: int = 0
    """PUBLISH packets from clients."""
    payload_received_bytes: int = 0
    messages_sent: int = 0
    """PUBLISH packets to clients."""
    payload_sent_bytes: int = 0
    messages_dropped: int = 0


class CountersOfTenants:
    """One for each tenant that has, or had, clients here.

    Args:
        writer: Appends to the log.
        me: This run of the gateway.
        clock: Says when to tell.
    """

    def __init__(self, writer: LogWriter, me: Run, clock: Clock) -> None:
        self._writer = writer
        self._me = me
        self._clock = clock
        self._counters: dict[str, TenantCounters] = {}
        # Metrics of each in the log, in the order in which they were reported.
        self._told: dict[str, TenantMetrics] = {}
        self._tell_at = clock.monotonic() + TELL_SECONDS

    def of(self, tenant: str) -> TenantCounters:
        """Return the counters for a tenant's clients."""
        counters = self._counters.get(tenant)
        if counters is None:
            counters = self._counters[tenant] = TenantCounters()
        return counters

    def forget(self, tenant: str) -> None:
        """Drop a tenant that is no more: no key of the log is to name it."""
        self._counters.pop(tenant, None)
        if self._told.pop(tenant, None) is not None:
            self._append(tenant, None)

    def tell(self, connections_of: Callable[[str], int]) -> None:
        """Write changed metrics, when it is time to.

        Args:
            connections_of: Returns how many clients of a tenant are connected here.
        """
        now = self._clock.monotonic()
        if now < self._tell_at:
            return
        self._tell_at = now + TELL_SECONDS
        left = MOST_TOLD
        new = [one for one in self._counters if one not in self._told]
        for tenant in [*new, *self._told]:
            values = astuple(self._counters[tenant])
            counted = dict(zip(COUNTED, values, strict=True))
            metrics = TenantMetrics(self._me.incarnation, connections_of(tenant), counted)
            if self._told.get(tenant) == metrics:
                continue
            self._told.pop(tenant, None)
            self._told[tenant] = metrics
            self._append(tenant, encode_tenant_metrics(metrics))
            left -= 1
            if not left:
                return

    def _append(self, tenant: str, value: bytes | None) -> None:
        key = tenant_metrics_key(TenantMetricsKey(self._me.gateway, tenant))
        try:
            self._writer.append(METRICS, key, value, [VERSION_HEADER], self._appended, partition=0)
        except LogError:
            self._told.pop(tenant, None)

    def _appended(self, _partition: int, _offset: int, error: LogError | None) -> None:
        if error is not None:
            self._told.clear()  # whichever it was of
