"""Processes that a fault strikes: stopped, killed, watched until they are gone."""

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from resilience.errors import TargetError
from resilience.usage import with_descendants

LOOK_SECONDS: Final = 0.02

ROOM_BYTES: Final = 4096
"""No file of a process without room takes anything beyond these."""


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal processes; those that have ended hear nothing."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that only awaits reaping does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(") ")[2][0] not in "ZX"


async def gone(pids: Iterable[int], seconds: float, what: str) -> None:
    """Wait until processes have ended.

    Raises:
        TargetError: Not within `seconds`.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    left = list(pids)
    while left := [pid for pid in left if is_alive(pid)]:
        if loop.time() > end:
            raise TargetError(f"{what} has not ended after {seconds:g} s")
        await asyncio.sleep(LOOK_SECONDS)


def stop_at_once(leaders: Iterable[int]) -> list[int]:
    """Stop processes with all that they have started (SIGSTOP); return them."""
    pids: list[int] = []
    while more := [pid for pid in with_descendants(leaders) if pid not in pids]:
        send(more, signal.SIGSTOP)
        pids += more
    return pids


async def stopped(pids: Iterable[int], seconds: float) -> None:
    """Wait until no thread of these processes runs any more.

    Raises:
        TargetError: Not within `seconds`.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    left = list(pids)
    while left := [pid for pid in left if not _stands_still(pid)]:
        if loop.time() > end:
            raise TargetError(f"processes {left} have not stopped after {seconds:g} s")
        await asyncio.sleep(LOOK_SECONDS)


def _stands_still(pid: int) -> bool:
    states = []
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            stat = path.read_text(encoding="utf-8", errors="replace")
            states.append(stat.rpartition(") ")[2][0])
    return set(states) <= set("TtZX")


def kill_at_once(leaders: Iterable[int]) -> list[int]:
    """Kill processes with all that they have started; return them.

    They are stopped first: a large process that dies takes the processor from us, and the others
    would go on without it for some milliseconds, which is another accident than that of all.
    """
    pids = stop_at_once(leaders)
    send(pids, signal.SIGKILL)
    return pids


def leave_no_room(pids: Iterable[int], *, room: bool = False) -> None:
    """Let no file of these processes grow, as a full disk does, or let them grow again.

    The limit is the process's own (RLIMIT_FSIZE): writing fails with EFBIG in place of ENOSPC, at
    the same calls, and no other process has less room for it.
    """
    limit = resource.RLIM_INFINITY if room else ROOM_BYTES
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


class PartKeeper:
    """Process that starts the parts of a system again; stopped while a part is to stay away."""

    def __init__(self) -> None:
        self._pid = 0
        self._away: set[str] = set()

    def hold(self, part: str, pid: int) -> None:
        """Keep a part from being started."""
        self._pid = pid
        self._away.add(part)
        send([pid], signal.SIGSTOP)

    def release(self, part: str) -> None:
        """Let it go on, unless another part is to stay away."""
        self._away.discard(part)
        if not self._away:
            self.release_all()

    def release_all(self) -> None:
        """Let it go on."""
        self._away.clear()
        if self._pid:
            send([self._pid], signal.SIGCONT)
            self._pid = 0

    def forget(self) -> None:
        """It is gone, with all that it kept."""
        self._away.clear()
        self._pid = 0
