"""Keeps Spark running while it is in use: starts it, says when it can be asked, ends it.

A *life* is one run of the JVM. It begins with the first use, and ends when there was no use for
some time, when a use asks for it, or by itself. `mqlake.processes.query_application` has the
protocol.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Literal, get_args

from mqlake.errors import MqlakeError
from mqlake.processes.control_socket import listening
from mqlake.processes.query_application import Cause
from streaming.query.java import Java

_logger = logging.getLogger(__name__)

_MOST_LINE_BYTES: Final = 4096
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
"""Pause before a further start of a Spark without uses; longer when starts fail."""

ENDS: Final = (*get_args(Cause), "idle")
"""Causes of those ends after which there may be another life."""

Phase = Literal["resting", "starting", "running", "ending"]


class _Use:
    """One connection of a process that uses Spark."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.is_ready = False
        """It knows that Spark can be asked."""

    def say_ready(self, port: int, java_pid: int | None) -> None:
        self.is_ready = True
        self._say({"ready": port, "pid": java_pid})

    def say_ended(self, reason: str, cause: Cause, *, alone: bool) -> None:
        self._say({"ended": reason, "cause": cause, "alone": alone})
        self._writer.close()

    def _say(self, what: dict[str, Any]) -> None:
        # A line or two in all: nothing to wait for.
        self._writer.write(json.dumps(what).encode() + b"\n")


class SparkKeeper:
    """Keeps Spark.

    Args:
        start: Starts the JVM.
        port: Port of Spark Connect, for uses.
        start_timeout_seconds: A start that takes longer has failed.
        idle_seconds: Without a use for so long it is ended; None: never, and it is started without
            one, too.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[Java]],
        port: int,
        *,
        start_timeout_seconds: float,
        idle_seconds: float | None,
    ) -> None:
        self._start = start
        self._port = port
        self._start_timeout_seconds = start_timeout_seconds
        self._idle_seconds = idle_seconds
        self._server: asyncio.Server | None = None
        self._uses: set[_Use] = set()
        self._changed = asyncio.Event()
        """Set when a use begins or ends, or asks for the end."""
        self._asked_end = ""
        self._has_served = False
        """In this life."""
        self._failed_starts = 0
        self.phase: Phase = "resting"
        self.java_pid: int | None = None
        self.trouble = ""
        """Why it did not start last time; empty when it did."""
        self.starts = 0
        self.start_seconds: float | None = None
        """That the last start took."""
        self.ends: Counter[str] = Counter()
        """By cause, of `ENDS`."""

    @property
    def uses(self) -> int:
        return len(self._uses)

    async def open(self, path: Path) -> None:
        """Take uses at a Unix socket.

        Raises:
            OSError: It cannot be opened for listening.
        """
        self._server = await asyncio.start_unix_server(
            self._serve, sock=listening(path), limit=_MOST_LINE_BYTES
        )

    async def run(self) -> None:
        """Keep Spark until this is cancelled."""
        while True:
            await self._await_wish()
            await self._live()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _await_wish(self) -> None:
        """Return when Spark is wanted: for a use, or because it is to be there without one."""
        pause = None
        if self._idle_seconds is None:
            has_been = self.starts or self._failed_starts
            doubled = _FIRST_PAUSE_SECONDS * 2.0**self._failed_starts
            pause = min(_LONGEST_PAUSE_SECONDS, doubled) if has_been else 0.0
        try:
            async with asyncio.timeout(pause):
                while not self._uses:
                    await self._next_change()
        except TimeoutError:
            return

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _live(self) -> None:
        """Start Spark, be there for its uses, see its end and tell them."""
        self.phase = "starting"
        self._asked_end = ""
        self._has_served = False
        began_at = time.monotonic()
        try:
            java = await self._start()
        except (OSError, MqlakeError) as exc:
            self._end_of_life(str(exc), "other", has_run=False)
            return
        self.java_pid = java.pid
        ended = asyncio.create_task(java.ended())
        has_run = False
        reason, cause = "it was asked to stop", "stopped"
        try:
            has_run = await self._has_begun(java, ended)
            if has_run:
                self.start_seconds = time.monotonic() - began_at
                self._begin_serving()
                reason, cause = await self._serve_until_end(java, ended)
            elif ended.done():
                reason, cause = ended.result()
            else:
                reason = f"it was not ready after {self._start_timeout_seconds:g} s"
                cause = "other"
        finally:
            self.phase = "ending"
            await java.stop()
            await ended
            self.java_pid = None
        self._end_of_life(reason, cause, has_run=has_run)

    async def _has_begun(self, java: Java, ended: asyncio.Task[tuple[str, Cause]]) -> bool:
        listens = asyncio.create_task(java.listens())
        try:
            await asyncio.wait(
                (listens, ended),
                timeout=self._start_timeout_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            return listens.done() and not ended.done()
        finally:
            listens.cancel()

    def _begin_serving(self) -> None:
        self.phase = "running"
        self.trouble = ""
        self.starts += 1
        self._failed_starts = 0
        fields = {"seconds": round(self.start_seconds or 0.0, 1), "java_pid": self.java_pid}
        _logger.info("Spark can be asked", extra={"fields": fields})
        for use in self._uses:
            self._say_ready(use)

    def _say_ready(self, use: _Use) -> None:
        self._has_served = True
        use.say_ready(self._port, self.java_pid)

    async def _serve_until_end(
        self, java: Java, ended: asyncio.Task[tuple[str, Cause]]
    ) -> tuple[str, Cause | Literal["idle"]]:
        """Return why this life is over."""
        rest: asyncio.Task[None] | None = None
        while True:
            if rest is None and self._has_served and not self._uses:
                rest = asyncio.create_task(java.rest())
            change = asyncio.create_task(self._next_change())
            is_idle = not self._uses and self._idle_seconds is not None
            try:
                await asyncio.wait(
                    (change, ended),
                    timeout=self._idle_seconds if is_idle else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                change.cancel()
            if ended.done():
                return ended.result()
            if self._asked_end:
                return self._asked_end, "asked"
            if is_idle and not self._uses and not change.done():
                return "it was not used", "idle"

    def _end_of_life(self, reason: str, cause: str, *, has_run: bool) -> None:
        self.phase = "resting"
        self.ends[cause] += 1
        fields = {"reason": reason, "cause": cause}
        if cause == "idle":
            _logger.info("Spark has ended", extra={"fields": fields})
        else:
            _logger.warning("Spark has ended", extra={"fields": fields})
        if not has_run:
            self.trouble = reason
            self._failed_starts += 1
        # A use that came while it ended heard nothing, and waits for the next.
        told = [use for use in self._uses if use.is_ready or not has_run]
        for use in told:
            self._uses.discard(use)
            use.say_ended(reason, cause, alone=len(told) == 1)  # type: ignore[arg-type]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        use = _Use(writer)
        try:
            while line := await reader.readline():
                self._take(use, json.loads(line))
        except (OSError, ValueError, KeyError, TypeError) as exc:
            _logger.warning("a use has ended", extra={"fields": {"reason": repr(exc)}})
        finally:
            if use in self._uses:
                self._uses.discard(use)
                self._changed.set()
            writer.close()

    def _take(self, use: _Use, said: dict[str, Any]) -> None:
        if "use" in said:
            self._uses.add(use)
            if self.phase == "running":
                self._say_ready(use)
        else:
            reason = str(said["end"])
            if not use.is_ready or use not in self._uses:
                return
            self._asked_end = reason
        self._changed.set()
