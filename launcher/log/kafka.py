"""The embedded log: Apache Kafka as one JVM that is broker and controller at once.

Everything about its configuration lives here. Directory layout: `server.properties` and
`log4j2.properties` are written at each start; `log/` is formatted once and holds the cluster's
identity in `meta.properties`. All paths are relative to that directory, which is the JVM's working
directory: Kafka splits `log.dirs` at commas and log4j takes its file name for a URI.
"""

import base64
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from launcher.child import die_with_parent
from launcher.java import find_java_home
from launcher.log.broker_login import HANDLER_CLASS, broker_login_jar
from launcher.log.probe import is_serving
from launcher.paths import KAFKA_JARS, RUNTIME
from launcher.ports import free_ports
from mqlake.durable import sync, write_durably
from mqlake.errors import OperationalError
from mqlake.log.durability import COPIES
from mqlake.log.security import ClientSecurity, LogServers, ensure_security
from streaming.jvm import class_archive
from streaming.jvm.class_archive import ClassArchive
from streaming.jvm.jit import COMPILER_OPTIONS

_logger = logging.getLogger(__name__)

FORMAT_TIMEOUT_SECONDS: Final = 60.0
START_TIMEOUT_SECONDS: Final = 300.0
"""For a broker that hangs; one that ends is noticed at once. After a power failure the log's last
segments are read first, on a machine where everything starts."""
STOP_TIMEOUT_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 0.05
ARCHIVE_AFTER_SECONDS: Final = 60.0
"""By then it has the classes that it needs, and a new system has started."""

LOOPBACK: Final = "127.0.0.1"

