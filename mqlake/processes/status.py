"""Processes of one data directory on this machine, as its supervisor last wrote them down.

The supervisor replaces `<data-dir>/state.json` when something changes and at least every few
seconds; the command line and the API read it here. A process is known by its pid together with the
tick at which it started: pids are used again.
"""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from mqlake.errors import OperationalError
from mqlake.log.security import LogServers

STATE_FILE: Final = "state.json"
STATE_VERSION: Final = 1
REFRESH_SECONDS: Final = 5.0
STALE_SECONDS: Final = 20.0
"""A state older than this comes from a supervisor that does not get to run."""
RECOVERED_SECONDS: Final = 3600.0
"""A process that was started again and has run for so long since is no matter for anybody."""


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """One process as `mqlake status` shows it."""

    name: str
    pid: int | None
    healthy: bool
    detail: str
    """One line: its present work, or its trouble."""
    restarts: int = 0
    last_exit: str | None = None
    """Why it ended last time; None when it never did."""
    uptime_seconds: float = 0.0
    rss_bytes: int = 0
    """Resident memory of the process and its children."""
    cpu_percent: float = 0.0
    """Part of one core since the last measurement, with its children."""
    cpu_seconds: float = 0.0
    """Since it started; with its children."""
    start_ticks: int | None = None
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        """Tell whether it ran when this was written and does not run any more."""
        return self.pid is not None and start_ticks(self.pid) != self.start_ticks


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    name: str
    host: str
    port: int
    listeners: tuple[str, ...] = ()
    """URLs of its further listeners."""

    @property
    def url(self) -> str:
        return f"mqtt://{url_host(self.host)}:{self.port}"


@dataclass(frozen=True, slots=True)
class SystemState:
    """Everything a command must know to talk to a running system."""

    pid: int
    """Process of the supervisor."""
    start_ticks: int
    boot_id: str
    started_at: float
    """Seconds since the UTC epoch, as `written_at`."""
    written_at: float
    phase: str
    """`starting`, `running` or `stopping`."""
    bootstrap_servers: str
    """Once it was read also how the log lets one in (`LogServers`)."""
    controller_port: int | None
    """Port of the embedded log; None: the log is not part of this system."""
    api_url: str
    connect_port: int
    gateways: tuple[GatewayAddress, ...]
    processes: tuple[ProcessReport, ...] = ()
    metrics: dict[str, str] = field(default_factory=dict)
    """Process -> where Prometheus finds its metrics."""
    entrances: tuple[str, ...] = ()
    """URLs at which clients connect to be placed over the gateways; none: they choose one."""
    durability: str = "D1"
    """Class of `mqlake.log.durability` that the log was set to."""
    api_certificate: str = ""
    """File with the certificate that the API shows; empty: it has no TLS."""
    log_security_file: str = ""
    """File with the login of the log; empty: no login."""

    @property
    def is_alive(self) -> bool:
        """Tell whether the supervisor that wrote this still runs."""
        return self.boot_id == boot_id() and start_ticks(self.pid) == self.start_ticks

    def to_json(self) -> str:
        return json.dumps({"version": STATE_VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "SystemState":
        """Undo `to_json`.

        Raises:
            ValueError: It has another form or version.
        """
        try:
            values = json.loads(text)
            if values.pop("version") != STATE_VERSION:
                raise ValueError(f"state of another version, expected {STATE_VERSION}")
            gateways = tuple(
                GatewayAddress(**{**gateway, "listeners": tuple(gateway.get("listeners", ()))})
                for gateway in values.pop("gateways")
            )
            processes = tuple(ProcessReport(**process) for process in values.pop("processes"))
            entrances = tuple(values.pop("entrances", ()))
            security = values.get("log_security_file")
            values["bootstrap_servers"] = LogServers(
                values["bootstrap_servers"], Path(security) if security else None
            )
            return cls(**values, gateways=gateways, processes=processes, entrances=entrances)
        except (AttributeError, KeyError, TypeError) as exc:
            raise ValueError(f"state of another form: {exc}") from exc


def url_host(host: str) -> str:
    """Return the host under which a listener on this address is reached from this machine."""
    if host in {"0.0.0.0", "::", ""}:  # noqa: S104 - compared, not bound
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def boot_id() -> str:
    """Return the identifier of this boot of the machine; process ids begin again with each."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None when it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses and may hold anything.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def load_state(data_dir: Path) -> SystemState | None:
    """Return the last state written, whether or not that system still runs; None without any.

    Raises:
        OperationalError: The file is damaged.
    """
    path = data_dir / STATE_FILE
    try:
        text = path.read_text(encoding="utf-8")
        # Empty: the first of a machine that lost power before the kernel had written it.
        return SystemState.from_json(text) if text else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as exc:
        raise OperationalError(
            f"{path} is damaged ({exc}): when no process of this system runs any more, delete that "
            "file and start again; it holds no messages"
        ) from exc


def read_state(data_dir: Path) -> SystemState:
    """Return the running system's state.

    Raises:
        OperationalError: None runs on this data directory.
    """
    state = load_state(data_dir)
    if state is None or not state.is_alive:
        raise OperationalError(
            f"no system runs on {data_dir}; start it with: bin/mqlake up --data-dir {data_dir}"
        )
    return state


def report(state: SystemState, *, now: float | None = None) -> dict[str, Any]:
    """Return the content of `mqlake status --json` and of `/api/v1/processes`."""
    age = (time.time() if now is None else now) - state.written_at
    processes = []
    for process in state.processes:
        shown = asdict(process)
        del shown["start_ticks"]
        if age > STALE_SECONDS:
            shown["healthy"] = False
            shown["detail"] = f"the supervisor has written nothing for {age:.0f} s"
        elif process.has_ended:  # its supervisor is about to find out
            shown["healthy"] = False
            shown["detail"] = "has just ended"
        processes.append(shown)
    return {
        "healthy": state.phase == "running" and all(shown["healthy"] for shown in processes),
        "phase": state.phase,
        "started_at": state.started_at,
        "entrances": list(state.entrances),
        "mqtt": [gateway.url for gateway in state.gateways],
        "listeners": {
            gateway.name: [gateway.url, *gateway.listeners] for gateway in state.gateways
        },
        "api": state.api_url,
        "log": state.bootstrap_servers,
        "durability": state.durability,
        "metrics": state.metrics,
        "processes": processes,
    }


def replace_file(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the old or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
