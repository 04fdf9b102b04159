"""Disk, files, tables, checkpoints, ports."""

import os
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from launcher.doctor.contract import Finding, Patient, error, ok, warning
from launcher.log.room import in_words
from launcher.paths import OTHERS
from launcher.planning.parts import LOG
from mqlake.processes.control_socket import connect
from mqlake.processes.query_application import SOCKET_FILE
from mqlake.tables.catalogue import TABLES

GIB: Final = 1024**3
LEAST_DISK_BYTES: Final = GIB
"""Gateways refuse publishers below half of that."""
LITTLE_DISK_BYTES: Final = 5 * GIB
LEAST_LOG_SECONDS: Final = 3600.0
LITTLE_LOG_SECONDS: Final = 6 * 3600.0
LARGE_CHECKPOINT_BYTES: Final = 2 * GIB
MANY_CHECKPOINT_FILES: Final = 20_000
MANY_COMMITS: Final = 2_000
"""Files that a reader of a table has to look through, if checkpoints of it are not written."""
CONNECT_SECONDS: Final = 2.0


def look_at_disk(patient: Patient) -> Iterator[Finding]:
    """Is there room for further data?"""
    root = patient.data.root
    if not root.is_dir():
        return
    usage = shutil.disk_usage(root)
    sizes = ", ".join(
        f"{folder.name} {size_and_files(folder)[0] / GIB:.2f} GiB"
        for folder in (patient.data.kafka, patient.data.tables, patient.data.checkpoints)
    )
    detail = f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB are free ({sizes})"
    advice = (
        "free some, or keep less: log_retention_bytes in conf/local.toml, PUT /api/v1/retention"
    )
    if usage.free < LEAST_DISK_BYTES:
        yield error("disk", detail, advice)
    elif usage.free < LITTLE_DISK_BYTES:
        yield warning("disk", detail, advice)
    else:
        yield ok("disk", detail)
    files = os.statvfs(root)
    if files.f_files and files.f_favail < files.f_files // 50:
        yield warning("disk", f"{files.f_favail} more files fit", "delete other files")


def look_at_log_room(patient: Patient) -> Iterator[Finding]:
    """How long does the disk of the log last, at the present rate?"""
    room = patient.figures(LOG).get("room")
    if room is None:
        return
    advice = "free disk, or lower log_retention_bytes; if a query is behind, help it first"
    if room["why_full"]:
        yield error(
            "log room", f"the log is full, messages are refused: {room['why_full']}", advice
        )
        return
    if room["growth_bytes_per_second"] is None:
        return
    lasts = room["lasts_seconds"]
    if lasts is None:
        yield ok("log room", f"the log does not grow, {room['taken_bytes'] / GIB:.2f} GiB")
        return
    detail = (
        f"at {room['growth_bytes_per_second'] / 1e6:.2f} MB/s the log has room for "
        f"{in_words(lasts)}, then messages are refused"
    )
    if lasts < LEAST_LOG_SECONDS:
        yield error("log room", detail, advice)
    elif lasts < LITTLE_LOG_SECONDS:
        yield warning("log room", detail, advice)
    else:
        yield ok("log room", detail)


def look_at_files(patient: Patient) -> Iterator[Finding]:
    """Are secrets readable by their owner alone, and ours?"""
    private = 0
    data = patient.data
    secrets = [data.api_token, data.connect_token, data.rules_key]
    if data.kafka.exists():
        secrets.append(data.log_security)
    for path in secrets:
        try:
            found = path.stat()
        except FileNotFoundError:
            if patient.state is not None:
                yield error("files", f"{path} is missing", "restart the system: it makes a new one")
            continue
        mode = stat.S_IMODE(found.st_mode)
        if mode & OTHERS:
            yield error(
                "files",
                f"{path} can be read by others (mode {mode:04o}): any of them is administrator",
                f"chmod 600 {path}; delete it and restart for a new secret",
            )
        elif found.st_uid != os.geteuid():
            yield warning(
                "files", f"{path} belongs to user {found.st_uid}", "run mqlake as one user"
            )
        else:
            private += 1
    root = patient.data.root
    if root.is_dir() and (mode := stat.S_IMODE(root.stat().st_mode)) & OTHERS:
        yield error(
            "files",
            f"others may look into {root} (mode {mode:04o}): the log and the tables lie there",
            f"chmod 700 {root}",
        )
    if private:
        yield ok("files", f"{private} secrets are private")


