"""A rate that a job keeps to, and its wait for room in the log."""

import time
from collections.abc import Callable
from typing import Any, Final

from api.jobs.jobs import Job
from mqlake.processes.log_disk import WAIT_SECONDS, LogDiskFull

DEFAULT_RATE: Final = 1_000
"""Things a second, unless another number is asked for."""
MAX_RATE: Final = 50_000


class JobPace:
    """Keeps to a number of things a second."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._next = time.monotonic()

    def wait(self, count: int, sleep: Callable[[float], Any]) -> None:
        now = time.monotonic()
        if self._next > now:
            sleep(self._next - now)
        self._next = max(self._next, now) + count / self._rate


def when_there_is_room(job: Job, append: Callable[[], Any], check: Callable[[], None]) -> None:
    """Have records appended; as long as the log is full, wait and say so in the job.

    Args:
        job: It.
        append: Raises `LogDiskFull` while the log is full.
        check: Raises an error when the job may not go on.
    """
    while True:
        try:
            append()
        except LogDiskFull as exc:
            job.note = f"waits: {exc}"
            job.cancelling.wait(WAIT_SECONDS)
            check()
        else:
            return
