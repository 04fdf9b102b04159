"""A wall clock of a machine's own, by libfaketime: its processes see it step, nobody else does.

Monotonic clocks go on as they are, as they do when an administrator or NTP sets a clock.
"""

from pathlib import Path
from typing import Final

LIBRARY: Final = "faketime/libfaketimeMT.so.1"
"""The one for programs with threads."""


def _library() -> Path | None:
    return next(iter(sorted(Path("/usr/lib").glob(f"*/{LIBRARY}"))), None)


def missing() -> str:
    """Return why there can be no such clock here; empty if there can."""
    return "" if _library() else "no libfaketime (Debian: apt install libfaketime)"


class Clock:
    """One clock.

    Args:
        file: Says how far it is from the machine's; the processes look at it at each call.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def start(self) -> None:
        self.set(0.0)

    def set(self, seconds: float) -> None:
        """Step to so many seconds ahead of the machine's clock, or behind it."""
        # Replaced at once: a program that finds it empty takes the right time for a moment.
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+f}\n", encoding="ascii")
        new.replace(self._file)

    def prefix(self) -> list[str]:
        """Return what begins a command that is to run with this clock."""
        return [
            "/usr/bin/env",
            f"LD_PRELOAD={_library()}",
            f"FAKETIME_TIMESTAMP_FILE={self._file}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
        ]
