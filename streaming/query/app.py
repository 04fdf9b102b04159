"""The process of the query application: settings in, exit code out.

It is small, and always there: it keeps Spark (`keeper.py`), says how it is, and gives way.
"""

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Any, Final

from mqlake.errors import OperationalError
from mqlake.logs import set_up_logging
from mqlake.metrics.families import Families
from mqlake.metrics.server import MetricsServer
from mqlake.processes.heart import Heart, ProcessState
from mqlake.processes.query_application import NAME, SOCKET_FILE
from mqlake.processes.status import load_state
from streaming.engine.exclusive import Lock
from streaming.engine.priority import lower_priority
from streaming.query.java import ConnectServer, Java, prepare
from streaming.query.keeper import ENDS, SparkKeeper
from streaming.settings.query import QuerySettings

_logger = logging.getLogger(__name__)

_FIRST_TO_GO: Final = 500
"""From 0 to 1,000: how gladly the kernel ends it, and not the rest, when memory runs out."""
_MEMORY_BESIDE_HEAP_MB: Final = 450
"""Memory of the JVM for classes, code, threads and buffers."""
_LOOK_SECONDS: Final = 1.0
_LOCK_TIMEOUT_SECONDS: Final = 30.0


def main(settings: QuerySettings) -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    set_up_logging(settings.log_level, settings.log_file, settings.log_format, NAME)
    lower_priority(settings.niceness, settings.cores, first_to_go=_FIRST_TO_GO)
    try:
        # A keeper that was killed may have left Spark for a moment.
        lock = Lock(settings.data_dir / NAME / "lock")
        lock.take(_LOCK_TIMEOUT_SECONDS)
        asyncio.run(_Process(settings, lock.descriptor).run())
    except OperationalError as exc:
        _logger.critical("queries stop: %s", exc)
        return 1
    return 0


class _Process:
    """One run of the process."""

    def __init__(self, settings: QuerySettings, lock: int) -> None:
        self._settings = settings
        self._lock = lock
        stays = settings.start == "with-system"
        self._keeper = SparkKeeper(
            self._start,
            settings.connect_port,
            start_timeout_seconds=settings.start_timeout_seconds,
            idle_seconds=None if stays else settings.idle_seconds,
        )
        self._waits_for_memory = False

    async def run(self) -> None:
        """Run until a signal comes.

        Raises:
            OperationalError: No client could reach it.
        """
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        path = self._settings.data_dir / SOCKET_FILE
        try:
            await self._keeper.open(path)
        except OSError as exc:
            raise OperationalError(f"cannot listen at {path}: {exc.strerror}") from exc
        heart = Heart(NAME, self._settings.heartbeat_file)
        metrics = MetricsServer(self._settings.metrics, heart, self._add_metrics)
        try:
            async with asyncio.TaskGroup() as tasks:
                keeping = tasks.create_task(self._keeper.run())
                beating = tasks.create_task(heart.beat_on(self._state_now))
                await stopping.wait()
                keeping.cancel()
                beating.cancel()
        finally:
            self._keeper.close()
            await asyncio.to_thread(metrics.close)

    async def _start(self) -> Java:
        if not self._keeper.uses:
            await self._await_room()
        command = await asyncio.to_thread(prepare, self._settings, dict(os.environ))
        return await ConnectServer.start(self._settings, command, self._lock)

    async def _await_room(self) -> None:
        """Before anybody asks: wait until the system is ready, and has memory to spare."""
        needed_mb = self._settings.heap_mb + _MEMORY_BESIDE_HEAP_MB
        while not self._keeper.uses:
            state = load_state(self._settings.data_dir)
            is_ready = state is None or not state.is_alive or state.phase == "running"
            self._waits_for_memory = is_ready and available_memory_mb() < needed_mb
            if is_ready and not self._waits_for_memory:
                return
            await asyncio.sleep(_LOOK_SECONDS)
        self._waits_for_memory = False

    def _state_now(self) -> ProcessState:
        return ProcessState(not self._keeper.trouble, self._detail(), self._figures())

    def _detail(self) -> str:
        keeper = self._keeper
        if self._waits_for_memory:
            return "waits for memory; the first query starts Spark all the same"
        if keeper.phase == "starting":
            return "starting Spark"
        if keeper.phase == "running":
            return f"{keeper.uses} queries" if keeper.uses else "Spark is ready"
        if keeper.phase == "ending":
            return "ending Spark"
        if keeper.trouble:
            return f"Spark does not start: {keeper.trouble}"
        return "the next query starts Spark"

    def _figures(self) -> dict[str, Any]:
        keeper = self._keeper
        return {
            "phase": keeper.phase,
            "java_pid": keeper.java_pid,
            "uses": keeper.uses,
            "starts": keeper.starts,
            "start_seconds": keeper.start_seconds,
            "ends": dict(keeper.ends),
            "trouble": keeper.trouble,
        }

    def _add_metrics(self, families: Families) -> None:
        keeper = self._keeper
        families.add("mqlake_query_application_running", int(keeper.phase == "running"))
        families.add("mqlake_query_application_uses", keeper.uses)
        families.add("mqlake_query_application_starts_total", keeper.starts)
        if keeper.start_seconds is not None:
            families.add("mqlake_query_application_start_seconds", keeper.start_seconds)
        for cause in ENDS:
            families.add("mqlake_query_application_ends_total", keeper.ends[cause], cause)


def available_memory_mb() -> float:
    """Return how much memory the kernel can give to programs without swapping, MB."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024 / 1e6
    return float("inf")
