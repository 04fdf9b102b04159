"""How large the embedded log is, how fast it grows, and how long its disk lasts at that rate."""

import shutil
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from mqlake.log.files import taken_bytes
from mqlake.processes.log_disk import why_full
from mqlake.settings import LogDiskSettings

MEASURE_SECONDS: Final = 10.0
"""From one measurement to the next."""
RATE_SECONDS: Final = 300.0
"""The rate is that of so long: files go in large pieces."""
LEAST_SECONDS: Final = 30.0
"""Shortest time from which a rate is computed."""


@dataclass(frozen=True, slots=True)
class LogRoomFinding:
    """Room of the log, as it was found.

    Attributes:
        taken_bytes: On the disk, with indexes.
        room_bytes: How much more it may take before messages are refused.
        growth_bytes_per_second: Bytes that come less those that go; None while it is not known.
        why_full: Why messages are refused; "": they are not.
    """

    taken_bytes: int
    room_bytes: int
    growth_bytes_per_second: float | None = None
    why_full: str = ""

    @property
    def lasts_seconds(self) -> float | None:
        """Return how long until messages are refused; None if it does not grow, or is unknown."""
        growth = self.growth_bytes_per_second
        return None if growth is None or growth <= 0 else self.room_bytes / growth

    @property
    def figures(self) -> dict[str, Any]:
        """For `mqlake status --json`."""
        growth, lasts = self.growth_bytes_per_second, self.lasts_seconds
        return {
            "taken_bytes": self.taken_bytes,
            "room_bytes": self.room_bytes,
            "growth_bytes_per_second": None if growth is None else round(growth),
            "lasts_seconds": None if lasts is None else round(lasts, 1),
            "why_full": self.why_full,
        }

    def describe(self) -> str:
        """Return it in words."""
        text = f"{self.taken_bytes / 1e9:.2f} GB"
        if self.why_full:
            return f"{text}, full: messages are refused, {self.why_full}"
        lasts = self.lasts_seconds
        if lasts is None:
            return text
        rate = f"{(self.growth_bytes_per_second or 0) / 1e6:.2f} MB/s"
        return f"{text}, at {rate} more it lasts {in_words(lasts)}"


class LogRoomMeter:
    """Measures now and then.

    Args:
        disk: Disk of an embedded log, and the limit at which it counts as full.
        now: For rates, in seconds.
    """

    def __init__(
        self,
        disk: LogDiskSettings,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        assert disk.folder is not None
        self._log_dir = disk.folder
        self._disk = disk
        self._now = now
        self._taken: deque[tuple[float, int]] = deque()
        self._found: LogRoomFinding | None = None

    def read(self) -> LogRoomFinding | None:
        """Return the last finding; it is measured again when that is old.

        Returns:
            None when the folder cannot be looked at.
        """
        now = self._now()
        if self._found is None or now - self._taken[-1][0] >= MEASURE_SECONDS:
            self._found = self._measure(now)
        return self._found

    def _measure(self, now: float) -> LogRoomFinding | None:
        try:
            free = shutil.disk_usage(self._log_dir).free
        except OSError:
            return None
        taken = taken_bytes(self._log_dir)
        self._taken.append((now, taken))
        while len(self._taken) > 2 and now - self._taken[1][0] >= RATE_SECONDS:
            self._taken.popleft()
        room = free - self._disk.min_free_bytes
        if self._disk.max_bytes is not None:
            room = min(room, self._disk.max_bytes - taken)
        begun, before = self._taken[0]
        growth = (taken - before) / (now - begun) if now - begun >= LEAST_SECONDS else None
        return LogRoomFinding(taken, max(0, room), growth, why_full(self._disk, free, taken))


def in_words(seconds: float) -> str:
    """Return a time as people say it."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
