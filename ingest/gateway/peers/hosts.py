"""Identifies this process, and tells whether another of the same machine is gone for certain.

A process is known by its machine's boot, its PID namespace, its PID and when it began (Linux,
proc(5)): where all of them can be compared, a process that is not there any more need not be
waited for.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Protocol

from mqlake.processes import status

_STARTED_AT: Final = 19
"""Index of `starttime` among the fields of /proc/<pid>/stat behind the command's name."""


class Host(Protocol):
    """Tells processes apart."""

    @property
    def identity(self) -> str:
        """Identifier of this process, unique over machines."""
        ...

    def is_gone(self, identity: str) -> bool:
        """Tell whether a process has ended for certain; one of another machine never has."""
        ...


class LinuxHost:
    """Reads /proc; elsewhere no process is known to be gone.

    Args:
        processes: Folder that shows processes. One that is not may be there all the same: of
            another user, where /proc hides these (`hidepid`, `ProtectProc=`).
    """

    def __init__(self, processes: Path = Path("/proc")) -> None:
        self._processes = processes
        self._place = _place()
        self._identity = f"{self._place}/{os.getpid()}/{_own_start()}" if self._place else ""

    @property
    def identity(self) -> str:
        return self._identity

    def is_gone(self, identity: str) -> bool:
        place, _, process = identity.rpartition("/")[0].rpartition("/")
        started_at = identity.rpartition("/")[2]
        if not self._place or place != self._place or not process.isdecimal():
            return False
        try:
            return _started_at(self._processes / process) != started_at
        except OSError:
            return not _is_there(int(process))


def boot_id() -> str:
    """Return what tells this boot of the machine from others; "" where nothing does."""
    try:
        return status.boot_id()
    except OSError:
        return ""


def _place() -> str:
    """Return boot and PID namespace: within these a PID means one process at a time."""
    try:
        boot = boot_id()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}" if boot else ""
    except OSError:
        return ""


def _own_start() -> str:
    try:
        return _started_at(Path("/proc/self")) or ""
    except OSError:
        return ""


def _started_at(process: Path) -> str | None:
    """Return when a process started; None when it has ended and its parent has not asked how.

    Raises:
        OSError: It is not shown.
    """
    stat = (process / "stat").read_text(encoding="utf-8", errors="replace")
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[_STARTED_AT]


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is another user's
    return True
