"""A plain JVM with the routing classes, without Spark's context: up in a second, one a session."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

from streaming.jvm.compiler import build_routing_jar
from streaming.jvm.jars import PYSPARK_JARS, extra_jars
from streaming.jvm.process import start_jvm

JARS = Path(__file__).parents[2] / ".runtime" / "jars"


@pytest.fixture(scope="session")
def routing_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The root of all Java packages."""
    jars = extra_jars(JARS)
    jars.append(build_routing_jar(tmp_path_factory.mktemp("jvm"), jars))
    jvm = start_jvm(
        ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"],
        [str(PYSPARK_JARS / "*"), *map(str, jars)],
    )
    gateway = ClientServer(
        java_parameters=JavaParameters(port=jvm.port, auth_token=jvm.secret, auto_convert=True),
        python_parameters=PythonParameters(port=0, eager_load=False),
    )
    yield gateway.jvm
    gateway.shutdown()
    jvm.stop(timeout_seconds=5)
