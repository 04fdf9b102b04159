"""Memory and processor time of each child with everything it started.

A child leads a session of its own (see `child`), so the session tells its processes: one system
call for each process of the machine, and files of /proc are read of members alone.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Usage:
    rss_bytes: int = 0
    cpu_seconds: float = 0.0


def usage_of_sessions(sessions: set[int]) -> dict[int, Usage]:
    """Return the usage of each of these sessions."""
    found: dict[int, Usage] = {}
    for session, pid in _members(sessions):
        with suppress(psutil.Error):  # it has ended meanwhile
            before, own = found.get(session, Usage()), _usage(psutil.Process(pid))
            found[session] = Usage(
                before.rss_bytes + own.rss_bytes, before.cpu_seconds + own.cpu_seconds
            )
    return found


def members_of_sessions(sessions: set[int]) -> list[int]:
    """Return the pids of the processes in these sessions, without those that only await reaping."""
    found = []
    for _session, pid in _members(sessions):
        with suppress(psutil.Error):
            if psutil.Process(pid).status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
                found.append(pid)
    return found


def own_usage() -> Usage:
    """Return the usage of this process alone."""
    return _usage(psutil.Process())


def _members(sessions: set[int]) -> Iterator[tuple[int, int]]:
    """Yield the processes of these sessions: session and pid."""
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            session = os.getsid(pid)
            if session in sessions:
                yield session, pid


def _usage(process: psutil.Process) -> Usage:
    with process.oneshot():
        times = process.cpu_times()
        return Usage(process.memory_info().rss, times.user + times.system)


def percent(before: Usage, after: Usage, seconds: float) -> float:
    """Return how much of one core was used meanwhile."""
    spent = after.cpu_seconds - before.cpu_seconds
    return round(100.0 * max(0.0, spent) / seconds, 1) if seconds > 0 else 0.0
