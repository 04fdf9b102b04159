"""A JVM that has lost a thread to an error of its own ends; the supervisor starts another."""

from pathlib import Path

import pytest
from py4j.protocol import Py4JError

from tests.streaming.conftest import running_gateway

pytestmark = [pytest.mark.spark]


@pytest.mark.parametrize("error", ["RuntimeException", "StackOverflowError"])
def test_threads_may_die_of_what_is_not_the_jvms(routing_jars: list[Path], error: str) -> None:
    with running_gateway(routing_jars) as (running, gateway):
        java = gateway.jvm
        java.mqlake.streaming.FatalErrors.watch()
        thread = java.java.lang.Thread.currentThread()
        handler = java.java.lang.Thread.getDefaultUncaughtExceptionHandler()
        handler.uncaughtException(thread, getattr(java.java.lang, error)("one thread"))
        assert java.java.lang.Math.abs(-1) == 1
        assert running.process.poll() is None


def test_an_error_of_the_jvm_ends_it(routing_jars: list[Path]) -> None:
    with running_gateway(routing_jars) as (running, gateway):
        java = gateway.jvm
        java.mqlake.streaming.FatalErrors.watch()
        code = java.mqlake.streaming.FatalErrors.EXIT_CODE
        thread = java.java.lang.Thread.currentThread()
        handler = java.java.lang.Thread.getDefaultUncaughtExceptionHandler()
        with pytest.raises(Py4JError):
            handler.uncaughtException(thread, java.java.lang.InternalError("no such method"))
        assert running.process.wait(30) == code
