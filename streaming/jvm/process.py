"""Start the JVM that pyspark talks to.

Not by pyspark's own scripts: they start two shells and another JVM first (a second of start-up),
and leave the JVM running for as long as its shutdown takes when the Python process is killed. Here
the kernel kills it with its parent.
"""

import ctypes
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mqlake.errors import OperationalError
from streaming.jvm.class_archive import ClassArchive
from streaming.jvm.jars import PYSPARK_JARS

_ARCHIVE: Final = "spark"
"""Name of the archive that all have: the one with most classes writes it."""
_MAIN_CLASS: Final = "org.apache.spark.api.python.PythonGatewayServer"
START_TIMEOUT_SECONDS: Final = 300.0
"""A JVM that ends is noticed at once, so this is for one that hangs. Where twenty-five programs
want each core two minutes were too few, and each further try made them twenty-six."""
_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None)
"""Loaded before a process is forked: afterwards another thread's lock may be in the way."""

# Options of Spark's own launcher (JavaModuleOptions); a test compares. Left out: the incubator
# module for vector arithmetic, which only machine learning uses and a trimmed Java need not have.
MODULE_OPTIONS: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            "java.lang",
            "java.lang.invoke",
            "java.lang.reflect",
            "java.io",
            "java.net",
            "java.nio",
            "java.util",
            "java.util.concurrent",
            "java.util.concurrent.atomic",
            "jdk.internal.ref",
            "sun.nio.ch",
            "sun.nio.cs",
            "sun.security.action",
            "sun.util.calendar",
        )
    ),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)


def java_executable() -> str:
    """Return the Java to use: that of `JAVA_HOME`, else the one on the path.

    Raises:
        OperationalError: There is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise OperationalError(
                f"JAVA_HOME is {home}, which has no bin/java; unset or correct it"
            )
        return str(java)
    found = shutil.which("java")
    if found is None:
        raise OperationalError("no java on the path; install Java 17 or newer or set JAVA_HOME")
    return found


@dataclass(frozen=True, slots=True)
class Jvm:
    """A running JVM and how to reach it."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str
    archive: ClassArchive | None = None
    """Archive that it uses, or may be asked to write."""

    def export(self) -> None:
        """Make pyspark use this JVM: these variables are its way to be given one."""
        os.environ["PYSPARK_GATEWAY_PORT"] = str(self.port)
        os.environ["PYSPARK_GATEWAY_SECRET"] = self.secret

    def kill(self) -> None:
        """End the JVM at once: there is nothing that it does in the end."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def start_jvm(
    java_options: list[str],
    class_path: list[str],
    *,
    environment: dict[str, str] | None = None,
    inherited_fds: tuple[int, ...] = (),
    archives: Path | None = None,
) -> Jvm:
    """Start the JVM and wait until it takes connections.

    Args:
        java_options: Beside `MODULE_OPTIONS`.
        class_path: In order.
        environment: On top of this process's.
        inherited_fds: Stay open in the JVM as long as it lives; a lock among them is held as long.
        archives: Folder for archives of classes; None: without one.

    Raises:
        OperationalError: It ended or gave no answer; its own words are on standard error.
    """
    java = java_executable()
    classes = None if archives is None else ClassArchive.of(archives, _ARCHIVE, java, class_path)
    archived = () if classes is None else classes.options_of_running()
    command = [*java_command(java, [*java_options, *archived], class_path), _MAIN_CLASS]
    with tempfile.TemporaryDirectory(prefix="mqlake-jvm-") as directory:
        connection = Path(directory) / "connection"
        whole_environment = os.environ | (environment or {})
        whole_environment |= {
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection),
            "SPARK_HOME": str(PYSPARK_JARS.parent),
            "SPARK_CONNECT_MODE": "0",
        }
        process = subprocess.Popen(
            command,
            # The JVM also ends when this pipe does, where the kernel's way below is not to be had.
            stdin=subprocess.PIPE,
            env=whole_environment,
            pass_fds=inherited_fds,
            preexec_fn=die_with_parent,
        )
        try:
            await_start(connection, process)
        except BaseException:
            process.kill()
            process.wait()
            raise
        port, length = struct.unpack(">ii", (answer := connection.read_bytes())[:8])
        return Jvm(process, port, answer[8 : 8 + length].decode(), classes)


def java_command(java: str, java_options: list[str], class_path: list[str]) -> list[str]:
    """Return the command of a JVM, but for the class that it is to run."""
    return [java, *MODULE_OPTIONS, *java_options, "-cp", os.pathsep.join(class_path)]


def await_start(connection: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until a JVM has written how it is reached; the file appears as a whole.

    Raises:
        OperationalError: It has ended, or has not in `START_TIMEOUT_SECONDS`.
    """
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while not connection.is_file():
        if process.poll() is not None:
            raise OperationalError(f"java ended with exit code {process.returncode} at start")
        if time.monotonic() > deadline:
            raise OperationalError(f"java did not start in {START_TIMEOUT_SECONDS:.0f} s")
        time.sleep(0.02)


def die_with_parent() -> None:
    """Have the kernel kill the process that is about to become Java when its parent dies."""
    # Ctrl-C is for the Python process, which then ends this one in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
