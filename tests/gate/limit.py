"""Ends a run at its time, with pytest's summary of what has run until then.

A worker that hangs does not end it: the process that hands tests out to workers does.
"""

import os
import signal
import threading
import time
from contextlib import suppress
from typing import Any, Final

import pytest

from tests.gate.plan import Plan
from tests.gate.watchdog import SHOW_STACKS

_STACKS_SECONDS: Final = 2.0


class Limit:
    """Ends a run at the time that its plan says, as Ctrl-C does; workers show where they are."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="limit of time", daemon=True)

    def pytest_sessionstart(self) -> None:
        if self._plan.ends is not None:
            self._thread.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._over.set()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._plan.ends is not None and time.time() >= self._plan.ends:
            terminalreporter.write_line("FAILED: the time of the gate is over (--limit-minutes)")

    def _run(self) -> None:
        assert self._plan.ends is not None
        if self._over.wait(max(self._plan.ends - time.time(), 0)):
            return
        for file in self._plan.pid_files():
            with suppress(OSError, ValueError):
                os.kill(int(file.read_text()), SHOW_STACKS)
        if not self._over.wait(_STACKS_SECONDS):
            os.kill(os.getpid(), signal.SIGINT)
