"""A JVM that has lost a thread to an error of its own ends; the supervisor starts another."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.streaming.conftest import running_gateway

pytestmark = [pytest.mark.spark]


@pytest.mark.parametrize("error", ["RuntimeException", "StackOverflowError"])
def test_threads_may_die_of_what_is_not_the_jvms(routing_jars: list[Path], error: str) -> None:
    with running_gateway(routing_jars) as (running, gateway):
        java = gateway.jvm
        java.mqlake.spark.FatalErrors.watch()
        thread = java.java.lang.Thread.currentThread()
        handler = java.java.lang.Thread.getDefaultUncaughtExceptionHandler()
        handler.uncaughtException(thread, getattr(java.java.lang, error)("one thread"))
        assert java.java.lang.Math.abs(-1) == 1
        assert running.process.poll() is None


def test_an_error_of_the_jvm_ends_it(routing_jars: list[Path]) -> None:
    with running_gateway(routing_jars) as (running, gateway):
        java = gateway.jvm
        java.mqlake.spark.FatalErrors.watch()
        code = java.mqlake.spark.FatalErrors.EXIT_CODE
        thread = java.java.lang.Thread.currentThread()
        handler = java.java.lang.Thread.getDefaultUncaughtExceptionHandler()
        error = java.java.lang.InternalError("no such method")
        arguments = f"r{thread._target_id}\nr{error._target_id}"
        call = f"c\n{handler._target_id}\nuncaughtException\n{arguments}\ne\n"
        # Asked once: py4j would ask again, and nobody listens any more.
        gateway._gateway_client.send_command(call, retry=False)
        assert running.process.wait(120) == code


def test_the_application_watches(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    handler = jvm.java.lang.Thread.getDefaultUncaughtExceptionHandler()
    assert handler.getClass().getName() == "mqlake.spark.FatalErrors"
