"""Real things, one of each a session.

A plain JVM with the routing classes, without Spark's context, is up in a second. Spark with Delta,
without a log, takes ten.
"""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from pyspark.errors.exceptions import captured
from pyspark.sql import SparkSession

from api.spark.connect import SparkConnect
from launcher.ports import free_ports
from mqlake.processes.query_application import SOCKET_FILE, Cause
from streaming.engine.spark import start_spark
from streaming.jvm.compiler import build_routing_jar
from streaming.jvm.jars import PYSPARK_JARS, extra_jars
from streaming.jvm.process import Jvm, start_jvm
from streaming.query.java import Java
from streaming.query.keeper import SparkKeeper
from streaming.settings.lake import LakeSettings
from tests.streaming.rule_engine import Engine

JARS = Path(__file__).parents[2] / ".runtime" / "jars"


@pytest.fixture(scope="session")
def routing_jars() -> list[Path]:
    # Where the applications have it: it is compiled once for each state of the sources.
    return [*extra_jars(JARS), build_routing_jar(JARS / "classes", JARS)]


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
    jvm.kill()


@pytest.fixture(scope="session")
def routing_gateway(routing_jars: list[Path]) -> Iterator[ClientServer]:
    with running_gateway(routing_jars) as (_, gateway):
        yield gateway


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


@pytest.fixture
def engine(routing_jvm: Any, routing_gateway: ClientServer) -> Engine:
    return Engine(routing_jvm, routing_gateway)


@pytest.fixture(scope="session")
def streaming_settings(tmp_path_factory: pytest.TempPathFactory) -> LakeSettings:
    (port,) = free_ports(1)
    return LakeSettings(
        data_dir=tmp_path_factory.mktemp("data"),
        jars_dir=JARS,
        master="local[32]",
        spark={
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.connect.authenticate.token": "token",
            # Systems of other tests take the processors from a batch that is to end.
            "spark.sql.streaming.stopTimeout": "120000",
        },
    )


@pytest.fixture(scope="session")
def spark(streaming_settings: LakeSettings) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        # It lives long enough for Java's second compiler to pay, which `bin/test` leaves out.
        patch.delenv("JAVA_TOOL_OPTIONS", raising=False)
        umask = os.umask(0o077)  # as the supervisor has it
        try:
            folder = streaming_settings.data_dir / "jvm"
            # What hundreds of tests leave stays in it: three quarters of 640 MiB.
            session, jvm = start_spark(streaming_settings, "tests", folder, heap_mb=1024)
        finally:
            os.umask(umask)
    # As the query application does, in the one JVM of these tests.
    java: Any = session.sparkContext._jvm
    java.org.apache.spark.sql.connect.service.SparkConnectService.start(
        session.sparkContext._jsc.sc()
    )
    yield session
    session.stop()
    jvm.kill()


@pytest.fixture(scope="session")
def connect_port(streaming_settings: LakeSettings) -> int:
    """Where Spark Connect is."""
    return int(streaming_settings.spark["spark.connect.grpc.binding.port"])


class _Ready:
    """Spark as the keeper sees it: it runs already, and until the tests end."""

    pid = os.getpid()

    def __init__(self) -> None:
        self._stopped = asyncio.Event()

    async def listens(self) -> None:
        pass

    async def ended(self) -> tuple[str, Cause]:
        await self._stopped.wait()
        return "the tests have ended", "other"

    async def rest(self) -> None:
        pass

    async def stop(self) -> None:
        self._stopped.set()


@pytest.fixture(scope="session")
def query_dir(
    spark: SparkSession, streaming_settings: LakeSettings, connect_port: int
) -> Iterator[Path]:
    """The data directory, by which `SparkConnect` finds Spark: its keeper runs there."""
    folder = streaming_settings.data_dir
    (folder / "connect-token").write_text("token\n")

    async def start() -> Java:
        return _Ready()

    async def keep(is_open: threading.Event, is_over: asyncio.Event) -> None:
        keeper = SparkKeeper(start, connect_port, start_timeout_seconds=60.0, idle_seconds=3_600.0)
        await keeper.open(folder / SOCKET_FILE)
        keeping = asyncio.create_task(keeper.run())
        is_open.set()
        await is_over.wait()
        keeping.cancel()
        await asyncio.wait((keeping,))
        keeper.close()

    is_open, is_over, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()
    work = keep(is_open, is_over)
    thread = threading.Thread(target=loop.run_until_complete, args=(work,), name="keeper")
    thread.start()
    assert is_open.wait(60)
    with closing(SparkConnect(folder)) as first:
        first.rows("SELECT 1", 240)  # of a cold Spark: longer than a caller waits
    yield folder
    loop.call_soon_threadsafe(is_over.set)
    thread.join()
    loop.close()
