"""Real things, one of each a session.

A plain JVM with the routing classes, without Spark's context, is up in a second. Spark with Delta,
without a log, takes ten. A log of three brokers takes five.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from pydantic import SecretStr
from pyspark.errors.exceptions import captured
from pyspark.sql import SparkSession

from mqlake.local.kafka import Brokers, running_brokers
from mqlake.local.ports import free_ports
from streaming.jvm.compiler import build_routing_jar
from streaming.jvm.jars import PYSPARK_JARS, extra_jars
from streaming.jvm.process import Jvm, start_jvm
from streaming.settings import StreamingSettings
from streaming.spark import start_spark

JARS = Path(__file__).parents[2] / ".runtime" / "jars"


@pytest.fixture(scope="session")
def routing_jars(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    jars = extra_jars(JARS)
    return [*jars, build_routing_jar(tmp_path_factory.mktemp("jvm"), JARS)]


@contextmanager
def running_gateway(jars: list[Path]) -> Iterator[tuple[Jvm, ClientServer]]:
    """Run a plain JVM with the routing classes, and ask it from Python."""
    jvm = start_jvm(
        ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"],
        [str(PYSPARK_JARS / "*"), *map(str, jars)],
    )
    gateway = ClientServer(
        java_parameters=JavaParameters(port=jvm.port, auth_token=jvm.secret, auto_convert=True),
        python_parameters=PythonParameters(port=0, eager_load=False),
    )
    with _errors_left_alone(gateway):
        yield jvm, gateway
    if jvm.process.poll() is None:
        gateway.shutdown()
    jvm.stop(timeout_seconds=5)


@pytest.fixture(scope="session")
def routing_gateway(routing_jars: list[Path]) -> Iterator[ClientServer]:
    with running_gateway(routing_jars) as (_, gateway):
        yield gateway


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A log of three brokers, as no single one shows what the absence of one does."""
    with running_brokers(tmp_path_factory.mktemp("brokers"), 3) as running:
        yield running
        running.kill()  # taking leave they would wait for each other


@contextmanager
def _errors_left_alone(gateway: ClientServer) -> Iterator[None]:
    """Keep PySpark from errors of this JVM: it asks Spark's about them, which knows no such object.

    The answers that then come mix up what Spark is asked next.
    """
    convert = captured.convert_exception

    def convert_own(e: Any) -> captured.CapturedException:
        if e._gateway_client is gateway._gateway_client:
            return captured.UnknownException(desc="", stackTrace="")
        return convert(e)

    captured.convert_exception = convert_own
    yield
    captured.convert_exception = convert


@pytest.fixture(scope="session")
def routing_jvm(routing_gateway: ClientServer) -> Any:
    """The root of all Java packages."""
    return routing_gateway.jvm


@pytest.fixture(scope="session")
def streaming_settings(tmp_path_factory: pytest.TempPathFactory) -> StreamingSettings:
    (port,) = free_ports(1)
    return StreamingSettings(
        data_dir=tmp_path_factory.mktemp("data"),
        jars_dir=JARS,
        connect_port=port,
        connect_token=SecretStr("token"),
    )


@pytest.fixture(scope="session")
def spark(streaming_settings: StreamingSettings) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        # It lives long enough for Java's second compiler to pay, which `bin/test` leaves out.
        patch.delenv("JAVA_TOOL_OPTIONS", raising=False)
        umask = os.umask(0o077)  # as the supervisor has it
        try:
            session, jvm = start_spark(streaming_settings)
        finally:
            os.umask(umask)
    yield session
    session.stop()
    jvm.stop(timeout_seconds=5)
