"""Usage of processes: processor time and memory, read from `/proc` beside the run."""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SAMPLE_SECONDS: Final = 0.2
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class UsageTaken:
    """Usage of all processes together, at a moment.

    Attributes:
        cpu_seconds: Since they began.
        memory_bytes: Resident; shared memory counts for each.
        files: Open ones.
    """

    cpu_seconds: float
    memory_bytes: int
    files: int


def taken_by(pids: Iterable[int]) -> UsageTaken:
    """Return the usage of processes; those that have ended use nothing."""
    seconds = 0.0
    pages = files = 0
    for pid in pids:
        folder = Path(f"/proc/{pid}")
        try:
            seconds += time.clock_gettime(_cpu_clock(pid))
            pages += int((folder / "statm").read_text(encoding="ascii").split()[1])
            files += len(os.listdir(folder / "fd"))
        except OSError:
            continue
    return UsageTaken(seconds, pages * _PAGE, files)


def _cpu_clock(pid: int) -> int:
    """Return the clock of a process's processor time, as clock_getcpuclockid(3) does on Linux.

    It counts nanoseconds. `/proc` counts ticks of 10 ms: a broker delivers 1,000 messages in one.
    """
    return (~pid << 3) | 2


def stored_in(folder: Path) -> int:
    """Return how many bytes of the disk a folder takes, with all below it."""
    taken = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                taken += os.lstat(os.path.join(parent, name)).st_blocks * _BLOCK
            except OSError:
                continue
    return taken


def with_descendants(leaders: Iterable[int]) -> list[int]:
    """Return processes with all that they, and these in turn, have started."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(_after_name(path.read_text(encoding="utf-8", errors="replace"))[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found: dict[int, None] = {}
    waiting = list(leaders)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found[pid] = None
            waiting += children.get(pid, ())
    return list(found)


def others_of_session(leader: int) -> list[int]:
    """Return the other processes of the session that a process leads."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = _after_name(path.read_text(encoding="utf-8", errors="replace"))
            if int(fields[3]) == leader and path.parent.name != str(leader):
                found.append(int(path.parent.name))
    return found


def _after_name(stat: str) -> list[str]:
    # pid (name) state parent group session …; a name may hold anything.
    return stat.rpartition(") ")[2].split()


class UsageSampler:
    """Looks at processes again and again, in a task of its own.

    Attributes:
        samples: Seconds since the start, with the usage then.
    """

    def __init__(self, pids: list[int], seconds: float = SAMPLE_SECONDS) -> None:
        self._pids = pids
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None
        self.samples: list[tuple[float, UsageTaken]] = []

    async def __aenter__(self) -> "UsageSampler":
        self._look()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        # The last interval is as long as the others: one that is cut short has no peak to compare.
        await asyncio.sleep(self.samples[-1][0] + self._seconds - self._now())
        self._look()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            self._look()

    def _look(self) -> None:
        self.samples.append((self._now(), taken_by(self._pids)))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    @property
    def seconds(self) -> float:
        """From the first look to the last."""
        return self.samples[-1][0] - self.samples[0][0]

    @property
    def cpu_seconds(self) -> float:
        """In that time."""
        return self.samples[-1][1].cpu_seconds - self.samples[0][1].cpu_seconds

    @property
    def peak_percent(self) -> float:
        """Return the highest part of one processor between two looks."""
        peak = 0.0
        for (before, first), (after, second) in itertools.pairwise(self.samples):
            used = second.cpu_seconds - first.cpu_seconds
            peak = max(peak, 100 * used / (after - before))
        return peak

    @property
    def peak_bytes(self) -> int:
        """Return the most memory at one time."""
        return max(taken.memory_bytes for _, taken in self.samples)
