"""Names of what is called like a function but is none of one message."""

from typing import Final

WINDOWS: Final = {"tumble": ("size",), "hop": ("size", "slide"), "session": ("gap",)}
"""Windows and what they take behind the time."""

DETECTIONS: Final = {
    "absent": ("duration",),
    "debounce": ("condition", "duration"),
    "hysteresis": ("value", "high", "low"),
    "n_of_m": ("condition", "n", "m"),
}
"""Detections and what they take."""

AGGREGATES: Final = frozenset(
    (
        "count", "count_if", "approx_count_distinct", "sum", "avg", "mean", "min", "max",
        "first", "last", "first_value", "last_value", "delta",
        "stddev", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop",
        "median", "percentile", "percentile_approx", "approx_percentile",
        "collect_list", "array_agg",
        "any", "some", "bool_or", "every", "all", "bool_and",
    )
)  # fmt: skip
"""Aggregates; `aggregates` has what they do."""
