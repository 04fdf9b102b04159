"""Processes that run and do nothing: how long one has given no sign of life, and how it is ended.

A process writes a heartbeat each second (`mqlake.processes.heartbeat`). One that has stopped to do
so has a deadlock, collects garbage without end, or was stopped. It is asked for the stacks of its
threads, those of Java first, and killed when it has had the time to write them.

Silence is not counted by the clock alone. Of a step of the supervisor that took long, as the
machine was suspended or the supervisor itself did not get to run, little counts; where more want to
run than there are processors, time goes more slowly for everybody.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launcher.supervision.usage import members_of_sessions

MOST_STEP_SECONDS: Final = 3.0
"""Longest step that counts; without load one takes a second."""
LEAST_PACE: Final = 0.1
"""So slowly time goes at most: what hangs is found on a loaded machine, too."""
START_TIMES: Final = 5.0
"""Factor of the patience until the first heartbeat."""
JAVA_TIMES: Final = 3.0
"""Factor of the patience with a process that calls Java, and may wait for it."""
DUMP_SECONDS: Final = 3.0
"""Java has to write its stacks; as long again Python has."""


class HangWatch:
    """Counts the silence of one process.

    Args:
        patience_seconds: After so much silence it hangs; 0: it never does.
        now: Monotonic time of its start.
        pace: Returns how fast time goes on this machine, from `LEAST_PACE` to 1.
    """

    def __init__(self, patience_seconds: float, now: float, pace: Callable[[], float]) -> None:
        self._patience = patience_seconds
        self._pace = pace
        self._looked_at = now
        self._silent = 0.0
        self._beat = 0.0

    def hangs(self, beat: float | None, now: float, *, may_write: bool) -> bool:
        """Tell whether it has been silent for too long.

        Args:
            beat: Time of its last heartbeat, 0 before the first; None: it writes none.
            now: Monotonic time.
            may_write: Whether heartbeats can be written at all; not on a full disk.
        """
        step, self._looked_at = now - self._looked_at, now
        if beat is None or not self._patience or beat != self._beat or not may_write:
            self._beat, self._silent = beat or 0.0, 0.0
            return False
        self._silent += min(step, MOST_STEP_SECONDS) * self._pace()
        return self._silent >= self._patience * (1.0 if self._beat else START_TIMES)


def pace_of_machine() -> float:
    """Return how fast time goes for a process that wants a processor."""
    load = os.getloadavg()[0]
    return max(LEAST_PACE, min(1.0, (os.cpu_count() or 1) / max(load, 1e-9)))


@dataclass(slots=True)
class HangEnd:
    """The end of a process that hangs.

    Attributes:
        pid: Process, the leader of its session.
        reason: Why it is ended, for people.
        has_java: Whether Java was asked for its stacks.
    """

    pid: int
    reason: str
    begun_at: float
    has_java: bool
    _is_aborted: bool = False

    @classmethod
    def begin(cls, pid: int, reason: str, now: float) -> "HangEnd":
        """Ask Java for its stacks, if it has one."""
        javas = [one for one in members_of_sessions({pid}) if _name(one) == "java"]
        for one in javas:
            _send(one, signal.SIGQUIT)
        return cls(pid, reason, now, has_java=bool(javas))

    def is_due(self, now: float) -> bool:
        """Go on; return whether it is to be killed now."""
        abort_at = self.begun_at + (DUMP_SECONDS if self.has_java else 0.0)
        if not self._is_aborted and now >= abort_at:
            self._is_aborted = True
            _send(self.pid, signal.SIGABRT)  # Python writes its stacks: PYTHONFAULTHANDLER
        return now >= abort_at + DUMP_SECONDS


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
