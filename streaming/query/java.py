"""The JVM of the query application: Spark Connect's own server, without a Python process."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from mqlake.errors import OperationalError
from mqlake.processes.query_application import NAME, Cause
from streaming.engine.spark_conf import java_options, local_environment, spark_conf, spark_jars
from streaming.jvm.class_archive import ClassArchive
from streaming.jvm.process import die_with_parent, java_command, java_executable
from streaming.settings.query import QuerySettings

_logger = logging.getLogger(__name__)

_MAIN_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
_OUT_OF_MEMORY: Final = 3
"""Exit code of Java with ExitOnOutOfMemoryError."""
_LOOK_SECONDS: Final = 0.05
"""How often a JVM that starts is asked whether it listens."""


class Java(Protocol):
    """A JVM that was started."""

    @property
    def pid(self) -> int: ...

    async def listens(self) -> None:
        """Return when it answers; never if it does not."""
        ...

    async def ended(self) -> tuple[str, Cause]:
        """Return how it has ended, when it has."""
        ...

    async def rest(self) -> None:
        """Have the JVM write the archive of its classes, at the first call.

        It stands still meanwhile: call this after its first use, while no user needs it.
        """
        ...

    async def stop(self) -> None:
        """End it; it is gone when this returns."""
        ...


@dataclass(frozen=True, slots=True)
class Command:
    """How the JVM is started."""

    words: list[str]
    environment: dict[str, str]
    archive: ClassArchive | None


def prepare(settings: QuerySettings, environment: dict[str, str]) -> Command:
    """Return the command; takes seconds when our classes are not compiled yet.

    Args:
        settings: Settings of the application.
        environment: Environment that the JVM inherits.

    Raises:
        OperationalError: No Java, or no jars.
    """
    folder = settings.data_dir.absolute() / NAME
    jars = spark_jars(settings)
    java = java_executable()
    archive = None
    if jars.archives is not None:
        archive = ClassArchive.of(jars.archives, NAME, java, jars.class_path)
    options = java_options(settings, folder, settings.heap_mb)
    options += archive.options_of_running() if archive is not None else []
    words = java_command(java, options, jars.class_path)
    # In a file, as the settings of some storage are secrets: everybody sees a command's words.
    arguments = folder / "java-arguments"
    arguments.touch(mode=0o600)
    arguments.write_text(_as_arguments(settings, jars.extra), encoding="utf-8")
    words += [f"@{arguments}", _MAIN_CLASS]
    more = local_environment(settings, folder) | {
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": settings.connect_token.get_secret_value(),
        "SPARK_CONNECT_MODE": "0",
    }
    return Command(words, environment | more, archive)


def _as_arguments(settings: QuerySettings, jars: list[Path]) -> str:
    """Return the configuration as java(1) reads it from a file: each option quoted."""
    conf = spark_conf(settings, jars) | {
        "spark.app.name": "mqlake query",
        "spark.master": settings.master,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(settings.connect_port),
    }
    options = (f"-D{key}={value}" for key, value in (conf | settings.spark).items())
    return "".join('"' + one.replace("\\", "\\\\").replace('"', '\\"') + '"\n' for one in options)


class ConnectServer:
    """The JVM, a child of this process."""

    def __init__(
        self, process: asyncio.subprocess.Process, settings: QuerySettings, command: Command
    ) -> None:
        self._process = process
        self._settings = settings
        self._archive = command.archive

    @classmethod
    async def start(cls, settings: QuerySettings, command: Command, lock: int) -> "ConnectServer":
        """Start it.

        Args:
            settings: Settings of the application.
            command: Command line of the JVM.
            lock: Descriptor of the application's lock, which it holds as long as it lives.

        Raises:
            OSError: The process cannot be made.
            OperationalError: Another process has its port.
        """
        if await _is_open(settings.connect_port):
            raise OperationalError(f"another program listens on port {settings.connect_port}")
        process = await asyncio.create_subprocess_exec(
            *command.words,
            env=command.environment,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(lock,),
            preexec_fn=die_with_parent,
        )
        return cls(process, settings, command)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def listens(self) -> None:
        """Return when Spark Connect does, which it begins when there is a session."""
        while True:
            if await _is_open(self._settings.connect_port):
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def ended(self) -> tuple[str, Cause]:
        code = await self._process.wait()
        if code == _OUT_OF_MEMORY:
            return f"its heap of {self._settings.heap_mb} MiB was full", "memory"
        if code < 0:
            return f"it was killed by signal {-code}", "other"
        return f"java ended with exit code {code}", "other"

    async def rest(self) -> None:
        archive, self._archive = self._archive, None
        if archive is None or archive.is_written:
            return
        try:
            await asyncio.to_thread(archive.write, self.pid)
        except (OperationalError, OSError) as exc:
            _logger.warning("no archive", extra={"fields": {"reason": str(exc)}})

    async def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


async def _is_open(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
