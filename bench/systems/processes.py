"""Memory and processor time of each process of a running system, by psutil."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from mqlake.processes.status import SystemState

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    resident_mib: float
    cpu_seconds: float


def processes_of(state: SystemState) -> dict[str, int]:
    """Return the pid of each process of the system by its name, the supervisor included."""
    found = {report.name: report.pid for report in state.processes if report.pid is not None}
    if state.pid not in found.values():
        found["supervisor"] = state.pid
    return found


def usage_of(pids: Mapping[str, int]) -> dict[str, ProcessUsage]:
    """Return the usage of each process and its children; a child with its own name counts there."""
    named = set(pids.values())
    found = {}
    for name, pid in pids.items():
        found[name] = _sum(family_of(pid, named))
    return found


def family_of(pid: int, named: Collection[int]) -> list[psutil.Process]:
    """Return a process and its children; a parent of named processes is alone."""
    process = psutil.Process(pid)
    children = process.children(recursive=True)
    if any(child.pid in named for child in children):
        return [process]  # the supervisor: its other children are children of the named ones
    return [process, *children]


def thread_seconds_of(pid: int) -> dict[str, float]:
    """Return the processor time of a process's threads, summed up by name (15 characters)."""
    found: dict[str, float] = {}
    for thread in psutil.Process(pid).threads():
        try:
            name = Path(f"/proc/{pid}/task/{thread.id}/comm").read_text(encoding="utf-8").strip()
        except OSError:  # it has just ended
            continue
        found[name] = found.get(name, 0.0) + thread.user_time + thread.system_time
    return found


class CpuWatch:
    """Counts the processor time of processes from now on."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._before, self._begin = usage_of(pids), time.monotonic()

    def percent(self) -> dict[str, float]:
        """Return per process the share of one core that it has used."""
        after, elapsed = usage_of(self._pids), time.monotonic() - self._begin
        return {
            name: 100 * (after[name].cpu_seconds - self._before[name].cpu_seconds) / elapsed
            for name in self._pids
        }


def cpu_percent_of(pids: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Watch for `seconds`; return for each process the share of one core that it used."""
    watch = CpuWatch(pids)
    time.sleep(seconds)
    return watch.percent()


def _sum(family: list[psutil.Process]) -> ProcessUsage:
    resident, cpu = 0, 0.0
    for process in family:
        try:
            with process.oneshot():
                resident += process.memory_info().rss
                times = process.cpu_times()
                cpu += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return ProcessUsage(resident / MIB, cpu)
