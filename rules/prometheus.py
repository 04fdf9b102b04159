"""Metrics for Prometheus of the processes that carry out actions."""

from typing import Final

from mqlake.metrics.families import Families
from rules.metrics import LATENCY_BOUNDS_MS, RuleMetrics

COUNTERS: Final = {
    "success": "action_outputs_done_total",
    "failed": "action_outputs_failed_total",
    "dropped": "action_outputs_dropped_total",
    "retried": "action_retries_total",
    "queued": "action_queued_outputs",
    "behind": "action_behind_outputs",
}
"""Counter of an action -> its name there."""

_BOUNDS_SECONDS: Final = [bound / 1000 for bound in LATENCY_BOUNDS_MS]


def add_actions(families: Families, metrics: RuleMetrics) -> None:
    """Add the counters of every action; from any thread."""
    for tenant, rule, action, counters in metrics.all():
        labels = (tenant, rule, str(action), counters.function)
        for counter, name in COUNTERS.items():
            families.add(f"mqlake_{name}", getattr(counters, counter), *labels)
        families.add_histogram(
            "mqlake_action_latency_seconds",
            _BOUNDS_SECONDS,
            list(counters.latency),
            counters.latency_ms_sum / 1000,
            *labels,
        )
