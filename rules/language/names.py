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
