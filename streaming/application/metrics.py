"""Metrics of router and lake for Prometheus."""

from typing import Final

from mqlake.clock import Clock
from mqlake.metrics.families import Families
from streaming.application.figures import QueryFigures

FIGURES: Final = {
    "lag_records": ("query_lag_records", 1.0),
    "input_rows_per_second": ("query_input_records_per_second", 1.0),
    "batch_ms": ("query_batch_duration_seconds", 0.001),
    "state_rows": ("query_state_rows", 1.0),
    "restarts": ("query_restarts_total", 1.0),
}
"""Figure of a query -> its name there, and its factor."""


def add_queries(families: Families, figures: QueryFigures, clock: Clock) -> None:
    """Add the figures read last; from any thread."""
    for query, found in figures.latest.items():
        labels = (query, found.get("tenant", ""), found.get("rule", ""))
        families.add("mqlake_query_active", int(found["active"]), *labels)
        for figure, (name, factor) in FIGURES.items():
            if found[figure] is not None:
                families.add(f"mqlake_{name}", found[figure] * factor, *labels)
    for one in figures.undelivered:
        labels = (one.query, one.log_topic, str(one.partition))
        families.add("mqlake_undelivered_records", one.records, *labels)
        families.add("mqlake_undelivered_bytes", one.size_bytes, *labels)
        age = max(0, clock.now_ms() - one.oldest_ms) / 1000
        families.add("mqlake_undelivered_oldest_seconds", age, *labels)
    families.add("mqlake_jvm_heap_used_bytes", figures.heap.used_bytes)
    families.add("mqlake_jvm_heap_max_bytes", figures.heap.max_bytes)
