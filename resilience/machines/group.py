"""Processes that go down together: a control group, frozen and killed at once."""

import os
import time
from pathlib import Path
from typing import Final

from resilience.errors import TargetError

END_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.005

_JOIN: Final = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


def root() -> Path | None:
    """Return where control groups of version 2 are mounted; None if they are not."""
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, place, kind, *_ = line.split(" ")
        if kind == "cgroup2":
            return Path(place)
    return None


def missing() -> str:
    """Return why there can be no such group here; empty if there can."""
    place = root()
    if place is None:
        return "control groups of version 2 are not mounted"
    if not os.access(place, os.W_OK):
        return f"{place} cannot be written: run as root"
    return ""


class ProcessGroup:
    """The processes of one machine, and all that these start."""

    def __init__(self, name: str) -> None:
        place = root()
        if reason := missing():
            raise TargetError(f"no group of processes: {reason}")
        assert place is not None
        self._path = place / name

    def start(self) -> None:
        self._path.mkdir()

    def prefix(self) -> list[str]:
        """Return the beginning of a command that is to run in the group."""
        return ["/bin/sh", "-c", _JOIN, str(self._path)]

    def freeze(self) -> None:
        """Stop all of them; returns when none of them runs."""
        self._write("cgroup.freeze", "1")
        self._until("frozen 1", "are not frozen")

    def kill(self) -> None:
        """Kill all of them, frozen or not; returns when none is left."""
        self._write("cgroup.kill", "1")
        self._until("populated 0", "are not gone")
        self._write("cgroup.freeze", "0")

    def stop(self) -> None:
        if self._path.exists():
            self.kill()
            self._path.rmdir()

    def _write(self, name: str, value: str) -> None:
        (self._path / name).write_text(value, encoding="ascii")

    def _until(self, line: str, otherwise: str) -> None:
        end = time.monotonic() + END_SECONDS
        events = self._path / "cgroup.events"
        while line not in events.read_text(encoding="ascii").splitlines():
            if time.monotonic() > end:
                raise TargetError(f"the processes of {self._path.name} {otherwise}")
            time.sleep(_LOOK_SECONDS)
