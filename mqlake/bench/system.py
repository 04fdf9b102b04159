"""The system under measurement and the programs that put the load on it."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mqlake.bench.loader import Load, LoadResult, run_load
from mqlake.bench.processes import cpu_percent_of, processes_of
from mqlake.bench.programs import Programs
from mqlake.errors import OperationalError
from mqlake.heartbeat import read_heartbeat
from mqlake.local.child import die_with_parent
from mqlake.local.ports import free_ports
from mqlake.local.testing import LocalSystem
from mqlake.status import SystemState, read_state

QUIET_PERCENT: Final = 60.0
QUIET_SECONDS: Final = 20.0
"""How long to wait at most until the system has done what an earlier load left it to do."""

GATEWAY_NAME: Final = "bench"
GATEWAY_START_SECONDS: Final = 30.0
GATEWAY_STOP_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class Bench:
    """A running system and the load programs to put on it."""

    data_dir: Path
    programs: Programs
    ready_seconds: float | None = None
    """From the command to the line that says ready; None when it ran already."""
    own: LocalSystem | None = None
    """Started for the bench, which may do with it what it likes; None: somebody uses it."""
    note: Callable[[str], None] = print
    """Tells the user something beside the figures."""

    @property
    def state(self) -> SystemState:
        """What runs now: processes may have come and gone."""
        return read_state(self.data_dir)

    @property
    def gateways(self) -> list[str]:
        return [f"127.0.0.1:{gateway.port}" for gateway in self.state.gateways]

    def run(self, load: Load) -> LoadResult:
        """Wait until the system is quiet, then put a load on it.

        Raises:
            OperationalError: The loader gave up.
        """
        self.await_quiet()
        return run_load(self.programs.loader, load)

    def await_quiet(self) -> None:
        """Wait until the system has done what an earlier load left it to do, within limits."""
        pids = processes_of(self.state)
        deadline = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < deadline:
            if sum(cpu_percent_of(pids, 1.0).values()) < QUIET_PERCENT:
                return


@dataclass(frozen=True, slots=True)
class FreshGateway:
    """A gateway process that has served nobody yet."""

    pid: int
    address: str


@contextmanager
def fresh_gateway(state: SystemState) -> Iterator[FreshGateway]:
    """Add a gateway to the system for the length of a `with` block.

    It has default settings and the environment of those that the launcher starts.

    Raises:
        OperationalError: It does not become healthy.
    """
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="mqlake-bench-gateway-") as name:
        folder = Path(name)
        heartbeat, log = folder / "heartbeat.json", folder / "gateway.log"
        environment = {
            "MALLOC_ARENA_MAX": "2",
            "MQLAKE_GATEWAY_NAME": GATEWAY_NAME,
            "MQLAKE_GATEWAY_HOST": "127.0.0.1",
            "MQLAKE_GATEWAY_PORT": str(port),
            "MQLAKE_GATEWAY_STORE_DIR": str(folder / "store"),
            "MQLAKE_GATEWAY_LOG__BOOTSTRAP_SERVERS": state.bootstrap_servers,
            "MQLAKE_GATEWAY_HEARTBEAT_FILE": str(heartbeat),
            "MQLAKE_GATEWAY_LOG_FILE": str(log),
        }
        process = subprocess.Popen(
            (sys.executable, "-P", "-m", "mqlake", "gateway"),
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        try:
            _await_healthy(process, heartbeat, log)
            yield FreshGateway(process.pid, f"127.0.0.1:{port}")
        finally:
            process.terminate()
            try:
                process.wait(GATEWAY_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_healthy(process: "subprocess.Popen[bytes]", heartbeat: Path, log: Path) -> None:
    deadline = time.monotonic() + GATEWAY_START_SECONDS
    while True:
        beat = read_heartbeat(heartbeat)
        if beat is not None and beat.healthy:
            return
        if process.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
            words = lines[-1] if lines else f"exit code {process.returncode}"
            raise OperationalError(f"a gateway for the measurement does not start: {words}")
        time.sleep(0.05)
