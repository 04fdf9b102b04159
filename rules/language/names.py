"""Names of windows and detections, which are written like functions of one message."""

from typing import Final

WINDOWS: Final = {"tumble": ("size",), "hop": ("size", "slide"), "session": ("gap",)}
"""Windows and their arguments behind the time."""

DETECTIONS: Final = {
    "absent": ("duration",),
    "debounce": ("condition", "duration"),
    "hysteresis": ("value", "high", "low"),
    "n_of_m": ("condition", "n", "m"),
}
"""Detections and their arguments."""
