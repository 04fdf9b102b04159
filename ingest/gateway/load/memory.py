"""How much memory the process has, and may have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """How much of its memory this process has taken.

    Args:
        most_bytes: That it may take; 0: half of the machine's or container's.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes or _machine_bytes() // 2

    def part(self) -> float:
        """Return the taken part, 0 to 1 and above."""
        return resident_bytes() / self._most


def resident_bytes() -> int:
    """Return how many bytes of memory this process has; 0 where /proc does not say."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def _machine_bytes() -> int:
    """Return how much memory this machine has, or the container that the process is in."""
    machine = _PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return machine
    return min(machine, int(limit)) if limit.isdigit() else machine
