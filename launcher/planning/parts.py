"""The parts of a one-machine system: which programs, with which settings, in which order."""

import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ingest.gateway.settings.listeners import ListenerSettings, to_json
from launcher.child import ChildProgram
from launcher.log.kafka import ArchiveWriter, KafkaServer
from launcher.log.reserve import LogReserve
from launcher.log.room import LogRoomMeter
from launcher.paths import RUNTIME, DataDirectory
from launcher.planning.balancing import BALANCER, HAPROXY, Balancing, ask_haproxy
from launcher.settings import LocalSettings
from mqlake.durable import write_durably
from mqlake.log.security import LogServers, environment_of
from mqlake.processes import query_application
from mqlake.processes.heartbeat import read_heartbeat
from mqlake.processes.log_disk import environment_of as disk_environment
from mqlake.processes.status import GatewayAddress
from mqlake.settings import LogDiskSettings, MetricsSettings

LOG: Final = "log"
ROUTER: Final = "router"
LAKE: Final = "lake"
API: Final = "api"
RULES: Final = "rules"
FEDERATION: Final = "federation"
WITH_JAVA: Final = frozenset({ROUTER, LAKE, "query"})
"""Kinds of parts with a heartbeat that call Java."""
NEXT: Final = "{}-next"
"""Name of a process that is to take the place of another one."""
QUERY: Final = query_application.NAME

_MOST_USUAL_PARTITIONS: Final = 4

STOP_ORDER: Final = (
    ("api", "balancer", "federation"),
    ("gateway", "rules", "query"),
    ("haproxy",),  # gateways have said good-bye through it
    ("router", "lake"),
    ("log",),
)
"""Kinds of parts that are stopped side by side, when those before them have ended."""

STOPPED_EARLY: Final = ("lake",)
"""Kinds of parts that get the signal to stop before all others, and are awaited in their turn:
Spark takes seconds to end while it starts, and no other part needs the lake to stop."""

STOP_TIMEOUT_SECONDS: Final = {
    "api": 5.0,
    "balancer": 5.0,
    "federation": 10.0,
    "gateway": 10.0,
    "haproxy": 5.0,
    "rules": 15.0,
    "router": 30.0,
    "lake": 30.0,
    "query": 10.0,
    "log": 30.0,
}
"""How long a part of each kind may take to stop before it is killed."""

SYSTEM_STOP_TIMEOUT_SECONDS: Final = 15.0 + sum(
    max(STOP_TIMEOUT_SECONDS[kind] for kind in kinds) for kinds in STOP_ORDER
)
"""How long all of them may take."""


@dataclass(frozen=True, slots=True)
class PartHealth:
    healthy: bool
    detail: str
    figures: dict[str, Any] = field(default_factory=dict)
    beat: float | None = None
    """When it has last given a sign of life, by its own clock; 0: not yet; None: it gives none."""


@dataclass(frozen=True, slots=True)
class Part:
    """One program of the system and how to tell that it is well."""

    kind: str
    program: ChildProgram
    probe: Callable[[int], PartHealth]
    """Takes the pid of the running program."""
    needs_log_topics: bool = False
    after: str | None = None
    """Name of a part that is to be well before this one is started first."""
    awaited: bool = True
    """The system is ready only when this part is well."""
    beside: "Beside | None" = None
    """How another one takes its place without a gap; None: it is stopped first."""

    @property
    def name(self) -> str:
        return self.program.name


@dataclass(frozen=True, slots=True)
class Beside:
    """How a part is started beside itself, to take its place when it is asked to stop."""

    program: ChildProgram
    probe: Callable[[int], PartHealth]
    """Says that all flows; once the part is in its place, the part's own counts."""


