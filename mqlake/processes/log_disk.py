"""Tells whether the log is full, from the disk of a log that is on this machine.

All who put messages into the log ask before: gateways, the API and its jobs, the rule runner, the
federator. Each looks at the disk itself, so it needs no other process, and no record in a log that
may take none any more. What runs the log (sessions, positions, deletions) goes on: the limit leaves
room for it.
"""

import shutil
import time
from collections.abc import Callable
from typing import Final

from mqlake.errors import LogError
from mqlake.log.files import taken_bytes
from mqlake.settings import LogDiskSettings

LOOK_SECONDS: Final = 1.0
"""How old an answer may be."""
WAIT_SECONDS: Final = 1.0
"""Pause before a caller that waits for room asks again."""


class LogDiskFull(LogError):  # noqa: N818 - a state to wait out, not a failure
    """The log takes no messages at the moment; this one is certainly not in it."""

    def __init__(self, why_full: str) -> None:
        super().__init__(f"the log is full: {why_full}", definite=True, passing=True)


class LogDisk:
    """The disk of a log that is on this machine.

    Args:
        settings: Folder of the log, and how full its disk may be.
        monotonic: Clock of an answer's age, in seconds.
    """

    def __init__(
        self, settings: LogDiskSettings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._why_full = ""
        self._look_at = -float("inf")

    def why_full(self) -> str:
        """Return why the log takes no messages at the moment; "": it takes them."""
        now = self._monotonic()
        if now >= self._look_at:
            self._why_full = self.look()
            self._look_at = now + LOOK_SECONDS
        return self._why_full

    def look(self) -> str:
        """Return `why_full` of this moment."""
        settings = self._settings
        if settings.folder is None:
            return ""
        try:
            free = shutil.disk_usage(settings.folder).free
        except OSError as exc:
            return f"the log's disk cannot be looked at: {exc.strerror}"
        taken = 0 if settings.max_bytes is None else taken_bytes(settings.folder)
        return why_full(settings, free, taken)


ELSEWHERE: Final = LogDisk(LogDiskSettings())
"""The disks of a log on other machines, of which nothing is known here."""


def why_full(settings: LogDiskSettings, free_bytes: int, taken_bytes: int) -> str:
    """Return why a log takes no messages; "": it takes them.

    Args:
        settings: How full its disk may be.
        free_bytes: On the disk.
        taken_bytes: By the log; it counts only with a limit.
    """
    least, most = settings.min_free_bytes, settings.max_bytes
    if free_bytes < least:
        return f"{free_bytes >> 20} MiB free on the log's disk, {least >> 20} MiB needed"
    if most is not None and taken_bytes > most:
        return f"{taken_bytes >> 20} MiB in the log, {most >> 20} MiB allowed"
    return ""


def environment_of(settings: LogDiskSettings, process: str) -> dict[str, str]:
    """Return the variables that tell a process of ours (`gateway`) of the disk, if there is one."""
    if settings.folder is None:
        return {}
    prefix = f"MQLAKE_{process.upper()}_LOG_DISK__"
    values = settings.model_dump(mode="json", exclude_none=True)
    return {f"{prefix}{name.upper()}": str(value) for name, value in values.items()}
