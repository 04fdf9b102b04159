"""A network connection in memory: in order, with delays, cut like a real one."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

from resilience.drivers.frames import Frame

DELAY: Final = (0.0002, 0.006)
"""Seconds of one way; each frame has its own, and waits for the one before."""

_STEP: Final = 1e-6


class DoubleLink:
    """One connection, seen by its client as a transport.

    Args:
        receive: The broker's side: called with each frame, and with None for the end.
    """

    def __init__(
        self,
        node: str,
        rng: random.Random,
        receive: Callable[["DoubleLink", Frame | None], None],
        on_frame: Callable[[Frame], None],
        on_end: Callable[[str], None],
    ) -> None:
        self.node = node
        self.state: Any = None
        """State that the broker keeps for this connection."""
        self._rng = rng
        self._receive = receive
        self._on_frame = on_frame
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._up_at = 0.0
        self._down_at = 0.0
        self._up_cut = False
        self._down_cut = False
        self.backlog: list[Frame | None] | None = None
        """Filled while the broker stands still."""

    def _at(self, last: float) -> float:
        return max(self._loop.time() + self._rng.uniform(*DELAY), last + _STEP)

    # The client's side.

    def send(self, frame: Frame) -> None:
        self._up_at = self._at(self._up_at)
        self._loop.call_at(self._up_at, self._arrive, frame)

    def end(self) -> None:
        self._down_cut = True
        self._up_at = self._at(self._up_at)
        self._loop.call_at(self._up_at, self._arrive, None)

    def abort(self) -> None:
        """Cut it; frames on their way to the broker may be lost, or still arrive."""
        if self._rng.random() < 0.5:
            self._up_cut = True
        self._down_cut = True
        self._up_at = self._at(self._up_at)
        self._loop.call_at(self._up_at, self._arrive, None)

    def _arrive(self, frame: Frame | None) -> None:
        if self.backlog is not None:
            self.backlog.append(frame)
        elif frame is None:
            self._up_cut = True
            self._receive(self, None)
        elif not self._up_cut:
            self._receive(self, frame)

    # The broker's side.

    def answer(self, frame: Frame) -> None:
        self._down_at = self._at(self._down_at)
        self._loop.call_at(self._down_at, self._deliver, frame)

    def _deliver(self, frame: Frame) -> None:
        if not self._down_cut:
            self._on_frame(frame)

    def close(self) -> None:
        """End it from the broker's side, behind its answers."""
        self._up_cut = True
        self._down_at = self._at(self._down_at)
        self._loop.call_at(self._down_at, self._closed, "closed by the broker")

    def crash(self) -> None:
        """Cut it at once: the broker is gone."""
        self._up_cut = True
        self._down_cut = True
        self.backlog = None
        self._loop.call_at(self._at(0.0), self._on_end, "reset")

    def _closed(self, reason: str) -> None:
        if not self._down_cut:
            self._down_cut = True
            self._on_end(reason)

    def freeze(self) -> None:
        self.backlog = self.backlog if self.backlog is not None else []

    def thaw(self) -> None:
        backlog, self.backlog = self.backlog or [], None
        for frame in backlog:
            self._arrive(frame)