@dataclass(frozen=True, slots=True)
class SystemPlan:
    """A whole system: its addresses and parts, the parts in the order of their start."""

    data: DataDirectory
    settings: LocalSettings
    kafka: KafkaServer | None
    """The embedded log; None: it is at `settings.log_servers`."""
    connect_port: int
    gateways: tuple[GatewayAddress, ...]
    listeners: Mapping[str, tuple[ListenerSettings, ...]]
    """Listeners of each gateway beside its MQTT port."""
    api_host: str
    api_port: int
    config_dir: Path
    metrics: Mapping[str, MetricsSettings]
    """Settings of metrics, by process."""
    balancing: Balancing | None = None
    """How clients are placed over the gateways; None: they choose one themselves."""
    federation: Path | None = None
    """Settings of the federator; None: there is none."""
    api_certificate: Path | None = None
    """That the API shows; None: it has no TLS."""

    @property
    def servers(self) -> LogServers:
        """Return the addresses of the log."""
        if self.kafka is not None:
            return self.kafka.bootstrap_servers
        security_file = self.settings.log_security_file
        # Parts run in the data directory.
        return LogServers(
            self.settings.log_servers, None if security_file is None else security_file.absolute()
        )

    @property
    def log_disk(self) -> LogDiskSettings:
        """Return the disk of the embedded log, and when it is full."""
        return LogDiskSettings(
            folder=None if self.kafka is None else self.kafka.log_dir,
            min_free_bytes=self.settings.log_min_free_bytes,
            max_bytes=self.settings.log_max_bytes,
        )

    def parts(self) -> list[Part]:
        return [
            *([] if self.kafka is None else [self._log(self.kafka)]),
            self._router(),
            self._python_part(
                RULES,
                RULES,
                self._log_environment(RULES),
                command="rules-runner",
                needs_log_topics=True,
            ),
            self._python_part(API, API, self._api_environment()),
            self._python_part(QUERY, QUERY, self._query_environment()),
            self._lake(),
            *(self._gateway(gateway) for gateway in self.gateways),
            *self._balancing_parts(),
            *self._federation_parts(),
        ]

    def topics_program(self) -> ChildProgram:
        """Return the program that makes the log ready; it waits for the log and ends."""
        settings = self.settings
        command = (
            *_python("launcher.log.topics", self.servers),
            str(self.servers.security_file or ""),
            str(settings.log_partitions or usual_partitions()),
            str(settings.session_shards),
            str(settings.log_retention_bytes),
            settings.durability,
            str(settings.ready_timeout_seconds),
            *(gateway.name for gateway in self.gateways),
        )
        output = self.data.output("log-topics")
        return ChildProgram(
            "log-topics", command, self.data.root, _environment(), output, output, 1.0
        )

    def log_program(self, kafka: KafkaServer) -> ChildProgram:
        """Return the program that is the log."""
        return ChildProgram(
            name=LOG,
            command=tuple(kafka.command(for_long=True)),
            directory=kafka.directory,
            environment=_environment(),
            output=self.data.output(LOG),
            log=kafka.logs_dir / "kafka.log",
            stop_timeout_seconds=STOP_TIMEOUT_SECONDS[LOG],
        )

    def _log(self, kafka: KafkaServer) -> Part:
        meter = LogRoomMeter(self.log_disk)
        reserve = LogReserve(kafka.directory / "reserve", self.settings.log_min_free_bytes)

        archive = ArchiveWriter(kafka.write_archive)

        def probe(pid: int) -> PartHealth:
            reserve.look()
            if not kafka.is_serving():
                return PartHealth(False, "does not answer")
            archive.look(pid)
            room = meter.read()
            serving = f"serving {kafka.bootstrap_servers}"
            if room is None:
                return PartHealth(True, serving)
            return PartHealth(True, f"{serving}; {room.describe()}", {"room": room.figures})

        return Part(LOG, self.log_program(kafka), probe)

    def _gateway(self, gateway: GatewayAddress) -> Part:
        environment = {
            "MQLAKE_GATEWAY_NAME": gateway.name,
            "MQLAKE_GATEWAY_HOST": gateway.host,
            "MQLAKE_GATEWAY_PORT": str(gateway.port),
            "MQLAKE_GATEWAY_LISTENERS": to_json(self.listeners[gateway.name]),
            "MQLAKE_GATEWAY_LAKE_DIR": str(self.data.root),
            "MQLAKE_GATEWAY_STORE_DIR": str(self.data.gateways / gateway.name),
            # Whoever stops a part waits for seconds; `bin/mqlake drain` comes before a restart.
            "MQLAKE_GATEWAY_DRAIN_SECONDS": "0",
            **self._log_environment("gateway"),
        }
        if self.balancing is not None:
            # Clients reach no gateway but by the balancer.
            environment["MQLAKE_GATEWAY_SERVER_REFERENCE"] = self.balancing.server_reference
            environment["MQLAKE_GATEWAY_REDIRECT_CLIENTS"] = "false"
        return self._python_part("gateway", gateway.name, environment, needs_log_topics=True)

    def _balancing_parts(self) -> list[Part]:
        balancing = self.balancing
        if balancing is None:
            return []
        environment = balancing.environment() | environment_of(self.servers, BALANCER)
        output = self.data.output(HAPROXY)
        program = ChildProgram(
            name=HAPROXY,
            command=tuple(balancing.program_arguments()),
            directory=self.data.root,
            environment=_environment(),
            output=output,
            log=output,
            stop_timeout_seconds=STOP_TIMEOUT_SECONDS[HAPROXY],
        )

        def probe(_pid: int) -> PartHealth:
            connections = ask_haproxy(self.data.balancer / "haproxy.sock")
            if connections is None:
                return PartHealth(False, "does not answer")
            return PartHealth(True, f"serving {balancing.entrances[0]}; {connections} connections")

        return [
            self._python_part(BALANCER, BALANCER, environment, needs_log_topics=True),
            Part(HAPROXY, program, probe),
        ]

    def _federation_parts(self) -> list[Part]:
        if self.federation is None:
            return []
        return [
            self._python_part(
                FEDERATION,
                FEDERATION,
                self._log_environment(FEDERATION),
                config=self.federation,
                needs_log_topics=True,
            )
        ]

    def _router(self) -> Part:
        part = self._python_part(ROUTER, ROUTER, self._engine_environment(ROUTER))
        program = replace(
            part.program,
            command=(*part.program.command, "--beside"),
            output=self.data.output(NEXT.format(ROUTER)),
        )
        heartbeat = self.data.heartbeat(NEXT.format(ROUTER))
        beside = Beside(program, lambda pid: probe_heartbeat(heartbeat, pid))
        return replace(part, beside=beside)

    def _lake(self) -> Part:
        environment = self._engine_environment(LAKE) | {
            **disk_environment(self.log_disk, LAKE),
            "MQLAKE_LAKE_LOG_RETENTION_HOURS": str(self.settings.log_retention_hours),
            "MQLAKE_LAKE_LOG_RETENTION_BYTES": str(self.settings.log_retention_bytes),
        }
        # Messages flow first: it starts when all that they need has started.
        return replace(self._python_part(LAKE, LAKE, environment), after=ROUTER, awaited=False)

    def _engine_environment(self, name: str) -> dict[str, str]:
        prefix = f"MQLAKE_{name.upper()}_"
        return {
            f"{prefix}DATA_DIR": str(self.data.root),
            f"{prefix}JARS_DIR": str(RUNTIME / "jars"),
            f"{prefix}RULES_KEY": ensure_token(self.data.rules_key),
            **environment_of(self.servers, name),
        }

    def _query_environment(self) -> dict[str, str]:
        return {
            "MQLAKE_QUERY_DATA_DIR": str(self.data.root),
            "MQLAKE_QUERY_JARS_DIR": str(RUNTIME / "jars"),
            "MQLAKE_QUERY_CONNECT_PORT": str(self.connect_port),
            "MQLAKE_QUERY_CONNECT_TOKEN": ensure_token(self.data.connect_token),
        }

    def _api_environment(self) -> dict[str, str]:
        ensure_token(self.data.api_token)
        return {
            "MQLAKE_API_HOST": self.api_host,
            "MQLAKE_API_PORT": str(self.api_port),
            "MQLAKE_API_DATA_DIR": str(self.data.root),
            "MQLAKE_API_TOKEN_FILE": str(self.data.api_token),
            **self._log_environment(API),
        }

    def _log_environment(self, process: str) -> dict[str, str]:
        """Return what tells a process that puts messages into the log where and how full it is."""
        return environment_of(self.servers, process) | disk_environment(self.log_disk, process)

    def _python_part(
        self,
        kind: str,
        name: str,
        values: dict[str, str],
        *,
        command: str = "",
        config: Path | None = None,
        needs_log_topics: bool = False,
    ) -> Part:
        heartbeat = self.data.heartbeat(name)
        log = self.data.logs / f"{name}.log"
        prefix = f"MQLAKE_{kind.upper()}_"
        values |= {
            f"{prefix}HEARTBEAT_FILE": str(heartbeat),
            f"{prefix}LOG_FILE": str(log),
            f"{prefix}METRICS__PORT": str(self.metrics[name].port),
        }
        config = config or self.config_dir / f"{kind}.toml"
        arguments = ("--config", str(config)) if config.is_file() else ()
        program = ChildProgram(
            name=name,
            command=(*_python("cli", command or kind), *arguments),
            directory=self.data.root,
            environment=_environment() | values,
            output=self.data.output(name),
            log=log,
            stop_timeout_seconds=STOP_TIMEOUT_SECONDS[kind],
        )
        return Part(kind, program, lambda pid: probe_heartbeat(heartbeat, pid), needs_log_topics)


