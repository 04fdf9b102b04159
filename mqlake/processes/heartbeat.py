"""How a process of the one-machine system says that it is well.

Each process writes a small JSON file about once a second, replaced atomically; its readers (`mqlake
status`, the supervisor, the API) take a stale one for a process in trouble.
"""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

INTERVAL_SECONDS: Final = 1.0
STALE_SECONDS: Final = 10.0
"""A heartbeat older than this no longer counts; well above a garbage collection's pause."""

AHEAD_SECONDS: Final = 2.0
"""A heartbeat that is further in the future was written by another clock, or before ours was set
back: its age is unknown."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    name: str
    pid: int
    healthy: bool
    detail: str
    """One line: its present work, or its trouble."""
    written_at: float
    """Seconds since the UTC epoch."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Counters and addresses worth showing, by name."""

    def ahead_seconds(self, now: float | None = None) -> float:
        """Return how far it is in the future, beyond doubt; else 0."""
        ahead = self.written_at - (time.time() if now is None else now)
        return ahead if ahead > AHEAD_SECONDS else 0.0

    def is_fresh(self, now: float | None = None) -> bool:
        return (time.time() if now is None else now) - self.written_at < STALE_SECONDS


def write_heartbeat(
    path: Path, name: str, *, healthy: bool, detail: str, figures: dict[str, Any] | None = None
) -> None:
    """Replace the heartbeat file of this process."""
    beat = Heartbeat(name, os.getpid(), healthy, detail, time.time(), figures or {})
    temporary = path.with_suffix(f".{beat.pid}.tmp")
    temporary.write_text(json.dumps(asdict(beat)), encoding="utf-8")
    temporary.replace(path)


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Return the last heartbeat, or None when there is none that can be read."""
    try:
        return Heartbeat(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
