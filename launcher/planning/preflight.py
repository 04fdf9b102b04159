"""Checks before anything starts. Each touches nothing and refuses in one sentence."""

import errno
import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launcher.log.kafka import check_storage
from launcher.paths import DataDirectory
from mqlake.errors import OperationalError

GATEWAY_MEMORY_MB: Final = 100
"""Each gateway beyond the first takes about this much."""

_RESTORE: Final = "restore it from a backup, or start with another --data-dir"


@dataclass(frozen=True, slots=True)
class WantedPort:
    """A port that a part will listen on, and how the user chooses another."""

    host: str
    port: int
    part: str
    option: str


def check_directory(data: DataDirectory) -> None:
    """Refuse a data directory that cannot be written or holds files of another user.

    Raises:
        OperationalError: Says which.
    """
    root = data.root
    if root.exists() and not root.is_dir():
        raise OperationalError(
            f"the data directory {root} is a file: choose a folder with --data-dir"
        )
    existing = next(parent for parent in (root, *root.parents) if parent.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise OperationalError(
            f"the data directory {root} cannot be written by this user: change its owner or choose "
            "another with --data-dir"
        )
    if root.exists() and not data.lock.exists():
        foreign = sorted(entry.name for entry in root.iterdir() if entry.name != "lost+found")
        if foreign:
            raise OperationalError(
                f"the folder {root} holds files that are not mqlake's ({', '.join(foreign[:3])}): "
                "choose an empty or new one with --data-dir"
            )


def check_contents(data: DataDirectory, *, embedded: bool) -> None:
    """Refuse a data directory parts of which are lost; the rest is left as it is.

    Args:
        data: The directory.
        embedded: The log is in it.

    Raises:
        OperationalError: Names the file that is missing or unreadable.
    """
    if embedded:
        _check_log(data)
    elif (data.kafka / "log").exists():
        raise OperationalError(
            f"{data.root} has a log of its own, which log_servers would leave unread: leave that "
            "out, or choose another --data-dir"
        )
    for table in _entries(data.tables):
        if table.name.startswith("."):
            continue  # being removed, or made: the lake finishes it
        if table.is_dir() and _has_entries(table) and not (table / "_delta_log").is_dir():
            raise OperationalError(
                f"the table {table} is damaged, it has no _delta_log: {_RESTORE}"
            )


def _check_log(data: DataDirectory) -> None:
    check_storage(data.kafka)
    if not (data.kafka / "log").exists() and _has_entries(data.checkpoints, but="lock"):
        raise OperationalError(
            f"the log in {data.kafka / 'log'} is missing while {data.checkpoints} counts on it: "
            + _RESTORE
        )


def check_memory(available_bytes: int, wanted_mb: int, gateways: int) -> None:
    """Refuse a machine whose memory would not hold the system.

    Raises:
        OperationalError: Says how much is there and how much is needed.
    """
    wanted = wanted_mb + (gateways - 1) * GATEWAY_MEMORY_MB
    if available_bytes < wanted * 1_000_000:
        raise OperationalError(
            f"{available_bytes / 1e9:.1f} GB of memory are available, {wanted / 1e3:.1f} GB are "
            "needed: end other programs or take a larger machine (setting min_available_memory_mb)"
        )


def check_disk(root: Path, wanted_mb: int) -> None:
    """Refuse a disk that is nearly full.

    Raises:
        OperationalError: Says how much is there and how much is needed.
    """
    existing = next(parent for parent in (root, *root.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < wanted_mb * 1_000_000:
        raise OperationalError(
            f"{free / 1e9:.1f} GB of disk are free in {existing}, {wanted_mb / 1e3:.1f} GB are "
            "needed: free some or choose another disk with --data-dir (setting min_free_disk_mb)"
        )


def check_ports(wanted: list[WantedPort]) -> None:
    """Refuse ports that are taken, not allowed or wanted twice.

    Raises:
        OperationalError: Names the port and the option that changes it.
    """
    parts: dict[int, str] = {}
    for want in wanted:
        problem = f"of {want.part}" if want.port in parts else None
        if want.port > 65535:
            problem = f"for {want.part} does not exist"
        elif problem is not None:
            problem = f"is wanted by {parts[want.port]} and {want.part}"
        else:
            problem = _port_problem(want)
        if problem is not None:
            raise OperationalError(f"port {want.port} {problem}: choose another with {want.option}")
        parts[want.port] = want.part


def _port_problem(want: WantedPort) -> str | None:
    family = socket.AF_INET6 if ":" in want.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((want.host, want.port))
            listener.listen(1)
        except PermissionError:
            return f"for {want.part} may not be opened by this user"
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                shown = f"ss -ltnp sport = :{want.port}"
                return f"for {want.part} is in use by another program (`{shown}` shows it)"
            return f"for {want.part} cannot be opened on {want.host} ({exc.strerror})"
    return None


def available_memory(meminfo: str, limits: Mapping[str, str]) -> int:
    """Return the bytes that programs can still take.

    Args:
        meminfo: Text of /proc/meminfo.
        limits: `memory.max` and `memory.current` of this process's control group, if any.
    """
    available = next(
        int(line.split()[1]) * 1024
        for line in meminfo.splitlines()
        if line.startswith("MemAvailable:")
    )
    limit = limits.get("memory.max", "max").strip()
    if limit.isdigit():
        available = min(available, int(limit) - int(limits.get("memory.current", "0")))
    return max(0, available)


def read_available_memory() -> int:
    """Return the bytes that programs on this machine can still take."""
    limits = {}
    for name in ("memory.max", "memory.current"):
        path = Path("/sys/fs/cgroup", name)
        if path.is_file():
            limits[name] = path.read_text(encoding="ascii")
    return available_memory(Path("/proc/meminfo").read_text(encoding="ascii"), limits)


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _has_entries(directory: Path, *, but: str = "") -> bool:
    return any(entry.name != but for entry in _entries(directory))
