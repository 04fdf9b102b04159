"""How a process is, as it says itself about once a second: to its file, and to its port.

The file is for `mqlake status`, the supervisor and the API (`mqlake.processes.heartbeat`); the port
is for who asks over HTTP (`mqlake.metrics.server`).
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from mqlake.processes.heartbeat import INTERVAL_SECONDS, STALE_SECONDS, write_heartbeat

_logger = logging.getLogger(__name__)

LIVE_SECONDS: Final = 60.0
"""A process that has said nothing for so long does nothing any more, however busy the machine."""


class ProcessState(NamedTuple):
    """How a process is.

    Attributes:
        healthy: It does what it is for.
        detail: One line: its present work, or its trouble.
        figures: Counters and addresses worth showing, by name.
        is_ready: It takes new work; None: when it is healthy.
    """

    healthy: bool
    detail: str
    figures: dict[str, Any] | None = None
    is_ready: bool | None = None


class Heart:
    """Says how a process is; from any thread.

    Args:
        name: Name of the process.
        file: Heartbeat file; None: none is written.
    """

    def __init__(self, name: str, file: Path | None) -> None:
        self.name = name
        self.file = file
        self._state = ProcessState(healthy=False, detail="starting")
        self._beat_at = time.monotonic()

    @property
    def is_live(self) -> bool:
        """Tell whether the process goes on at all, whatever it waits for."""
        return self._silence < LIVE_SECONDS

    @property
    def is_healthy(self) -> bool:
        """Tell whether it does what it is for."""
        return self._state.healthy and self._silence < STALE_SECONDS

    def readiness(self) -> tuple[bool, str]:
        """Return whether it takes new work, and a line about it."""
        silence, now = self._silence, self._state
        if silence >= STALE_SECONDS:
            return False, f"has not moved for {silence:.0f} s; before that: {now.detail}"
        return (now.healthy if now.is_ready is None else now.is_ready), now.detail

    def note(self, state: ProcessState) -> None:
        """Say how it is now, to the port alone."""
        self._state = state
        self._beat_at = time.monotonic()

    def beat(self, *, healthy: bool, detail: str, figures: dict[str, Any] | None = None) -> None:
        """Say how it is now."""
        self.note(ProcessState(healthy, detail, figures))
        self._write()

    async def beat_on(self, look: Callable[[], ProcessState]) -> None:
        """Say how it is until cancelled; from the event loop, whose silence is the process's."""
        while True:
            self.note(look())
            if self.file is not None:
                await asyncio.to_thread(self._write)
            await asyncio.sleep(INTERVAL_SECONDS)

    @contextmanager
    def during(self, detail: str) -> Iterator[None]:
        """Tell all the time of the work in a `with` block, which may take long."""
        is_over = threading.Event()

        def go_on() -> None:
            while not is_over.is_set():
                self.beat(healthy=False, detail=detail)
                is_over.wait(INTERVAL_SECONDS)

        saying = threading.Thread(target=go_on, name="heart", daemon=True)
        saying.start()
        try:
            yield
        finally:
            is_over.set()
            saying.join()

    @property
    def _silence(self) -> float:
        """Seconds since it said something."""
        return time.monotonic() - self._beat_at

    def _write(self) -> None:
        if self.file is None:
            return
        now = self._state
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_heartbeat(
                self.file,
                self.name,
                healthy=now.healthy,
                detail=now.detail,
                figures=now.figures,
            )
        except OSError as error:
            # A full disk, say: that the heartbeat grows old says enough; the rest goes on.
            _logger.warning("heartbeat not written", extra={"fields": {"reason": str(error)}})
