"""Memory and processor time of each child with everything it started, from one pass over /proc.

A child leads a session of its own (see `child`), so the session tells its processes. This
costs one file read a process; walking process trees costs several times that.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    rss_bytes: int = 0
    cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of /proc/<pid>/stat that matter here."""

    state: str
    session: int
    cpu_ticks: int
    rss_pages: int


def parse_stat(text: str) -> ProcessStat:
    """Read a line of /proc/<pid>/stat; the program's name in it may hold blanks and parentheses."""
    fields = text.rpartition(")")[2].split()
    return ProcessStat(
        state=fields[0],
        session=int(fields[3]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        rss_pages=int(fields[21]),
    )


def usage_of_sessions(sessions: set[int]) -> dict[int, Usage]:
    """Return the usage of each of these sessions."""
    found: dict[int, Usage] = {}
    for _pid, stat in _all_processes():
        if stat.session in sessions:
            found[stat.session] = _add(found.get(stat.session, Usage()), stat)
    return found


def members_of_sessions(sessions: set[int]) -> list[int]:
    """Return the pids of the processes in these sessions, without those that only await reaping."""
    return [
        pid
        for pid, stat in _all_processes()
        if stat.session in sessions and stat.state not in {"Z", "X"}
    ]


def own_usage() -> Usage:
    """Return the usage of this process alone."""
    stat = _read_stat(os.getpid())
    return Usage() if stat is None else _add(Usage(), stat)


def _all_processes() -> Iterator[tuple[int, ProcessStat]]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            stat = _read_stat(int(entry.name))
            if stat is not None:
                yield int(entry.name), stat


def _add(usage: Usage, stat: ProcessStat) -> Usage:
    return Usage(
        usage.rss_bytes + stat.rss_pages * _PAGE_BYTES,
        usage.cpu_seconds + stat.cpu_ticks / _TICKS_PER_SECOND,
    )


def _read_stat(pid: int) -> ProcessStat | None:
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def percent(before: Usage, after: Usage, seconds: float) -> float:
    """Return how much of one core was used meanwhile."""
    spent = after.cpu_seconds - before.cpu_seconds
    return round(100.0 * max(0.0, spent) / seconds, 1) if seconds > 0 else 0.0
