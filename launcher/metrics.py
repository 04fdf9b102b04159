"""Metrics of the supervisor for Prometheus, and the addresses of those of each process.

The supervisor alone knows of a process that is down.
"""

import shutil
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Final

from mqlake.metrics.families import Families
from mqlake.processes.heart import ProcessState
from mqlake.processes.status import SystemState, url_host

SUPERVISOR: Final = "supervisor"


def metrics_url(host: str, port: int) -> str:
    return f"http://{url_host(host)}:{port}/metrics"


def state_of(state: SystemState) -> ProcessState:
    """Return how a whole system is: well when all of it is."""
    lacking = [f"{one.name}: {one.detail}" for one in state.processes if not one.healthy]
    return ProcessState(
        state.phase == "running" and not lacking, "; ".join([state.phase, *lacking])
    )


class SupervisorMetrics:
    """Adds the metrics of each process from the state.

    Args:
        state: Returns it as it was written last.
        data_dir: Whose disk is looked at.
    """

    def __init__(self, state: Callable[[], SystemState], data_dir: Path) -> None:
        self._state = state
        self._data_dir = data_dir

    def read(self, families: Families) -> None:
        """Add all there is to tell; from any thread."""
        for process in self._state().processes:
            values = {
                "up": int(process.pid is not None),
                "healthy": int(process.healthy),
                "restarts_total": process.restarts,
                "uptime_seconds": process.uptime_seconds,
                "resident_memory_bytes": process.rss_bytes,
                "cpu_seconds_total": process.cpu_seconds,
            }
            for name, value in values.items():
                families.add(f"mqlake_process_{name}", value, process.name)
            room = process.figures.get("room")
            if room is not None:
                families.add("mqlake_log_taken_bytes", room["taken_bytes"])
                families.add("mqlake_log_room_bytes", room["room_bytes"])
                families.add("mqlake_log_full", bool(room["why_full"]))
                if room["growth_bytes_per_second"] is not None:
                    lasts = room["lasts_seconds"]
                    families.add("mqlake_log_lasts_seconds", inf if lasts is None else lasts)
        families.add("mqlake_data_free_bytes", shutil.disk_usage(self._data_dir).free)