def usual_partitions() -> int:
    """Return how many partitions a new log has on this machine.

    Each costs requests of its own, and is routed by one task at a time.
    """
    return min(_MOST_USUAL_PARTITIONS, max(1, (os.cpu_count() or 1) // 2))


def probe_heartbeat(path: Path, pid: int) -> PartHealth:
    """Return the health in the process's last heartbeat; one of an earlier run does not count."""
    beat = read_heartbeat(path)
    if beat is None or beat.pid != pid:
        return PartHealth(False, "starting", beat=0.0)
    if not beat.is_fresh():
        detail = f"no heartbeat since it said: {beat.detail}"
        return PartHealth(False, detail, beat.figures, beat.written_at)
    detail = beat.detail
    if ahead := beat.ahead_seconds():
        detail += f"; its heartbeat is {ahead:.0f} s in the future: the clock went back"
    return PartHealth(beat.healthy, detail, beat.figures, beat.written_at)


def ensure_token(path: Path) -> str:
    """Return the token in a file that only its owner can read; made at the first call."""
    try:
        token = path.read_text(encoding="ascii").strip()
        if token:
            return token
    except FileNotFoundError:
        pass
    token = secrets.token_urlsafe(32)
    write_durably(path, f"{token}\n".encode(), mode=0o600)
    return token


def _python(module: str, *arguments: str) -> tuple[str, ...]:
    # -P: the working directory is the user's data, not a place to import from.
    return (sys.executable, "-P", "-m", module, *arguments)


def _environment() -> dict[str, str]:
    # Few malloc arenas: the default of eight a core is address space that turns resident.
    # Stacks of all threads of a process that hangs, or crashes, go to its output.
    return {**os.environ, "MALLOC_ARENA_MAX": "2", "PYTHONFAULTHANDLER": "1"}
