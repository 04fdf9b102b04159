"""Counters of each tenant's clients at a gateway, as records of `mqlake.metrics`.

One record for each gateway and tenant, written again while its numbers change: a run of a gateway
begins at zero, under the same key.
"""

import json
from typing import Any, Final, NamedTuple

from mqlake.errors import InvalidRecord
from mqlake.records.versions import RECORD_VERSION

COUNTED: Final = (
    "connects",
    "messages_received",
    "payload_received_bytes",
    "messages_sent",
    "payload_sent_bytes",
    "messages_dropped",
)
"""Counters of a record, since the run of its gateway began."""
_KIND: Final = "tenants"


class TenantMetricsKey(NamedTuple):
    """A key of `mqlake.metrics`: counters of a tenant's clients at a gateway."""

    gateway: str
    tenant: str


class TenantMetrics(NamedTuple):
    """Counters of a tenant's clients at a gateway."""

    incarnation: str
    """The run of the gateway that says so."""
    connections: int
    counters: dict[str, int]
    """By the names of `COUNTED`."""


def tenant_metrics_key(key: TenantMetricsKey) -> bytes:
    return f"{_KIND}/{key.gateway}/{key.tenant}".encode()


def decode_tenant_metrics_key(data: bytes) -> TenantMetricsKey | None:
    """Undo `tenant_metrics_key`; None for metrics of another kind."""
    parts = data.decode(errors="replace").split("/")
    if len(parts) != 3 or parts[0] != _KIND:
        return None
    return TenantMetricsKey(parts[1], parts[2])


def encode_tenant_metrics(metrics: TenantMetrics) -> bytes:
    value: dict[str, Any] = {
        "v": RECORD_VERSION,
        "incarnation": metrics.incarnation,
        "connections": metrics.connections,
        **metrics.counters,
    }
    return json.dumps(value).encode()


def decode_tenant_metrics(value: bytes) -> TenantMetrics:
    """Undo `encode_tenant_metrics`; a counter that is not there is zero.

    Raises:
        InvalidRecord: Not JSON, or a member is missing or of another type.
    """
    try:
        found = json.loads(value)
        counters = {name: int(found.get(name, 0)) for name in COUNTED}
        return TenantMetrics(str(found["incarnation"]), int(found["connections"]), counters)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise InvalidRecord(f"metrics of a tenant are malformed: {exc!r}") from exc
