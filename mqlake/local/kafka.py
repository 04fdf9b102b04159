"""The embedded log: Apache Kafka as one JVM that is broker and controller at once.

Everything about its configuration lives here. Directory layout: `server.properties` and
`log4j2.properties` are written anew at each start; `log/` is formatted once and holds the cluster's
identity in `meta.properties`. All paths are relative to that directory, which is the JVM's working
directory: Kafka splits `log.dirs` at commas and log4j takes its file name for a URI.
"""

import base64
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mqlake.errors import OperationalError
from mqlake.jit import COMPILER_OPTIONS
from mqlake.local.java import find_java_home
from mqlake.local.kafka_probe import is_serving
from mqlake.local.paths import KAFKA_JARS, RUNTIME
from mqlake.local.ports import free_ports

FORMAT_TIMEOUT_SECONDS: Final = 60.0
START_TIMEOUT_SECONDS: Final = 60.0
STOP_TIMEOUT_SECONDS: Final = 20.0

# The serial collector takes less memory than G1, and less time when there is little to do: 1.3 % of
# a core in place of 2.1.
_JVM_FLAGS: Final = (
    "-XX:+UseSerialGC",
    *COMPILER_OPTIONS,
    "-Xss512k",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
)

_SERVER_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={log_dir}

# One node holds everything.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
# After a crash the broker is let in again when its old session has ended: 9 s by default.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500

# A misspelled log topic is an error, not a new topic.
auto.create.topics.enable=false
message.max.bytes={max_record_bytes}

# Small machine: few threads, a cleaner that does not take 128 MiB of heap, a quiet controller.
num.network.threads=2
num.io.threads=4
background.threads=2
num.recovery.threads.per.data.dir=2
log.cleaner.dedupe.buffer.size=4194304
log.cleaner.io.buffer.size=262144
metadata.max.idle.interval.ms=5000

# Old records go within seconds of their time; space comes back in units of a segment.
log.retention.check.interval.ms=10000
log.initial.task.delay.ms=10000
log.segment.bytes=134217728
"""

_LOG4J_PROPERTIES: Final = """\
status=error
appender.file.type=RollingFile
appender.file.name=file
appender.file.fileName=${sys:mqlake.logs}/kafka.log
appender.file.filePattern=${sys:mqlake.logs}/kafka.log.%i
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c %m%n
appender.file.policies.type=Policies
appender.file.policies.size.type=SizeBasedTriggeringPolicy
appender.file.policies.size.size=10MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=3
rootLogger.level=info
rootLogger.appenderRef.file.ref=file
"""


@dataclass(frozen=True, slots=True)
class KafkaServer:
    """One embedded log: where it lives and which ports it takes; starts nothing by itself."""

    directory: Path
    logs_dir: Path
    port: int
    controller_port: int
    heap_mebibytes: int = 256
    max_record_bytes: int = 66 * 1024 * 1024

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log_dir(self) -> Path:
        return self.directory / "log"

    def prepare(self) -> None:
        """Write the configuration, and format the storage of a new log.

        Raises:
            OperationalError: The storage cannot be formatted, or belongs to something else.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self.logs_dir.mkdir(parents=True, exist_ok=True)
        (self.directory / "log4j2.properties").write_text(_LOG4J_PROPERTIES, encoding="utf-8")
        if not self.log_dir.exists():
            self._format()
        check_storage(self.directory)
        self._write_server_properties("log")

    def command(self) -> list[str]:
        """Return the command that runs the log; its working directory must be `directory`."""
        return [*self._java(f"-Xmx{self.heap_mebibytes}m"), "kafka.Kafka", "server.properties"]

    def environment(self) -> dict[str, str]:
        """Return the environment to run the command with."""
        # Few malloc arenas: the default of eight a core is address space that turns resident.
        return {**os.environ, "MALLOC_ARENA_MAX": "2"}

    def is_serving(self) -> bool:
        """Return whether the log answers that its broker is in service."""
        return is_serving("127.0.0.1", self.port)

    def _java(self, *flags: str) -> list[str]:
        return [
            str(find_java_home(RUNTIME) / "bin" / "java"),
            *_JVM_FLAGS,
            *flags,
            f"-XX:ErrorFile={self.logs_dir.resolve()}/kafka-crash.log",
            f"-Dmqlake.logs={self.logs_dir.resolve()}",
            "-Dlog4j2.configurationFile=log4j2.properties",
            "-cp",
            f"{KAFKA_JARS}/*",
        ]

    def _format(self) -> None:
        """Format into a folder of another name and rename it: a killed one leaves no half log."""
        unfinished = self.directory / "log.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        self._write_server_properties(unfinished.name)
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        # In one word: one in 64 begins with a hyphen.
        tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}"]
        try:
            result = subprocess.run(
                [*self._java("-Xmx128m"), *tool, "--config", "server.properties"],
                cwd=self.directory,
                capture_output=True,
                text=True,
                timeout=FORMAT_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            raise OperationalError(
                f"formatting the log took longer than {FORMAT_TIMEOUT_SECONDS:.0f} s: "
                f"is the disk of {self.directory} in order?"
            ) from exc
        if result.returncode != 0:
            lines = (result.stderr or result.stdout).strip().splitlines() or ["no output"]
            raise OperationalError(
                f"the log could not be formatted in {self.directory}: {lines[-1]}; "
                f"see {self.logs_dir / 'kafka.log'}"
            )
        unfinished.rename(self.log_dir)

    def _write_server_properties(self, log_dir: str) -> None:
        text = _SERVER_PROPERTIES.format(
            port=self.port,
            controller_port=self.controller_port,
            log_dir=log_dir,
            max_record_bytes=self.max_record_bytes,
        )
        (self.directory / "server.properties").write_text(text, encoding="utf-8")


def check_storage(directory: Path) -> None:
    """Refuse a log directory that is damaged or not ours; a missing one is fine.

    Raises:
        OperationalError: Says what is wrong; nothing has been touched.
    """
    log_dir = directory / "log"
    if not log_dir.exists():
        return
    meta = log_dir / "meta.properties"
    advice = "restore it from a backup, or start with another --data-dir"
    try:
        lines = meta.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise OperationalError(
            f"the log in {log_dir} is damaged, meta.properties is missing: {advice}"
        ) from None
    except (OSError, UnicodeDecodeError) as exc:
        raise OperationalError(f"the log in {log_dir} cannot be read, {exc}: {advice}") from exc
    values = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
    if values.get("node.id") != "1" or not values.get("cluster.id"):
        raise OperationalError(
            f"the log in {log_dir} is damaged, meta.properties has no node.id=1 with a "
            f"cluster.id: {advice}"
        )


@contextmanager
def running_kafka(directory: Path) -> Iterator[KafkaServer]:
    """Run an embedded log on free ports for the length of a `with` block, as tests need it.

    Raises:
        OperationalError: It did not come up.
    """
    port, controller_port = free_ports(2)
    server = KafkaServer(directory / "kafka", directory / "logs", port, controller_port)
    server.prepare()
    with (
        (server.logs_dir / "log.out").open("wb") as output,
        subprocess.Popen(
            server.command(),
            cwd=server.directory,
            env=server.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            _await_serving(server, process)
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _await_serving(server: KafkaServer, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while not server.is_serving():
        if process.poll() is not None or time.monotonic() > deadline:
            raise OperationalError(f"the log did not start: see {server.logs_dir}")
        time.sleep(0.05)
