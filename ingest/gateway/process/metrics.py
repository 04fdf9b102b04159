"""Metrics of a gateway for Prometheus: read from its counters when they are scraped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqlake.processes.latency import BOUNDS_MS

if TYPE_CHECKING:
    from ingest.gateway.process.status import Status
    from mqlake.metrics.families import Families

COUNTERS: Final = {
    "connections_opened": "connections_opened",
    "connections_refused": "connections_refused",
    "clients_too_fast": "clients_too_fast",
    "clients_waited_for_credits": "clients_waited_for_credits",
    "clients_disconnected_for_memory": "clients_disconnected_for_memory",
    "clients_fell_behind": "clients_fell_behind",
    "sessions_caught_up": "sessions_caught_up",
    "attempts_denied": "attempts_denied",
    "sessions_expired": "sessions_expired",
    "bytes_received": "received_bytes",
    "bytes_sent": "sent_bytes",
    "packets_received": "packets_received",
    "packets_sent": "packets_sent",
    "payload_bytes_received": "payload_received_bytes",
    "payload_bytes_sent": "payload_sent_bytes",
    "messages_stored": "messages_stored",
    "messages_refused": "messages_refused",
    "deliveries_received": "deliveries_received",
    "deliveries_repeated": "deliveries_repeated",
    "deliveries_malformed": "deliveries_malformed",
    "events_lost": "events_lost",
    "events_left_out": "events_left_out",
}
"""Counter of the gateway -> its name there; those with labels are below."""

_DROPPED: Final = "dropped_"
_BOUNDS_SECONDS: Final = [bound / 1000 for bound in BOUNDS_MS]


def add_metrics(status: Status, families: Families) -> None:
    """Add the figures of a gateway; in its event loop."""
    counters = status.counters
    for name, value in status.gauges().items():
        families.add(f"mqlake_gateway_{name}", value)
    for counter, name in COUNTERS.items():
        families.add(f"mqlake_gateway_{name}_total", getattr(counters, counter))
    families.add("mqlake_gateway_session_records_ignored_total", status.ignored_session_records)
    for direction in ("received", "sent"):
        of_all, of_1, of_2 = (
            getattr(counters, f"messages_{direction}{suffix}")
            for suffix in ("", "_qos_1", "_qos_2")
        )
        name = f"mqlake_gateway_messages_{direction}_total"
        for qos, value in (("0", of_all - of_1 - of_2), ("1", of_1), ("2", of_2)):
            families.add(name, value, qos)
    for counter in counters.__slots__:
        if counter.startswith(_DROPPED):
            families.add(
                "mqlake_gateway_messages_dropped_total",
                getattr(counters, counter),
                counter.removeprefix(_DROPPED),
            )
    for stage, latencies in status.latencies.stages.items():
        families.add_histogram(
            f"mqlake_gateway_{stage}_seconds",
            _BOUNDS_SECONDS,
            latencies.counts,
            latencies.sum_ms / 1000,
        )
