"""A control plane of the balancer and a HAProxy for a measurement, in a folder of their own."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launcher.child import die_with_parent
from mqlake.errors import OperationalError
from mqlake.processes.control_socket import ask_balancer

READY_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.1
STOP_SECONDS: Final = 15.0


@contextmanager
def control_plane(folder: Path, settings: str) -> Iterator["ProxiedProcess"]:
    """Run one with these settings (TOML) until the block is over; it has no past."""
    config = folder / "balancer.toml"
    for old in ("state.json", "control.sock"):
        (folder / old).unlink(missing_ok=True)
    config.write_text(
        f'state_file = "{folder}/state.json"\ncontrol_socket = "{folder}/control.sock"\n{settings}'
    )
    with running(
        [sys.executable, "-P", "-m", "cli", "balancer", "--config", str(config)],
        folder / "balancer.log",
    ) as plane:
        yield plane


@dataclass(frozen=True, slots=True)
class ProxiedProcess:
    """A process, and the file with its output."""

    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def running(command: list[str], log: Path) -> Iterator[ProxiedProcess]:
    """Run a program until the block is over."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, preexec_fn=die_with_parent
        )
    try:
        yield ProxiedProcess(process, log)
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def is_ready(folder: Path, nodes: int, talkers: int = 0) -> bool:
    """Tell whether `nodes` take clients, `talkers` have places, and the proxies know."""
    try:
        told: dict[str, Any] = ask_balancer(folder / "control.sock", action="status")
    except OperationalError:
        return False
    return (
        sum(node["takes_clients"] for node in told["nodes"]) == nodes
        and told["talkers"] >= talkers
        and all(proxy["version"] == told["version"] for proxy in told["proxies"])
    )


def await_ready(problem: str, condition: Callable[[], bool], *parts: ProxiedProcess) -> None:
    """Wait until something is so.

    Raises:
        OperationalError: It is not in time, or one of the processes has ended.
    """
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        for part in parts:
            if part.process.poll() is not None:
                said = part.log.read_text(errors="replace").strip().splitlines() or ["nothing"]
                raise OperationalError(f"the balancer: a process has ended: {said[-1]}")
        if time.monotonic() > deadline:
            raise OperationalError(f"the balancer: {problem} within {READY_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)
