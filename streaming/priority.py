"""Let a process come after the rest of the system."""

import contextlib
import os
from pathlib import Path


def lower_priority(niceness: int, cores: int | None = None, *, first_to_go: int = 0) -> None:
    """Let this process and all that it starts from now on give way.

    Args:
        niceness: Added to its own.
        cores: The last so many of its processors are left to it; None: all.
        first_to_go: Of 1,000: how gladly the kernel ends it, and not the rest, when memory is at
            its end.
    """
    os.nice(niceness)
    if first_to_go:
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(str(first_to_go), encoding="ascii")
    if os.getsid(0) == os.getpid():
        # Where each session is a group that the kernel shares the processors out to (autogroup),
        # niceness counts within the group alone; the group has one of its own.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(niceness), encoding="ascii")
    if cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