def look_at_tables(patient: Patient) -> Iterator[Finding]:
    """Can each table be read, without Spark?"""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    read = 0
    for table in TABLES:
        path = patient.data.tables / table.name
        if not path.is_dir():
            continue
        try:
            found = DeltaTable(str(path))
            found.schema()
        except (DeltaError, OSError) as exc:
            reason = str(exc).splitlines()[0][:200]
            yield error("tables", f"{table.name} cannot be read: {reason}", "restore it")
            continue
        read += 1
        newest = sorted(path.glob("_delta_log/*.checkpoint*.parquet"))
        since = found.version() - (int(newest[-1].name[:20]) if newest else 0)
        if since > MANY_COMMITS:
            yield warning(
                "tables",
                f"{table.name}: {since} commits since its last checkpoint make it slow to read",
                f"see {patient.data.logs / 'lake.log'} for the error",
            )
    if read:
        yield ok("tables", f"{read} can be read")


def look_at_checkpoints(patient: Patient) -> Iterator[Finding]:
    """Do checkpoints of queries stay small?"""
    sizes = {
        path.name: size_and_files(path)
        for path in _folders(patient.data.checkpoints)
        if path.is_dir()
    }
    for name, (size, files) in sizes.items():
        if size > LARGE_CHECKPOINT_BYTES or files > MANY_CHECKPOINT_FILES:
            yield warning(
                "checkpoints",
                f"{name}: {size / GIB:.2f} GiB in {files} files",
                "a stateful rule keeps too much (long windows, many keys): see GET "
                "/api/v1/metrics, queries"
                if name == "stateful"
                else f"see {patient.data.logs / 'lake.log'}",
            )
    if sizes:
        total = sum(size for size, _ in sizes.values())
        yield ok("checkpoints", f"{total / 1e6:.1f} MB in {len(sizes)} folders")


def look_at_ports(patient: Patient) -> Iterator[Finding]:
    """Does a server listen at each port of the system?"""
    state = patient.running
    wanted = {f"log {state.bootstrap_servers}": state.bootstrap_servers}
    wanted["queries"] = f"unix://{patient.data.root / SOCKET_FILE}"
    wanted["API"] = urlsplit(state.api_url).netloc
    for gateway in state.gateways:
        for url in (gateway.url, *gateway.listeners):
            wanted[f"{gateway.name} {url}"] = (
                url if url.startswith("unix:") else urlsplit(url).netloc
            )
    for url in state.entrances:
        wanted[f"clients {url}"] = urlsplit(url).netloc
    for name, url in state.metrics.items():
        wanted[f"metrics of {name}"] = urlsplit(url).netloc
    closed = [part for part, address in wanted.items() if not is_open(address)]
    for part in closed:
        yield error(
            "ports",
            f"no process listens for {part}",
            "see the log of the process; a firewall or another program may be in the way",
        )
    yield ok("ports", f"{len(wanted) - len(closed)} are open")


def is_open(address: str) -> bool:
    """Tell whether a server listens at `host:port`, or on a Unix socket `unix://path`."""
    path = address.partition("unix://")[2]
    try:
        if path:
            connect(Path(path), CONNECT_SECONDS).close()
            return True
        host, _, port = address.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS):
            return True
    except OSError:
        return False


def size_and_files(folder: Path) -> tuple[int, int]:
    """Return how many bytes and files a folder holds; files come and go meanwhile."""
    size = files = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except OSError:
                continue
            files += 1
    return size, files


def _folders(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
