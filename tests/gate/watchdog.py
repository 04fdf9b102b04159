"""Ends a process in which a test hangs past its time-out.

What pytest-timeout raises in the test is lost where a loop written in C calls Python: uvloop hands
it to the loop's handler of exceptions and waits on. Nor does it look at how a failed test ends.
"""

import faulthandler
import os
import signal
from collections.abc import Generator
from typing import Any, Final

import pytest

_TIMES: Final = 1.25
"""The time-out, for the test, and once more for its end if it has failed: then this acts."""
SHOW_STACKS: Final = signal.SIGUSR1
"""A worker that gets it writes all stacks to stderr and goes on."""


class Watchdog:
    """Has a thread that needs no interpreter write all stacks to stderr and end the process.

    With workers, xdist then reports the test as failed.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._seconds = 0.0
        capture: Any = config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled():
            self._stderr = os.dup(2)
        if hasattr(config, "workerinput"):
            faulthandler.register(SHOW_STACKS, file=self._stderr)

    @pytest.hookimpl(wrapper=True)
    def pytest_timeout_set_timer(self, settings: Any) -> Generator[None, object, object]:
        self._seconds = _TIMES * settings.timeout
        self._begin()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        self._begin()  # pytest has cancelled it if the test has failed
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            self._seconds = 0.0
            faulthandler.cancel_dump_traceback_later()

    def pytest_unconfigure(self) -> None:
        faulthandler.unregister(SHOW_STACKS)
        os.close(self._stderr)

    def _begin(self) -> None:
        if self._seconds:
            faulthandler.dump_traceback_later(self._seconds, exit=True, file=self._stderr)