NETWORK_THREADS: Final = max(1, min(2, (os.cpu_count() or 1) // 2))
"""On two processors one thread for all connections has more to do each time it wakes."""

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
node.id={node_id}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=CLIENT://{host}:{port},CONTROLLER://{host}:{controller_port}
inter.broker.listener.name=CLIENT
listener.security.protocol.map=CLIENT:{protocol},CONTROLLER:{protocol}
log.dirs={log_dir}

# Any broker may be missing, if there are several.
offsets.topic.replication.factor={copies}
offsets.topic.num.partitions=1
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={in_sync}
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
# After a crash the broker is let in again when its old session has ended: 9 s by default.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500

# A misspelled log topic is an error, not a new topic.
auto.create.topics.enable=false
message.max.bytes={max_record_bytes}

# Small machine: few threads, a cleaner that does not take 128 MiB of heap, a quiet controller.
num.network.threads={network_threads}
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

# Of both listeners: a client that reaches the controller's may change everything, too.
_LOGIN_PROPERTIES: Final = """
sasl.enabled.mechanisms={mechanism}
sasl.mechanism.inter.broker.protocol={mechanism}
sasl.mechanism.controller.protocol={mechanism}
"""
_LISTENER_LOGIN_PROPERTIES: Final = """\
listener.name.{listener}.{mechanism}.sasl.jaas.config={jaas}
listener.name.{listener}.{mechanism}.sasl.server.callback.handler.class={handler}
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


def _new_cluster_id() -> str:
    """Return an identity for the storage of a log."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")


@dataclass(frozen=True, slots=True)
class KafkaServer:
    """One embedded log: where it lives and which ports it takes; starts nothing by itself."""

    directory: Path
    logs_dir: Path
    port: int
    controller_port: int
    heap_mebibytes: int = 256
    max_record_bytes: int = 66 * 1024 * 1024
    node_id: int = 1
    voters: str = ""
    """Brokers of a log of several: ID@HOST:CONTROLLER_PORT of each, with commas between."""
    cluster_id: str = field(default_factory=_new_cluster_id)
    """Identifier for a log that is new."""
    host: str = LOOPBACK
    security_file: Path | None = None
    """Login of the log, made at its first start; None: without login."""

    @property
    def bootstrap_servers(self) -> LogServers:
        return LogServers(f"{self.host}:{self.port}", self.security_file)

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
        if self.security_file is not None:
            _check_login(ensure_security(self.security_file), self.security_file)
        if not self.log_dir.exists():
            self._format()
        check_storage(self.directory, self.node_id)
        self._write_server_properties("log")

    def command(self, *, for_long: bool = False) -> list[str]:
        """Return the command that runs the log; its working directory must be `directory`.

        Args:
            for_long: `write_archive` is called while it runs; else it writes the archive of its
                classes when it ends, if there is none.
        """
        java = str(find_java_home(RUNTIME) / "bin" / "java")
        archive = self._archive(java)
        flags = []
        if archive is not None:
            flags = archive.options_of_busy() if for_long else archive.options()
        heap = f"-Xmx{self.heap_mebibytes}m"
        return [java, *self._options(heap, *flags), "kafka.Kafka", "server.properties"]

    def write_archive(self, pid: int) -> None:
        """Have the archive of the classes of a running log written, unless there is one.

        Raises:
            OperationalError: None was written.
        """
        archive = self._archive(str(find_java_home(RUNTIME) / "bin" / "java"))
        if archive is not None and not archive.is_written:
            archive.write_beside(pid)

    def _archive(self, java: str) -> ClassArchive | None:
        """Return the archive of its classes; None where no file can be written."""
        jars = sorted(jar.name for jar in KAFKA_JARS.glob("*.jar"))
        jars.append(str(broker_login_jar(self.directory)))
        return ClassArchive.of(KAFKA_JARS.parent / "classes", "kafka", java, jars, self.port)

    def environment(self) -> dict[str, str]:
        """Return the environment to run the command with."""
        # Few malloc arenas: the default of eight a core is address space that turns resident.
        return {**os.environ, "MALLOC_ARENA_MAX": "2"}

    def is_serving(self) -> bool:
        """Return whether the log answers that its broker is in service."""
        return is_serving(self.host, self.port, self.bootstrap_servers.security)

    def await_serving(self, exit_of: Callable[[], object | None], deadline: float) -> None:
        """Wait until a process that runs the log serves.

        Args:
            exit_of: Returns how the process has ended; None while it runs.
            deadline: Time of `time.monotonic`.

        Raises:
            OperationalError: It has ended, or does not serve in time.
        """
        while not self.is_serving():
            if exit_of() is not None or time.monotonic() > deadline:
                raise OperationalError(f"the log did not start: see {self.logs_dir / 'kafka.log'}")
            time.sleep(LOOK_SECONDS)

    def _options(self, *flags: str) -> list[str]:
        return [
            *_JVM_FLAGS,
            *flags,
            f"-XX:ErrorFile={self.logs_dir.resolve()}/kafka-crash.log",
            f"-Dmqlake.logs={self.logs_dir.resolve()}",
            "-Dlog4j2.configurationFile=log4j2.properties",
            "-cp",
            # With or without a login: one archive of classes is for one class path.
            f"{KAFKA_JARS}/*{os.pathsep}{broker_login_jar(self.directory)}",
        ]

    def _format(self) -> None:
        """Format into a folder of another name and rename it: a killed one leaves no half log."""
        unfinished = self.directory / "log.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        self._write_server_properties(unfinished.name)
        java = str(find_java_home(RUNTIME) / "bin" / "java")
        archive = self._archive(java)
        # It has too few classes to write the archive.
        flags = archive.options() if archive is not None and archive.is_written else []
        # In one word: one in 64 begins with a hyphen.
        tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={self.cluster_id}"]
        try:
            result = subprocess.run(
                [java, *self._options("-Xmx128m", *flags), *tool, "--config", "server.properties"],
                cwd=self.directory,
                capture_output=True,
                text=True,
                timeout=FORMAT_TIMEOUT_SECONDS,
                check=False,
                preexec_fn=die_with_parent,
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
        for path in (*unfinished.iterdir(), unfinished):
            sync(path)
        unfinished.rename(self.log_dir)
        sync(self.directory)

    def _write_server_properties(self, log_dir: str) -> None:
        voters = self.voters or f"{self.node_id}@{self.host}:{self.controller_port}"
        copies = min(COPIES, voters.count(",") + 1)
        security = self.bootstrap_servers.security
        text = _SERVER_PROPERTIES.format(
            node_id=self.node_id,
            voters=voters,
            copies=copies,
            in_sync=max(1, copies - 1),
            host=self.host,
            port=self.port,
            controller_port=self.controller_port,
            log_dir=log_dir,
            max_record_bytes=self.max_record_bytes,
            protocol=security.protocol,
            network_threads=NETWORK_THREADS,
        )
        if security.has_login:
            text += _login_properties(security)
        write_durably(self.directory / "server.properties", text.encode(), mode=0o600)


def _check_login(security: ClientSecurity, path: Path) -> None:
    if security.protocol != "SASL_PLAINTEXT" or not security.mechanism.startswith("SCRAM-"):
        raise OperationalError(
            f"{path} is for the embedded log, which takes SASL_PLAINTEXT with SCRAM alone: delete "
            "that file, and a new one is made"
        )


def _login_properties(security: ClientSecurity) -> str:
    lines = _LOGIN_PROPERTIES.format(mechanism=security.mechanism)
    # In a file of properties a backslash begins an escape.
    jaas = security.jaas().replace("\\", "\\\\")
    mechanism = security.mechanism.lower()
    for listener in ("client", "controller"):
        lines += _LISTENER_LOGIN_PROPERTIES.format(
            listener=listener, mechanism=mechanism, jaas=jaas, handler=HANDLER_CLASS
        )
    return lines


def check_storage(directory: Path, node_id: int = 1) -> None:
    """Refuse a log directory that is damaged or not ours; a missing one is fine.

    Raises:
        OperationalError: Names the fault; nothing has been touched.
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
    if values.get("node.id") != str(node_id) or not values.get("cluster.id"):
        raise OperationalError(
            f"the log in {log_dir} is damaged, meta.properties has no node.id={node_id} with a "
            f"cluster.id: {advice}"
        )


class ArchiveWriter:
    """Has the archive of a log's classes written once, some time after the log's start.

    Not when the log ends: whoever waits for that would wait three times as long.

    Args:
        write: Takes the pid of the log.
        monotonic: Clock, seconds.
    """

    def __init__(
        self, write: Callable[[int], None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._monotonic = monotonic
        self._pid = 0
        self._since = 0.0
        self._has_begun = False

    def look(self, pid: int) -> None:
        """Say that a log of this pid serves; now and then."""
        now = self._monotonic()
        if pid != self._pid:
            self._pid, self._since = pid, now
        if not self._has_begun and now - self._since >= ARCHIVE_AFTER_SECONDS:
            self._has_begun = True
            threading.Thread(target=self._run, args=(pid,), name="archive", daemon=True).start()

    def _run(self, pid: int) -> None:
        try:
            self._write(pid)
        except (OperationalError, OSError) as exc:
            _logger.warning("no archive of the log", extra={"fields": {"reason": str(exc)}})


@dataclass(slots=True)
class Brokers:
    """The brokers of one log, each of them a controller too, so that any may be missing.

    Attributes:
        servers: In the order of their ids, which begin with 1.
    """

    servers: tuple[KafkaServer, ...]
    _processes: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @classmethod
    def in_folder(cls, directory: Path, count: int) -> "Brokers":
        """Return `count` brokers that do not run yet, on free ports."""
        ports = free_ports(2 * count)
        places = [(LOOPBACK, *pair) for pair in zip(ports[:count], ports[count:], strict=True)]
        return cls.at(directory, _new_cluster_id(), places)

    @classmethod
    def at(
        cls, directory: Path, cluster_id: str, places: Sequence[tuple[str, int, int]]
    ) -> "Brokers":
        """Return those that do not run yet; each has a host, a port, and one as controller."""
        voters = ",".join(
            f"{number}@{host}:{port}" for number, (host, _, port) in enumerate(places, 1)
        )
        return cls(
            tuple(
                KafkaServer(
                    _folder(directory, number) / "kafka",
                    _folder(directory, number) / "logs",
                    port,
                    controller_port,
                    node_id=number,
                    voters=voters,
                    cluster_id=cluster_id,
                    host=host,
                )
                for number, (host, port, controller_port) in enumerate(places, 1)
            )
        )

    @property
    def bootstrap_servers(self) -> LogServers:
        addresses = ",".join(server.bootstrap_servers for server in self.servers)
        return LogServers(addresses, self.servers[0].security_file)

    def start(self) -> None:
        """Start those that do not run; wait until they serve.

        Raises:
            OperationalError: One of them cannot be prepared, or does not come up.
        """
        stopped = [one for one in self.servers if one.node_id not in self._processes]
        for server in stopped:
            server.prepare()
        for server in stopped:
            with (server.logs_dir / "log.out").open("ab") as output:
                self._processes[server.node_id] = subprocess.Popen(
                    server.command(),
                    cwd=server.directory,
                    env=server.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        for server in stopped:
            server.await_serving(self._processes[server.node_id].poll, deadline)

    def kill(self, *numbers: int) -> None:
        """End these brokers at once, all when none is named."""
        killed = [self._processes.pop(number) for number in numbers or list(self._processes)]
        for process in killed:
            process.kill()
        for process in killed:
            process.wait()

    @contextmanager
    def paused(self, number: int) -> Iterator[None]:
        """Let a broker stand still, as one whose machine does not answer."""
        process = self._processes[number]
        process.send_signal(signal.SIGSTOP)
        # Its threads go on until one has seen that: it stands still when its parent gets the
        # report.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Have all that run take leave."""
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS + class_archive.SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()


def _folder(directory: Path, number: int) -> Path:
    return directory if number == 1 else directory / f"broker-{number}"


@contextmanager
def running_brokers(directory: Path, count: int) -> Iterator[Brokers]:
    """Run a log of `count` brokers on free ports for the length of a `with` block.

    For tests, and for measurements of a log alone. `bin/mqlake up` has one broker: several on
    one machine share its disk and its power.

    Raises:
        OperationalError: It did not come up.
    """
    brokers = Brokers.in_folder(directory, count)
    with ExitStack() as stack:
        stack.callback(brokers.stop)
        brokers.start()
        yield brokers


@contextmanager
def running_kafka(directory: Path) -> Iterator[KafkaServer]:
    """Run a log of one broker for a `with` block, as `bin/mqlake up` has it."""
    with running_brokers(directory, 1) as brokers:
        yield brokers.servers[0]
