"""Let a process come after the rest of the system."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_GROUP: Final = Path("/proc/self/autogroup")
_TRIES: Final = 10
_GROUP_REST_SECONDS: Final = 0.1
"""The kernel takes one change of a group in this time, of all that may not manage the machine."""


def lower_priority(niceness: int, cores: int | None = None, *, first_to_go: int = 0) -> None:
    """Let this process and all that it starts from now on give way.

    Args:
        niceness: Added to its own.
        cores: Number of its processors, the last ones, that are left to it; None: all.
        first_to_go: From 0 to 1,000: how gladly the kernel ends it, and not the rest, when memory
            is at its end.
    """
    os.nice(niceness)
    if first_to_go:
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(str(first_to_go), encoding="ascii")
    _lower_group(niceness)
    if cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])


class SessionPriority:
    """Priority of this process and all that it starts, as far as a change can be undone.

    Niceness of a process can be lowered again by root, and where its limit allows it
    (`RLIMIT_NICE`, systemd's `LimitNICE`); that of a session's group (autogroup) by all. What
    cannot be undone is not done, nor anything where the session is not this process's own.
    """

    def __init__(self) -> None:
        self._before = os.getpriority(os.PRIO_PROCESS, 0)
        self._is_own = os.getsid(0) == os.getpid()
        self._may_return = self._is_own and _may_return(self._before)

    def set(self, niceness: int) -> None:
        """Set the niceness; from one thread at a time.

        Args:
            niceness: Added to that at the beginning. Less than 0 is 0 where it is not allowed.
        """
        if not self._is_own:
            return
        if self._may_return:
            try:
                _set_threads(self._before + niceness)
            except PermissionError:
                _set_threads(self._before)
        if not _set_group(niceness) and niceness < 0:
            _set_group(0)


def give_way_for_a_while(niceness: int, seconds: float) -> Callable[[], None]:
    """Let this process and all that it starts give way, as far as that can be undone.

    Args:
        niceness: Added to its own.
        seconds: The longest time for which it gives way.

    Returns:
        A function that ends it; it may be called again.
    """
    priority = SessionPriority()
    priority.set(niceness)
    lock = threading.Lock()
    is_over = False

    def end() -> None:
        nonlocal is_over
        with lock:
            if not is_over:
                is_over = True
                timer.cancel()
                priority.set(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return end


def _may_return(niceness: int) -> bool:
    """Try it on a thread: on Linux each has a niceness of its own."""
    is_allowed = False

    def try_it() -> None:
        nonlocal is_allowed
        with contextlib.suppress(PermissionError):
            os.nice(1)
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
            is_allowed = True

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    return is_allowed


def _set_threads(niceness: int) -> None:
    """Set the niceness of all threads of this session.

    Raises:
        PermissionError: That is not allowed.
    """
    for _ in range(_TRIES):  # one that has another may start a further one meanwhile
        found = 0
        for thread in _threads_of_session():
            with contextlib.suppress(ProcessLookupError):
                if os.getpriority(os.PRIO_PROCESS, thread) != niceness:
                    os.setpriority(os.PRIO_PROCESS, thread, niceness)
                    found += 1
        if not found:
            return


def _threads_of_session() -> Iterator[int]:
    session = os.getsid(0)
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.getsid(int(process)) == session:
                yield from map(int, os.listdir(f"/proc/{process}/task"))


def _lower_group(niceness: int) -> bool:
    """Have the group of this session give way, if it is this process's own.

    Where each session is a group that the kernel shares the processors out to (autogroup), niceness
    counts within the group alone; the group has one of its own.
    """
    return os.getsid(0) == os.getpid() and _set_group(niceness)


def _set_group(niceness: int) -> bool:
    for _ in range(_TRIES):
        try:
            _GROUP.write_text(str(niceness), encoding="ascii")
        except BlockingIOError:
            time.sleep(_GROUP_REST_SECONDS)
        except OSError:
            return False
        else:
            return True
    return False
