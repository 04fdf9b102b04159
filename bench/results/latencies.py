"""Figures that describe latencies."""

import statistics
from collections.abc import Sequence


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return mean, deviation and quantiles of values, in their unit."""
    ordered = sorted(values)
    return {
        "mean": statistics.fmean(values),
        "deviation": statistics.pstdev(values),
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        "max": ordered[-1],
    }
